"""RECEIVE: takers of one pass become one DELIVER; who finds nothing becomes a watch.

A waiting receive is a *watch*: it lives on the leader alone, costs no log entry, and dies with its
connection, its time, or the leadership. When the machine says that something became ready, as many
watches as there are ready messages are woken, longest-waiting first. A woken watch is either told
(`notify only`: the client then takes what it still wants) or becomes a taker of the next DELIVER.

The leader only guesses that something is ready; `apply` decides who gets what. A taker that got
nothing and still has time becomes a watch again; none has two DELIVERs in flight.
"""

from asyncio import TimerHandle
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from raftq import batch
from raftq.errors import InvalidArgument, QueueNotFound, RaftqError, ReplicaDamaged, SessionExpired
from raftq.host import Group, Place
from raftq.ids import GroupId, Offset, Partition, QueueId
from raftq.limits import (
    MAX_RECEIVE_BYTES,
    MAX_RECEIVE_MESSAGES,
    MAX_WAIT_MICROS,
    VISIBILITY_MICROS_MAX,
)
from raftq.queue import commands
from raftq.queue.machine import QueueMachine
from raftq.queue.replies import Delivered, Delivery
from raftq.server.request import Request
from raftq.storage.group_log import StoredBatch
from raftq.wire import control, requests
from raftq.wire.frames import FrameKind

if TYPE_CHECKING:
    from raftq.server.node import Node

TAKERS_MAX = 256
"""Receives in one DELIVER: a crowd that comes back at once is served in several."""

Key = tuple[GroupId, QueueId, str]

_NO_LIMIT = 1 << 62

_WHOLE_BYTES_MAX = MAX_RECEIVE_BYTES + MAX_RECEIVE_BYTES // 4
"""Stored batches in one answer; it leaves room in the frame for all ranges. A larger one goes alone."""

_LOOK_AGAIN_SECONDS = 0.1
"""A woken watch may never take; while something stays ready, the next one is woken after this."""


class Watch:
    """One waiting receive."""

    __slots__ = ("deadline", "key", "request", "taking", "timer", "wanted")

    def __init__(self, key: Key, request: Request, wanted: requests.Receive) -> None:
        self.key = key
        self.request = request
        self.wanted = wanted
        self.timer: TimerHandle | None = None
        self.taking = False
        self.deadline = 0


