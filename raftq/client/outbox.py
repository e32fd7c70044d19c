"""The batches of one partition on their way: numbered, in order, whatever breaks.

Theory of operation. A batch is *queued* until the window has room, then numbered, encoded and sent;
it is *outstanding* until its fate is known:

    queued ---number, send---> outstanding ---answer---> done
                                   |  ^
                     connection lost, redirect, busy, a gap ...
                                   v  |
                               recovery: pause, find the leader, send all of them again, in order

The server takes a number only after all numbers before it, and answers one that it has with what it
answered before. So whatever happened, all that is outstanding is sent again in the order of the
numbers, and is in the log once.

A *generation* is one sending of the outstanding batches over one connection. An error of an older
generation tells nothing new: the batch has been sent again since.

A batch that is given up may leave a hole in the numbers, and what follows is refused with
SequenceGap, or with SessionExpired if nothing was published yet. When that happens to the first
outstanding one, the producer begins anew (`Identity.renew`): nothing sent before enters the log any
more, and the answer says up to which number it did. What did is sent once more as it was, and is
answered with its offsets; all the rest gets new numbers. So a hole costs a delay, never an error; but
of a producer that was forgotten meanwhile, for being idle so long, nobody can tell.

Invariant: numbers ascend in `_outstanding`.
"""

import asyncio
from collections import deque
from functools import partial
from typing import Final, Protocol

from raftq.client.connection import Connection
from raftq.client.identity import Identity
from raftq.client.outgoing import OutgoingBatch
from raftq.client.ports import SECOND_US
from raftq.client.retry import ATTEMPT_SECONDS, final_error, pause_before
from raftq.client.routing import Router
from raftq.env import Buffer
from raftq.errors import (
    ConnectionFailed,
    ProducerFenced,
    ProtocolError,
    QueueNotFound,
    RaftqError,
    SequenceGap,
    SessionExpired,
    Timeout,
)
from raftq.ids import GroupId, Partition, QueueId
from raftq.wire import requests
from raftq.wire.errors import Moved, NotLeader, WireError
from raftq.wire.frames import Frame, FrameKind

ATTEMPT_US: Final = int(ATTEMPT_SECONDS * SECOND_US)
SWEEP_SECONDS_MAX: Final = 1.0
SWEEP_SECONDS_MIN: Final = 0.01


class Owner(Protocol):
    """The producer, as its outboxes see it."""

    def batch_done(self, outbox: "Outbox", batch: OutgoingBatch) -> None: ...

    def ended(self, error: RaftqError) -> None:
        """Nothing can be published any more, for this reason."""
        ...


