"""One end of a simulated TCP connection: what its process sees, and what the kernels do.

Theory of operation
-------------------
    write ─► pending ─► wire ─► received ─► protocol of the peer
             (process)  (both kernels)      (get_buffer, buffer_updated)

`pending` is the sender's write buffer: it is counted by get_write_buffer_size, pauses the writer,
and dies with the process. What fits the window goes to the wire, each piece with its time of
arrival, and stays in order: a blocked link stalls the wire, it loses nothing. What has arrived waits
in `received` while the reader pauses. The window opens again when the peer's protocol has taken the
bytes and the way back is open.

Rules

1. A protocol is called on its process' own callbacks alone: a paused process sees nothing, a dead
   one never does.
2. Both ends of a connection break by themselves: by reset or end of stream in the order of the
   wire, or after `SILENCE_MICROS` without a way to each other and back.
"""

# ruff: noqa: SLF001 - an end works on its peer, which is of its own class.

import asyncio
import collections
import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from raftq.ids import Micros
from raftq.sim.process import Process
from raftq.sim.task import SimHandle

if TYPE_CHECKING:
    from raftq.sim.network import Fabric

Buffer = bytes | bytearray | memoryview

WINDOW_BYTES = 256 * 1_024
PIECE_BYTES_MAX = 64 * 1_024
WRITE_BUFFER_HIGH_BYTES = 256 * 1_024

SPLIT_ONE_IN = 8
"""So many writes go out in two pieces, cut anywhere: readers must not rely on whole frames."""

SILENCE_MICROS = 10_000_000
SILENCE_JITTER_MICROS = 2_000_000
"""As the real network gives up on a peer that does not answer."""

RETRANSMIT_MICROS_MAX = 400_000
"""After a blocked link heals, TCP goes on at its next retransmission."""

KEEPALIVE_MICROS_MAX = 5_000_000
"""An idle end whose peer is gone learns it from its next keepalive."""


class End(NamedTuple):
    """The last piece on a wire: orderly (end of stream), or a reset."""

    is_reset: bool


ORDERLY: Final = End(is_reset=False)
RESET: Final = End(is_reset=True)


