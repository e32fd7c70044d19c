"""Log time passes in a machine by a command: the leader proposes it when something is due."""

from typing import TYPE_CHECKING

from raftq.ids import Micros
from raftq.raft.replica import NEVER

if TYPE_CHECKING:
    from raftq.host.group import Group


class Ticks:
    """One group's; only while it leads. At most one is on its way."""

    def __init__(self, group: "Group") -> None:
        self._group = group
        self._is_on_its_way = False

    def leadership_begins(self) -> None:
        self._is_on_its_way = False

    def propose(self) -> None:
        group = self._group
        due = group.machine.next_deadline()
        if due is None or self._is_on_its_way or due > group.raft.log_time():
            return
        self._is_on_its_way = True

        def done(_reply: object, _place: object) -> None:
            self._is_on_its_way = False

        group.propose(group.machine.tick_command(), b"", done, reserve=True)

    def deadline(self, now: Micros) -> Micros:
        """When the next one is due."""
        due = None if self._is_on_its_way else self._group.machine.next_deadline()
        if due is None:
            return NEVER
        return Micros(now + max(due - self._group.raft.log_time(), 0) + 1_000)
