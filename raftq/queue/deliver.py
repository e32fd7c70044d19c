"""Handing out: takers in their order, partitions in fair turns, ranges picked by apply alone.

The leader only guesses that something is ready. What is handed out follows from the replicated state
at this place of the log, so that a nack or an expiry just before it counts.
"""

from raftq.errors import InvalidArgument, QueueNotFound, RaftqError
from raftq.ids import Micros
from raftq.machine import Applied, Meta
from raftq.queue.command_layout import DELIVER
from raftq.queue.commands import By, Deliver, Taker
from raftq.queue.partition import Partition
from raftq.queue.replies import Delivered, Delivery, Given, Range, StoredReply, TakerResult
from raftq.queue.sessions import Session, out_of_window, taken_over, unknown_session
from raftq.queue.state import State
from raftq.queue.subscription import InFlight, Subscription


def begin(state: State, meta: Meta, kind: int, by: By) -> Session | StoredReply:
    """The session that may have this number executed now, or what answers it instead."""
    session = state.sessions.get(by.session)
    if session is None:
        return unknown_session(by.session)
    if by.attachment != session.attachment:
        return taken_over(session, by.attachment)
    state.touch(session)
    session.used = meta.log_time
    session.want(by.wanted)
    refused = out_of_window(session, by)
    if refused is not None:
        return refused
    stored = session.replies.get(by.number)
    if stored is None:
        return session
    if stored[0] != kind:
        return InvalidArgument(
            f"session {by.session} used number {by.number} for another command before"
        )
    return stored[1]


def deliver(state: State, meta: Meta, command: Deliver) -> Applied:
    return Applied(Delivered(tuple(_serve(state, meta, taker) for taker in command.takers)))


def _serve(state: State, meta: Meta, taker: Taker) -> TakerResult:
    by = By(taker.session, taker.attachment, taker.number, taker.wanted)
    begun = begin(state, meta, DELIVER, by)
    if isinstance(begun, RaftqError):
        return TakerResult(taker.session, taker.number, (), begun)
    session = begun if isinstance(begun, Session) else state.sessions[taker.session]
    if isinstance(begun, Given):
        again = held_deliveries(session, begun.deliveries)
        if again:
            return TakerResult(taker.session, taker.number, again)
    deliveries = _pick(state, meta, session, taker)
    if not deliveries:
        return TakerResult(taker.session, taker.number, (), _refused(state, taker))
    given = Given(tuple([delivery.delivery for delivery in deliveries]))
    session.replies[taker.number] = (DELIVER, given)
    return TakerResult(taker.session, taker.number, tuple(deliveries))


def _refused(state: State, taker: Taker) -> RaftqError | None:
    """Why there is nothing here for this taker, unless it only has to wait."""
    hosted = state.queues.get(taker.queue)
    if not hosted:
        return QueueNotFound(f"queue {taker.queue} has no partition here (any more)")
    if not any(taker.subscription in partition.subscriptions for partition in hosted):
        return InvalidArgument(
            f"queue {taker.queue} has no subscription {taker.subscription!r}; subscribe first"
        )
    return None


def _in_turn(state: State, taker: Taker) -> list[Partition]:
    """The partitions that the taker accepts, beginning with the one whose turn it is."""
    hosted = state.queues.get(taker.queue, [])
    if taker.partitions:
        accepted = frozenset(taker.partitions)
        hosted = [partition for partition in hosted if partition.number in accepted]
    if len(hosted) < 2:
        return hosted
    turn = state.shared.turns.get((taker.queue, taker.subscription), 0)
    first = next((at for at, partition in enumerate(hosted) if partition.number >= turn), 0)
    return hosted[first:] + hosted[:first]


def _pick(state: State, meta: Meta, session: Session, taker: Taker) -> list[Delivery]:
    messages, message_bytes = taker.max_messages, taker.max_bytes
    deliveries: list[Delivery] = []
    for partition in _in_turn(state, taker):
        subscription = partition.subscriptions.get(taker.subscription)
        if subscription is None or not subscription.ready(partition.next_offset):
            continue
        first = not deliveries
        state.touch(partition)
        taker_left = messages
        held, messages, message_bytes = subscription.take(
            partition.sizes, messages=messages, message_bytes=message_bytes, first=first
        )
        if not held:
            break
        if first:
            state.touch(state.shared)
            if len(state.queues[taker.queue]) > 1:
                turn = (taker.queue, taker.subscription)
                state.shared.turns[turn] = partition.number + 1
        visibility = taker.visibility_us or partition.config.visibility_timeout_us
        flight = InFlight(
            session.id,
            since=meta.log_time,
            visibility=visibility,
            deadline=meta.log_time + visibility,
            held=held,
        )
        delivery = state.shared.next_delivery
        state.shared.next_delivery = delivery + 1
        subscription.in_flight[delivery] = flight
        subscription.in_flight_messages += taker_left - messages
        session.held[delivery] = (partition, subscription)
        state.watch_delivery(partition, subscription, delivery, flight)
        deliveries.append(_as_delivery(partition, subscription, delivery, flight))
        if not messages or message_bytes <= 0:
            break
    return deliveries


def held_deliveries(session: Session, numbers: tuple[int, ...]) -> tuple[Delivery, ...]:
    """Those of `numbers` that the session still holds, with what they still hold."""
    found = []
    for number in numbers:
        place = session.held.get(number)
        if place is not None:
            partition, subscription = place
            flight = subscription.in_flight[number]
            found.append(_as_delivery(partition, subscription, number, flight))
    return tuple(found)


def _as_delivery(
    partition: Partition, subscription: Subscription, number: int, flight: InFlight
) -> Delivery:
    ranges = tuple([Range(start, stop, count) for start, stop, count, _, _ in flight.held])
    where = (partition.queue, partition.number, subscription.name)
    return Delivery(number, *where, Micros(flight.deadline), ranges)
