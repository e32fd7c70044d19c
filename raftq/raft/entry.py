"""One item of a group's log, its bytes, and the hash chain over all of them.

The same bytes travel to followers and lie in segments; they are made once, by the leader. An entry
holds 1..n commands; a command is a header (its first byte is its kind) and a body (0..n bytes).

    0        4   5   6   7   8            16           24           32           40          56
    +--------+---+---+---+---+------------+------------+------------+-----+------+-----------+
    | length |ver|knd|alg|flg| index      | term       | log_time   |count| hlen | chain     |
    | u32    |u8 |u8 |u8 |u8 | u64        | u64        | i64 us     | u32 | u32  | 16 bytes  |
    +--------+---+---+---+---+------------+------------+------------+-----+------+-----------+
    | count x { u32 header_length | u32 body_length }                              the table |
    +----------------------------------------------------------------------------------------+
    | all headers, hlen bytes in all | all bodies                                            |
    +----------------------------------------------------------------------------------------+

`length` counts the whole entry, these four bytes included. Little-endian throughout.

    command digest = xxh3_128(header || xxh3_128(body))
    entry digest   = xxh3_128(bytes 4..40 with flg = 0 || the command digests)
    chain          = xxh3_128(chain of the entry before || entry digest)

The chain of "before the log" is sixteen zero bytes. Equal chains at an equal index mean equal logs
up to there. Because a command's digest is built from the digest of its body, a body can later be
replaced by its digest (top bit of `header_length` set, body = 16 bytes, `flg` = 1: the entry is not
whole any more) and the chain still verifies. `alg` = 1 names xxh3; other values are reserved for
hashes that also withstand people.
"""

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, NamedTuple

from xxhash import xxh3_128_digest

from raftq.errors import Corrupted
from raftq.ids import Index, Micros, Term
from raftq.limits import MAX_COMMANDS, MAX_ENTRY_BYTES

Buffer = bytes | bytearray | memoryview

NOOP: Final = 0
COMMANDS: Final = 1
MEMBERSHIP: Final = 2
KINDS: Final = (NOOP, COMMANDS, MEMBERSHIP)

VERSION: Final = 1
XXH3: Final = 1
BODY_IS_DIGEST: Final = 0x8000_0000
NOT_WHOLE: Final = 1
"""Flag of an entry: some bodies are replaced by their digests."""
_FLAGS_AT: Final = 7

HEADER: Final = Struct("<IBBBBQQqII16s")
ENTRY_HEADER_BYTES: Final = HEADER.size
_DIGESTED: Final = Struct("<BBBBQQqII")
GENESIS: Final = bytes(16)
"""Chain value before the first entry of a log."""
_DIGEST_BYTES: Final = 16

assert ENTRY_HEADER_BYTES == 56


class Command(NamedTuple):
    """What a machine applies: a header whose first byte is the kind, and an opaque body."""

    header: bytes
    body: Buffer = b""


class Entry(NamedTuple):
    """One entry. `vectors` concatenated are its bytes; `size` is their length.

    Invariant: vectors[0] holds at least the fixed header, the table and all command headers; either
    it holds everything (as read from disk or wire), or the bodies that are not empty follow, one
    vector each.
    """

    index: Index  # type: ignore[assignment] # Hides a method of tuples that nobody needs.
    term: Term
    kind: int
    log_time: Micros
    chain: bytes
    vectors: tuple[Buffer, ...]
    size: int


_TABLES: Final = tuple(Struct(f"<{2 * count}I") for count in range(65))
"""Formats of the tables of small entries, which are most: making one costs more than using it."""


def _table(count: int) -> Struct:
    return _TABLES[count] if count < len(_TABLES) else Struct(f"<{2 * count}I")


def build(
    *,
    previous_chain: bytes,
    index: Index,
    term: Term,
    kind: int,
    log_time: Micros,
    commands: Sequence[Command] = (),
) -> Entry:
    """The entry that follows one whose chain value is `previous_chain`."""
    count = len(commands)
    assert count <= MAX_COMMANDS
    headers: list[bytes] = []
    bodies: list[Buffer] = []
    lengths: list[int] = []
    digests: list[bytes] = []
    for header, body in commands:
        headers.append(header)
        lengths.append(len(header))
        length = len(body)
        lengths.append(length)
        if length:
            bodies.append(body)
        digests.append(xxh3_128_digest(header + xxh3_128_digest(body)))
    joined = _table(count).pack(*lengths) + b"".join(headers)
    size = ENTRY_HEADER_BYTES + 8 * count + sum(lengths)
    assert size <= MAX_ENTRY_BYTES
    headers_length = len(joined) - 8 * count
    fixed = (VERSION, kind, XXH3, 0, index, term, log_time, count, headers_length)
    digest = xxh3_128_digest(_DIGESTED.pack(*fixed) + b"".join(digests))
    link = xxh3_128_digest(previous_chain + digest)
    first = HEADER.pack(size, *fixed, link) + joined
    return Entry(index, term, kind, log_time, link, (first, *bodies), size)


