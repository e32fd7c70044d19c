"""Who wants to know what happens in a group: the server, in production."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from raftq.host.group import Group


class Observer(Protocol):
    """Who wants to know what happens in a group (the server)."""

    def led(self, group: "Group") -> None:
        """This replica leads and may propose."""
        ...

    def deposed(self, group: "Group") -> None: ...

    def follows(self, group: "Group") -> None:
        """This replica has found a leader in another one."""
        ...

    def disk_full(self, group: "Group") -> None:
        """This replica leads and has no room for messages; said again while that lasts."""
        ...

    def effects(self, group: "Group", effects: list[object]) -> None:
        """What applied commands ask the leader to do."""
        ...

    def applied(self, group: "Group") -> None:
        """Something was applied here, leader or not."""
        ...

    def forgot(self, group: "Group") -> None:
        """This replica lost what it had promised: it must never vote again, nor after a restart."""
        ...

    def failed(self, group: "Group", error: BaseException) -> None:
        """The log failed: the node must stop."""
        ...
