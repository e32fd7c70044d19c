"""AsyncClient: the public face of the library.

Rules:

1. Everything is opened when it is first needed; entering the block only checks that a node answers.
2. Every call ends within `timeout` seconds, besides what it was asked to wait for.
3. The same names, in `blocking`, without await.
"""

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Final, Generic, Self, Unpack

from raftq.batch import Headers
from raftq.client.admin import DEFAULT_SUBSCRIPTION, Administration
from raftq.client.consumer import Consumer
from raftq.client.message import AnyMessage, BaseMessage, Message, Settler
from raftq.client.options import ManyOptions, MessageOptions, visibility_us
from raftq.client.ports import Outside, real_outside
from raftq.client.producer import DEFAULT_WINDOW, Producer
from raftq.client.reader import Reader, Start
from raftq.client.receipts import Receipt, Receipts
from raftq.client.receive import Receiver, check_receive
from raftq.client.retry import Patience
from raftq.client.routing import QueueInfo, Router
from raftq.client.session import Sessions
from raftq.client.settle import Settling
from raftq.client.url import parse_url
from raftq.errors import ConnectionFailed, InvalidArgument, QueueNotFound, RaftqError
from raftq.wire.control import check_subscription

DEFAULT_TIMEOUT: Final = 30.0
DEFAULT_PREFETCH: Final = 1_000

_NAME: Final = "raftq-python"


