"""What replicas of a group ask each other for when something is lost to damage.

The body of a REPAIR frame is `group u32`, then one message. All integers little-endian.

    type u8 | flags u8 | zeros u16 | sender u64 | to u64 | number u64   of every message, then

     1 EntriesWanted   first u64 | last u64
     2 EntriesGiven    last u64 | previous_chain 16 bytes | count u32 | the entries
                                                         flags: 1 previous_chain is known
     3 SnapshotWanted  index u64 (0: the newest) | position u64
     4 SnapshotGiven   index u64 | term u64 | log_time i64 | chain 16 bytes | position u64
                       | membership_length u32 | membership | data       flags: 1 done

`number` is the asker's, and comes back with the answer. Entries are the last of what was asked for,
as many as fit, and end at `last`; a count of 0, or a snapshot at index 0, says: not held here.

Rule 1. Decoders raise ProtocolError or Corrupted and nothing else, whatever the bytes are.
Rule 2. Nothing here is proved. The asker believes what joins its own chain.
"""

from struct import Struct
from typing import Final, NamedTuple

from raftq.errors import ProtocolError
from raftq.ids import GroupId, Index, Micros, ReplicaId, Term
from raftq.raft.entry import ENTRY_HEADER_BYTES, Buffer, Entry, parse
from raftq.wire.raft_messages import NUMBER_MAX, Fields

_GROUP: Final = Struct("<I")
_HEAD: Final = Struct("<BBHQQQ")
_ENTRIES_WANTED: Final = Struct("<BBHQQQQQ")
_ENTRIES_GIVEN: Final = Struct("<BBHQQQQ16sI")
_SNAPSHOT_WANTED: Final = Struct("<BBHQQQQQ")
_SNAPSHOT_GIVEN: Final = Struct("<BBHQQQQQq16sQI")
_LAYOUTS: Final = {1: _ENTRIES_WANTED, 2: _ENTRIES_GIVEN, 3: _SNAPSHOT_WANTED, 4: _SNAPSHOT_GIVEN}
_UNKNOWN_CHAIN: Final = bytes(16)


class EntriesWanted(NamedTuple):
    """Give me the last of the entries [first, last]."""

    sender: ReplicaId
    to: ReplicaId
    number: int
    first: Index
    last: Index


class EntriesGiven(NamedTuple):
    """Entries up to `last`; `previous_chain` is empty where the giver does not know it."""

    sender: ReplicaId
    to: ReplicaId
    number: int
    last: Index
    previous_chain: bytes
    entries: tuple[Entry, ...]


class SnapshotWanted(NamedTuple):
    """Give me a piece of a snapshot's body."""

    sender: ReplicaId
    to: ReplicaId
    number: int
    index: Index  # type: ignore[assignment] # Hides a method of tuples that nobody needs.
    position: int


class SnapshotGiven(NamedTuple):
    """A piece of the snapshot at `index`, and what the snapshot stands for."""

    sender: ReplicaId
    to: ReplicaId
    number: int
    index: Index  # type: ignore[assignment] # Hides a method of tuples that nobody needs.
    term: Term
    log_time: Micros
    chain: bytes
    position: int
    membership: bytes
    data: bytes
    done: bool


RepairMessage = EntriesWanted | EntriesGiven | SnapshotWanted | SnapshotGiven


def encode_repair(group: GroupId, message: RepairMessage) -> list[Buffer]:
    """The parts of a REPAIR frame's body; entries are not copied."""
    parts: list[Buffer] = [_GROUP.pack(group)]
    if isinstance(message, EntriesWanted):
        parts.append(_ENTRIES_WANTED.pack(1, 0, 0, *message))
    elif isinstance(message, EntriesGiven):
        known = bool(message.previous_chain)
        parts.append(
            _ENTRIES_GIVEN.pack(
                2,
                known,
                0,
                *message[:4],
                message.previous_chain or _UNKNOWN_CHAIN,
                len(message.entries),
            )
        )
        parts += [vector for entry in message.entries for vector in entry.vectors]
    elif isinstance(message, SnapshotWanted):
        parts.append(_SNAPSHOT_WANTED.pack(3, 0, 0, *message))
    else:
        head = message[:8]
        parts.append(_SNAPSHOT_GIVEN.pack(4, message.done, 0, *head, len(message.membership)))
        parts += [message.membership, message.data]
    return parts


def decode_repair(body: memoryview) -> tuple[GroupId, RepairMessage]:
    """The inverse; what is kept of it is copied, so that no receive chunk is pinned.

    Raises: ProtocolError, Corrupted.
    """
    if len(body) < _GROUP.size + _HEAD.size:
        raise ProtocolError("a repair message is cut short")
    group = GroupId(_GROUP.unpack_from(body)[0])
    view = body[_GROUP.size :]
    kind = view[0]
    layout = _LAYOUTS.get(kind)
    if layout is None:
        raise ProtocolError(f"a repair message of unknown type {kind}")
    if len(view) < layout.size or (kind in {1, 3} and len(view) > layout.size):
        raise ProtocolError(f"a repair message of type {kind} cannot have {len(view)} bytes")
    unpacked: Fields = layout.unpack_from(view)
    flags, zeros, fields = unpacked[1], unpacked[2], unpacked[3:]
    if flags > 1 or zeros or (flags and kind in {1, 3}):
        raise ProtocolError(f"a repair message of type {kind} has unknown flags")
    if max(value for value in fields if type(value) is int) > NUMBER_MAX:
        raise ProtocolError(f"a repair message of type {kind} has a number beyond all use")
    rest = view[layout.size :]
    if kind == 1:
        return group, EntriesWanted(*fields)
    if kind == 3:
        return group, SnapshotWanted(*fields)
    if kind == 2:
        *_, chain, count = fields
        return group, EntriesGiven._make(
            (*fields[:4], chain if flags else b"", _entries(rest, count))
        )
    length = fields[-1]
    if length > len(rest):
        raise ProtocolError(f"a snapshot piece claims a membership of {length} bytes")
    membership, data = bytes(rest[:length]), bytes(rest[length:])
    return group, SnapshotGiven._make((*fields[:8], membership, data, bool(flags)))


def _entries(rest: memoryview, count: int) -> tuple[Entry, ...]:
    if count * ENTRY_HEADER_BYTES > len(rest):
        raise ProtocolError(f"a repair message claims {count} entries in {len(rest)} bytes")
    kept = memoryview(bytes(rest))
    found = []
    position = 0
    for _ in range(count):
        entry = parse(kept, position)
        position += entry.size
        found.append(entry)
    if position != len(kept):
        raise ProtocolError("a repair message has bytes behind its last entry")
    return tuple(found)
