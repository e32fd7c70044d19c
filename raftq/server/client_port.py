"""The port for clients: connections in, requests out, replies back.

One `ClientConnection` per socket, a protocol over `wire.connection.ServerConnection`. Replies of one
pass of the loop leave as one write. What a stranger can cost is bounded: a handshake must come
within 5 s and in a small frame, a frame that has begun must end within 30 s, unread replies may
pile up to a limit, connections to another.
"""

import asyncio
from asyncio import BufferedProtocol, TimerHandle
from typing import TYPE_CHECKING, cast

from raftq.env import Buffer, Listener, Transport
from raftq.errors import Busy, ProtocolError, RaftqError
from raftq.limits import (
    CONNECTION_WRITE_BUFFER_MAX,
    FRAME_MICROS,
    HANDSHAKE_MICROS,
    MAX_ANSWER_BYTES,
    MAX_CONNECTIONS,
    RELEASE_DELAY_MICROS,
)
from raftq.observability.logs import logger
from raftq.observability.repeats import Repeats
from raftq.server.request import Request
from raftq.wire import cbor, errors, handshake
from raftq.wire.connection import CANCELLABLE, OPEN, PONG, ServerConnection
from raftq.wire.frames import Frame, FrameKind, encode_frame

if TYPE_CHECKING:
    from raftq.server.node import Node

_log = logger("raftq.server")
_SESSION_OPERATIONS = ("open_session", "attach")
_SESSION_OPERATION_BYTES_MAX = 512
"""They are short; whatever is longer is decoded once, by its handler."""


class ClientPort:
    """Listens, and counts who is connected."""

    def __init__(self, node: "Node") -> None:
        self.node = node
        self.connections: dict[int, ClientConnection] = {}
        self.refused = 0
        self._refusals = Repeats()
        self._listener: Listener | None = None
        self._next = 1

    async def start(self, host: str, port: int) -> tuple[str, int]:
        network = self.node.environment.network
        self._listener = await network.listen(host, port, lambda: ClientConnection(self))
        return self._listener.address

    def joined(self, connection: "ClientConnection") -> int:
        number = self._next
        self._next += 1
        self.connections[number] = connection
        return number

    def say_refused(self, transport: Transport, error: RaftqError) -> None:
        """Who comes again and again for the same reason does not fill the log."""
        peer: object = transport.get_extra_info("peername")
        host = peer[0] if isinstance(peer, tuple) else peer
        key = (str(host), type(error).__name__)
        unsaid = self._refusals.due(key, now=self.node.now())
        if unsaid is not None:
            _log.warning("client refused", client=str(peer), reason=str(error), unsaid=unsaid)

    def stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def is_busy(self) -> bool:
        """Whether a client waits for an answer that should come soon."""
        return any(connection.is_busy for connection in self.connections.values())

    def let_go(self) -> None:
        """Close every connection, after what was answered."""
        for connection in list(self.connections.values()):
            connection.close()

    def close(self) -> None:
        self.stop_listening()
        for connection in list(self.connections.values()):
            connection.abort()