class BaseClient(Administration, Generic[AnyMessage]):
    """The client, for either kind of message."""

    def __init__(
        self,
        url: str | None,
        kind: type[AnyMessage],
        *,
        timeout: float,
        outside: Outside | None,
    ) -> None:
        if not 0 < timeout <= 86_400:
            raise InvalidArgument(f"timeout is above 0 and at most a day, not {timeout}")
        self.timeout = timeout
        self._outside = outside or real_outside()
        self._kind = kind
        super().__init__(Router(self._outside, parse_url(url), _NAME), timeout)
        self._sessions = Sessions(self._router)
        self._settling = Settling(self._sessions, lambda: Patience(self._outside, timeout))
        self._producers: dict[str, Producer] = {}
        self._opened: list[Producer] = []
        self._consumers: list[Consumer[AnyMessage]] = []
        self._receivers: dict[tuple[str, str], Receiver[AnyMessage]] = {}

    # --- Life --------------------------------------------------------------------------------

    async def connect(self) -> Self:
        """Make sure that a node answers.

        Raises: ConnectionFailed, AuthenticationFailed, UnsupportedVersion.
        """
        patience = Patience(self._outside, self.timeout)
        while True:
            try:
                await self._router.to_any(patience.attempt())
            except RaftqError as error:
                await patience.after(error)
            else:
                return self

    async def close(self) -> None:
        """Flush what was sent, give back what is held, and leave."""
        for consumer in self._consumers:
            await consumer.close()
        for producer in (*self._producers.values(), *self._opened):
            try:
                await producer.flush()
            except ExceptionGroup:
                pass  # Whoever sent it has been told, or has not flushed and does not want to know.
            producer.stop(ConnectionFailed("the client was closed"))
        await self._sessions.close()
        await self._router.close()

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # --- Publishing --------------------------------------------------------------------------

    async def send(
        self,
        queue: str,
        body: bytes,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        **options: Unpack[MessageOptions],
    ) -> Receipt:
        """Publish one message; return when it is acknowledged. Concurrent sends share batches."""
        producer = self._producers.get(queue) or await self._producer(queue)
        try:
            return await producer.send(body, key=key, headers=headers, **options)
        except QueueNotFound:
            if not await self._is_new(queue, producer):
                raise
        producer = await self._producer(queue)
        return await producer.send(body, key=key, headers=headers, **options)

    async def send_many(
        self,
        queue: str,
        bodies: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | bytes | None = None,
        headers: Sequence[Headers | None] | Headers | None = None,
        **options: Unpack[ManyOptions],
    ) -> Receipts:
        """Publish many messages; one receipt each, in their order. The fast way to send a list."""
        producer = self._producers.get(queue) or await self._producer(queue)
        try:
            return await producer.send_many(bodies, keys=keys, headers=headers, **options)
        except QueueNotFound:
            if not await self._is_new(queue, producer):
                raise
        producer = await self._producer(queue)
        return await producer.send_many(bodies, keys=keys, headers=headers, **options)

    def producer(
        self,
        queue: str,
        *,
        name: str | None = None,
        linger: float | None = None,
        window: int = DEFAULT_WINDOW,
    ) -> Producer:
        """A producer of its own: `async with client.producer("orders") as producer`.

        With a `name` it goes on where the last one of that name ended, and fences it. `linger` is
        how long a batch waits for more; None sends at once when nothing is on its way. `window` is
        how many batches may be on their way per partition.
        """
        producer = Producer(
            self._router, queue, name=name, linger=linger, window=window, seconds=self.timeout
        )
        self._opened = [each for each in self._opened if not each.is_done]
        self._opened.append(producer)
        return producer

    async def _producer(self, queue: str) -> Producer:
        """The producer that all sends to a queue share."""
        producer = await Producer(self._router, queue, seconds=self.timeout).open()
        # Another send may have come first while this one was opening.
        return self._producers.setdefault(queue, producer)

    async def _is_new(self, queue: str, producer: Producer) -> bool:
        """Whether the queue was made anew since the producer was opened."""
        self._router.forget(queue)
        for key in [key for key in self._receivers if key[0] == queue]:
            del self._receivers[key]
        if self._producers.get(queue) is producer:
            del self._producers[queue]
            producer.stop(QueueNotFound(f"queue {queue!r} was deleted"))
        return (await self._router.queue(queue, self.timeout)).id != producer.queue_id

    # --- Receiving ---------------------------------------------------------------------------

    async def receive(
        self,
        queue: str,
        *,
        max_messages: int = 1,
        wait: float = 0.0,
        subscription: str = DEFAULT_SUBSCRIPTION,
        visibility_timeout: float | None = None,
    ) -> list[AnyMessage]:
        """Take up to `max_messages` that are ready; if none is, wait so many seconds for the first.

        They come back after `visibility_timeout` (None: as the queue says) if they are not settled.
        """
        check_receive(max_messages, wait)
        held_us = visibility_us(visibility_timeout)
        receiver = self._receivers.get((queue, subscription))
        if receiver is None:
            receiver, _ = await self._receiver(queue, subscription, self)
            self._receivers[queue, subscription] = receiver
        try:
            return await receiver.receive(
                max_messages=max_messages,
                wait=wait,
                seconds=self.timeout,
                visibility_us=held_us,
            )
        except QueueNotFound:
            # The next call asks for the metadata anew: the queue may have been made again.
            self._receivers.pop((queue, subscription), None)
            self._router.forget(queue)
            raise

    async def _receiver(
        self, queue: str, subscription: str, settler: Settler
    ) -> tuple[Receiver[AnyMessage], QueueInfo]:
        check_subscription(subscription)
        info = await self._router.queue(queue, self.timeout)
        settler = self._as_settler(settler)
        receiver = Receiver(self._router, self._sessions, info, subscription, settler, self._kind)
        return receiver, info

    def _as_settler(self, settler: Settler) -> Settler:
        """How messages reach who settles them: the blocking client puts its bridge between."""
        return settler

    def consumer(
        self,
        queue: str,
        *,
        subscription: str = DEFAULT_SUBSCRIPTION,
        prefetch: int = DEFAULT_PREFETCH,
        visibility_timeout: float | None = None,
        max_handling_time: float | None = None,
        auto_ack: bool = False,
    ) -> Consumer[AnyMessage]:
        """Messages one by one: `async with client.consumer("orders") as consumer`.

        At most `prefetch` messages are in hand, fetched ahead and kept alive; one that is handled for
        longer than `max_handling_time` is let go. With `auto_ack` a message is acknowledged when it
        is handed out: at most once.
        """
        consumer = Consumer(
            self._outside,
            self._settling,
            lambda settler: self._receiver(queue, subscription, settler),
            prefetch=prefetch,
            visibility_timeout=visibility_timeout,
            max_handling_time=max_handling_time,
            auto_ack=auto_ack,
            seconds=self.timeout,
        )
        self._consumers = [each for each in self._consumers if each.is_open]
        self._consumers.append(consumer)
        return consumer

    def reader(
        self,
        queue: str,
        *,
        partition: int = 0,
        start: Start = "earliest",
        follow: bool = True,
    ) -> Reader[AnyMessage]:
        """Replay one partition without consuming: `async for message in client.reader("orders")`.

        At the end it waits for more, unless `follow` is False.
        """
        return Reader(
            self._router,
            queue,
            partition,
            start,
            self._kind,
            self._as_settler(self),
            follow=follow,
            seconds=self.timeout,
        )

    async def ack(self, messages: Iterable[BaseMessage] | BaseMessage) -> None:
        """They are done: never again.

        Raises: StaleReceipt, with the receipts of those that came too late in `failed`; the others
        are acknowledged.
        """
        await self._settling.ack(_many(messages))

    async def nack(
        self,
        messages: Iterable[BaseMessage] | BaseMessage,
        *,
        delay: float = 0.0,
        reason: str = "",
        count: bool = True,
        reject: bool = False,
    ) -> None:
        """They failed: hand them out again after `delay`, counted against the delivery limit.

        With `reject` they are not handed out again: they become dead letters at once.

        Raises: StaleReceipt, as `ack` does.
        """
        await self._settling.nack(
            _many(messages), delay=delay, reason=reason, count=count, reject=reject
        )

    async def extend(self, messages: Iterable[BaseMessage] | BaseMessage, seconds: float) -> None:
        """They take longer: hold them for so many seconds from now.

        Raises: StaleReceipt, as `ack` does.
        """
        await self._settling.extend(_many(messages), seconds)

    async def settle_ack(self, messages: Sequence[BaseMessage]) -> None:
        """What `message.ack()` of a received message calls."""
        await self._settling.ack(messages)

    async def settle_nack(
        self,
        messages: Sequence[BaseMessage],
        delay: float,
        reason: str,
        *,
        count: bool,
        reject: bool,
    ) -> None:
        """What `message.nack()` of a received message calls."""
        await self._settling.nack(messages, delay=delay, reason=reason, count=count, reject=reject)

    async def settle_extend(self, messages: Sequence[BaseMessage], seconds: float) -> None:
        """What `message.extend()` of a received message calls."""
        await self._settling.extend(messages, seconds)


class AsyncClient(BaseClient[Message]):
    """A client of a raftq cluster: `async with raftq.AsyncClient("raftq://host:7400") as client`.

    Without a url the environment's RAFTQ_URL is used. `timeout` bounds every call, in seconds,
    besides what it was asked to wait for.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        outside: Outside | None = None,
    ) -> None:
        super().__init__(url, Message, timeout=timeout, outside=outside)


def _many(messages: Iterable[BaseMessage] | BaseMessage) -> Iterable[BaseMessage]:
    return (messages,) if isinstance(messages, BaseMessage) else messages
