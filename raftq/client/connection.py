"""One connection to one node: requests out, replies back to whoever asked, pings both ways.

Rules:

1. What was given to the transport may have happened: when the connection breaks, every request
   without a reply fails with ConnectionFailed, outcome "unknown". What was refused before that
   fails with "not_applied".
2. A server that says nothing for `SILENT_TICKS_MAX` ticks is gone; before that it is pinged, also
   while nothing is asked of it, so that a broken way is known before it is needed.
3. An answer is a call, in the turn its bytes arrive: nothing here makes a task or a queue.
4. A request that is given up keeps its stream until its reply comes, and the one who gave up still
   gets that: a late delivery must go back.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from raftq.client.ports import Outside
from raftq.client.url import Address
from raftq.env import Buffer, Transport
from raftq.errors import Busy, ConnectionFailed, ProtocolError, RaftqError, Timeout
from raftq.limits import MAX_ANSWER_BYTES
from raftq.wire import cbor, handshake
from raftq.wire.connection import CANCELLABLE, GOODBYE, OPEN, PING, PONG, ClientConnection
from raftq.wire.errors import WireError, decode_error
from raftq.wire.frames import Frame, FrameKind

Answer = Callable[[Frame | WireError], None]
"""Called once with the reply frame, or with what stands for an ERROR frame or a broken connection."""

HANDSHAKE_SECONDS: Final = 5.0
TICK_SECONDS: Final = 1.0
WAITING_TICK_SECONDS: Final = 0.12
"""While an answer is awaited that should come soon: a node that is paused or cut off breaks nothing.
With `SILENT_TICKS_MAX` of them it is given up about when the others have elected a new leader."""

SILENT_TICKS_MAX: Final = 4
_JOIN_BELOW_BYTES: Final = 16 * 1024
"""Short frames are joined: one copy is cheaper than three vectors."""


async def open_connection(
    outside: Outside, address: Address, hello: handshake.Hello, closed: Callable[[], None]
) -> "Connection":
    """A connection that has been greeted; `closed` is called when it breaks later.

    Raises: ConnectionFailed (not_applied), or what the node refuses it with.
    """
    connection = Connection(address, closed)
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            await outside.network.connect(address.host, address.port, lambda: connection)
            await connection.greet(hello)
    except TimeoutError as error:
        connection.abort()
        raise ConnectionFailed(
            f"{address} did not answer within {HANDSHAKE_SECONDS:.0f} s"
        ) from error
    except OSError as error:
        connection.abort()
        raise ConnectionFailed(f"cannot connect to {address}: {error}") from error
    except BaseException:
        connection.abort()
        raise
    return connection


class Connection(asyncio.BufferedProtocol):
    """One connection. Make it with `open_connection`."""

    def __init__(self, address: Address, closed: Callable[[], None]) -> None:
        self.address = address
        self.node = ""
        self.is_open = False
        self.has_fallen_silent = False
        """It broke because the node said nothing for too long."""
        self._wire = ClientConnection()
        self._answers: dict[int, Answer] = {}
        self._transport: Transport | None = None
        self._closed = closed
        self._reason: RaftqError | None = None
        self._heard = False
        self._silent_ticks = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_attentive = False
        """Whether the next tick comes soon."""
        self.is_lively = False
        """Whether the node was heard a moment ago; of one that is not asked much nobody knows."""

    # --- Requests ----------------------------------------------------------------------------

    def send(self, kind: int, parts: list[Buffer] | tuple[Buffer, ...], answer: Answer) -> int:
        """Send one request; `answer` is called when its fate is known. Returns its stream.

        Raises: ConnectionFailed, Busy; both mean that nothing was sent.
        """
        if not self.is_open or self._transport is None:
            raise ConnectionFailed(f"the connection to {self.address} is closed")
        if self._wire.is_full:
            raise Busy(f"too many requests are in flight to {self.address}", retry_after=0.01)
        stream, vectors = self._wire.request(kind, *parts)
        self._answers[stream] = answer
        self._write(vectors)
        if not self._is_attentive and kind not in CANCELLABLE:
            self._arm(is_waiting=True)
        return stream

    def cancel(self, stream: int) -> None:
        """Ask for the reply of a waiting request now; it still comes."""
        if self.is_open:
            vectors = self._wire.cancel(stream)
            if vectors:
                self._write(vectors)

    async def request(
        self, kind: int, parts: list[Buffer] | tuple[Buffer, ...], seconds: float
    ) -> Frame:
        """Send one request and wait for its reply.

        Raises: Timeout (unknown), ConnectionFailed, NotLeader, Moved, or the error that came back.
        """
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()

        def answer(reply: Frame | WireError) -> None:
            if future.done():
                return
            if isinstance(reply, Frame):
                future.set_result(reply)
            else:
                future.set_exception(reply)

        stream = self.send(kind, parts, answer)
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError as error:
            if isinstance(error, RaftqError):
                raise  # The node's own Timeout, which is a TimeoutError as well.
            raise Timeout(
                f"{self.node} at {self.address} did not answer within {seconds:.1f} s"
            ) from error
        finally:
            if stream in self._answers:
                self.cancel(stream)

    async def control(self, values: dict[str, Any], seconds: float) -> dict[str, Any]:
        """One CONTROL operation; raises as `request` does."""
        frame = await self.request(FrameKind.CONTROL, [cbor.encode(values)], seconds)
        return cbor.decode(frame.body, max_bytes=MAX_ANSWER_BYTES)

    async def greet(self, hello: handshake.Hello) -> None:
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()

        def answer(reply: Frame | WireError) -> None:
            if future.done():
                return
            if isinstance(reply, Frame):
                future.set_result(reply)
            else:
                future.set_exception(reply)

        if self._reason is not None:
            raise self._reason  # It spoke before it was asked, and not our language.
        if self._transport is None:
            raise ConnectionFailed(f"{self.address} closed the connection at once")
        stream, vectors = self._wire.request(FrameKind.HELLO, handshake.encode_hello(hello))
        self._answers[stream] = answer
        self._write(vectors)
        welcome = handshake.decode_welcome((await future).body)
        self.node = welcome.node
        self._wire.welcomed()
        self.is_open = True
        self._tick()

    def close(self) -> None:
        """Leave on purpose: what this client holds goes back at once."""
        if self.is_open and self._transport is not None:
            self._transport.write(GOODBYE)
            self._transport.close()
        self.is_open = False
        self._stop_timer()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self.is_open = False
        self._stop_timer()

    # --- The transport's side ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._wire.reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = True
        try:
            frames = self._wire.received(nbytes)
            for frame in frames:
                self._take(frame)
        except ProtocolError as error:
            self._reason = error
            self.abort()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._transport = None
        self._stop_timer()
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer(self._failure(exc))
        self._closed()

    def _failure(self, exc: Exception | None) -> RaftqError:
        if self._reason is not None and self._wire.state != OPEN and not self.node:
            return self._reason  # Refused in the handshake: the node said why.
        why = self._reason or exc or "the other side closed it"
        error = ConnectionFailed(
            f"the connection to {self.address} broke: {why}", outcome="unknown"
        )
        error.__cause__ = self._reason or exc
        return error

    def _take(self, frame: Frame) -> None:
        kind, stream = frame.kind, frame.stream
        if kind == FrameKind.PING:
            self._write([PONG])
        elif kind == FrameKind.ERROR:
            error = decode_error(frame.body)
            if stream:
                self._answers.pop(stream)(error)
            elif isinstance(error, RaftqError):
                self._reason = error
        elif kind != FrameKind.PONG:
            self._answers.pop(stream)(frame)

    def _write(self, vectors: list[Buffer]) -> None:
        if self._transport is None:
            return
        if sum(map(len, vectors)) < _JOIN_BELOW_BYTES:
            self._transport.write(b"".join(vectors))
        else:
            self._transport.writelines(vectors)

    def _tick(self) -> None:
        """Count the silence; ping before it is too long."""
        if not self.is_open:
            return
        self._silent_ticks = 0 if self._heard else self._silent_ticks + 1
        self.is_lively = self._heard and self._is_attentive
        self._heard = False
        if self._silent_ticks >= SILENT_TICKS_MAX:
            self.has_fallen_silent = True
            self._reason = ConnectionFailed(f"{self.address} has fallen silent")
            self.abort()
            return
        if self._silent_ticks:
            self._write([PING])
        self._arm(is_waiting=not CANCELLABLE.issuperset(self._wire.streams.values()))

    def _arm(self, *, is_waiting: bool) -> None:
        """The next tick. A request that follows a pause does not wait for one that is far away."""
        self._stop_timer()
        self._is_attentive = is_waiting
        seconds = WAITING_TICK_SECONDS if is_waiting else TICK_SECONDS
        self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
