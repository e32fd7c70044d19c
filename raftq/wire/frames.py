"""Frames: what every byte on a connection belongs to.

    0        4         5      6         8          12
    +--------+---------+------+---------+----------+------------------+
    | length | version | kind | flags   | stream   | body             |
    | u32    | u8 = 1  | u8   | u16 = 0 | u32      | length - 8 bytes |
    +--------+---------+------+---------+----------+------------------+

Rules:

1. A length is judged as soon as its four bytes are there, before anything is allocated for it, so
   that whoever speaks TLS, HTTP or SSH to this port is refused at once.
2. Bodies are slices of the receive chunk, never copies. A chunk is used again only when nobody
   holds a slice of it any more; a small body that is kept beyond the turn is copied by who keeps it.
3. Memory follows the bytes that came, not those that were announced: a chunk starts small, grows
   with what the connection really brings, and shrinks again.
4. What a kind means, and who may send it when, is not known here (`connection`).
"""

from struct import Struct
from typing import Final, NamedTuple

from raftq.errors import ProtocolError, UnsupportedVersion
from raftq.limits import MAX_FRAME_BYTES, MAX_FRAME_BYTES_BEFORE_AUTH

Buffer = bytes | bytearray | memoryview

PROTOCOL_VERSION: Final = 1
HEADER: Final = Struct("<IBBHI")
HEADER_BYTES: Final = HEADER.size
assert HEADER_BYTES == 12

_LENGTH: Final = Struct("<I")
_LENGTH_BYTES: Final = _LENGTH.size
_COUNTED: Final = HEADER_BYTES - _LENGTH_BYTES
"""The part of the header that `length` counts: the least value it can have."""

CHUNK_BYTES_MIN: Final = 4 * 1024
"""Ten thousand idle connections with a chunk each must stay cheap."""

CHUNK_BYTES_MAX: Final = 256 * 1024
"""One read of a busy connection: enough for four full batches; more gave nothing when measured."""

_HTTP: Final = int.from_bytes(b"HTTP", "little")
"""What the answer of an HTTP server looks like as a length."""

_GROWTH: Final = 4
"""An unfinished frame's chunk is at most this many times the bytes that have come."""


class FrameKind:
    """Numbers of the frame kinds. Plain ints, because they are compared for every frame."""

    HELLO: Final = 1
    WELCOME: Final = 2
    ERROR: Final = 3
    CONTROL: Final = 4
    CONTROLLED: Final = 5
    GOODBYE: Final = 8
    PING: Final = 9
    PONG: Final = 10
    PUBLISH: Final = 16
    PUBLISHED: Final = 17
    RECEIVE: Final = 18
    DELIVERED: Final = 19
    SETTLE: Final = 20
    SETTLED: Final = 21
    READ: Final = 22
    BATCHES: Final = 23
    READY: Final = 24
    CANCEL: Final = 25
    PEER_HELLO: Final = 64
    PEER_WELCOME: Final = 65
    RAFT: Final = 66
    HEARTBEATS: Final = 67
    HEARTBEAT_REPLIES: Final = 68
    FORWARD: Final = 69
    FORWARDED: Final = 70
    BOOTSTRAP: Final = 71
    GROUP: Final = 72
    REPAIR: Final = 73


KIND_NAMES: Final[dict[int, str]] = {
    value: name for name, value in vars(FrameKind).items() if name.isupper()
}


class Frame(NamedTuple):
    """One frame as it came. `body` is a slice of the receive chunk."""

    kind: int
    flags: int
    stream: int
    body: memoryview


def encode_frame(kind: int, stream: int, *parts: Buffer) -> list[Buffer]:
    """The vectors of one frame: its header, then the parts as they are."""
    length = _COUNTED
    for part in parts:
        length += len(part)
    return [HEADER.pack(length, PROTOCOL_VERSION, kind, 0, stream), *parts]


