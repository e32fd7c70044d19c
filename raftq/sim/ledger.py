"""What must never be seen of messages: lost, invented, moved, doubled, handed out twice unannounced.

Theory of operation. The workload tells what it was promised (acknowledged, settled) and what it was
given (delivered); at the end, when all faults are healed, it tells what each replica's log holds.
Payloads are named by ids that the workload makes unique per message it sends.

    Ledger        messages of all queues and partitions
    Availability  an operation succeeds soon after the last fault is healed

Rules

1. A send whose outcome is unknown may be in the log or not; where the producer is idempotent it is
   there at most once. One that was acknowledged is there exactly once, at its offset. One that was
   refused ("not applied") is nowhere.
2. A message that is handed out again says so: no two of its deliveries have one delivery_count.
   Deliveries may reach their consumers late and in another order.
3. Payloads that end in "-" and a number are in a partition in the order of these numbers, among
   those that begin alike and were acknowledged: what one producer sent stays in its order. (What
   was given up with an unknown outcome may still be stored late.)
4. After an acknowledged settling a message is never handed out again to the same subscription, and
   a delivery that was followed by another cannot settle it any more.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from raftq.ids import Micros, Offset, Partition
from raftq.sim.checkers import ViolationError


class Place(NamedTuple):
    """Where a message lies."""

    queue: str
    partition: Partition
    offset: Offset


class Delivery(NamedTuple):
    """One message of one delivery, as a consumer saw it."""

    subscription: str
    place: Place
    payload: str
    delivery_count: int


class Ledger:
    """Every promise and every delivery of one run."""

    def __init__(self) -> None:
        self.acknowledged_count = 0
        self.delivered_count = 0
        self._attempted: dict[str, str] = {}
        self._acknowledged: dict[tuple[str, Partition], dict[Offset, str]] = {}
        self._refused: dict[str, bool] = {}
        self._places: dict[str, Place] = {}
        self._payloads: dict[Place, str] = {}
        self._deliveries: dict[tuple[str, Place], dict[int, bool]] = {}
        self._settled: dict[tuple[str, Place], int] = {}
        self._delivered_somewhere: dict[Place, bool] = {}

    def attempted(self, queue: str, payload: str) -> None:
        """A send of this payload is about to begin."""
        if payload in self._attempted:
            raise ViolationError(f"the workload made payload {payload} twice")
        self._attempted[payload] = queue

    def acknowledged(self, place: Place, payload: str) -> None:
        """A send was acknowledged at this place."""
        self._at(place, payload, "acknowledged")
        self._acknowledged.setdefault(place[:2], {})[place.offset] = payload
        self.acknowledged_count += 1

    def refused(self, payload: str) -> None:
        """A send failed, and it is certain that nothing was stored."""
        self._refused[payload] = True
        if payload in self._places:
            raise ViolationError(
                f"{payload} was refused as not applied, and is at {self._places[payload]}"
            )

    def read(self, place: Place, payload: str) -> None:
        """A reader was given a message."""
        self._at(place, payload, "read")

    def delivered(self, delivery: Delivery) -> None:
        """A consumer was given a message."""
        place, payload = delivery.place, delivery.payload
        self._at(place, payload, "delivered")
        key = (delivery.subscription, place)
        counts = self._deliveries.setdefault(key, {})
        if delivery.delivery_count in counts:
            raise ViolationError(
                f"{payload} at {place} was handed out twice as delivery {delivery.delivery_count}"
            )
        counts[delivery.delivery_count] = True
        self._delivered_somewhere[place] = True
        self.delivered_count += 1
        self._check_settled(key, payload)

    def settled(self, delivery: Delivery) -> None:
        """An ack of this delivery was acknowledged."""
        key = (delivery.subscription, delivery.place)
        self._settled[key] = delivery.delivery_count
        self._check_settled(key, delivery.payload)

    def _check_settled(self, key: tuple[str, Place], payload: str) -> None:
        by = self._settled.get(key)
        last = max(self._deliveries.get(key, {0: True}))
        if by is not None and last > by:
            raise ViolationError(
                f"{payload} at {key[1]} was settled by delivery {by} and handed out as {last}"
            )

    def log(
        self,
        node: str,
        queue: str,
        partition: Partition,
        records: Iterable[tuple[Offset, str]],
        *,
        end: Offset | None = None,
        is_released: Callable[[Offset, Offset], bool] = lambda _start, _stop: False,
    ) -> None:
        """What a replica's log holds in the end, from its first offset to its last.

        `end` is where its machine says that it ends. Offsets may be missing of which the machine
        says that they are released, and that were delivered to somebody.
        """
        expected = Offset(0)
        seen: dict[str, Offset] = {}
        newest: dict[str, int] = {}
        acknowledged = self._acknowledged.get((queue, partition), {})
        for offset, payload in records:
            if offset != expected and (offset < expected or not is_released(expected, offset)):
                raise ViolationError(
                    f"{node}: {queue}/{partition} goes on at offset {offset}, not {expected}"
                )
            expected = Offset(offset + 1)
            if payload in seen:
                raise ViolationError(
                    f"{node}: {payload} is at {queue}/{partition} offsets {seen[payload]} "
                    f"and {offset}"
                )
            seen[payload] = offset
            self._at(Place(queue, partition, offset), payload, f"found at {node}")
            if offset in acknowledged:
                self._check_order(newest, payload, f"{node}: {queue}/{partition}")
        if end is not None and end != expected and not is_released(expected, end):
            raise ViolationError(
                f"{node}: the log of {queue}/{partition} ends at {expected}, its machine at {end}"
            )
        for offset, payload in acknowledged.items():
            place = Place(queue, partition, offset)
            is_gone = is_released(offset, Offset(offset + 1)) and place in self._delivered_somewhere
            if payload not in seen and not is_gone:
                raise ViolationError(
                    f"acknowledged message lost: {payload} at {place} is not in the log of {node}"
                )

    @staticmethod
    def _check_order(newest: dict[str, int], payload: str, where: str) -> None:
        """A producer's messages are in a partition in the order in which they were sent."""
        run, _, number = payload.rpartition("-")
        if not run or not number.isdigit():
            return
        if int(number) <= newest.get(run, 0):
            raise ViolationError(f"{where} has {payload} behind {run}-{newest[run]}")
        newest[run] = int(number)

    def drained(self, subscription: str, queue: str) -> None:
        """The queue is empty for this subscription: everything acknowledged must have come out."""
        for (name, partition), payloads in self._acknowledged.items():
            for offset, payload in payloads.items():
                place = Place(queue, partition, offset)
                if name == queue and (subscription, place) not in self._deliveries:
                    raise ViolationError(
                        f"acknowledged message lost: {payload} at {place} never reached "
                        f"{subscription}"
                    )

    def _at(self, place: Place, payload: str, verb: str) -> None:
        """A payload was seen at a place: one place, one payload, for ever, and both ways."""
        if self._attempted.get(payload) != place.queue:
            raise ViolationError(f"{payload} was {verb} in {place.queue}; nobody sent it there")
        if payload in self._refused:
            raise ViolationError(f"{payload} was refused as not applied, and {verb} at {place}")
        first = self._payloads.setdefault(place, payload)
        if first != payload:
            raise ViolationError(f"{payload} was {verb} at {place}, where {first} was before")
        where = self._places.setdefault(payload, place)
        if where != place:
            raise ViolationError(f"{payload} was {verb} at {place}, and before at {where}")


class Availability:
    """After the last fault is healed, an operation succeeds within `bound`."""

    def __init__(self, *, bound: Micros) -> None:
        self.waited = Micros(0)
        """How long after healing the first operation succeeded."""
        self._bound = bound
        self._healed_at: Micros | None = None
        self._succeeded_at: Micros | None = None

    def healed(self, now: Micros) -> None:
        """The last fault was healed."""
        self._healed_at = now
        self._succeeded_at = None

    def succeeded(self, now: Micros) -> None:
        """An operation that needs a leader and a quorum was acknowledged."""
        if self._healed_at is not None and self._succeeded_at is None:
            self._succeeded_at = now
            self._check(now)

    def finish(self, now: Micros) -> None:
        """The run is over."""
        assert self._healed_at is not None, "nobody said that the faults are healed"
        if self._succeeded_at is None:
            self._check(now)

    def _check(self, now: Micros) -> None:
        assert self._healed_at is not None, "asked before healing"
        self.waited = waited = Micros(now - self._healed_at)
        if waited > self._bound:
            raise ViolationError(
                f"nothing succeeded for {waited / 1e6:.3f} s after the last fault was healed"
            )
