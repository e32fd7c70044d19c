"""Letting go of history: what the log must keep, and the two commands that say what may go.

Rules:

1. Only what nobody needs any more is released, and what has been released is never needed again:
   also a subscription made later does not get such a message, it counts there as discarded
   ("settled_before").
2. A release names the release before it, with the chain values at both, and what became of every
   message in between, for each subscription. Below `needed_from` outcomes are final: so apply works
   them out again, and refuses a summary that is not exactly right. It costs as much as there are
   ranges of discarded messages, each looked at once; what was settled is the rest.
3. A log forgets what is ready or delayed below its floor at once, and what is in flight when it is
   given back; dead letters stay until they are purged. What is redriven below the floor is handed
   out until the floor rises again.
"""

from typing import Final

from raftq.errors import InvalidArgument
from raftq.ids import Index, Micros, Offset, QueueId
from raftq.ids import Partition as PartitionNumber
from raftq.limits import AUDIT_BYTES_PER_PARTITION
from raftq.machine import Applied, Bound, Kept, Meta
from raftq.queue.partition import Partition
from raftq.queue.replies import HistoryReleased, LogsExpired
from raftq.queue.retention_commands import Expire, Outcome, ReleasedRange, ReleaseHistory
from raftq.queue.settle import RETENTION
from raftq.queue.state import State

CHAIN_BYTES: Final = 16


def kept(state: State) -> tuple[Kept, ...]:
    return tuple(_kept(partition) for partition in state.partitions.values())


def _kept(partition: Partition) -> Kept:
    config = partition.config
    return Kept(
        partition.queue,
        partition.number,
        Offset(partition.needed_from),
        Micros(config.audit_retention_us),
        AUDIT_BYTES_PER_PARTITION,
        Micros(config.retain_seconds_us) or None,
        config.retained_bytes_share(partition.number) or None,
    )


def is_settled(
    state: State, queue: QueueId, number: PartitionNumber, start: int, stop: int
) -> bool:
    partition = state.partitions.get((queue, number))
    if partition is None:
        return state.was_dropped(queue, number)
    return partition.is_gone(start, stop)


def summary(
    state: State, through: Index, chain: bytes, bounds: tuple[Bound, ...]
) -> ReleaseHistory:
    """The command that releases all up to there, as it is right in this state."""
    assert len(chain) == CHAIN_BYTES, "a chain value has 16 bytes"
    ranges = tuple(_range(state, bound) for bound in sorted(bounds))
    return ReleaseHistory(*state.shared.released, through, chain, ranges)


def _range(state: State, bound: Bound) -> ReleasedRange:
    """Of a partition that is not here any more nothing is known but the bound."""
    partition = state.partitions.get((bound.queue, bound.partition))
    before = partition.released if partition else 0
    outcomes = _outcomes(partition, bound.offset) if partition else ()
    return ReleasedRange(bound.queue, bound.partition, Offset(before), bound.offset, outcomes)


def _outcomes(partition: Partition, bound: int) -> tuple[Outcome, ...]:
    return tuple(
        Outcome(subscription.name, *found)
        for subscription in partition.subscriptions.values()
        for found in subscription.outcomes(partition.released, bound)
    )


def release_history(
    state: State, meta: Meta, command: ReleaseHistory, *, checked: bool = True
) -> Applied:
    """`checked=False` is a known bug, for checkers to find: needed bodies go as well."""
    if state.shared.released != (command.after, command.chain_after):
        return Applied(
            InvalidArgument(
                f"a release follows the one through index {state.shared.released[0]}, not one through "
                f"{command.after}"
            )
        )
    if not command.after < command.through < meta.index:
        return Applied(
            InvalidArgument(
                f"index {meta.index} cannot release what is behind {command.after} and through "
                f"{command.through}"
            )
        )
    for found in command.ranges if checked else ():
        refused = _refused(state, found)
        if refused is not None:
            return Applied(refused)
    state.touch(state.shared)
    state.shared.released = (command.through, command.chain)
    messages = 0
    for queue, number, before, offset, _ in command.ranges:
        partition = state.partitions.get((queue, number))
        if partition is not None and offset > before:
            state.touch(partition)
            partition.release_below(offset)
            messages += offset - before
    return Applied(HistoryReleased(command.through, messages))


def _refused(state: State, found: ReleasedRange) -> InvalidArgument | None:
    queue, number, before, offset, outcomes = found
    partition = state.partitions.get((queue, number))
    if partition is None:
        return None
    if not partition.released == before <= offset <= partition.needed_from:
        return InvalidArgument(
            f"queue {queue}, partition {number} has released offsets below {partition.released} and "
            f"needs those from {partition.needed_from} on: {before} to {offset} cannot be released"
        )
    if outcomes != _outcomes(partition, offset):
        return InvalidArgument(
            f"queue {queue}, partition {number}: the messages {before} to {offset} did not end as "
            "this release says"
        )
    return None


def expire(state: State, _: Meta, command: Expire) -> Applied:
    return Applied(LogsExpired(sum([_expire(state, bound) for bound in command.bounds])))


def _expire(state: State, bound: Bound) -> int:
    """Gives how many messages are discarded; what is no log (any more) forgets nothing."""
    partition = state.partitions.get((bound.queue, bound.partition))
    if partition is None or partition.whole_from is None:
        return 0
    floor = min(bound.offset, partition.next_offset)
    if floor <= partition.floor:
        return 0
    state.touch(partition)
    partition.floor = floor
    messages = 0
    for subscription in partition.subscriptions.values():
        gone = subscription.withdraw_below(floor)
        for start, stop in gone:
            partition.discard(subscription, start, stop, RETENTION)
            messages += stop - start
        if gone:
            state.watch_delayed(partition, subscription)
    partition.trim()
    return messages
