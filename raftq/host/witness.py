"""Who watches a replica without taking part: the simulator's checkers. In production nobody does.

A witness is told facts as they happen and changes nothing. It may raise: what it saw must never
happen, and the simulation ends there.
"""

from typing import TYPE_CHECKING, Protocol

from raftq.raft import Entry, Ready

if TYPE_CHECKING:
    from raftq.host.group import Group


class Witness(Protocol):
    """One per cluster; the group tells which replica speaks."""

    def restored(self, group: "Group") -> None:
        """The machine begins anew, empty or from a snapshot, as of `group.applied_index`."""
        ...

    def ready(self, group: "Group", ready: Ready) -> None:
        """The core decided something; nothing of it has been carried out yet."""
        ...

    def applied(self, group: "Group", entry: Entry) -> None:
        """The machine has applied `entry`, and nothing after it."""
        ...
