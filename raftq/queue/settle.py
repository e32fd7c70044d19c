"""What becomes of messages that were handed out: settled, given back, or dead.

Rules:

1. Ranges are judged message by message: what the delivery still holds takes part, the rest is named
   as stale, and changes nothing.
2. What comes back counts against the delivery limit when it failed: by a nack (unless it says
   otherwise), by expiry, and as the oldest message of a delivery whose client vanished without a
   goodbye: that one may have killed it, the others were only fetched ahead.
3. At the limit a message dies in the same command, with reason, last error and history.
4. What comes back to a log below its floor, and does not die, is discarded: the log has forgotten it.
"""

from typing import NamedTuple

from raftq.machine import Applied, Meta
from raftq.queue.commands import Ack, Extend, Item, Nack
from raftq.queue.dead_letters import DELIVERY_LIMIT, REJECTED, DeadSpan
from raftq.queue.effects import DeadLettered
from raftq.queue.partition import Partition
from raftq.queue.replies import Settled
from raftq.queue.spans import HISTORY_ATTEMPTS, Attempt, Span, cut, not_taken
from raftq.queue.state import State
from raftq.queue.subscription import InFlight, Subscription

NACKED = "nacked"
EXPIRED = "expired"
RELEASED = "released"
RETENTION = "retention"


class Verdict(NamedTuple):
    """How a piece of a delivery ended, other than well."""

    outcome: str
    error: str
    counts: bool
    """It is a failure."""
    reject: bool = False
    due: int = 0
    """Log time before which it is not handed out again; 0 is at once."""


class _Held(NamedTuple):
    """Where an item of an ack, nack or extend points, when there is such a delivery."""

    partition: Partition
    subscription: Subscription
    flight: InFlight


def _find(state: State, item: Item) -> _Held | None:
    queue, number, name, delivery, _, _ = item
    partition = state.partitions.get((queue, number))
    subscription = partition.subscriptions.get(name) if partition else None
    flight = subscription.in_flight.get(delivery) if subscription else None
    if partition is None or subscription is None or flight is None:
        return None
    return _Held(partition, subscription, flight)


class _Stale:
    """What of a command's items was not held."""

    __slots__ = ("found",)

    def __init__(self) -> None:
        self.found: list[tuple[int, int, int, int, int]] = []

    def note(self, item: Item, taken: list[Span]) -> None:
        queue, partition, _, delivery, start, stop = item
        for low, high in not_taken(taken, start, stop):
            self.found.append((queue, partition, delivery, low, high))

    def reply(self) -> Settled:
        return Settled(tuple(self.found))  # type: ignore[arg-type]


def ack(state: State, _: Meta, command: Ack) -> Applied:
    stale = _Stale()
    changed: dict[Partition, None] = {}
    for item in command.items:
        held = _find(state, item)
        if held is None:
            stale.note(item, [])
            continue
        partition, subscription, flight = held
        if partition not in changed:
            state.touch(partition)
            changed[partition] = None
        taken = cut(flight.held, item[4], item[5])
        if not taken or taken[0].start != item[4] or taken[0].stop != item[5]:
            stale.note(item, taken)
        for span in taken:
            partition.finish(subscription, span.start, span.stop)
            subscription.settled += span.stop - span.start
            subscription.in_flight_messages -= span.stop - span.start
        if not flight.held:
            end_delivery(state, subscription, item[3])
    for partition in changed:
        partition.trim()
    return Applied(stale.reply())


def nack(state: State, meta: Meta, command: Nack) -> Applied:
    stale = _Stale()
    effects: list[object] = []
    due = meta.log_time + command.delay if command.delay else 0
    outcome = REJECTED if command.reject else NACKED
    verdict = Verdict(outcome, command.reason, command.counts, command.reject, due)
    for item in command.items:
        held = _find(state, item)
        if held is None:
            stale.note(item, [])
            continue
        state.touch(held.partition)
        taken = cut(held.flight.held, item[4], item[5])
        stale.note(item, taken)
        effects += give_back(state, meta, *held, item[3], taken, verdict)
    return Applied(stale.reply(), tuple(effects))


def extend(state: State, meta: Meta, command: Extend) -> Applied:
    """Keeps a delivery until a visibility from now, never for a shorter time than it has."""
    stale = _Stale()
    for item in command.items:
        held = _find(state, item)
        found = cut(held.flight.held.copy(), item[4], item[5]) if held else []
        stale.note(item, found)
        if held is None or not found:
            continue
        partition, subscription, flight = held
        deadline = meta.log_time + command.visibility
        if deadline > flight.deadline:
            state.touch(partition)
            flight.deadline = deadline
            flight.visibility = command.visibility
            state.watch_delivery(partition, subscription, item[3], flight)
    return Applied(stale.reply())


def end_delivery(state: State, subscription: Subscription, delivery: int) -> None:
    flight = subscription.in_flight.pop(delivery)
    del state.sessions[flight.session].held[delivery]


def give_back(
    state: State,
    meta: Meta,
    partition: Partition,
    subscription: Subscription,
    flight: InFlight,
    delivery: int,
    taken: list[Span],
    verdict: Verdict,
) -> list[object]:
    """Returns pieces cut from a delivery, and gives the effects. The partition has been touched."""
    attempt = Attempt(
        delivery, flight.session, flight.since, meta.log_time, verdict.outcome, verdict.error
    )
    limit = partition.config.delivery_limit
    dead: list[Span] = []
    reason = REJECTED if verdict.reject else DELIVERY_LIMIT
    revived = first_due = forgotten = False
    for start, stop, delivery_count, failures, history in taken:
        failures += verdict.counts
        history = (*history[1 - HISTORY_ATTEMPTS :], attempt)
        span = Span(start, stop, delivery_count, failures, history)
        subscription.in_flight_messages -= stop - start
        if verdict.reject or (verdict.counts and limit and failures >= limit):
            dead.append(span)
            continue
        if start < partition.floor:
            forgotten = True
            span = span._replace(start=min(stop, partition.floor))
            partition.discard(subscription, start, span.start, RETENTION)
            if span.start == stop:
                continue
        if verdict.due > meta.log_time:
            first_due |= subscription.delay(verdict.due, span)
        else:
            subscription.wait(span)
            revived = True
    if first_due:
        state.watch_delayed(partition, subscription)
    if not flight.held:
        end_delivery(state, subscription, delivery)
    effects: list[object] = list(subscription.available) if revived else []
    if dead:
        for span in dead:
            _bury(partition, subscription, span, reason, verdict.error, meta.log_time)
        ranges = tuple((span.start, span.stop) for span in dead)
        where = (partition.queue, partition.number, subscription.name)
        effects.append(DeadLettered(*where, ranges, reason))
    if forgotten:
        partition.trim()
    return effects


def _bury(
    partition: Partition, subscription: Subscription, span: Span, reason: str, error: str, now: int
) -> None:
    start, stop, delivery_count, _, history = span
    if not error:
        # An expiry has nothing to say; the last consumer that did is worth more than silence.
        error = next((attempt.error for attempt in reversed(history) if attempt.error), "")
    dead = DeadSpan(start, stop, reason, error, delivery_count, now, history)
    subscription.dead.add(dead)
    partition.finish(subscription, start, stop)
