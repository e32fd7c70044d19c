"""The queue machine: one group's log in, its replicated state out.

This file joins the parts: which command is applied where, how commands of a session are made safe to
repeat, and the contract of `raftq.machine`. The rules stand in the package's docstring.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final
from weakref import ref

from xxhash import xxh3_128

from raftq.batch import PUBLISH, Buffer
from raftq.errors import RaftqError
from raftq.ids import Index, Micros, Offset, Partition, QueueId, SessionId
from raftq.machine import Applied, Bound, Kept, Meta
from raftq.queue import (
    administration,
    commands,
    passing_time,
    queries,
    retention,
    session_commands,
    settle,
)
from raftq.queue import command_layout as layout
from raftq.queue import snapshot as encoding
from raftq.queue.admit import QueueAdmission
from raftq.queue.command_reader import decode
from raftq.queue.dead_letters import DeadLetter
from raftq.queue.deliver import begin, deliver
from raftq.queue.drawing import Drawing
from raftq.queue.faults import NO_FAULTS, Faults
from raftq.queue.publish import publish
from raftq.queue.queries import PartitionStats
from raftq.queue.retention_commands import encode_expire, encode_release_history
from raftq.queue.sessions import Session
from raftq.queue.state import Item, State

_Handler = Callable[[State, Meta, Any], Applied]

_PLAIN: Final[dict[int, _Handler]] = {
    layout.TICK: passing_time.tick,
    layout.CONFIGURE: administration.configure,
    layout.DROP: administration.drop,
    layout.OPEN_SESSION: session_commands.open_session,
    layout.ATTACH: session_commands.attach,
    layout.RELEASE: session_commands.release,
    layout.OPEN_PRODUCER: administration.open_producer,
    layout.DELIVER: deliver,
    layout.EXPIRE: retention.expire,
}
"""Commands that are safe to repeat by themselves, and DELIVER, which has a session per taker."""

_NUMBERED: Final[dict[int, _Handler]] = {
    layout.SUBSCRIBE: administration.subscribe,
    layout.UNSUBSCRIBE: administration.unsubscribe,
    layout.ACK: settle.ack,
    layout.NACK: settle.nack,
    layout.EXTEND: settle.extend,
    layout.PURGE: administration.purge,
    layout.REDRIVE: administration.redrive,
    layout.PURGE_DEAD: administration.purge_dead,
}
"""Commands of a session: applied once, then answered from what the session remembers."""

_WITHOUT_SESSION: Final = frozenset(
    (
        layout.SUBSCRIBE,
        layout.UNSUBSCRIBE,
        layout.PURGE,
        layout.REDRIVE,
        layout.PURGE_DEAD,
    )
)
"""An operator may send these without a session: to repeat one is what the operator then means."""


class QueueMachine:
    """One group's partitions, sessions and producers. Implements `raftq.machine.Machine`, `Retaining`."""

    __slots__ = ("_faults", "_state")

    def __init__(self, faults: Faults = NO_FAULTS) -> None:
        self._faults = faults
        self._state = State()

    def apply(self, meta: Meta, header: bytes, body: Buffer) -> Applied:
        kind = header[0] if header else 0
        try:
            if kind == PUBLISH:
                return publish(self._state, meta, header, body)
            command = decode(header)
        except RaftqError as refusal:
            return Applied(refusal)
        if kind == layout.RELEASE_HISTORY:
            checked = not self._faults.release_unchecked
            return retention.release_history(self._state, meta, command, checked=checked)  # type: ignore[arg-type]
        handler = _PLAIN.get(kind)
        if handler is not None:
            return handler(self._state, meta, command)
        return self._apply_numbered(meta, kind, command)

    def _apply_numbered(self, meta: Meta, kind: int, command: Any) -> Applied:
        by = command.by
        handler = _NUMBERED[kind]
        if by.session == commands.NO_SESSION and kind in _WITHOUT_SESSION:
            return handler(self._state, meta, command)
        session = begin(self._state, meta, kind, by)
        if not isinstance(session, Session):
            return Applied(session)
        applied = handler(self._state, meta, command)
        session.replies[by.number] = (kind, applied.reply)  # type: ignore[assignment]
        return applied

    def admission(self) -> QueueAdmission:
        return QueueAdmission(self._state, self._faults)

    def next_deadline(self) -> Micros | None:
        first = self._state.deadlines.first()
        return None if first is None else Micros(first)

    def tick_command(self) -> bytes:
        return commands.encode_tick()

    def leader_changed(self, meta: Meta, gap: Micros) -> None:
        passing_time.leader_changed(self._state, meta, gap)

    def snapshot(self) -> Iterator[bytes]:
        state = self._state
        items = state.items()
        drawing = Drawing[Item](
            items,
            encode=encoding.encode_item,
            head=encoding.HEAD,
            tail=encoding.tail(len(items)),
        )
        state.drawings.append(ref(drawing, state.drawings.remove))
        return drawing

    def restore(self, slices: Iterator[bytes]) -> None:
        """Raises: Corrupted, UnsupportedVersion; then the machine is as it was."""
        self._state = encoding.decode(slices)

    def digest(self) -> bytes:
        """Only items that have changed since the last digest are encoded."""
        whole = xxh3_128()
        for item in self._state.items():
            if not item.digest:
                item.digest = xxh3_128(encoding.encode_item(item)).digest()
            whole.update(item.digest)
        return whole.digest()

    @property
    def released(self) -> tuple[Index, bytes]:
        return self._state.shared.released

    def kept(self) -> tuple[Kept, ...]:
        return retention.kept(self._state)

    def is_settled(self, queue: QueueId, partition: Partition, start: Offset, stop: Offset) -> bool:
        return retention.is_settled(self._state, queue, partition, start, stop)

    def release_command(self, through: Index, chain: bytes, bounds: tuple[Bound, ...]) -> bytes:
        """Right as long as nothing else of these partitions is released, or loses a subscription."""
        return encode_release_history(retention.summary(self._state, through, chain, bounds))

    def expire_command(self, bounds: tuple[Bound, ...]) -> bytes:
        return encode_expire(sorted(bounds))

    def describe(self, queue: QueueId, partition: Partition) -> PartitionStats | None:
        """None where the partition is not here."""
        return queries.describe(self._state, queue, partition)

    def has_ready(self, queue: QueueId, subscription: str) -> bool:
        return queries.has_ready(self._state, queue, subscription)

    def has_queue(self, queue: QueueId) -> bool:
        """Whether any partition of the queue is here."""
        return queue in self._state.queues

    def without_subscription(self, queue: QueueId, subscription: str) -> tuple[Partition, ...]:
        """The partitions here that do not know the subscription."""
        return queries.without_subscription(self._state, queue, subscription)

    def ready_count(self, queue: QueueId, subscription: str) -> int:
        """Ready messages in all partitions of the queue that are here."""
        return queries.ready_count(self._state, queue, subscription)

    def next_offset(self, queue: QueueId, partition: Partition) -> int | None:
        """The offset that the next message gets; None where the partition is not here."""
        found = self._state.partitions.get((queue, partition))
        return None if found is None else found.next_offset

    def readable_from(self, queue: QueueId, partition: Partition) -> int:
        """What lies below is forgotten or released, though some of it may still be on a disk."""
        found = self._state.partitions.get((queue, partition))
        return 0 if found is None else max(found.floor, found.released)

    def knows_number(self, session: SessionId, number: int) -> bool:
        """Whether the session's command of this number has been applied: asking again repeats it."""
        found = self._state.sessions.get(session)
        return found is not None and number in found.replies

    def dead_letters(
        self,
        queue: QueueId,
        partition: Partition,
        subscription: str,
        *,
        after_offset: int = -1,
        limit: int = 100,
    ) -> list[DeadLetter]:
        """Looking at dead letters changes nothing."""
        return queries.dead_letters(
            self._state, queue, partition, subscription, after_offset=after_offset, limit=limit
        )

    def partitions(self) -> tuple[tuple[QueueId, Partition, int], ...]:
        """(queue, partition, version of its configuration) of all that are here."""
        return tuple(
            (partition.queue, partition.number, partition.version)
            for partition in self._state.partitions.values()
        )

    def sessions(self) -> int:
        return len(self._state.sessions)

    def session_exists(self, session: SessionId) -> bool:
        return session in self._state.sessions

    def attachment(self, session: SessionId) -> int | None:
        """None where the session is not known (any more)."""
        found = self._state.sessions.get(session)
        return None if found is None else found.attachment

    def held_by(self, session: SessionId) -> tuple[int, ...]:
        """The deliveries that a session holds, ascending."""
        found = self._state.sessions.get(session)
        return () if found is None else tuple(found.held)
