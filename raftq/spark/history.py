"""What the logs have let go of, and what their machines say of it.

Theory of operation. A log may begin behind a released entry, and bodies of settled batches may have
given way to their digests. That is right only if a command in the log has released it, or if it was
settled: the machine knows. So of each group that has let go of something one replica is replayed, from
its newest snapshot up to the commit mark: a machine that has come so far judges all replicas of the
group, because what is settled and released stays so.

A replica lets go of what its own machine has applied, and the mark of the newest commit comes with the
next unit. So what is not proved at the mark is looked at again at the end of the log.

Nothing here knows Spark.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from raftq.batch import Stamp
from raftq.ids import METADATA_GROUP, Offset, Partition, QueueId
from raftq.queue.machine import QueueMachine
from raftq.spark.machine_replay import starts, states
from raftq.spark.plan import Chains, Chunk, Planned
from raftq.spark.report import Finding
from raftq.spark.rows import batch_rows, entry_rows

AUDIT: Final = "released"

EVERYTHING: Final = Offset(1 << 62)
"""Of a partition that was dropped: it has no lowest offset that is kept."""


class Beginning(NamedTuple):
    """Where the history of one replica begins, and how much behind that has no body any more."""

    node: str
    group: int
    first_index: int
    until: str | None
    """When the last entry before was written; None: not known, or nothing is gone."""
    is_released: bool
    """It was let go of. Otherwise the replica began with a snapshot of another one."""
    bodies_released: int
    """Messages of which only offsets are known."""

    def __str__(self) -> str:
        parts = []
        if self.first_index > 1:
            until = f", with what was written up to {self.until}," if self.until else ""
            how = "was released" if self.is_released else "was in a snapshot that it began with"
            parts.append(
                f"history begins at entry {self.first_index}: what lies before{until} {how}"
            )
        if self.bodies_released:
            parts.append(f"the bodies of {self.bodies_released} messages behind that were released")
        return "; ".join(parts)

    def to_map(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**self._asdict(), "text": str(self)}

    @property
    def note(self) -> Finding:
        return _finding(self.node, self.group, str(self), is_note=True)


class Bound(NamedTuple):
    """Of one partition: the messages in entries up to `released_index` are those below `released`, and
    all of them are settled.
    """

    group: int
    queue: int
    partition: int
    released_index: int
    released: int


class GroupHistory(NamedTuple):
    """What the machine of a group says; None if none could be made."""

    group: int
    machine: QueueMachine | None
    as_of: int
    """The last entry that the machine has applied."""
    findings: tuple[Finding, ...]

    def bounds(self, partitions: Iterable[tuple[int, int]]) -> list[Bound]:
        """Of the partitions that the machine has, and of those among these that it has dropped."""
        machine = self.machine
        if machine is None:
            return []
        through = machine.released[0]
        found = []
        for kept in machine.kept():
            described = machine.describe(kept.queue, kept.partition)
            assert described is not None
            found.append(Bound(self.group, kept.queue, kept.partition, through, described.released))
        known = {(bound.queue, bound.partition) for bound in found}
        for queue, partition in sorted(set(partitions) - known):
            if machine.is_settled(QueueId(queue), Partition(partition), Offset(0), EVERYTHING):
                found.append(Bound(self.group, queue, partition, through, EVERYTHING))
        return found


class History(NamedTuple):
    """Of all replicas and groups that have let go of something; empty when none has."""

    beginnings: tuple[Beginning, ...]
    groups: tuple[GroupHistory, ...]
    checked: int
    """Messages whose bodies are gone, on all replicas together, and whether they were settled."""

    def bounds(self, partitions: Iterable[tuple[int, int]]) -> list[Bound]:
        partitions = list(partitions)
        return [bound for group in self.groups for bound in group.bounds(partitions)]

    def limits(self, audit: str) -> list[Finding]:
        """What an audit must say of what it cannot see: one note a group."""
        return [
            _limit(audit, [found for found in self.beginnings if found.group == group])
            for group in sorted({found.group for found in self.beginnings})
        ]

    @property
    def findings(self) -> list[Finding]:
        notes = [beginning.note for beginning in self.beginnings]
        return [finding for group in self.groups for finding in group.findings] + notes


def _limit(audit: str, begun: list[Beginning]) -> Finding:
    parts = []
    late = [
        f"at entry {found.first_index} on {found.node}" for found in begun if found.first_index > 1
    ]
    if late:
        parts.append(f"history begins {', '.join(late)}")
    most = max(found.bodies_released for found in begun)
    if most:
        parts.append(f"the bodies of up to {most} messages on a node were released")
    detail = f"judged as far as it is held: {'; '.join(parts)}"
    return _finding(None, begun[0].group, detail, is_note=True)._replace(audit=audit)


def read_history(planned: Sequence[Planned]) -> History:
    """Look at what is gone; where nothing is, nothing is replayed.

    Raises: OSError.
    """
    beginnings: list[Beginning] = []
    groups: list[GroupHistory] = []
    checked = 0
    for group in sorted({one.group for one in planned}):
        members = [one for one in planned if one.group == group]
        gone = {one.node: list(_stamps_without_body(one)) for one in members}
        begun = [_beginning(one, gone[one.node]) for one in members]
        shorter = [found for found in begun if found.first_index > 1 or found.bodies_released]
        beginnings += shorter
        checked += sum(found.bodies_released for found in shorter)
        if shorter and group != METADATA_GROUP:
            groups.append(_judged(members, gone))
    return History(tuple(beginnings), tuple(groups), checked)


def _stamps_without_body(one: Planned) -> Iterator[tuple[int, Stamp]]:
    """(index, stamp) of the batches of a replica whose bodies are gone."""
    for live in one.replica.ranges:
        if live.not_whole:
            chunk = Chunk(one.node, one.group, str(one.directory), live, one.marked_through)
            for row in entry_rows(chunk):
                for batch in batch_rows(row, check=False):
                    if batch.body_released:
                        yield row.index, batch.stamp


def _beginning(one: Planned, gone: list[tuple[int, Stamp]]) -> Beginning:
    base = one.replica.base
    return Beginning(
        node=one.node,
        group=one.group,
        first_index=one.replica.first_index,
        until=_moment(base.log_time) if base.index and base.log_time else None,
        is_released=bool(base.index) and one.replica.released == base.index,
        bodies_released=sum(stamp.count for _, stamp in gone),
    )


def _moment(micros: int) -> str:
    return datetime.fromtimestamp(micros / 1_000_000, UTC).isoformat(timespec="seconds")


def _judged(members: list[Planned], gone: dict[str, list[tuple[int, Stamp]]]) -> GroupHistory:
    """The first replica that can be replayed is judge over all; the one that knows most is asked first."""
    group = members[0].group
    problems: list[Finding] = []
    for one in sorted(members, key=lambda one: one.marked_through, reverse=True):
        begins = [start for start in starts(one.directory, one.replica) if start <= _end(one)]
        if not begins:
            problems.append(_finding(one.node, group, NO_START.format(one.replica.first_index)))
            continue
        try:
            return _asked(one, begins[-1], members, gone)
        except Exception as error:
            problems.append(_finding(one.node, group, f"the log cannot be replayed: {error}"))
    return GroupHistory(group, None, 0, tuple(problems))


NO_START: Final = (
    "history begins at entry {}, and there is no sound snapshot at or behind what was let go of: "
    "no machine can be made that says whether it was released"
)


def _end(one: Planned) -> int:
    return max(one.marked_through, one.replica.last_index)


def _asked(
    one: Planned, start: int, members: list[Planned], gone: dict[str, list[tuple[int, Stamp]]]
) -> GroupHistory:
    """Judged by the machine of one replica, at its mark or, if need be, at its end."""
    mark = max(start, min(one.marked_through, one.replica.last_index))
    end = max(mark, one.replica.last_index)
    found: list[Finding] = []
    for index, machine in states(one.directory, one.replica, start=start, stop=end):
        if index in {mark, end}:
            found = [
                finding
                for member in members
                for finding in _judge(machine, member, gone[member.node])
            ]
            if not found or index == end:
                return GroupHistory(one.group, machine, index, tuple(found))
    raise AssertionError("states end at their stop, or raise")


def _judge(machine: QueueMachine, one: Planned, gone: list[tuple[int, Stamp]]) -> Iterator[Finding]:
    """What a replica has let go of without being allowed to."""
    through, chain = machine.released
    base = one.replica.released
    if base > through:
        detail = f"has let go of entries up to {base}, but they are released up to {through} only"
        yield _finding(one.node, one.group, detail)
    held = Chains(one.directory, one.replica).at(through) if through else None
    if held is not None and held != chain and through <= one.marked_through:
        detail = f"the release of entries up to {through} names another chain value than is there"
        yield _finding(one.node, one.group, detail)
    needed: dict[tuple[QueueId, Partition], list[Stamp]] = {}
    for _, stamp in gone:
        queue, partition, start = stamp.queue, stamp.partition, stamp.base_offset
        if not machine.is_settled(queue, partition, start, Offset(start + stamp.count)):
            needed.setdefault((queue, partition), []).append(stamp)
    for (queue, partition), stamps in sorted(needed.items()):
        count = sum(stamp.count for stamp in stamps)
        detail = f"the bodies of {count} messages, the first here, are gone, and were not settled"
        first = min(stamp.base_offset for stamp in stamps)
        yield _finding(one.node, one.group, detail)._replace(
            queue=queue, partition=partition, offset=first
        )


def _finding(node: str | None, group: int, detail: str, *, is_note: bool = False) -> Finding:
    return Finding(
        audit=AUDIT,
        is_note=is_note,
        node=node,
        group=group,
        queue=None,
        partition=None,
        offset=None,
        detail=detail,
    )