class Receiving:
    """Handles RECEIVE, and keeps the watches."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._loop = node.loop
        self._watches: dict[Key, deque[Watch]] = {}
        self._takers: dict[GroupId, list[Watch]] = {}
        self._looking: dict[Key, TimerHandle] = {}
        node.router.serve(FrameKind.RECEIVE, self.handle)

    def handle(self, request: Request) -> None:
        wanted = requests.decode_receive(request.body)
        group = self._node.router.leading(self._node.router.queue_group(wanted.group))
        if group is None:
            self._node.router.forward(request, wanted.group)
            return
        _check(wanted)
        machine = _machine(group)
        watch = Watch((wanted.group, wanted.queue, wanted.subscription), request, wanted)
        watch.deadline = self._node.now() + wanted.wait_us
        ready = machine.has_ready(wanted.queue, wanted.subscription)
        if not ready and not machine.has_queue(wanted.queue):
            raise QueueNotFound(f"group {wanted.group} hosts no partition of queue {wanted.queue}")
        missing = machine.without_subscription(wanted.queue, wanted.subscription)
        if missing:
            self._subscribe(group, request, wanted, missing)
        elif wanted.notify_only:
            if ready:
                request.answer(FrameKind.READY)
            else:
                self._wait(watch)
        else:
            self._begin(group, watch, ready=ready)

    def _subscribe(
        self,
        group: Group,
        request: Request,
        wanted: requests.Receive,
        partitions: tuple[Partition, ...],
    ) -> None:
        """Who receives from a new subscription makes it, from the earliest message on."""
        left = len(partitions)

        def done(reply: object, _place: Place | None) -> None:
            nonlocal left
            left -= 1
            if request.is_answered:
                return
            if isinstance(reply, RaftqError):
                request.fail(reply)
            elif not left:
                self._node.router.handle(request)

        name = control.check_subscription(wanted.subscription)
        for partition in partitions:
            header = commands.encode_subscribe(
                commands.NO_SESSION, 0, 0, 0, queue=wanted.queue, partition=partition,
                subscription=name,
            )  # fmt: skip
            group.propose(header, b"", done, reserve=True)

    def _begin(self, group: Group, watch: Watch, *, ready: bool) -> None:
        wanted, machine = watch.wanted, _machine(group)
        if not machine.session_exists(wanted.session):
            raise SessionExpired("the session is not known to the group any more; open a new one")
        if ready or machine.knows_number(wanted.session, wanted.number):
            self._take(group, watch)
        else:
            self._wait(watch)

    # --- Watches ------------------------------------------------------------------------------

    def _wait(self, watch: Watch) -> None:
        left = watch.deadline - self._node.now()
        if left <= 0:
            self._end(watch)
            return
        self._watches.setdefault(watch.key, deque()).append(watch)
        watch.request.on_cancel = lambda: self._give_up(watch)
        watch.timer = self._loop.call_later(left / 1_000_000, self._give_up, watch)

    def _leave(self, watch: Watch) -> None:
        if watch.timer is not None:
            watch.timer.cancel()
            watch.timer = None
        queue = self._watches.get(watch.key)
        if queue is not None and watch in queue:
            queue.remove(watch)
            if not queue:
                del self._watches[watch.key]

    def _give_up(self, watch: Watch) -> None:
        if watch.taking:
            watch.deadline = 0  # If it gets nothing, it does not wait any more.
        else:
            self._leave(watch)
            self._end(watch)

    def _end(self, watch: Watch) -> None:
        """Nothing came in time."""
        if not watch.request.is_answered:
            nothing = requests.Delivered((), ())
            watch.request.answer(FrameKind.DELIVERED, *requests.encode_delivered(nothing))

    def available(self, group: Group, queue: QueueId, subscription: str) -> None:
        """Something became ready there: wake who waits longest."""
        key = (group.group, queue, subscription)
        waiting = self._watches.get(key)
        if not waiting:
            return
        count = _machine(group).ready_count(queue, subscription)
        for _ in range(min(count, len(waiting))):
            watch = waiting[0]
            self._leave(watch)
            if watch.wanted.notify_only:
                watch.request.answer(FrameKind.READY)
            else:
                self._take(group, watch)
        if count and key in self._watches and key not in self._looking:
            self._looking[key] = self._loop.call_later(_LOOK_AGAIN_SECONDS, self._look_again, key)

    def _look_again(self, key: Key) -> None:
        del self._looking[key]
        group = self._node.router.leading(key[0])
        if group is not None:
            self.available(group, key[1], key[2])

    def deposed(self, group: Group) -> None:
        """This node does not lead any more: waiting clients go and ask the new leader."""
        for key in [key for key in self._watches if key[0] == group.group]:
            for watch in self._watches.pop(key):
                if watch.timer is not None:
                    watch.timer.cancel()
                watch.request.fail(group.redirect())

    def stop(self) -> None:
        """Nobody waits any more; the connections end."""
        for watches in self._watches.values():
            for watch in watches:
                if watch.timer is not None:
                    watch.timer.cancel()
        for timer in self._looking.values():
            timer.cancel()
        self._watches.clear()
        self._looking.clear()

    # --- Deliveries ---------------------------------------------------------------------------

    def _take(self, group: Group, watch: Watch) -> None:
        watch.taking = True
        watch.request.on_cancel = lambda: self._give_up(watch)
        takers = self._takers.get(group.group)
        if takers is None:
            self._takers[group.group] = [watch]
            self._loop.call_soon(self._deliver, group)
        else:
            takers.append(watch)

    def _deliver(self, group: Group) -> None:
        watches = self._takers.pop(group.group, [])
        for first in range(0, len(watches), TAKERS_MAX):
            self._deliver_to(group, watches[first : first + TAKERS_MAX])

    def _deliver_to(self, group: Group, watches: list[Watch]) -> None:
        header = commands.encode_deliver([_taker(watch.wanted) for watch in watches])

        def done(reply: object, place: Place | None) -> None:
            if isinstance(reply, Delivered) and place is not None:
                for watch, result in zip(watches, reply.results, strict=True):
                    self._delivered(group, watch, result.deliveries, result.error)
            else:
                assert isinstance(reply, RaftqError)
                for watch in watches:
                    watch.request.fail(reply)

        group.propose(header, b"", done, reserve=True)

    def _delivered(
        self,
        group: Group,
        watch: Watch,
        deliveries: tuple[Delivery, ...],
        error: RaftqError | None,
    ) -> None:
        watch.taking = False
        if error is not None:
            watch.request.fail(error)
        elif not deliveries and watch.wanted.wait_us and group.leading:
            self._wait(watch)
        else:
            try:
                reply = stored(group, deliveries)
            except RaftqError as damage:
                watch.request.fail(damage)
                return
            watch.request.answer(FrameKind.DELIVERED, *requests.encode_delivered(reply))


def stored(group: Group, deliveries: tuple[Delivery, ...]) -> requests.Delivered:
    """The deliveries with the batches they lie in, each batch once.

    A receive is bounded by the bytes of its messages, and they may be few of each batch (what was
    nacked one by one): where whole batches would not fit an answer, the messages are cut out.

    Raises: ReplicaDamaged when the bytes cannot be read here.
    """
    batches: dict[tuple[int, int], requests.StoredBatch] = {}
    size = 0
    for delivery in deliveries:
        for start, stop, _ in delivery.ranges:
            for found in _read(group, delivery, start, stop):
                key = (delivery.partition, found.base_offset)
                if key not in batches:
                    size += len(found.data)
                    batches[key] = requests.StoredBatch(
                        delivery.partition, found.base_offset, found.log_time, found.data
                    )
            if size > _WHOLE_BYTES_MAX:
                return requests.Delivered(_as_sent(deliveries), tuple(_cuts(group, deliveries)))
    return requests.Delivered(_as_sent(deliveries), tuple(batches.values()))


def _cuts(group: Group, deliveries: tuple[Delivery, ...]) -> Iterator[requests.StoredBatch]:
    """Just the messages of the deliveries. The one place where a node looks into batches."""
    for delivery in deliveries:
        for start, stop, _ in delivery.ranges:
            for found in _read(group, delivery, start, stop):
                base = found.base_offset
                low, high = max(start, base), min(stop, base + found.count)
                data = found.data
                if high - low < found.count:
                    data = batch.Batch(memoryview(data)).cut(low - base, high - base)
                yield requests.StoredBatch(delivery.partition, Offset(low), found.log_time, data)


def _as_sent(deliveries: tuple[Delivery, ...]) -> tuple[requests.Delivery, ...]:
    return tuple(
        requests.Delivery(d.partition, d.delivery, d.deadline, _ranges(d)) for d in deliveries
    )


def _ranges(delivery: Delivery) -> tuple[requests.Range, ...]:
    return tuple(
        requests.Range(Offset(start), Offset(stop), count) for start, stop, count in delivery.ranges
    )


def _read(group: Group, delivery: Delivery, start: int, stop: int) -> list[StoredBatch]:
    try:
        return group.log.batches(
            delivery.queue, delivery.partition, Offset(start), Offset(stop), _NO_LIMIT
        )
    except (RaftqError, OSError) as error:
        raise ReplicaDamaged(
            f"offsets {start} to {stop} of partition {delivery.partition} cannot be read here: "
            f"{error}; they come back when the visibility timeout is over"
        ) from error


def _machine(group: Group) -> QueueMachine:
    assert isinstance(group.machine, QueueMachine)
    return group.machine


def _taker(wanted: requests.Receive) -> commands.Taker:
    return commands.Taker(
        session=wanted.session,
        attachment=wanted.attachment,
        number=wanted.number,
        wanted=wanted.wanted,
        queue=wanted.queue,
        subscription=wanted.subscription,
        max_messages=wanted.max_messages,
        max_bytes=wanted.max_bytes,
        visibility_us=wanted.visibility_us,
        partitions=wanted.partitions,
    )


def _check(wanted: requests.Receive) -> None:
    if wanted.wait_us > MAX_WAIT_MICROS:
        raise InvalidArgument(f"wait is at most {MAX_WAIT_MICROS // 1_000_000} s")
    if wanted.notify_only:
        return
    if wanted.wanted > wanted.number:
        raise InvalidArgument("the lowest number wanted is not above the receive's own")
    if not 1 <= wanted.max_messages <= MAX_RECEIVE_MESSAGES:
        raise InvalidArgument(f"max_messages is 1 to {MAX_RECEIVE_MESSAGES}")
    if not 1 <= wanted.max_bytes <= MAX_RECEIVE_BYTES:
        raise InvalidArgument(f"max_bytes is 1 to {MAX_RECEIVE_BYTES}")
    if wanted.visibility_us > VISIBILITY_MICROS_MAX:
        raise InvalidArgument(f"visibility is at most {VISIBILITY_MICROS_MAX // 1_000_000} s")
