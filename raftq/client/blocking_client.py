"""Client: the blocking face of the library, over a private event-loop thread.

Every verb is the asynchronous one, run on that thread. Any thread may use a client; calls of several
threads share batches as concurrent tasks do.
"""

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from raftq.batch import Headers
from raftq.client.admin import (
    DEFAULT_SUBSCRIPTION,
    DeadLetter,
    QueueDescription,
    QueueSummary,
    Redriven,
)
from raftq.client.blocking import (
    BlockingConsumer,
    BlockingMessage,
    BlockingProducer,
    BlockingReader,
    Bridge,
    InnerClient,
)
from raftq.client.client import DEFAULT_PREFETCH, DEFAULT_TIMEOUT
from raftq.client.message import BaseMessage
from raftq.client.options import ManyOptions, MessageOptions, QueueOptions
from raftq.client.ports import Outside
from raftq.client.producer import DEFAULT_WINDOW
from raftq.client.reader import Start
from raftq.client.receipts import Receipt, Receipts


class Client:
    """A blocking client: `with raftq.Client("raftq://host:7400") as client`. See `AsyncClient`."""

    def __init__(
        self,
        url: str | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        outside: Outside | None = None,
    ) -> None:
        self.timeout = timeout
        self._bridge = Bridge()
        try:
            self._client = self._bridge.call(
                lambda: InnerClient(url, self._bridge, timeout=timeout, outside=outside)
            )
        except BaseException:
            self._bridge.stop()
            raise

    def __enter__(self) -> Self:
        try:
            return self.connect()
        except BaseException:
            self._bridge.stop()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def connect(self) -> Self:
        self._bridge.run(self._client.connect())
        return self

    def close(self) -> None:
        if self._bridge.is_running:
            try:
                self._bridge.run(self._client.close())
            finally:
                self._bridge.stop()

    def send(
        self,
        queue: str,
        body: bytes,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        **options: Unpack[MessageOptions],
    ) -> Receipt:
        work = self._client.send(queue, body, key=key, headers=headers, **options)
        return self._bridge.run(work)

    def send_many(
        self,
        queue: str,
        bodies: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | bytes | None = None,
        headers: Sequence[Headers | None] | Headers | None = None,
        **options: Unpack[ManyOptions],
    ) -> Receipts:
        work = self._client.send_many(queue, bodies, keys=keys, headers=headers, **options)
        return self._bridge.run(work)

    def producer(
        self,
        queue: str,
        *,
        name: str | None = None,
        linger: float | None = None,
        window: int = DEFAULT_WINDOW,
    ) -> BlockingProducer:
        return BlockingProducer(
            self._bridge,
            self._bridge.call(
                lambda: self._client.producer(queue, name=name, linger=linger, window=window)
            ),
        )

    def receive(
        self,
        queue: str,
        *,
        max_messages: int = 1,
        wait: float = 0.0,
        subscription: str = DEFAULT_SUBSCRIPTION,
        visibility_timeout: float | None = None,
    ) -> list[BlockingMessage]:
        return self._bridge.run(
            self._client.receive(
                queue,
                max_messages=max_messages,
                wait=wait,
                subscription=subscription,
                visibility_timeout=visibility_timeout,
            )
        )

    def consumer(
        self,
        queue: str,
        *,
        subscription: str = DEFAULT_SUBSCRIPTION,
        prefetch: int = DEFAULT_PREFETCH,
        visibility_timeout: float | None = None,
        max_handling_time: float | None = None,
        auto_ack: bool = False,
    ) -> BlockingConsumer:
        return BlockingConsumer(
            self._bridge,
            self._bridge.call(
                lambda: self._client.consumer(
                    queue,
                    subscription=subscription,
                    prefetch=prefetch,
                    visibility_timeout=visibility_timeout,
                    max_handling_time=max_handling_time,
                    auto_ack=auto_ack,
                )
            ),
        )

    def reader(
        self, queue: str, *, partition: int = 0, start: Start = "earliest", follow: bool = True
    ) -> BlockingReader:
        return BlockingReader(
            self._bridge,
            self._bridge.call(
                lambda: self._client.reader(queue, partition=partition, start=start, follow=follow)
            ),
        )

    def ack(self, messages: Iterable[BaseMessage] | BaseMessage) -> None:
        self._bridge.run(self._client.ack(messages))

    def nack(
        self,
        messages: Iterable[BaseMessage] | BaseMessage,
        *,
        delay: float = 0.0,
        reason: str = "",
        count: bool = True,
        reject: bool = False,
    ) -> None:
        self._bridge.run(
            self._client.nack(messages, delay=delay, reason=reason, count=count, reject=reject)
        )

    def extend(self, messages: Iterable[BaseMessage] | BaseMessage, seconds: float) -> None:
        self._bridge.run(self._client.extend(messages, seconds))

    def create_queue(self, name: str, **options: Unpack[QueueOptions]) -> QueueSummary:
        return self._bridge.run(self._client.create_queue(name, **options))

    def update_queue(self, name: str, **options: Unpack[QueueOptions]) -> QueueSummary:
        return self._bridge.run(self._client.update_queue(name, **options))

    def delete_queue(self, name: str, *, force: bool = False) -> None:
        self._bridge.run(self._client.delete_queue(name, force=force))

    def list_queues(self) -> list[QueueSummary]:
        return self._bridge.run(self._client.list_queues())

    def describe_queue(
        self, name: str, *, subscription: str = DEFAULT_SUBSCRIPTION
    ) -> QueueDescription:
        return self._bridge.run(self._client.describe_queue(name, subscription=subscription))

    def purge_queue(self, name: str) -> int:
        return self._bridge.run(self._client.purge_queue(name))

    def subscribe(self, name: str, subscription: str, *, start: Start = "earliest") -> None:
        self._bridge.run(self._client.subscribe(name, subscription, start=start))

    def unsubscribe(self, name: str, subscription: str) -> None:
        self._bridge.run(self._client.unsubscribe(name, subscription))

    def dead_letters(
        self,
        name: str,
        *,
        subscription: str = DEFAULT_SUBSCRIPTION,
        limit: int = 100,
        partition: int | None = None,
        after_offset: int | None = None,
    ) -> list[DeadLetter]:
        return self._bridge.run(
            self._client.dead_letters(
                name,
                subscription=subscription,
                limit=limit,
                partition=partition,
                after_offset=after_offset,
            )
        )

    def redrive(
        self,
        name: str,
        *,
        subscription: str = DEFAULT_SUBSCRIPTION,
        reason: str | None = None,
        offsets: list[tuple[int, int]] | None = None,
        dry_run: bool = False,
    ) -> Redriven:
        return self._bridge.run(
            self._client.redrive(
                name, subscription=subscription, reason=reason, offsets=offsets, dry_run=dry_run
            )
        )

    def purge_dead(self, name: str, *, subscription: str = DEFAULT_SUBSCRIPTION) -> int:
        return self._bridge.run(self._client.purge_dead(name, subscription=subscription))

    def replace_node(self, name: str) -> list[int]:
        return self._bridge.run(self._client.replace_node(name))

    def status(self) -> dict[str, Any]:
        return self._bridge.run(self._client.status())
