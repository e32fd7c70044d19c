"""Blocking faces of producers, consumers, readers and messages, and the thread behind them.

Every verb is the asynchronous one, run on a private event-loop thread; the names and the arguments
are the same, which a test compares. The client itself is in `blocking_client`.

Rule. Nothing of the library runs outside its loop's thread: what crosses over is a coroutine going
in and a finished result coming back.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, cast

from raftq.batch import Headers
from raftq.client.client import BaseClient
from raftq.client.consumer import Consumer
from raftq.client.message import BaseMessage, Settler
from raftq.client.options import ManyOptions, MessageOptions
from raftq.client.producer import Producer
from raftq.client.reader import Reader
from raftq.client.receipts import PendingReceipt, Receipt, Receipts
from raftq.env.loop import loop_factory
from raftq.errors import InvalidArgument

Result = TypeVar("Result")


class Bridge:
    """The private thread and its loop."""

    def __init__(self) -> None:
        self._loop = loop_factory()()
        self._thread = threading.Thread(target=self._run, name="raftq-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run it on the loop; wait for what it gives. Ctrl-C cancels it."""
        if not self.is_running or threading.current_thread() is self._thread:
            work.close()
            raise InvalidArgument("this client is closed, or was called from its own thread")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, work: Callable[[], Result]) -> Result:
        """Run a plain function on the loop."""

        async def once() -> Result:
            return work()

        return self.run(once())

    def stop(self) -> None:
        if self.is_running:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class BlockingMessage(BaseMessage):
    """One message, whose verbs block. See `Message`."""

    __slots__ = ()

    def ack(self) -> None:
        """It is done: never again. From a consumer this returns at once; see `Consumer.flush`."""
        cast("_Crossing", self.source.settler).settle_ack([self])

    def nack(
        self, *, delay: float = 0.0, reason: str = "", count: bool = True, reject: bool = False
    ) -> None:
        """It failed: hand it out again after `delay`; `count` it against the delivery limit.

        With `reject` it is not handed out again: it becomes a dead letter at once.
        """
        settler = cast("_Crossing", self.source.settler)
        settler.settle_nack([self], delay, reason, count=count, reject=reject)

    def extend(self, seconds: float) -> None:
        """It takes longer: hold it for so many seconds from now."""
        cast("_Crossing", self.source.settler).settle_extend([self], seconds)


class _Crossing:
    """A settler, as messages on other threads reach it."""

    __slots__ = ("_bridge", "_settler")

    def __init__(self, bridge: Bridge, settler: Settler) -> None:
        self._bridge = bridge
        self._settler = settler

    def settle_ack(self, messages: Sequence[BaseMessage]) -> None:
        self._bridge.run(_as_coroutine(self._settler.settle_ack(messages)))

    def settle_nack(
        self,
        messages: Sequence[BaseMessage],
        delay: float,
        reason: str,
        *,
        count: bool,
        reject: bool,
    ) -> None:
        settled = self._settler.settle_nack(messages, delay, reason, count=count, reject=reject)
        self._bridge.run(_as_coroutine(settled))

    def settle_extend(self, messages: Sequence[BaseMessage], seconds: float) -> None:
        self._bridge.run(_as_coroutine(self._settler.settle_extend(messages, seconds)))


class InnerClient(BaseClient[BlockingMessage]):
    """The asynchronous client on the thread, making messages whose verbs block."""

    def __init__(self, url: str | None, bridge: Bridge, **options: Any) -> None:
        super().__init__(url, BlockingMessage, **options)
        self._bridge = bridge

    def _as_settler(self, settler: Settler) -> Settler:
        return cast("Settler", _Crossing(self._bridge, settler))


class BlockingPendingReceipt:
    """A receipt to come; `result` waits for it."""

    def __init__(self, bridge: Bridge, pending: PendingReceipt) -> None:
        self._bridge = bridge
        self._pending = pending

    def done(self) -> bool:
        return self._pending.done()

    def result(self) -> Receipt:
        async def wait() -> Receipt:
            return await self._pending

        return self._pending.result() if self._pending.done() else self._bridge.run(wait())


class BlockingProducer:
    """See `Producer`."""

    def __init__(self, bridge: Bridge, producer: Producer) -> None:
        self._bridge = bridge
        self._producer = producer

    def __enter__(self) -> Self:
        self._bridge.run(self._producer.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bridge.run(self._producer.__aexit__(kind, error, trace))

    def send(
        self,
        body: bytes,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        **options: Unpack[MessageOptions],
    ) -> Receipt:
        return self._bridge.run(self._producer.send(body, key=key, headers=headers, **options))

    def submit(
        self,
        body: bytes,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        **options: Unpack[MessageOptions],
    ) -> BlockingPendingReceipt:
        work = self._producer.submit(body, key=key, headers=headers, **options)
        return BlockingPendingReceipt(self._bridge, self._bridge.run(work))

    def send_many(
        self,
        bodies: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | bytes | None = None,
        headers: Sequence[Headers | None] | Headers | None = None,
        **options: Unpack[ManyOptions],
    ) -> Receipts:
        work = self._producer.send_many(bodies, keys=keys, headers=headers, **options)
        return self._bridge.run(work)

    def flush(self) -> None:
        self._bridge.run(self._producer.flush())


class BlockingConsumer:
    """See `Consumer`: iterate over it inside its block."""

    def __init__(self, bridge: Bridge, consumer: Consumer[BlockingMessage]) -> None:
        self._bridge = bridge
        self._consumer = consumer

    def __enter__(self) -> Self:
        self._bridge.run(self._consumer.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bridge.run(self._consumer.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[BlockingMessage]:
        return self

    def __next__(self) -> BlockingMessage:
        return _next(self._bridge, self._consumer)

    def flush(self) -> None:
        self._bridge.run(self._consumer.flush())

    def close(self) -> None:
        self._bridge.run(self._consumer.close())


class BlockingReader:
    """See `Reader`."""

    def __init__(self, bridge: Bridge, reader: Reader[BlockingMessage]) -> None:
        self._bridge = bridge
        self._reader = reader

    @property
    def next_offset(self) -> int | None:
        return self._reader.next_offset

    def __iter__(self) -> Iterator[BlockingMessage]:
        return self

    def __next__(self) -> BlockingMessage:
        return _next(self._bridge, self._reader)


async def _as_coroutine(work: Coroutine[Any, Any, Result]) -> Result:
    return await work


def _next(
    bridge: Bridge, source: Consumer[BlockingMessage] | Reader[BlockingMessage]
) -> BlockingMessage:
    """The next message, StopAsyncIteration translated: it may not leave a coroutine."""

    async def step() -> BlockingMessage | None:
        try:
            return await source.__anext__()
        except StopAsyncIteration:
            return None

    message = bridge.run(step())
    if message is None:
        raise StopIteration
    return message
