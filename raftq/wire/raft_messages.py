"""Raft messages as bytes: fixed structs, with the entries of an append untouched behind theirs.

All integers little-endian. The body of a RAFT frame is `group u32`, then one message:

    type u8 | flags u8 | zeros u16 | sender u64 | to u64 | term u64           of every message, then

     1 VoteRequest     last_index u64 | last_term u64              flags: 1 pre, 2 link_lost
     2 VoteReply       wall i64                                    flags: 1 granted, 2 pre
     3 Append          prev_index u64 | prev_term u64 | prev_chain 16 bytes | commit_index u64
                       | count u32 | the entries, each with its own length
     4 AppendReply     match_index u64 | refused_index u64 | hint_index u64 | hint_term u64
                       | last_index u64 | wall i64                 flags: 1 success, 2 whole
     7 SnapshotChunk   index u64 | snapshot_term u64 | chain 16 bytes | log_time i64
                       | position u64 | membership_length u32 | membership | data
                                                                   flags: 1 done, 2 anew
     8 SnapshotReply   index u64 | chain 16 bytes | received u64   flags: 1 installed
     9 TimeoutNow      nothing
    10 Amnesiac        nothing

Heartbeats go as rows of fixed size, one a group, many to a frame:

    HEARTBEATS         group u32 | sender u64 | to u64 | term u64 | round u64 | commit_index u64
                       | commit_chain 16 bytes | checkpoint_index u64 | checkpoint_digest 16 bytes
    HEARTBEAT_REPLIES  group u32 | sender u64 | to u64 | term u64 | round u64 | last_index u64
                       | wall i64 | whole u8

Rules:

1. Decoders raise ProtocolError or Corrupted and nothing else, whatever the bytes are.
2. Entries are given as slices of the frame; whoever keeps them keeps the receive chunk alive.
3. Terms and indexes beyond `NUMBER_MAX` are refused: a bad peer must not be able to use up the
   numbers that exist.
"""

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final

from raftq.errors import ProtocolError
from raftq.ids import GroupId
from raftq.raft import entry as entries
from raftq.raft.messages import (
    Amnesiac,
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    Message,
    SnapshotChunk,
    SnapshotReply,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)

Buffer = bytes | bytearray | memoryview
Fields = tuple[Any, ...]
"""What a struct unpacks to: its format types the fields, in a way mypy cannot read."""

NUMBER_MAX: Final = 1 << 62

_GROUP: Final = Struct("<I")
_HEAD: Final = Struct("<BBHQQQ")
_VOTE_REQUEST: Final = Struct("<BBHQQQQQ")
_VOTE_REPLY: Final = Struct("<BBHQQQq")
_APPEND: Final = Struct("<BBHQQQQQ16sQI")
_APPEND_REPLY: Final = Struct("<BBHQQQQQQQQq")
_CHUNK: Final = Struct("<BBHQQQQQ16sqQI")
_SNAPSHOT_REPLY: Final = Struct("<BBHQQQQ16sQ")
_HEARTBEAT: Final = Struct("<IQQQQQ16sQ16s")
_HEARTBEAT_REPLY: Final = Struct("<IQQQQQqB")
HEARTBEAT_BYTES: Final = _HEARTBEAT.size
HEARTBEAT_REPLY_BYTES: Final = _HEARTBEAT_REPLY.size

_VOTE_REQUEST_TYPE, _VOTE_REPLY_TYPE, _APPEND_TYPE, _APPEND_REPLY_TYPE = 1, 2, 3, 4
_CHUNK_TYPE, _SNAPSHOT_REPLY_TYPE, _TIMEOUT_NOW_TYPE, _AMNESIAC_TYPE = 7, 8, 9, 10


def encode_raft(group: GroupId, message: Message) -> list[Buffer]:
    """The parts of a RAFT frame's body."""
    return [_GROUP.pack(group), *encode(message)]


def decode_raft(body: memoryview) -> tuple[GroupId, Message]:
    """The inverse of `encode_raft`.

    Raises: ProtocolError, Corrupted.
    """
    if len(body) < _GROUP.size:
        raise ProtocolError("a RAFT frame is cut short")
    return _GROUP.unpack_from(body)[0], decode(body[_GROUP.size :])


def encode(message: Message) -> list[Buffer]:
    """The vectors of one message other than heartbeats; an append's entries are not copied."""
    return _ENCODERS[type(message)](message)


def _encode_append(message: Append) -> list[Buffer]:
    vectors: list[Buffer] = [
        _APPEND.pack(
            _APPEND_TYPE, 0, 0, message.sender, message.to, message.term, message.prev_index,
            message.prev_term, message.prev_chain, message.commit_index, len(message.entries),
        )
    ]  # fmt: skip
    for entry in message.entries:
        vectors += entry.vectors
    return vectors


