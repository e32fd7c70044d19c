"""Replay: the messages of one partition, in order, without consuming any.

Rules:

1. A gap is told, never skipped in silence: reading offsets that are not held any more raises
   OffsetOutOfRange, which names them; reading on after it begins behind the gap.
2. At the end a reader waits for more, unless it was told to stop there (`follow=False`).
"""

from collections import deque
from typing import Final, Generic, Literal, Self

from raftq.batch import Batch
from raftq.client.message import (
    AnyMessage,
    Settler,
    Source,
    Target,
    messages_of,
)
from raftq.client.ports import SECOND_US
from raftq.client.retry import Patience
from raftq.client.routing import QueueInfo, Router
from raftq.errors import InvalidArgument, OffsetOutOfRange, ProtocolError
from raftq.ids import Offset, Partition, SessionId
from raftq.wire import requests
from raftq.wire.frames import FrameKind
from raftq.wire.requests import LATEST, Batches, Read

Start = Literal["earliest", "latest"] | int

READ_BYTES: Final = 1024 * 1024
WAIT_SECONDS: Final = 2.0
"""Shorter than one attempt, so that a reader at the end is never taken for a silent server."""


class Reader(Generic[AnyMessage]):
    """Iterates over one partition. Made by `AsyncClient.reader`."""

    def __init__(
        self,
        router: Router,
        queue: str,
        partition: int,
        start: Start,
        kind: type[AnyMessage],
        settler: Settler,
        *,
        follow: bool,
        seconds: float,
    ) -> None:
        if start not in {"earliest", "latest"} and (not isinstance(start, int) or start < 0):
            raise InvalidArgument(f"start is 'earliest', 'latest' or an offset, not {start!r}")
        self.queue = queue
        self.partition = Partition(partition)
        self._router = router
        self._kind = kind
        self._settler = settler
        self._follow = follow
        self._seconds = seconds
        self._gaps_allowed = start == "earliest"
        self._next: Offset | None
        if start == "latest":
            self._next = LATEST
        else:
            self._next = Offset(0 if start == "earliest" else int(start))
        self._ready: deque[AnyMessage] = deque()
        self._gap: tuple[Offset, Offset] | None = None

    @property
    def next_offset(self) -> int | None:
        """Where the next read begins; None while "latest" is not known yet."""
        if self._ready:
            return self._ready[0].offset
        return None if self._next == LATEST else self._next

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnyMessage:
        while not self._ready:
            if self._gap is not None:
                first, last = self._gap
                self._gap = None
                raise OffsetOutOfRange(
                    f"offsets {first} to {last - 1} of {self.queue!r}/{self.partition} are not held "
                    f"any more; read on from {last}"
                )
            if not await self._fill():
                raise StopAsyncIteration
        return self._ready.popleft()

    async def _fill(self) -> bool:
        """Read once; whether there may be more."""
        info = await self._router.queue(self.queue, self._seconds)
        if self.partition >= len(info.groups):
            raise InvalidArgument(
                f"{self.queue!r} has {len(info.groups)} partitions; there is no {self.partition}"
            )
        assert self._next is not None
        begin = self._next
        reply = await self._read(info, begin)
        if begin == LATEST:
            self._next = reply.end_offset
            return self._follow
        if begin > reply.end_offset:
            raise OffsetOutOfRange(
                f"offset {begin} of {self.queue!r}/{self.partition} does not exist yet; the log ends at "
                f"{reply.end_offset}"
            )
        if begin < reply.first_offset:
            self._skip(begin, reply.first_offset)
            if self._gap is not None:
                return True
        target = Target(self.queue, info.id, "", info.groups[self.partition], SessionId(0))
        for stored in reply.batches:
            if not self._take(stored, target):
                return True
        if not reply.batches and begin < reply.end_offset:
            # All that was there up to the end has been let go of.
            self._skip(begin, reply.end_offset)
            return True
        return bool(reply.batches) or self._follow

    def _skip(self, first: Offset, last: Offset) -> None:
        if not self._gaps_allowed:
            self._gap = (first, last)
        self._next = last

    def _take(self, stored: requests.StoredBatch, target: Target) -> bool:
        """Queue the messages of one batch; False if a gap lies before it."""
        batch = Batch(bytes(stored.data))
        if (batch.header.queue, batch.header.partition) != (target.queue_id, self.partition):
            raise ProtocolError("a batch of another queue was read")
        assert self._next is not None
        end = Offset(stored.base_offset + batch.count)
        if end <= self._next:
            return True
        if stored.base_offset > self._next:
            self._skip(self._next, stored.base_offset)
            if self._gap is not None:
                return False
        source = Source(target, self._settler, batch, stored, 0, 0, self._next, end)
        self._ready.extend(messages_of(source, self._kind))
        self._next = end
        self._gaps_allowed = False
        return True

    async def _read(self, info: QueueInfo, offset: Offset) -> Batches:
        group = info.groups[self.partition]
        wait_us = int(WAIT_SECONDS * SECOND_US) if self._follow else 0

        async def attempt(patience: Patience) -> Batches:
            connection = await self._router.to_leader(group, patience.attempt())
            parts = requests.encode_read(Read(info.id, self.partition, offset, READ_BYTES, wait_us))
            frame = await connection.request(FrameKind.READ, parts, patience.attempt())
            return requests.decode_batches(frame.body)

        return await self._router.until_answered(attempt, self._seconds, group=group)
