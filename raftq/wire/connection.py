"""One client connection, sans I/O: which frame may come when, and which reply belongs to what.

Theory of operation. Both ends run the same reader and differ in their tables:

                  server hears                        client hears
    GREETING      HELLO                               WELCOME, ERROR, PING, PONG
    OPEN          requests, CANCEL, GOODBYE,          replies to its open streams, ERROR,
                  PING, PONG                          PING, PONG
    CLOSED        nothing                             nothing

A stream is open from its request to its reply, and has exactly one reply; a client may use a number
again then. A CANCEL asks for the reply of a waiting RECEIVE or READ now; there still is one.

Rules:

1. Every rule about who may say what when lives in this file.
2. What is not in the tables is a ProtocolError, and then the connection is CLOSED: the server sends
   one ERROR frame on stream 0 if it can, and both close.
3. Time is the shell's: handshake and frame timeouts, and the pings of an idle connection.
"""

from typing import Final

from raftq.errors import ProtocolError, UnsupportedVersion
from raftq.limits import MAX_STREAMS
from raftq.wire.frames import KIND_NAMES, Buffer, Frame, FrameKind, FrameReader, encode_frame

GREETING: Final = "greeting"
OPEN: Final = "open"
CLOSED: Final = "closed"

_K = FrameKind

REPLIES: Final[dict[int, frozenset[int]]] = {
    _K.HELLO: frozenset({_K.WELCOME, _K.ERROR}),
    _K.CONTROL: frozenset({_K.CONTROLLED, _K.ERROR}),
    _K.PUBLISH: frozenset({_K.PUBLISHED, _K.ERROR}),
    _K.RECEIVE: frozenset({_K.DELIVERED, _K.READY, _K.ERROR}),
    _K.SETTLE: frozenset({_K.SETTLED, _K.ERROR}),
    _K.READ: frozenset({_K.BATCHES, _K.ERROR}),
}
"""Every request, and what may answer it."""

CANCELLABLE: Final = frozenset({_K.RECEIVE, _K.READ})

_BOTH: Final = frozenset({_K.PING, _K.PONG})
_REQUESTS: Final = frozenset(REPLIES) - {_K.HELLO}
_NOTHING: Final[frozenset[int]] = frozenset()

SERVER_HEARS: Final[dict[str, frozenset[int]]] = {
    GREETING: frozenset({_K.HELLO}),
    OPEN: _REQUESTS | _BOTH | {_K.CANCEL, _K.GOODBYE},
    CLOSED: _NOTHING,
}

PING: Final = b"".join(encode_frame(_K.PING, 0))
PONG: Final = b"".join(encode_frame(_K.PONG, 0))
GOODBYE: Final = b"".join(encode_frame(_K.GOODBYE, 0))


class ServerConnection:
    """The server's end. `streams` maps each open stream to the kind of its request."""

    __slots__ = ("reader", "state", "streams")

    def __init__(self) -> None:
        self.reader = FrameReader()
        self.state = GREETING
        self.streams: dict[int, int] = {}

    def received(self, count: int) -> list[Frame]:
        """Legal frames, in order, out of `count` more bytes in the reader's buffer.

        PING, PONG, CANCEL and GOODBYE are among them: answering is the shell's.

        Raises: ProtocolError, UnsupportedVersion.
        """
        try:
            frames = self.reader.received(count)
            streams = self.streams
            for kind, _, stream, body in frames:
                hears = SERVER_HEARS[self.state]
                if kind not in hears:
                    raise _unexpected(kind, self.state)
                if kind in REPLIES:
                    if stream in streams or not stream:
                        raise ProtocolError(f"stream {stream} is in use, or is 0")
                    if len(streams) >= MAX_STREAMS:
                        raise ProtocolError(f"more than {MAX_STREAMS} requests in flight")
                    streams[stream] = kind
                elif len(body):
                    raise ProtocolError(f"a {KIND_NAMES[kind]} frame has a body")
        except (ProtocolError, UnsupportedVersion):
            self.state = CLOSED
            raise
        return frames

    def welcomed(self) -> None:
        """The HELLO was accepted: everything may come now, in full size."""
        assert self.state == GREETING
        self.state = OPEN
        self.reader.authenticated()

    def reply(self, kind: int, stream: int, *parts: Buffer) -> list[Buffer]:
        """The vectors of a reply; closes its stream."""
        request = self.streams.pop(stream)
        assert kind in REPLIES[request], "a reply that does not fit its request"
        return encode_frame(kind, stream, *parts)


class ClientConnection:
    """The client's end. `streams` maps each open stream to the kind of its request."""

    __slots__ = ("_last", "reader", "state", "streams")

    def __init__(self) -> None:
        self.reader = FrameReader()
        self.state = GREETING
        self.streams: dict[int, int] = {}
        self._last = 0

    @property
    def is_full(self) -> bool:
        """Whether as many requests are in flight as a server takes."""
        return len(self.streams) >= MAX_STREAMS

    def request(self, kind: int, *parts: Buffer) -> tuple[int, list[Buffer]]:
        """A new stream and the vectors of its request; see `is_full` before."""
        assert self.state == (GREETING if kind == _K.HELLO else OPEN)
        assert kind in REPLIES
        stream = self._last
        while True:
            stream = stream % 0xFFFF_FFFF + 1
            if stream not in self.streams:
                break
        self._last = stream
        self.streams[stream] = kind
        return stream, encode_frame(kind, stream, *parts)

    def cancel(self, stream: int) -> list[Buffer]:
        """Asks for the reply of a waiting request now; nothing if it has been answered."""
        if self.streams.get(stream) not in CANCELLABLE:
            return []
        return encode_frame(_K.CANCEL, stream)

    def received(self, count: int) -> list[Frame]:
        """Legal frames, in order, out of `count` more bytes in the reader's buffer.

        Raises: ProtocolError, UnsupportedVersion.
        """
        try:
            frames = self.reader.received(count)
            for kind, _, stream, body in frames:
                if self.state == CLOSED:
                    raise _unexpected(kind, self.state)
                if kind in _BOTH:
                    if len(body):
                        raise ProtocolError(f"a {KIND_NAMES[kind]} frame has a body")
                elif stream or kind != _K.ERROR:
                    # An ERROR on stream 0 is the server's last word; it answers no request.
                    request = self.streams.pop(stream, None)
                    if request is None or kind not in REPLIES[request]:
                        raise _unexpected(kind, self.state)
        except (ProtocolError, UnsupportedVersion):
            self.state = CLOSED
            raise
        return frames

    def welcomed(self) -> None:
        """The WELCOME was accepted: requests may go out now."""
        assert self.state == GREETING
        self.state = OPEN
        self.reader.authenticated()


def _unexpected(kind: int, state: str) -> ProtocolError:
    name = KIND_NAMES.get(kind, f"of unknown kind {kind}")
    return ProtocolError(f"a frame {name} that nobody waits for, on a connection that is {state}")
