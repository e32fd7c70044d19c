"""A consumer: messages one by one, fetched ahead, kept alive, acknowledged in ranges.

Theory of operation. One task fetches ahead: it asks for what is missing to `prefetch`, counting all
that is in hand, buffered or handed out and not settled. Another, every third of the visibility
timeout, extends all that is in hand, so that no message comes back while it waits or is handled;
what has been handled for longer than `max_handling_time` is let go. Acks are gathered for a moment
and leave as ranges.

    group --fetch--> buffered --iteration--> handed out --ack/nack--> settled
                        `------------- extended -------------'

Rules:

1. `ack` returns when the ack is noted, not when it is applied: `flush` waits, and raises what was
   stale. An ack is never lost while the client lives: those of a lost connection are sent again.
2. Leaving the block settles what was acked and gives back what was not handed out, uncounted. What
   was handed out and not settled stays with whoever has it, until its visibility timeout.
3. A fetch that fails for good ends the iteration with its error.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Final, Generic, Self

from raftq.client.message import AnyMessage, BaseMessage, DeliveryReceipt, Settler, Source
from raftq.client.options import duration_us, visibility_us
from raftq.client.ports import SECOND_US, Outside
from raftq.client.receive import Receiver
from raftq.client.routing import QueueInfo
from raftq.client.settle import Runs, Settling, runs_of, stale_error
from raftq.errors import InvalidArgument, RaftqError, StaleReceipt
from raftq.limits import MAX_RECEIVE_MESSAGES
from raftq.wire.requests import ACK, EXTEND, NACK, Item

ACK_PAUSE_SECONDS: Final = 0.005
"""How long acks are gathered before they leave."""

ACKS_MAX: Final = 10_000
"""Acks gathered before `ack` waits for them to leave."""

FETCH_WAIT_SECONDS: Final = 20.0
KEEP_ALIVE_FRACTION: Final = 3
STALE_KEPT_MAX: Final = 10_000


class _Held:
    """A source of which something is in hand: which of its messages, and since when."""

    __slots__ = ("left", "settled", "since", "source")

    def __init__(self, source: Source) -> None:
        self.source = source
        self.left = source.stop - source.start
        self.settled = bytearray(self.left)
        self.since = 0
        """When its first message was handed out (monotonic us); 0 while all are buffered."""

    def items(self) -> list[Item]:
        """What is still in hand, as ranges."""
        source, settled = self.source, self.settled
        found = []
        start = settled.find(0)
        while start >= 0:
            stop = settled.find(1, start)
            stop = len(settled) if stop < 0 else stop
            found.append(
                Item(source.partition, source.delivery, source.start + start, source.start + stop)  # type: ignore[arg-type]  # Offsets are ints.
            )
            start = settled.find(0, stop)
        return found


class Consumer(Generic[AnyMessage]):
    """Iterates over a subscription. Made by `AsyncClient.consumer`; use it as a context manager."""

    def __init__(
        self,
        outside: Outside,
        settling: Settling,
        open_receiver: Callable[[Settler], Awaitable[tuple[Receiver[AnyMessage], QueueInfo]]],
        *,
        prefetch: int,
        visibility_timeout: float | None,
        max_handling_time: float | None,
        auto_ack: bool,
        seconds: float,
    ) -> None:
        if not 1 <= prefetch <= MAX_RECEIVE_MESSAGES:
            raise InvalidArgument(f"prefetch is 1 to {MAX_RECEIVE_MESSAGES}, not {prefetch}")
        self.prefetch = prefetch
        self.stale: deque[DeliveryReceipt] = deque(maxlen=STALE_KEPT_MAX)
        """Settled too late, and not told by `flush` yet."""
        self._clock = outside.clock
        self._settling = settling
        self._open_receiver = open_receiver
        self._auto_ack = auto_ack
        self._seconds = seconds
        self._visibility_us = visibility_us(visibility_timeout)
        self._handling_us = (
            0 if max_handling_time is None else duration_us(max_handling_time, "max_handling_time")
        )
        self._receiver: Receiver[AnyMessage] | None = None
        self._buffered: deque[AnyMessage] = deque()
        self._held: dict[Source, _Held] = {}
        self._in_hand = 0
        self._acks: list[BaseMessage] = []
        self._settling_acks = asyncio.Lock()
        self._flushing: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._wake_reader: asyncio.Future[None] | None = None
        self._wake_fetcher: asyncio.Future[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.is_open = False

    # --- Life --------------------------------------------------------------------------------

    async def open(self) -> Self:
        """Begin to fetch."""
        self._receiver, info = await self._open_receiver(self)
        self._visibility_us = self._visibility_us or info.visibility_us
        self._handling_us = self._handling_us or info.max_handling_us
        self.is_open = True
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._fetch()), loop.create_task(self._keep_alive())]
        return self

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Settle what was acked, give back what was not handed out."""
        if not self.is_open:
            return
        self.is_open = False
        await _cancel(self._tasks)
        try:
            # Behind those on their way: an ack that is cut off would be sent twice.
            await self._settle_acks()
            if self._buffered:
                runs = runs_of(self._buffered)
                self._buffered.clear()
                await self._settling.settle(runs, NACK, count=False)
        except RaftqError:
            pass  # Whatever could not be said, the visibility timeout says later.
        if self._flushing is not None:
            await _cancel([self._flushing])
        self._held.clear()
        self._wake(self._wake_reader)

    # --- Iteration ---------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnyMessage:
        while not self._buffered:
            if self._error is not None:
                raise self._error
            if not self.is_open:
                raise StopAsyncIteration
            self._wake_reader = asyncio.get_running_loop().create_future()
            await self._wake_reader
        message = self._buffered.popleft()
        held = self._held.get(message.source)
        if held is not None and not held.since:
            held.since = self._clock.monotonic()
        if self._auto_ack:
            self._note([message])
        return message

    # --- Settling, as messages ask for it ----------------------------------------------------

    async def settle_ack(self, messages: Sequence[BaseMessage]) -> None:
        """Note the acks; they leave in a moment."""
        if not self.is_open:
            await self._settling.ack(messages)
            return
        self._note(messages)
        if len(self._acks) >= ACKS_MAX:
            await self._settle_acks()

    async def settle_nack(
        self,
        messages: Sequence[BaseMessage],
        delay: float,
        reason: str,
        *,
        count: bool,
        reject: bool,
    ) -> None:
        await self._settling.nack(messages, delay=delay, reason=reason, count=count, reject=reject)
        self._forget(messages)

    async def settle_extend(self, messages: Sequence[BaseMessage], seconds: float) -> None:
        await self._settling.extend(messages, seconds)

    async def flush(self) -> None:
        """Wait until all acks so far are applied.

        Raises: StaleReceipt for those that came too late since the last flush, RaftqError.
        """
        await self._settle_acks()
        if self.stale:
            stale = list(self.stale)
            self.stale.clear()
            raise stale_error(stale)

    def _note(self, messages: Sequence[BaseMessage]) -> None:
        self._acks += messages
        self._forget(messages)
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().create_task(self._flush_soon())

    async def _flush_soon(self) -> None:
        try:
            await asyncio.sleep(ACK_PAUSE_SECONDS)
            await self._settle_acks()
        except RaftqError as error:
            self._fail(error)
        finally:
            self._flushing = None
            if self._acks and self.is_open and self._error is None:
                self._flushing = asyncio.get_running_loop().create_task(self._flush_soon())

    async def _settle_acks(self) -> None:
        """Send the acks noted so far, behind those that are on their way."""
        async with self._settling_acks:
            acks, self._acks = self._acks, []
            if not acks:
                return
            try:
                await self._settle(runs_of(acks), ACK)
            except BaseException:
                # Nothing is known of them: whoever asks next asks for these as well.
                self._acks = acks + self._acks
                raise

    async def _settle(self, runs: Runs, action: int, *, time_us: int = 0) -> None:
        try:
            await self._settling.settle(runs, action, time_us=time_us)
        except StaleReceipt as error:
            self.stale.extend(each for each in error.failed if isinstance(each, DeliveryReceipt))

    def _forget(self, messages: Sequence[BaseMessage]) -> None:
        """These are not in hand any more."""
        for message in messages:
            held = self._held.get(message.source)
            if held is None:
                continue
            position = message.offset - held.source.start
            if not held.settled[position]:
                held.settled[position] = 1
                held.left -= 1
                self._in_hand -= 1
                if not held.left:
                    del self._held[message.source]
        if self._wake_fetcher is not None and 2 * self._in_hand <= self.prefetch:
            self._wake(self._wake_fetcher)

    # --- The two tasks -----------------------------------------------------------------------

    async def _fetch(self) -> None:
        assert self._receiver is not None
        try:
            while True:
                room = self.prefetch - self._in_hand
                if 2 * room < self.prefetch:
                    self._wake_fetcher = asyncio.get_running_loop().create_future()
                    await self._wake_fetcher
                    continue
                messages = await self._receiver.receive(
                    max_messages=room,
                    wait=FETCH_WAIT_SECONDS,
                    seconds=self._seconds,
                    visibility_us=self._visibility_us,
                )
                for message in messages:
                    if message.source not in self._held:
                        self._held[message.source] = _Held(message.source)
                self._in_hand += len(messages)
                self._buffered += messages
                self._wake(self._wake_reader)
        except RaftqError as error:
            self._fail(error)

    async def _keep_alive(self) -> None:
        """Extend all that is in hand, long before it expires."""
        pause = self._visibility_us / KEEP_ALIVE_FRACTION / SECOND_US
        while True:
            await asyncio.sleep(pause)
            self._let_go()
            runs: Runs = {}
            for held in self._held.values():
                runs.setdefault(held.source.target, []).extend(held.items())
            if runs:
                try:
                    await self._settle(runs, EXTEND, time_us=self._visibility_us)
                except RaftqError:
                    pass  # There are two more tries before anything expires.

    def _let_go(self) -> None:
        """What is handled for too long is not kept any longer; whoever has it may still ack."""
        if not self._handling_us:
            return
        since = self._clock.monotonic() - self._handling_us
        for held in [held for held in self._held.values() if 0 < held.since < since]:
            del self._held[held.source]
            self._in_hand -= held.left

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._wake(self._wake_reader)

    @staticmethod
    def _wake(future: "asyncio.Future[None] | None") -> None:
        if future is not None and not future.done():
            future.set_result(None)


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        try:
            await task
        except asyncio.CancelledError:
            pass