def parse(view: memoryview, position: int = 0) -> Entry:
    """The entry that begins at `position`, as one vector that is a slice of `view`.

    Checks every length against the bytes there are, not the chain: see `verify`.

    Raises: Corrupted.
    """
    left = len(view) - position
    if left < ENTRY_HEADER_BYTES:
        raise Corrupted(f"an entry needs {ENTRY_HEADER_BYTES} bytes, {left} are left")
    size, version, kind, algorithm, _, index, term, log_time, count, headers, link = (
        HEADER.unpack_from(view, position)
    )
    if version != VERSION or algorithm != XXH3 or kind not in KINDS:
        raise Corrupted(f"entry of version {version}, kind {kind}, hash {algorithm} is not known")
    if size > left or count > MAX_COMMANDS or ENTRY_HEADER_BYTES + 8 * count + headers > size:
        raise Corrupted(f"an entry claims {size} bytes and {count} commands; {left} bytes are left")
    return Entry(index, term, kind, log_time, link, (view[position : position + size],), size)


def commands(entry: Entry) -> list[Command]:
    """The commands of an entry, bodies as slices (no copy).

    Raises: Corrupted when the table does not add up to the entry's size.
    """
    first = entry.vectors[0]
    fields = HEADER.unpack_from(first)
    count, headers_length = fields[8], fields[9]
    table = _table(count).unpack_from(first, ENTRY_HEADER_BYTES)
    position = ENTRY_HEADER_BYTES + 8 * count
    body_position = headers_end = position + headers_length
    if body_position + sum(table[1::2]) != entry.size:
        raise Corrupted(f"the table of entry {entry.index} does not add up to its size")
    whole = memoryview(first)
    headers = bytes(whole[position:headers_end])
    bodies = iter(entry.vectors[1:]) if len(entry.vectors) > 1 else None
    result = []
    position = 0
    for place in range(0, 2 * count, 2):
        end = position + (table[place] & ~BODY_IS_DIGEST)
        header = headers[position:end]
        position = end
        body_length = table[place + 1]
        if not body_length:
            body: Buffer = b""
        elif bodies is not None:
            body = next(bodies)
        else:
            body = whole[body_position : body_position + body_length]
            body_position += body_length
        result.append(Command(header, body))
    if position != headers_length:
        raise Corrupted(f"the headers of entry {entry.index} do not add up")
    return result


def is_whole(entry: Entry) -> bool:
    """Whether all bodies are there. Only such an entry can be applied, or sent to be applied."""
    return not entry.vectors[0][_FLAGS_AT] & NOT_WHOLE


def replaced(entry: Entry) -> list[bool]:
    """Of each command, whether its body gave way to its digest. Such a body must not be read as one."""
    first = entry.vectors[0]
    count = HEADER.unpack_from(first)[8]
    lengths = _table(count).unpack_from(first, ENTRY_HEADER_BYTES)[::2]
    return [bool(length & BODY_IS_DIGEST) for length in lengths]


def without_bodies(entry: Entry, is_dead: Callable[[bytes], bool]) -> Entry:
    """The same entry, same chain, with digests in the place of the bodies of some commands.

    `is_dead` is asked with the header of each command that has a longer body; one that was replaced
    before stays so.
    """
    first = entry.vectors[0]
    fields = HEADER.unpack_from(first)
    count = fields[8]
    table = list(_table(count).unpack_from(first, ENTRY_HEADER_BYTES))
    headers: list[bytes] = []
    bodies: list[Buffer] = []
    replaced = False
    for place, (header, body) in enumerate(commands(entry)):
        headers.append(header)
        is_digest = table[2 * place] & BODY_IS_DIGEST
        if not is_digest and len(body) > _DIGEST_BYTES and is_dead(header):
            body = xxh3_128_digest(body)
            table[2 * place] |= BODY_IS_DIGEST
            table[2 * place + 1] = len(body)
            replaced = True
        bodies.append(body)
    if not replaced:
        return entry
    rest = _table(count).pack(*table) + b"".join(headers) + b"".join(bodies)
    size = ENTRY_HEADER_BYTES + len(rest)
    fixed = (*fields[1:4], fields[4] | NOT_WHOLE, *fields[5:])
    return entry._replace(vectors=(HEADER.pack(size, *fixed) + rest,), size=size)


def verify(entry: Entry, previous_chain: bytes) -> bool:
    """Whether the entry is intact and follows one whose chain value is `previous_chain`."""
    first = entry.vectors[0]
    fields = HEADER.unpack_from(first)
    count = fields[8]
    parts = [_DIGESTED.pack(*fields[1:4], 0, *fields[5:10])]
    try:
        items = commands(entry)
    except Corrupted:
        return False
    place = ENTRY_HEADER_BYTES
    whole = is_whole(entry)
    for header, body in items:
        # The top byte of a header's length says whether the body was replaced by its digest.
        replaced = first[place + 3] & 0x80
        if replaced and (whole or len(body) != _DIGEST_BYTES):
            return False
        parts.append(xxh3_128_digest(header + (bytes(body) if replaced else xxh3_128_digest(body))))
        place += 8
    assert place == ENTRY_HEADER_BYTES + 8 * count
    link = xxh3_128_digest(previous_chain + xxh3_128_digest(b"".join(parts)))
    return bool(link == entry.chain)
