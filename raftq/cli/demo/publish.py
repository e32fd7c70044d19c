"""The demo's producer: sends portions, several at a time, and notes what was acknowledged and when.

A portion's messages go to several partitions, so its receipts are noted in runs: neighbours in one
partition and one entry of the log. A run is a row of the ledger.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final

from raftq.cli.demo.input import Manifest, Portion
from raftq.cli.demo.record import Record, digest
from raftq.client.client import AsyncClient
from raftq.client.producer import Producer
from raftq.client.receipts import Receipt
from raftq.embedded.ledger import NO_GROUP, LedgerRow, digest_of
from raftq.errors import RaftqError

PORTION_MESSAGES: Final = 2_000
PORTIONS_IN_FLIGHT: Final = 12
"""Enough to keep every partition busy; few enough that acknowledgements come every few ms."""

PRODUCER_NAME: Final = "raftq-demo"


class Publisher:
    """Publishes everything; look at its fields at any time."""

    def __init__(self, client: AsyncClient, queue: str, queue_id: int) -> None:
        self.record = Record()
        self.rows: list[LedgerRow] = []
        self.manifests: dict[bytes, Manifest] = {}
        self.messages = 0
        """Sent so far, acknowledged or not."""
        self.failures: list[RaftqError] = []
        self.seconds = 0.0
        self.acknowledged_at: dict[int, list[float]] = {}
        """By partition: when an acknowledgement came, in seconds of the monotonic clock."""
        self._client = client
        self._queue = queue
        self._queue_id = queue_id

    async def run(
        self,
        portions: Iterable[Portion],
        *,
        half: int,
        half_way: Callable[[], Awaitable[None]],
        progress: Callable[[], None],
    ) -> None:
        """Send all portions; `half_way` is called once, when `half` messages have been sent.

        Errors of a call are kept; what it sent is not acknowledged then.
        """
        begun = time.monotonic()
        in_flight: deque[asyncio.Task[None]] = deque()
        async with self._client.producer(self._queue, name=PRODUCER_NAME) as producer:
            for portion in portions:
                self.messages += len(portion.bodies)
                self.manifests |= {manifest.name: manifest for manifest in portion.manifests}
                task = asyncio.create_task(self._send(producer, portion))
                in_flight.append(task)
                # Its batches are in the outboxes now, before those of the next portion.
                await asyncio.sleep(0)
                if self.messages - len(portion.bodies) < half <= self.messages:
                    await half_way()
                if len(in_flight) >= PORTIONS_IN_FLIGHT:
                    await in_flight.popleft()
                    progress()
            while in_flight:
                await in_flight.popleft()
                progress()
        self.seconds = time.monotonic() - begun

    async def _send(self, producer: Producer, portion: Portion) -> None:
        try:
            receipts = await producer.send_many(
                portion.bodies, keys=portion.keys, headers=portion.headers
            )
        except RaftqError as error:
            self.failures.append(error)
            return
        now = time.monotonic()
        self._note(receipts, portion.bodies, now)

    def _note(self, receipts: Sequence[Receipt], bodies: list[bytes], now: float) -> None:
        note = self.record.note
        first = 0
        previous = receipts[0]
        for position, receipt in enumerate(receipts):
            partition, offset = receipt.partition, receipt.offset
            note(partition, offset, digest(bodies[position]))
            if position and (
                partition != previous.partition
                or offset != previous.offset + 1
                or receipt.index != previous.index
            ):
                self._add_row(receipts[first], bodies[first:position], now)
                first = position
            previous = receipt
        self._add_row(receipts[first], bodies[first:], now)

    def _add_row(self, receipt: Receipt, bodies: list[bytes], now: float) -> None:
        self.acknowledged_at.setdefault(receipt.partition, []).append(now)
        self.rows.append(
            LedgerRow(
                queue=self._queue_id,
                partition=receipt.partition,
                base_offset=receipt.offset,
                count=len(bodies),
                group=NO_GROUP,
                term=receipt.term,
                index=receipt.index,
                chain=receipt.chain.hex(),
                digest=digest_of(bodies),
                bytes=sum(map(len, bodies)),
            )
        )

    def busiest_partition(self) -> int:
        """The partition with the most acknowledged messages; 0 before there are any."""
        counts = self.record.partitions()
        return max(sorted(counts), key=lambda partition: counts[partition], default=0)

    def longest_gap(self, since: float) -> float | None:
        """The longest time for which a partition was without an acknowledgement, after `since`.

        It may have begun before. None when nothing was acknowledged both before and after.
        """
        gaps = [
            after - before
            for times in self.acknowledged_at.values()
            for before, after in pairwise(times)
            if after >= since
        ]
        return max(gaps, default=None)