def _encode_append_reply(message: AppendReply) -> list[Buffer]:
    sender, to, term, success, *rest, whole = message
    flags = success | whole << 1
    return [_APPEND_REPLY.pack(_APPEND_REPLY_TYPE, flags, 0, sender, to, term, *rest)]


def _encode_vote_request(message: VoteRequest) -> list[Buffer]:
    sender, to, term, last_index, last_term, pre, link_lost = message
    flags = pre | link_lost << 1
    return [
        _VOTE_REQUEST.pack(_VOTE_REQUEST_TYPE, flags, 0, sender, to, term, last_index, last_term)
    ]


def _encode_vote_reply(message: VoteReply) -> list[Buffer]:
    sender, to, term, granted, pre, wall = message
    return [_VOTE_REPLY.pack(_VOTE_REPLY_TYPE, granted | pre << 1, 0, sender, to, term, wall)]


def _encode_chunk(message: SnapshotChunk) -> list[Buffer]:
    head = _CHUNK.pack(
        _CHUNK_TYPE, message.done | message.anew << 1, 0, message.sender, message.to, message.term, message.index,
        message.snapshot_term, message.chain, message.log_time, message.position,
        len(message.membership),
    )  # fmt: skip
    return [head, message.membership, message.data]


def _encode_snapshot_reply(message: SnapshotReply) -> list[Buffer]:
    *rest, installed = message
    return [_SNAPSHOT_REPLY.pack(_SNAPSHOT_REPLY_TYPE, installed, 0, *rest)]


def _encode_timeout_now(message: TimeoutNow) -> list[Buffer]:
    return [_HEAD.pack(_TIMEOUT_NOW_TYPE, 0, 0, *message)]


def _encode_amnesiac(message: Amnesiac) -> list[Buffer]:
    return [_HEAD.pack(_AMNESIAC_TYPE, 0, 0, *message)]


_ENCODERS: Final[dict[type[Message], Callable[..., list[Buffer]]]] = {
    Append: _encode_append,
    AppendReply: _encode_append_reply,
    VoteRequest: _encode_vote_request,
    VoteReply: _encode_vote_reply,
    SnapshotChunk: _encode_chunk,
    SnapshotReply: _encode_snapshot_reply,
    TimeoutNow: _encode_timeout_now,
    Amnesiac: _encode_amnesiac,
}


def decode(view: memoryview) -> Message:
    """The message that the bytes are; the entries of an append are slices of `view`.

    Raises: ProtocolError, Corrupted.
    """
    if len(view) < _HEAD.size:
        raise ProtocolError("a raft message is cut short")
    known = _DECODERS.get(view[0])
    if known is None:
        raise ProtocolError(f"a raft message of unknown type {view[0]}")
    layout, flags_allowed, rest_allowed, decoder = known
    if len(view) < layout.size or (len(view) > layout.size and not rest_allowed):
        raise ProtocolError(f"a raft message of type {view[0]} cannot have {len(view)} bytes")
    fields = layout.unpack_from(view)
    if fields[1] & ~flags_allowed or fields[2]:
        raise ProtocolError(f"a raft message of type {view[0]} has unknown flags")
    if max(value for value in fields if type(value) is int) > NUMBER_MAX:
        raise ProtocolError(f"a raft message of type {view[0]} has a number beyond all use")
    return decoder(view, fields)


def _decode_append(view: memoryview, fields: Fields) -> Message:
    _, _, _, sender, to, term, prev_index, prev_term, prev_chain, commit_index, count = fields
    position = _APPEND.size
    if count * entries.ENTRY_HEADER_BYTES > len(view) - position:
        raise ProtocolError(f"an append claims {count} entries in {len(view)} bytes")
    found = []
    for _ in range(count):
        entry = entries.parse(view, position)
        position += entry.size
        found.append(entry)
    if position != len(view):
        raise ProtocolError("an append has bytes behind its last entry")
    return Append(
        sender, to, term, prev_index, prev_term, prev_chain, commit_index, tuple(found)
    )  # fmt: skip


def _decode_append_reply(_view: memoryview, fields: Fields) -> Message:
    _, flags, _, sender, to, term, *rest = fields
    return AppendReply._make((sender, to, term, bool(flags & 1), *rest, bool(flags & 2)))


def _decode_vote_request(_view: memoryview, fields: Fields) -> Message:
    _, flags, _, sender, to, term, last_index, last_term = fields
    pre, link_lost = bool(flags & 1), bool(flags & 2)
    return VoteRequest(sender, to, term, last_index, last_term, pre, link_lost)