class FrameReader:
    """Cuts a stream of bytes into frames, for an `asyncio.BufferedProtocol` or any other feeder.

    Theory of operation. `get_buffer` lends the free rest of the chunk; `received` says how much of
    it was filled, and gives the frames that are complete. Unfinished bytes stay where they are if
    their frame fits in the chunk, and move to another chunk if not.

        chunk   |  parsed  |  unfinished  |  free  |
                0      _start           _end

    Invariant: 0 <= _start <= _end <= len(_chunk).
    """

    __slots__ = ("_chunk", "_end", "_filled", "_size", "_start", "_view", "limit")

    def __init__(self, limit: int = MAX_FRAME_BYTES_BEFORE_AUTH) -> None:
        self.limit = limit
        """Bytes that one frame may have, its header included."""
        self._size = CHUNK_BYTES_MIN
        self._chunk = bytearray(self._size)
        self._view = memoryview(self._chunk)
        self._start = 0
        self._end = 0
        self._filled = False

    def authenticated(self) -> None:
        """The handshake is over: frames may have their full size from now on."""
        self.limit = MAX_FRAME_BYTES

    @property
    def mid_frame(self) -> bool:
        """Whether a frame has begun and not ended."""
        return self._start != self._end

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """Free space for the next read; never empty. `size_hint` is the loop's, and ignored."""
        del size_hint
        if self._start == self._end:
            if self._start:
                self._begin_anew()
        elif self._end == len(self._chunk):
            self._move()
        return self._view[self._end :]

    def received(self, count: int, *, one: bool = False) -> list[Frame]:
        """The frames completed by `count` more bytes in the buffer that was lent last.

        With `one` at most the first: what comes behind it may be judged by another limit then. Ask
        for the rest with a count of 0.

        Raises: ProtocolError, UnsupportedVersion; the connection is of no use after either.
        """
        view = self._view
        start = self._start
        end = self._end = self._end + count
        assert end <= len(view), "more bytes than the buffer has"
        if end == len(view):
            self._filled = True
        limit = self.limit
        unpack = HEADER.unpack_from
        frames = []
        while end - start >= HEADER_BYTES:
            length, version, kind, flags, stream = unpack(view, start)
            if not _COUNTED <= length <= limit - _LENGTH_BYTES:
                raise _bad_length(length, limit)
            if version != PROTOCOL_VERSION:
                raise UnsupportedVersion(
                    f"a frame of protocol version {version}; this side speaks {PROTOCOL_VERSION}"
                )
            if flags:
                raise ProtocolError(f"a frame has unknown flags 0x{flags:04x}")
            stop = start + _LENGTH_BYTES + length
            if stop > end:
                break
            frames.append(Frame(kind, flags, stream, view[start + HEADER_BYTES : stop]))
            start = stop
            if one:
                break
        else:
            if end - start >= _LENGTH_BYTES:
                (length,) = _LENGTH.unpack_from(view, start)
                if not _COUNTED <= length <= limit - _LENGTH_BYTES:
                    raise _bad_length(length, limit)
        self._start = start
        return frames

    def _begin_anew(self) -> None:
        """All bytes are parsed: use the chunk from its start if nobody holds a slice of it."""
        room = len(self._chunk) - self._end
        if self._filled:
            self._size = min(CHUNK_BYTES_MAX, max(2 * self._size, CHUNK_BYTES_MIN))
        self._view.release()
        if len(self._chunk) == self._size and _is_free(self._chunk):
            self._view = memoryview(self._chunk)
            self._start = self._end = 0
        elif room >= len(self._chunk) // 4 and len(self._chunk) == self._size:
            self._view = memoryview(self._chunk)
        else:
            if not self._filled:
                self._size = max(self._size // 2, CHUNK_BYTES_MIN)
            self._replace(self._size, 0)
        self._filled = False

    def _move(self) -> None:
        """The chunk is full and its last frame is not complete: go on in a chunk where it can be.

        `received` has judged the frame's length, if its first bytes are there.
        """
        have = self._end - self._start
        need = HEADER_BYTES
        if have >= _LENGTH_BYTES:
            need = _LENGTH_BYTES + int(_LENGTH.unpack_from(self._view, self._start)[0])
        if self._filled:
            self._size = min(CHUNK_BYTES_MAX, 2 * self._size)
        self._replace(max(self._size, min(need, _GROWTH * have)), have)
        self._filled = False

    def _replace(self, size: int, have: int) -> None:
        chunk = bytearray(size)
        if have:
            chunk[:have] = self._view[self._start : self._end]
        self._chunk = chunk
        self._view = memoryview(chunk)
        self._start = 0
        self._end = have


def _bad_length(length: int, limit: int) -> ProtocolError:
    if length == _HTTP:
        return ProtocolError(
            "the other side speaks HTTP: is it a node's port for health and metrics "
            "(--admin-listen)? Clients use the port of --listen"
        )
    return ProtocolError(
        f"a frame announces {length} bytes; {_COUNTED} to {limit - _LENGTH_BYTES} are allowed here: "
        "is the other side raftq, and is TLS on at both ends or at none?"
    )


def _is_free(chunk: bytearray) -> bool:
    """Whether nobody holds a view of the chunk: only then does Python let its size change."""
    last = chunk[-1]
    try:
        chunk.pop()
    except BufferError:
        return False
    chunk.append(last)
    return True
