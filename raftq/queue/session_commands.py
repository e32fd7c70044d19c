"""Sessions come and go: opened, attached after a reconnect, released when their socket is lost."""

from raftq.errors import Busy
from raftq.limits import MAX_SESSIONS
from raftq.machine import Applied, Meta
from raftq.queue.commands import Attach, OpenSession, Release
from raftq.queue.deliver import held_deliveries
from raftq.queue.replies import Attached, Released, SessionOpened
from raftq.queue.sessions import Session, session_id, taken_over, unknown_session
from raftq.queue.settle import RELEASED, Verdict, give_back
from raftq.queue.spans import cut
from raftq.queue.state import State

VANISHED = "its client vanished without a goodbye"


def open_session(state: State, meta: Meta, _: OpenSession) -> Applied:
    if len(state.sessions) >= MAX_SESSIONS:
        return Applied(Busy(f"this group has {MAX_SESSIONS} sessions, its bound; retry later"))
    session = session_id(meta.index, meta.position)
    state.open_session(session, meta.log_time)
    return Applied(SessionOpened(session))


def attach(state: State, meta: Meta, command: Attach) -> Applied:
    """Gives what is held above the last delivery that the client has seen: it was lost on its way."""
    session = state.sessions.get(command.session)
    if session is None:
        return Applied(unknown_session(command.session))
    if command.attachment < session.attachment:
        return Applied(taken_over(session, command.attachment))
    state.touch(session)
    session.attachment = command.attachment
    session.used = meta.log_time
    unseen = tuple(number for number in session.held if number > command.last_delivery)
    held = held_deliveries(session, unseen)
    return Applied(Attached(session.id, session.attachment, held))


def release(state: State, meta: Meta, command: Release) -> Applied:
    """Gives back what the session holds, unless a newer attachment is known."""
    session = state.sessions.get(command.session)
    if session is None or command.attachment < session.attachment:
        return Applied(Released(0))
    state.touch(session)
    messages = 0
    effects: list[object] = []
    for delivery in list(session.held):
        given, more = _release_delivery(state, meta, session, delivery, goodbye=command.goodbye)
        messages += given
        effects += more
    if command.goodbye:
        del state.sessions[session.id]
    return Applied(Released(messages), tuple(effects))


def _release_delivery(
    state: State, meta: Meta, session: Session, delivery: int, *, goodbye: bool
) -> tuple[int, list[object]]:
    partition, subscription = session.held[delivery]
    flight = subscription.in_flight[delivery]
    state.touch(partition)
    start, stop = flight.held[0].start, flight.held[-1].stop
    messages = sum(span.stop - span.start for span in flight.held)
    effects: list[object] = []
    where = (partition, subscription, flight, delivery)
    if not goodbye:
        # Only the oldest message can be the one that killed its consumer.
        oldest = cut(flight.held, start, start + 1)
        effects += give_back(state, meta, *where, oldest, Verdict(RELEASED, VANISHED, counts=True))
    rest = cut(flight.held, start, stop)
    if rest:
        effects += give_back(state, meta, *where, rest, Verdict(RELEASED, "", counts=False))
    return messages, effects