def _decode_vote_reply(_view: memoryview, fields: Fields) -> Message:
    _, flags, _, sender, to, term, wall = fields
    return VoteReply(sender, to, term, bool(flags & 1), bool(flags & 2), wall)


def _decode_chunk(view: memoryview, fields: Fields) -> Message:
    _, flags, _, sender, to, term, index, snapshot_term, chain, log_time, position, length = fields
    begin = _CHUNK.size + length
    if begin > len(view):
        raise ProtocolError(f"a snapshot chunk claims a membership of {length} bytes")
    membership = bytes(view[_CHUNK.size : begin])
    return SnapshotChunk(
        sender, to, term, index, snapshot_term, chain, log_time, membership, position,
        bytes(view[begin:]), bool(flags & 1), bool(flags & 2),
    )  # fmt: skip


def _decode_snapshot_reply(_view: memoryview, fields: Fields) -> Message:
    _, flags, _, *rest = fields
    return SnapshotReply._make((*rest, bool(flags)))


def _decode_timeout_now(_view: memoryview, fields: Fields) -> Message:
    return TimeoutNow(*fields[3:])


def _decode_amnesiac(_view: memoryview, fields: Fields) -> Message:
    return Amnesiac(*fields[3:])


_Decoder = Callable[[memoryview, Fields], Message]

_DECODERS: Final[dict[int, tuple[Struct, int, bool, _Decoder]]] = {
    # Type: its struct, the flags it knows, whether bytes may follow, and what makes the value.
    _VOTE_REQUEST_TYPE: (_VOTE_REQUEST, 3, False, _decode_vote_request),
    _VOTE_REPLY_TYPE: (_VOTE_REPLY, 3, False, _decode_vote_reply),
    _APPEND_TYPE: (_APPEND, 0, True, _decode_append),
    _APPEND_REPLY_TYPE: (_APPEND_REPLY, 3, False, _decode_append_reply),
    _CHUNK_TYPE: (_CHUNK, 3, True, _decode_chunk),
    _SNAPSHOT_REPLY_TYPE: (_SNAPSHOT_REPLY, 1, False, _decode_snapshot_reply),
    _TIMEOUT_NOW_TYPE: (_HEAD, 0, False, _decode_timeout_now),
    _AMNESIAC_TYPE: (_HEAD, 0, False, _decode_amnesiac),
}


# --- Heartbeats: rows of many groups -------------------------------------------------------------


def encode_heartbeats(rows: Sequence[tuple[GroupId, Heartbeat]]) -> bytes:
    """The body of a HEARTBEATS frame; an empty digest is sent as zeros."""
    return b"".join([_HEARTBEAT.pack(group, *beat) for group, beat in rows])


def decode_heartbeats(body: memoryview) -> list[tuple[GroupId, Heartbeat]]:
    """The inverse of `encode_heartbeats`.

    Raises: ProtocolError.
    """
    if len(body) % HEARTBEAT_BYTES:
        raise ProtocolError(f"heartbeats are rows of {HEARTBEAT_BYTES} bytes")
    rows = []
    for group, *fields in _HEARTBEAT.iter_unpack(body):
        beat = Heartbeat._make(fields)
        if max(beat.term, beat.round, beat.commit_index, beat.checkpoint_index) > NUMBER_MAX:
            raise ProtocolError("a heartbeat has a number beyond all use")
        rows.append((group, beat))
    return rows


def encode_heartbeat_replies(rows: Sequence[tuple[GroupId, HeartbeatReply]]) -> bytes:
    """The body of a HEARTBEAT_REPLIES frame."""
    return b"".join([_HEARTBEAT_REPLY.pack(group, *reply) for group, reply in rows])


def decode_heartbeat_replies(body: memoryview) -> list[tuple[GroupId, HeartbeatReply]]:
    """The inverse of `encode_heartbeat_replies`.

    Raises: ProtocolError.
    """
    if len(body) % HEARTBEAT_REPLY_BYTES:
        raise ProtocolError(f"heartbeat replies are rows of {HEARTBEAT_REPLY_BYTES} bytes")
    rows = []
    for group, *fields, whole in _HEARTBEAT_REPLY.iter_unpack(body):
        if whole > 1:
            raise ProtocolError("a heartbeat reply is whole or not")
        reply = HeartbeatReply._make((*fields, bool(whole)))
        if max(reply.term, reply.round, reply.last_index) > NUMBER_MAX:
            raise ProtocolError("a heartbeat reply has a number beyond all use")
        rows.append((group, reply))
    return rows