class ClientConnection(BufferedProtocol):
    """One client."""

    def __init__(self, port: ClientPort) -> None:
        self._port = port
        self._node = port.node
        self._wire = ServerConnection()
        self._transport: Transport | None = None
        self._number = 0
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._flush_wanted = False
        self._requests: dict[int, Request] = {}
        self._sessions: dict[tuple[int, int], int] = {}
        self._goodbye = False
        self._timer: TimerHandle | None = None
        self._begun_at: int | None = None
        """When the handshake, or the frame that is unfinished, began (monotonic us)."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("Transport", transport)
        self._number = self._port.joined(self)
        if len(self._port.connections) > MAX_CONNECTIONS:
            self._refuse(
                Busy(f"this node has {MAX_CONNECTIONS} connections, its bound", retry_after=1.0)
            )
            return
        self._begun_at = self._node.now()
        self._wait_for_rest(HANDSHAKE_MICROS)

    def _wait_for_rest(self, micros: int) -> None:
        """Whatever has begun must be over in time; looked at by one timer, re-armed lazily."""
        if self._timer is None:
            self._timer = self._node.loop.call_later(micros / 1_000_000, self._look_at_rest)

    def _look_at_rest(self) -> None:
        self._timer = None
        if self._begun_at is None or self._transport is None:
            return
        allowed = FRAME_MICROS if self._wire.state == OPEN else HANDSHAKE_MICROS
        left = self._begun_at + allowed - self._node.now()
        if left > 0:
            self._wait_for_rest(left)
        else:
            self._refuse(ProtocolError("a handshake or a frame was not finished in time"))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- In -----------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._wire.reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._wire.received(nbytes)
            for frame in frames:
                if self._transport is None or self._transport.is_closing():
                    return
                self._take(frame)
        except RaftqError as error:
            self._refuse(error)
            return
        if self._wire.state != OPEN:
            return
        if not self._wire.reader.mid_frame:
            self._begun_at = None
        elif frames or self._begun_at is None:
            self._begun_at = self._node.now()
            self._wait_for_rest(FRAME_MICROS)

    def _take(self, frame: Frame) -> None:
        kind, stream = frame.kind, frame.stream
        if kind == FrameKind.HELLO:
            self._greet(frame)
        elif kind == FrameKind.PING:
            self._send([PONG])
        elif kind == FrameKind.GOODBYE:
            self._goodbye = True
            assert self._transport is not None
            self._transport.close()
        elif kind == FrameKind.CANCEL:
            waiting = self._requests.get(stream)
            if waiting is not None:
                waiting.cancel()
        elif kind != FrameKind.PONG:
            self._request(frame)

    def _greet(self, frame: Frame) -> None:
        if self._wire.state == OPEN:
            raise ProtocolError("a second greeting")
        hello = handshake.decode_hello(frame.body)
        version = handshake.choose_version(hello.versions)
        welcome = handshake.Welcome(
            version=version,
            features=(),
            cluster=self._node.host.identity.cluster,
            node=self._node.config.name,
            limits=handshake.LIMITS,
        )
        reply = self._wire.reply(FrameKind.WELCOME, frame.stream, handshake.encode_welcome(welcome))
        self._wire.welcomed()
        self._send(reply)

    def _request(self, frame: Frame) -> None:
        stream = frame.stream
        session_operation = self._session_operation(frame)

        def answer(kind: int, parts: tuple[Buffer, ...]) -> None:
            self._requests.pop(stream, None)
            if session_operation is not None and kind == FrameKind.CONTROLLED:
                self._session_used(session_operation, parts)
            if self._transport is not None and not self._transport.is_closing():
                self._send(self._wire.reply(kind, stream, *parts))
                if kind == FrameKind.ERROR and self._node.host.bootstrap_state.problem is not None:
                    # Its cluster refuses this node: the client had better ask another one.
                    self._node.loop.call_soon(self._transport.close)

        request = Request(frame.kind, frame.body, answer)
        self._requests[stream] = request
        self._node.router.handle(request)

    # --- Sessions -----------------------------------------------------------------------------

    def _session_operation(self, frame: Frame) -> dict[str, object] | None:
        """The map of a CONTROL that opens or attaches a session through this connection."""
        if frame.kind != FrameKind.CONTROL or len(frame.body) > _SESSION_OPERATION_BYTES_MAX:
            return None
        try:
            wanted = cbor.decode(frame.body)
        except RaftqError:
            return None  # The handler refuses it in a moment, with the reason.
        return wanted if wanted.get("do") in _SESSION_OPERATIONS else None

    def _session_used(self, wanted: dict[str, object], parts: tuple[Buffer, ...]) -> None:
        reply = cbor.decode(memoryview(b"".join(parts)), max_bytes=MAX_ANSWER_BYTES)
        group = wanted["group"]
        session = reply.get("session", wanted.get("session"))
        assert isinstance(group, int)
        assert isinstance(session, int)
        self._sessions[group, session] = reply["attachment"]
        if self._transport is None:
            self._release()  # The client left while its session was being opened.

    def _release(self) -> None:
        """Give back what this client's sessions hold; a newer attachment makes it void."""
        sessions, self._sessions = self._sessions, {}
        for (group, session), attachment in sessions.items():
            self._node.releases.release(group, session, attachment, goodbye=self._goodbye)

    # --- Out ----------------------------------------------------------------------------------

    def _send(self, vectors: list[Buffer]) -> None:
        self._out += vectors
        self._out_bytes += sum(map(len, vectors))
        if self._out_bytes > CONNECTION_WRITE_BUFFER_MAX:
            self._cut_off()  # Requests of one read may ask for more than memory holds.
        elif not self._flush_wanted:
            self._flush_wanted = True
            self._node.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_wanted = False
        out, self._out = self._out, []
        self._out_bytes = 0
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.writelines(out)
        if self._transport.get_write_buffer_size() > CONNECTION_WRITE_BUFFER_MAX:
            self._cut_off()

    def _cut_off(self) -> None:
        self._out = []
        if self._transport is not None and not self._transport.is_closing():
            _log.warning("client does not read", client=self._peer())
            self._transport.abort()

    def _peer(self) -> str:
        return str(self._transport.get_extra_info("peername")) if self._transport else "?"

    def _refuse(self, error: RaftqError) -> None:
        """One ERROR frame, one log line, and the end."""
        self._port.refused += 1
        if self._transport is None or self._transport.is_closing():
            return
        self._port.say_refused(self._transport, error)
        self._transport.writelines(encode_frame(FrameKind.ERROR, 0, errors.encode_error(error)))
        self._transport.close()

    @property
    def is_busy(self) -> bool:
        return any(each.kind not in CANCELLABLE for each in self._requests.values())

    def close(self) -> None:
        """End it after what was answered."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature.
        self._transport = None
        self._stop_timer()
        self._port.connections.pop(self._number, None)
        waiting, self._requests = self._requests, {}
        for request in waiting.values():
            request.cancel()
        if not self._sessions:
            return
        if self._goodbye:
            self._release()
        else:
            self._node.releases.later(RELEASE_DELAY_MICROS / 1_000_000, self._release)
