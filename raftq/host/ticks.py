"""The machine's own deadlines: a leader proposes a tick when one has passed in log time.

One tick is on its way at a time; what it did is learned when it is applied, and then the next
deadline is asked for. Followers propose nothing: they learn that time has passed from the log.
"""

from typing import TYPE_CHECKING

from raftq.host.proposals import NEVER, Place
from raftq.ids import Micros

if TYPE_CHECKING:
    from raftq.host.group import Group


class Ticks:
    """One group's."""

    def __init__(self, group: "Group") -> None:
        self._group = group
        self._is_on_its_way = False

    def begin(self) -> None:
        """A leadership begins: no tick of it is on its way."""
        self._is_on_its_way = False

    def propose(self) -> None:
        """Propose a tick if it is time."""
        group = self._group
        due = group.machine.next_deadline()
        if due is None or self._is_on_its_way or due > group.raft.log_time():
            return
        self._is_on_its_way = True

        def done(_reply: object, _place: Place | None) -> None:
            self._is_on_its_way = False

        group.propose(group.machine.tick_command(), b"", done, reserve=True)

    def deadline(self, now: Micros) -> Micros:
        """When to propose the next one, on the monotonic clock."""
        due = None if self._is_on_its_way else self._group.machine.next_deadline()
        if due is None:
            return NEVER
        return Micros(now + max(due - self._group.raft.log_time(), 0) + 1_000)
