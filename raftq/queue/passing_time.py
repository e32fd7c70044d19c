"""Log time passes: what is due happens, and a change of leader puts off what it made late.

Rules:

1. Nothing happens by time but here: until a tick says otherwise, a delivery is held.
2. A tick does a bounded amount of work; what is left stays due, so the next tick follows at once.
3. After a leader change every delivery gets at least min(visibility, 5 s, gap) from then, because
   nobody could acknowledge it in the gap; but only once, or a leader that changes all the time
   would stop expiry for ever.
"""

from typing import Final

from raftq.ids import Micros
from raftq.limits import DEADLINE_FLOOR_MICROS, PRODUCER_EXPIRES_MICROS, SESSION_EXPIRES_MICROS
from raftq.machine import Applied, Meta
from raftq.queue.commands import Tick
from raftq.queue.deadlines import DELAYED, DELIVERY, SESSION, Deadline
from raftq.queue.effects import Expired
from raftq.queue.replies import Ticked
from raftq.queue.settle import EXPIRED, Verdict, give_back
from raftq.queue.state import State

TICK_WORK: Final = 2_000
"""Deadlines met in one tick: a few tens of milliseconds."""


def tick(state: State, meta: Meta, _: Tick) -> Applied:
    effects: list[object] = []
    for _done in range(TICK_WORK):
        due = state.deadlines.pop_until(meta.log_time)
        if due is None:
            break
        if due.kind == DELIVERY:
            effects += _expire_delivery(state, meta, due)
        elif due.kind == DELAYED:
            effects += _wake(state, due)
        elif due.kind == SESSION:
            _look_at_session(state, meta, due.number)
        else:
            _look_at_producer(state, meta, due)
    # Many spans of one subscription wake its watches once.
    return Applied(Ticked(), tuple(dict.fromkeys(effects)))


def _expire_delivery(state: State, meta: Meta, due: Deadline) -> list[object]:
    partition = state.partitions[due.queue, due.partition]
    subscription = partition.subscriptions[due.subscription]
    flight = subscription.in_flight[due.number]
    state.touch(partition)
    taken, flight.held = flight.held, []
    where = (partition.queue, partition.number, subscription.name)
    messages = sum(span.stop - span.start for span in taken)
    expired = Expired(*where, due.number, flight.session, messages)
    verdict = Verdict(EXPIRED, "", counts=True)
    returned = give_back(state, meta, partition, subscription, flight, due.number, taken, verdict)
    return [expired, *returned]


def _wake(state: State, due: Deadline) -> tuple[object, ...]:
    partition = state.partitions[due.queue, due.partition]
    subscription = partition.subscriptions[due.subscription]
    state.touch(partition)
    subscription.wake_one()
    state.watch_delayed(partition, subscription)
    return subscription.available


def _look_at_session(state: State, meta: Meta, number: int) -> None:
    session = state.sessions[number]
    state.touch(session)
    expires = session.used + SESSION_EXPIRES_MICROS
    if expires <= meta.log_time:
        if not session.held:
            del state.sessions[number]
            return
        expires = meta.log_time + SESSION_EXPIRES_MICROS
    session.check_at = expires
    state.watch_session(session)


def _look_at_producer(state: State, meta: Meta, due: Deadline) -> None:
    partition = state.partitions[due.queue, due.partition]
    producer = partition.producers[due.number]
    state.touch(partition)
    expires = producer.used + PRODUCER_EXPIRES_MICROS
    if expires <= meta.log_time:
        del partition.producers[due.number]
        state.producers -= 1
        return
    producer.check_at = expires
    state.watch_producer(partition, due.number, producer)


def leader_changed(state: State, meta: Meta, gap: Micros) -> None:
    # Only deliveries that are due before this can be put off, and the heap gives just those.
    most = min(DEADLINE_FLOOR_MICROS, gap)
    if most <= 0:
        return
    met: list[Deadline] = []
    while (due := state.deadlines.pop_until(meta.log_time + most - 1)) is not None:
        if due.kind == DELIVERY:
            partition = state.partitions[due.queue, due.partition]
            flight = partition.subscriptions[due.subscription].in_flight[due.number]
            floor = meta.log_time + min(most, flight.visibility)
            if not flight.postponed and floor > flight.deadline:
                state.touch(partition)
                flight.postponed = True
                flight.deadline = floor
                due = due._replace(time=floor)
        met.append(due)
    for due in met:
        state.deadlines.push(due)