class Outbox:
    """One partition's way out."""

    def __init__(
        self,
        router: Router,
        owner: Owner,
        identity: Identity,
        *,
        queue: QueueId,
        partition: Partition,
        group: GroupId,
        window: int,
        seconds: float,
    ) -> None:
        self.partition = partition
        self.open: OutgoingBatch | None = None
        """The batch that the producer fills; not yet given to `put`."""
        self.timer: asyncio.Handle | None = None
        """When the producer wants to send `open` at the latest."""
        self._router = router
        self._owner = owner
        self._identity = identity
        self._acknowledged = identity.next_sequence - 1
        """The last number known to be in the log."""
        self._queue = queue
        self._group = group
        self._window = window
        self._seconds = seconds
        self._connection: Connection | None = None
        self._queued: deque[OutgoingBatch] = deque()
        self._outstanding: deque[OutgoingBatch] = deque()
        self._generation = 0
        self._tries = 0
        self._error: WireError | None = None
        self._renew = False
        self._recovery: asyncio.Task[None] | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        return not self._outstanding and not self._queued

    @property
    def is_crowded(self) -> bool:
        """Whether enough is on its way that the next batch had better wait and grow."""
        return len(self._outstanding) > 1 or bool(self._queued)

    def batches(self) -> list[OutgoingBatch]:
        """All that is not done, in order, the open one last."""
        last = [self.open] if self.open is not None else []
        return [*self._outstanding, *self._queued, *last]

    def put(self, batch: OutgoingBatch) -> None:
        """Send the batch, after those put before it."""
        self._queued.append(batch)
        if self._recovery is None:
            self._pump()

    def fail_all(self, error: RaftqError) -> None:
        """Give everything up."""
        batches = self.batches()
        # First of all nothing is left: who hears of the first failure may look for more to send.
        self._outstanding.clear()
        self._queued.clear()
        self.open = None
        for batch in batches:
            if not batch.is_done:
                self._fail(batch, error)

    def close(self) -> None:
        if self._recovery is not None:
            self._recovery.cancel()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None

    # --- Sending -----------------------------------------------------------------------------

    def _pump(self) -> None:
        if self._renew:
            # The server may have begun anew already, and take nothing under the old epoch.
            self._recover(None)
            return
        connection = self._connection
        if not self._outstanding:
            # Nothing can be overtaken: the moment to leave a detour.
            connection = self._connection = self._router.open_to(self._group) or connection
        if connection is None or not connection.is_open:
            connection = self._connection = self._router.open_to(self._group)
            if connection is None:
                if not self.is_idle:
                    self._recover(None)
                return
        while self._queued and len(self._outstanding) < self._window:
            batch = self._queued.popleft()
            if not self._number(batch):
                continue
            self._outstanding.append(batch)
            if not self._send(batch, connection):
                return
        self._watch()

    def _number(self, batch: OutgoingBatch) -> bool:
        identity = self._identity
        batch.producer, batch.epoch = identity.producer, identity.epoch
        batch.sequence = identity.next_sequence
        try:
            batch.encode(self._queue, self.partition)
        except RaftqError as error:
            # No number was used: the next batch gets this one.
            self._fail(batch, error)
            return False
        identity.next_sequence += len(batch.bodies)
        return True

    def _send(self, batch: OutgoingBatch, connection: Connection) -> bool:
        now = self._router.outside.clock.monotonic()
        left_ms = max(min(batch.until - now, ATTEMPT_US) // 1_000, 1)
        parts: list[Buffer] = requests.encode_publish(
            requests.Publish(requests.ACKS_QUORUM, left_ms, batch.data)
        )
        try:
            connection.send(
                FrameKind.PUBLISH, parts, partial(self._answered, batch, self._generation)
            )
        except RaftqError as error:
            self._recover(error)
            return False
        # What was sent before and never answered may still be applied.
        batch.is_unknown = batch.may_be_applied
        batch.is_answered = False
        batch.sent_us = now
        return True

    # --- Answers -----------------------------------------------------------------------------

    def _answered(self, batch: OutgoingBatch, generation: int, reply: Frame | WireError) -> None:
        if batch.is_done:
            return
        batch.is_answered = batch.is_answered or generation == self._generation
        if isinstance(reply, Frame):
            try:
                published = requests.decode_published(reply.body)
                if published.count != len(batch.bodies):
                    raise ProtocolError("a batch was answered with another count of messages")
            except ProtocolError as error:
                self._give_up(batch, error)
            else:
                self._tries = 0
                last = batch.sequence + len(batch.bodies) - 1
                self._acknowledged = max(self._acknowledged, last)
                batch.resolve(published)
                self._done(batch)
        elif isinstance(reply, RaftqError) and reply.outcome == "unknown":
            batch.is_unknown = True
            if generation != self._generation:
                return
            if reply.retriable:
                self._recover(reply)
            else:
                self._give_up(batch, reply)
        elif generation == self._generation:
            self._refused(batch, reply)

    def _refused(self, batch: OutgoingBatch, error: WireError) -> None:
        """The batch was not applied by this attempt."""
        if isinstance(error, ProducerFenced | QueueNotFound):
            self._end(error)
        elif isinstance(error, SequenceGap | SessionExpired):
            # Behind another batch that is not answered yet, this only says that that did not arrive.
            self._renew = self._renew or batch is self._outstanding[0]
            self._recover(error)
        elif isinstance(error, NotLeader | Moved) or error.retriable:
            self._router.heard(self._group, error)
            self._recover(error)
        else:
            self._give_up(batch, error)

    def _end(self, error: RaftqError) -> None:
        self._owner.ended(error)
        self.fail_all(error)

    def _give_up(self, batch: OutgoingBatch, error: RaftqError) -> None:
        self._fail(batch, error)
        self._done(batch)

    def _fail(self, batch: OutgoingBatch, error: RaftqError) -> None:
        if error.outcome == "not_applied" and batch.may_be_applied:
            # That is true of the newest sending, and not known of one before it.
            error = type(error)(str(error), outcome="unknown", retry_after=error.retry_after)
        batch.fail(error)
        self._owner.batch_done(self, batch)

    def _done(self, batch: OutgoingBatch) -> None:
        """The batch has its answer: make room, and go on."""
        outstanding = self._outstanding
        while outstanding and outstanding[0].is_done:
            outstanding.popleft()
        if batch.published is not None:
            self._owner.batch_done(self, batch)
        if self._recovery is None and self._queued:
            self._pump()

    # --- Recovery ----------------------------------------------------------------------------

    def _recover(self, error: WireError | None) -> None:
        self._error = error or self._error
        self._generation += 1
        self._connection = None
        if self._recovery is None:
            loop = asyncio.get_running_loop()
            self._recovery = loop.create_task(self._recovering())

    async def _recovering(self) -> None:
        generation = -1
        try:
            while generation != self._generation:
                generation = self._generation
                if self._error is not None:
                    await self._pause()
                self._drop_expired()
                if self.is_idle:
                    self._error, self._tries = None, 0
                    break
                try:
                    await self._reach()
                except (RaftqError, NotLeader, Moved) as error:
                    if isinstance(error, ProducerFenced | QueueNotFound):
                        self._end(error)
                        break
                    if isinstance(error, RaftqError) and not error.retriable:
                        self.fail_all(error)
                        break
                    self._router.heard(self._group, error)
                    self._error = error
                    generation = -1
                    continue
                self._resend()
        finally:
            self._recovery = None
        if self._queued:
            self._pump()

    async def _pause(self) -> None:
        """Wait before trying again; nobody waits beyond his time."""
        pause = pause_before(self._router.outside, self._tries, self._error)
        self._tries += 1
        await asyncio.sleep(min(pause, self._left_us()) / SECOND_US)

    def _left_us(self) -> int:
        """Until the first batch's time is over."""
        first = min((batch.until for batch in (*self._outstanding, *self._queued)), default=0)
        return max(first - self._router.outside.clock.monotonic(), 0)

    def _left_seconds(self) -> float:
        """Seconds that one attempt may take."""
        return min(self._left_us() / SECOND_US, ATTEMPT_SECONDS)

    async def _reach(self) -> None:
        if self._renew:
            await self._identity.renew(self._left_seconds())
            self._renew = False
            self._sort_outstanding(self._identity.next_sequence - 1)
        self._connection = await self._router.to_leader(self._group, self._left_seconds())

    def _sort_outstanding(self, published: int) -> None:
        """All numbers up to `published` are in the log, and of what was sent nothing else will be."""
        is_forgotten = published < self._acknowledged
        self._acknowledged = published
        in_log: deque[OutgoingBatch] = deque()
        while self._outstanding:
            batch = self._outstanding.pop()
            if batch.is_done:
                continue
            if is_forgotten and batch.may_be_applied:
                self._fail(batch, _forgotten(self.partition))
            elif not is_forgotten and batch.sequence <= published:
                in_log.appendleft(batch)
            else:
                batch.unsent()
                self._queued.appendleft(batch)
        self._outstanding = in_log

    def _resend(self) -> None:
        connection = self._connection
        assert connection is not None
        for batch in list(self._outstanding):
            if not batch.is_done and not self._send(batch, connection):
                return
        self._error = None
        self._watch()

    def _drop_expired(self) -> None:
        now = self._router.outside.clock.monotonic()
        for waiting in (self._outstanding, self._queued):
            while waiting and (waiting[0].is_done or waiting[0].until <= now):
                batch = waiting.popleft()
                if not batch.is_done:
                    self._fail(batch, self._final(batch))

    def _final(self, batch: OutgoingBatch) -> RaftqError:
        # A batch that waits for its answer may have been applied as well.
        unknown = batch.may_be_applied
        # A hole is this class's own business: whoever waits for the batch can do nothing about it.
        is_hole = isinstance(self._error, SequenceGap | SessionExpired)
        return final_error(None if is_hole else self._error, self._seconds, unknown=unknown)

    # --- Silence -----------------------------------------------------------------------------

    def _watch(self) -> None:
        """Look after the first outstanding batch when its time, or its attempt's, is over."""
        if self._sweep_timer is not None or not self._outstanding:
            return
        left = self._outstanding[0].until - self._router.outside.clock.monotonic()
        seconds = min(max(left / SECOND_US, SWEEP_SECONDS_MIN), SWEEP_SECONDS_MAX)
        self._sweep_timer = asyncio.get_running_loop().call_later(seconds, self._sweep)

    def _sweep(self) -> None:
        self._sweep_timer = None
        if self._recovery is not None or not self._outstanding:
            return
        self._drop_expired()
        if self._outstanding:
            first = self._outstanding[0]
            if first.sent_us + ATTEMPT_US <= self._router.outside.clock.monotonic():
                first.is_unknown = True
                error = Timeout(f"no answer within {ATTEMPT_SECONDS:g} s")
                self._router.heard(self._group, ConnectionFailed())
                self._recover(error)
                return
        if self._queued:
            self._pump()
        self._watch()


def _forgotten(partition: Partition) -> SessionExpired:
    return SessionExpired(
        f"this producer was idle for so long that partition {partition} does not know it any more: "
        "whether the messages were published cannot be said; look for them before sending them again",
        outcome="unknown",
    )