class SimTransport(asyncio.Transport):
    """One end. `connect_to` joins it with its peer before anything is sent."""

    def __init__(
        self, fabric: "Fabric", process: Process, local: tuple[str, int], remote: tuple[str, int]
    ) -> None:
        super().__init__({"sockname": local, "peername": remote})
        self.local = local
        self.remote = remote
        self.process = process
        self.context = process.context.copy()
        self.peer: SimTransport = self
        self.is_lost = False
        self.serial = fabric.next_serial()
        self._fabric = fabric
        self._loop_of_all = fabric.loop
        self._protocol: asyncio.BufferedProtocol | None = None
        self._is_closing = False
        self._pending: collections.deque[bytes] = collections.deque()
        self._pending_bytes = 0
        self._in_window = 0
        self._unacknowledged = 0
        self._wire: collections.deque[tuple[int, bytes | End]] = collections.deque()
        self._wire_timer: SimHandle | None = None
        self._wire_free_at = 0
        self._received: collections.deque[bytes] = collections.deque()
        self._end_received = False
        self._reading_paused = False
        self._writing_paused = False
        self._high_bytes = WRITE_BUFFER_HIGH_BYTES
        self._low_bytes = WRITE_BUFFER_HIGH_BYTES // 4
        self._silence_timer: SimHandle | None = None

    # --- The transport, as its process sees it -------------------------------------------------

    def write(self, data: Buffer) -> None:
        if data:
            self.writelines((data,))

    def writelines(self, list_of_data: Sequence[Buffer]) -> None:  # type: ignore[override]
        if self._is_closing or self.is_lost:
            return
        data = b"".join(list_of_data)
        if not data:
            return
        self._pending.append(data)
        self._pending_bytes += len(data)
        self._pump()
        if self._pending_bytes > self._high_bytes and not self._writing_paused:
            self._writing_paused = True
            assert self._protocol is not None, "written before connection_made"
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self._pending_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = WRITE_BUFFER_HIGH_BYTES if high is None else high
        self._low_bytes = self._high_bytes // 4 if low is None else low
        assert 0 <= self._low_bytes <= self._high_bytes, "limits cross"

    def close(self) -> None:
        """Send what is pending, then end the stream. Nothing more is read."""
        if self._is_closing or self.is_lost:
            return
        self._is_closing = True
        self._received.clear()
        if not self._pending:
            self._finish(ORDERLY)

    def abort(self) -> None:
        if not self.is_lost:
            self._finish(RESET)

    def is_closing(self) -> bool:
        return self._is_closing or self.is_lost

    def can_write_eof(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return not self._reading_paused and not self.is_closing()

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            self._loop_of_all.call_soon(self._take, context=self.context)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.BufferedProtocol), "connections deliver to buffers"
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None, "asked before connection_made"
        return self._protocol

    # --- Made and broken by the network --------------------------------------------------------

    def begin(self, protocol: asyncio.BufferedProtocol) -> None:
        """The connection stands; runs as the process that this end belongs to."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._take()

    def break_with(self, error: OSError | None) -> None:
        """This end is broken; its protocol is told on its process' next callback."""
        if self.is_lost:
            return
        self.vanish()
        if self._protocol is not None:
            self._loop_of_all.call_soon(self._protocol.connection_lost, error, context=self.context)

    def vanish(self) -> None:
        """This end is gone and nobody is told: its process or machine does not exist any more.

        What is on the wire stays there.
        """
        assert not self.is_lost, "lost twice"
        self.is_lost = True
        self._is_closing = True
        self._pending.clear()
        self._pending_bytes = 0
        self._received.clear()
        if self._silence_timer is not None:
            self._silence_timer.cancel()
            self._silence_timer = None
        self._fabric.end_lost(self)
        self.peer._peer_lost()

    def power_lost(self) -> None:
        """The machine stopped: not even what its kernel had accepted will be sent."""
        self._wire.clear()
        if self._wire_timer is not None:
            self._wire_timer.cancel()
            self._wire_timer = None
        self.vanish()

    def killed(self) -> None:
        """The process was killed: its kernel ends the stream, with a reset if bytes were unread."""
        had_unread = bool(self._received)
        self.vanish()
        self._send(RESET if had_unread else ORDERLY)

    def link_changed(self) -> None:
        """A link between the two hosts was blocked or healed."""
        if self.is_lost:
            self._restart_wire()
            return
        fabric = self._fabric
        if not fabric.is_open_both_ways(self.local[0], self.remote[0]):
            if self._silence_timer is None:
                delay = SILENCE_MICROS + fabric.random.randrange(SILENCE_JITTER_MICROS)
                self._silence_timer = self._later(delay, self._silent_too_long)
        else:
            if self._silence_timer is not None:
                self._silence_timer.cancel()
                self._silence_timer = None
            if self.peer.is_lost and not self.peer._wire:
                self._later(fabric.random.randrange(KEEPALIVE_MICROS_MAX), self.reset)
        if self._unacknowledged and fabric.is_open(self.remote[0], self.local[0]):
            # The acknowledgements that were kept back reach the other end.
            self._in_window -= self._unacknowledged
            self._unacknowledged = 0
            self._pump()
        self._restart_wire()

    def reset(self) -> None:
        """A reset has reached this end."""
        self.break_with(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def _silent_too_long(self) -> None:
        self.break_with(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))

    def _finish(self, end: End) -> None:
        self.break_with(None)
        self._send(end)

    def _later(self, delay: int, function: Any) -> SimHandle:
        moment = Micros(self._loop_of_all.now + delay)
        return self._loop_of_all.call_at_micros(moment, function, context=self.context)

    # --- Sending -------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send what the window allows."""
        pending = self._pending
        while pending and (room := WINDOW_BYTES - self._in_window) > 0:
            data = pending.popleft()
            length = len(data)
            limit = min(PIECE_BYTES_MAX, room)
            if length > 1 and self._fabric.one_in(SPLIT_ONE_IN):
                limit = min(limit, 1 + self._fabric.random.randrange(length - 1))
            if length > limit:
                pending.appendleft(data[limit:])
                data = data[:limit]
                length = limit
            self._pending_bytes -= length
            self._in_window += length
            self._send(data, length)
        if self._writing_paused and self._pending_bytes <= self._low_bytes:
            self._writing_paused = False
            assert self._protocol is not None, "paused before connection_made"
            self._loop_of_all.call_soon(self._protocol.resume_writing, context=self.context)
        if self._is_closing and not pending and not self.is_lost:
            self._finish(ORDERLY)

    def _send(self, piece: bytes | End, length: int = 0) -> None:
        """Put a piece of so many bytes on the wire."""
        arrival, self._wire_free_at = self._fabric.schedule(length, self._wire_free_at)
        wire = self._wire
        if wire and wire[-1][0] > arrival:
            arrival = wire[-1][0]
        wire.append((arrival, piece))
        if self._wire_timer is None:
            self._set_wire_timer(arrival)

    def _set_wire_timer(self, moment: int) -> None:
        # The callback is the receiving process' own, unless it is gone: then the sender learns it.
        owner = self if self.peer.is_lost else self.peer
        self._wire_timer = self._loop_of_all.call_at_micros(
            Micros(moment), self._arrive, context=owner.context
        )

    def _peer_lost(self) -> None:
        if self._wire_timer is not None:
            self._wire_timer.cancel()
            self._set_wire_timer(self._wire[0][0])

    def _restart_wire(self) -> None:
        if self._wire and self._wire_timer is None:
            delay = self._fabric.random.randrange(RETRANSMIT_MICROS_MAX)
            self._set_wire_timer(self._loop_of_all.now + delay)

    def _arrive(self) -> None:
        self._wire_timer = None
        if not self._fabric.is_open(self.local[0], self.remote[0]):
            return  # Stalled; `link_changed` goes on.
        wire, peer, now = self._wire, self.peer, self._loop_of_all.now
        while wire and wire[0][0] <= now:
            piece = wire.popleft()[1]
            if peer.is_lost:
                # Nobody is there: its kernel answers with a reset, unless that is how it began.
                if not self.is_lost and not isinstance(piece, End):
                    self._later(self._fabric.latency(), self.reset)
            elif isinstance(piece, End):
                if piece.is_reset:
                    peer.reset()
                else:
                    peer._end_received = True
            else:
                peer._received.append(piece)
        if wire:
            self._set_wire_timer(wire[0][0])
        peer._take()

    # --- Receiving -----------------------------------------------------------------------------

    def _take(self) -> None:
        """Give the protocol what has arrived, as much at a time as its buffer holds."""
        protocol, received = self._protocol, self._received
        if protocol is None:
            return
        while received and not self._reading_paused and not self.is_closing():
            buffer = memoryview(protocol.get_buffer(-1))
            room, count = len(buffer), 0
            parts = []
            while received and count < room:
                part = received.popleft()
                if len(part) > room - count:
                    received.appendleft(part[room - count :])
                    part = part[: room - count]
                parts.append(part)
                count += len(part)
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            buffer[:count] = data
            buffer.release()
            self._fabric.delivered(self, data)
            self.peer._taken(count)
            protocol.buffer_updated(count)
        if self._end_received and not received and not self.is_closing():
            self._end_received = False
            if not protocol.eof_received():
                self.close()

    def _taken(self, count: int) -> None:
        """The peer's protocol took so many bytes; the window opens if that can be told."""
        if self.is_lost:
            return
        if self._fabric.is_open(self.remote[0], self.local[0]):
            self._in_window -= count
            if self._pending or self._writing_paused or self._is_closing:
                self._pump()
        else:
            self._unacknowledged += count
