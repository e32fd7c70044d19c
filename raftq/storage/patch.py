"""A patch: entries written anew, beside the segments or in their place.

Either damage took them, and a peer gave them; the segment still holds the damage. Or their segment
was packed (`compaction.py`): its entries are kept here, without the bodies that nobody needs.

     0      4   5       8             16            24
     +------+---+-------+-------------+-------------+--------------------+
     |"rqpa"|ver| zeros | incarnation | first u64   | last u64           |
     |      |u8 | 3 B   | u64         |             |                    |
     +------+---+-------+-------------+-------------+--------------------+
  32 | previous_chain 16 bytes        | last_chain 16 bytes              |
  64 | body_bytes u64 | body_checksum u64 | zeros 40                     |
 120 | checksum u64 = xxh3_64(bytes 0..120, seed)                        |
     +-------------------------------------------------------------------+
 128 | entries [first, last], one behind the other                       |
     +-------------------------------------------------------------------+

seed = xxh3_64(u64 incarnation | u64 (1 << 62 | first)), body_checksum = xxh3_64(body, seed): bytes
of another replica, segment or patch never verify.

Rule 1. The replicated part of the entries is what a peer holds; where they lie is this replica's
        own. The damaged file is not touched.
Rule 2. A patch is used where it *joins the chain on both sides*: its last entry is followed by the
        next one held (or is the log's end), and nothing held before it contradicts its first. The
        chain value behind a hole is this replica's own, so what joins it is what was lost, whoever
        sent it and whether or not it is committed.
Rule 3. Holes are filled from behind: a piece [k, last] that joins behind proves the chain value
        before k as well, so every piece is proved when it is written, and a hole may be filled by
        several peers that have different parts.
Rule 4. A patch that does not verify, or does not join, is not used and not removed; what it was to
        repair is fetched again. A file of the same name replaces it, atomically.
"""

from array import array
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from raftq.errors import Corrupted
from raftq.ids import Index
from raftq.limits import FORMAT_VERSION
from raftq.raft.entry import Buffer, Entry, parse, verify
from raftq.storage.index import PATCH, PatchRun
from raftq.storage.segment import ReadableFile
from raftq.storage.unit import CHECKSUM, body_checksum, seed_of

_MAGIC: Final = b"rqpa"
_HEADER: Final = Struct("<4sB3xQQQ16s16sQQ40xQ")
PATCH_HEADER_BYTES: Final = _HEADER.size
assert PATCH_HEADER_BYTES == 128

_PREFIX: Final = "patch-"
_SUFFIX: Final = ".log"


def patch_name(first: Index, last: Index) -> str:
    return f"{_PREFIX}{first:020d}-{last:020d}{_SUFFIX}"


def range_of(name: str) -> tuple[Index, Index] | None:
    """The indexes in the name of a finished patch; else None."""
    if not name.startswith(_PREFIX) or not name.endswith(_SUFFIX):
        return None
    first, _, last = name[len(_PREFIX) : -len(_SUFFIX)].partition("-")
    if not (first.isdecimal() and last.isdecimal()):
        return None
    return Index(int(first)), Index(int(last))


class Patch(NamedTuple):
    """A patch that verifies in itself: its entries follow from `previous_chain`."""

    previous_chain: bytes
    entries: tuple[Entry, ...]

    @property
    def first(self) -> Index:
        return self.entries[0].index

    @property
    def last(self) -> Index:
        return self.entries[-1].index

    def run(self, file: int) -> PatchRun:
        """Where its entries lie in the file of that number."""
        lengths = [entry.size for entry in self.entries]
        positions = array("I", [PATCH_HEADER_BYTES])
        for length in lengths[:-1]:
            positions.append(positions[-1] + length)
        terms = array("Q", [entry.term for entry in self.entries])
        return PatchRun(self.first, file, terms, positions, array("I", lengths))


def seed(incarnation: int, first: Index) -> int:
    return seed_of(incarnation, PATCH | first)


def encode(patch: Patch, incarnation: int) -> list[Buffer]:
    """The vectors of a patch file."""
    body = [vector for entry in patch.entries for vector in entry.vectors]
    own = seed(incarnation, patch.first)
    fields = (
        _MAGIC,
        FORMAT_VERSION,
        incarnation,
        patch.first,
        patch.last,
        patch.previous_chain,
        patch.entries[-1].chain,
        sum(entry.size for entry in patch.entries),
        body_checksum(body, own),
    )
    checked = _HEADER.pack(*fields, 0)[: -CHECKSUM.size]
    return [checked + CHECKSUM.pack(xxh3_64_intdigest(checked, own)), *body]


def read(file: ReadableFile, *, incarnation: int) -> Patch:
    """The patch in a file.

    Raises: Corrupted.
    """
    try:
        data = file.read(0, file.size())
    except OSError as error:
        raise Corrupted(f"{file.path} cannot be read: {error}") from error
    if len(data) < PATCH_HEADER_BYTES:
        raise Corrupted(f"{file.path} has {len(data)} bytes")
    magic, version, owner, first, last, previous, last_chain, body_bytes, body_sum, checksum = (
        _HEADER.unpack_from(data)
    )
    own = seed(incarnation, first)
    body = memoryview(data)[PATCH_HEADER_BYTES : PATCH_HEADER_BYTES + body_bytes]
    if (
        (magic, version, owner) != (_MAGIC, FORMAT_VERSION, incarnation)
        or xxh3_64_intdigest(data[: PATCH_HEADER_BYTES - CHECKSUM.size], own) != checksum
        or len(body) != body_bytes
        or xxh3_64_intdigest(body, own) != body_sum
    ):
        raise Corrupted(f"{file.path} fails its checksum")
    entries = tuple(chained(body, previous, first=first, last=last))
    if entries[-1].chain != last_chain:
        raise Corrupted(f"{file.path} ends with another chain value than its header says")
    return Patch(previous, entries)


def chained(body: memoryview, previous: bytes, *, first: Index, last: Index) -> Iterator[Entry]:
    """Entries [first, last] that lie one behind the other, each proved to follow the one before.

    Raises: Corrupted.
    """
    position = 0
    for index in range(first, last + 1):
        entry = parse(body, position)
        if entry.index != index or not verify(entry, previous):
            raise Corrupted(f"entry {index} of a patch does not follow the one before it")
        previous = entry.chain
        position += entry.size
        yield entry
    if position != len(body) or first > last:
        raise Corrupted(f"a patch of entries {first} to {last} holds other bytes")
