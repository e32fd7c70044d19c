"""The bytes of a write unit: what one write appends to a segment, valid whole or not at all.

     0      4   5   6       8            12           16            24            32
     +------+---+---+-------+------------+------------+-------------+-------------+
     |"rqwu"|ver|flg| zeros | body_bytes | records    | position    | number      |
     |      |u8 |u8 | u16   | u32        | u32        | u64         | u64         |
     +------+---+---+-------+------------+------------+-------------+-------------+
  32 | write_seq  u64       | previous  u64           | boot  u64                 |
  56 | synced_through  u64  | commit_index  u64       | commit_chain  16 bytes    |
  88 | term  u64            | vote  u64               | last_index  u64           |
 112 | last_term  u64       | last_chain  16 bytes    | body_checksum  u64        |
 144 | checksum  u64        |
     +----------------------+-----------------------------------------------------+
 152 | body: records, one behind the other, body_bytes in all                     |
     +----------------------------------------------------------------------------+

Little-endian. `seed` = xxh3_64(u64 replica incarnation | u64 segment sequence):

    body_checksum = xxh3_64(body, seed)         checksum = xxh3_64(bytes 0..144, seed)

so a header can be believed without its body, and `checksum` covers both. `position` is where the
unit lies in its file: a copy of a unit inside a message never verifies. `number` counts units, the
marks without a write too; `previous` is the checksum of unit number - 1. `synced_through` is the
highest number whose sync had returned when this header was made.

A record begins like an entry does: u32 length (of the whole record), u8 version, u8 kind. Kinds
below 0x80 are entries (`raftq.raft.entry`); the others are of the log itself and not replicated:

    truncate  u32 length=16 | u8 1 | u8 0x80 | u16 0 | u64 from_index
    reset     u32 length    | u8 1 | u8 0x81 | u16 0 | u64 index | u64 term | i64 log_time
              | 16 bytes chain | membership (`raftq.raft.membership`) to the end
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

from raftq.errors import Corrupted
from raftq.ids import Index, Micros, ReplicaId, Term, WriteSeq
from raftq.limits import FORMAT_VERSION
from raftq.raft.entry import Buffer
from raftq.raft.membership import decode, encode
from raftq.raft.ready import SnapshotMeta

MAGIC: Final = b"rqwu"
HEADER: Final = Struct("<4sBBHIIQQQQQQQ16sQQQQ16sQQ")
UNIT_HEADER_BYTES: Final = HEADER.size
CHECKED_BYTES: Final = UNIT_HEADER_BYTES - 8
CHECKSUM: Final = Struct("<Q")
assert UNIT_HEADER_BYTES == 152

MARK: Final = 1
"""Flag: no write of the core, only a mark of what is synced and committed."""
SHUTDOWN: Final = 2
"""Flag: the last unit of an orderly end."""

TRUNCATE: Final = 0x80
RESET: Final = 0x81
_TRUNCATE: Final = Struct("<IBBHQ")
_RESET: Final = Struct("<IBBHQQq16s")
_RECORD: Final = Struct("<IBB")
_SEED: Final = Struct("<QQ")
_VERSION: Final = FORMAT_VERSION


def seed_of(incarnation: int, sequence: int) -> int:
    """What checksums of a segment begin with: bytes of another replica or segment never verify."""
    return int(xxh3_64_intdigest(_SEED.pack(incarnation, sequence)))


class UnitHeader(NamedTuple):
    """One header, as it lies; the state fields are as they are after the unit."""

    magic: bytes
    version: int
    flags: int
    zeros: int
    body_bytes: int
    records: int
    position: int
    number: int
    write_seq: WriteSeq
    previous: int
    boot: int
    synced_through: int
    commit_index: Index
    commit_chain: bytes
    term: Term
    vote: ReplicaId
    last_index: Index
    last_term: Term
    last_chain: bytes
    body_checksum: int
    checksum: int

    @property
    def end(self) -> int:
        """Position behind the unit."""
        return self.position + UNIT_HEADER_BYTES + self.body_bytes


def body_checksum(vectors: Sequence[Buffer], seed: int) -> int:
    """The hash over the vectors as if joined; nothing is copied."""
    if len(vectors) == 1:
        return int(xxh3_64_intdigest(vectors[0], seed))
    state = xxh3_64(seed=seed)
    for vector in vectors:
        state.update(vector)
    return int(state.intdigest())


def seal(fields: UnitHeader, seed: int) -> tuple[bytes, int]:
    """The header's bytes and its checksum; the `checksum` field given is ignored."""
    packed = HEADER.pack(*fields)
    checksum = int(xxh3_64_intdigest(packed[:CHECKED_BYTES], seed))
    return packed[:CHECKED_BYTES] + CHECKSUM.pack(checksum), checksum


def read_unit_header(data: Buffer, offset: int, position: int, seed: int) -> UnitHeader | None:
    """The header at `offset` of `data`, which lies at `position` of its file; None if invalid."""
    if len(data) - offset < UNIT_HEADER_BYTES:
        return None
    header = UnitHeader._make(HEADER.unpack_from(data, offset))
    if header.magic != MAGIC or header.position != position or header.version != _VERSION:
        return None
    checked = memoryview(data)[offset : offset + CHECKED_BYTES]
    return header if xxh3_64_intdigest(checked, seed) == header.checksum else None


def encode_truncate(from_index: Index) -> bytes:
    return _TRUNCATE.pack(_TRUNCATE.size, _VERSION, TRUNCATE, 0, from_index)


def encode_reset(meta: SnapshotMeta) -> bytes:
    members = encode(meta.membership)
    size = _RESET.size + len(members)
    return (
        _RESET.pack(size, _VERSION, RESET, 0, meta.index, meta.term, meta.log_time, meta.chain)
        + members
    )


def decode_truncate(record: memoryview) -> Index:
    if len(record) != _TRUNCATE.size:
        raise Corrupted(f"a truncate record has {_TRUNCATE.size} bytes, not {len(record)}")
    return Index(_TRUNCATE.unpack(record)[4])


def decode_reset(record: memoryview) -> SnapshotMeta:
    if len(record) < _RESET.size:
        raise Corrupted(f"a reset record has at least {_RESET.size} bytes, not {len(record)}")
    _, _, _, _, index, term, log_time, link = _RESET.unpack_from(record)
    membership = decode(record[_RESET.size :])
    return SnapshotMeta(Index(index), Term(term), link, Micros(log_time), membership)


class Record(NamedTuple):
    """One record of a body: `kind` as in the table above, its place in the body, its bytes."""

    kind: int
    offset: int
    data: memoryview


def records(body: memoryview) -> Iterator[Record]:
    """The records of a body that has verified.

    Raises: Corrupted when the lengths do not add up, or a version is not known.
    """
    offset = 0
    while offset < len(body):
        if len(body) - offset < _RECORD.size:
            raise Corrupted(f"{len(body) - offset} bytes behind the last record of a unit")
        length, version, kind = _RECORD.unpack_from(body, offset)
        if version != _VERSION:
            raise Corrupted(f"a record has the unknown version {version}")
        if not _RECORD.size <= length <= len(body) - offset:
            raise Corrupted(f"a record claims {length} bytes, {len(body) - offset} are left")
        yield Record(kind, offset, body[offset : offset + length])
        offset += length
