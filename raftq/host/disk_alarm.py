"""Says when the disk of a node is too full for new messages, and when it has room again."""

from typing import Final

from raftq.ids import METADATA_GROUP, GroupId, Micros
from raftq.limits import DISK_RESERVE_BYTES, MIB, SECOND
from raftq.observability.logs import logger

_log = logger("raftq.host")

QUIET_MICROS: Final = 10 * SECOND
"""At the edge it may change with every message: said once in so long."""

RESERVE: Final = f"{DISK_RESERVE_BYTES // MIB} MiB"


def full_text(node: str | None) -> str:
    """What is wrong and what helps, for who is refused and for who asks for the status."""
    return (
        f"the disk of node {node!r} has less than {RESERVE} free where its data lies (--data): "
        "make room there; new messages are refused, all else goes on"
    )


class DiskAlarm:
    """One replica's. All groups of a node share its disk: only that of the metadata group, which is
    on every node, says something.
    """

    def __init__(self, group: GroupId, node: str | None) -> None:
        self._is_silent = group != METADATA_GROUP
        self._node = node
        self._said_full = False
        self._quiet_until = Micros(0)

    def look(self, *, is_full: bool, now: Micros) -> None:
        if is_full == self._said_full or self._is_silent or now < self._quiet_until:
            return
        self._said_full = is_full
        self._quiet_until = Micros(now + QUIET_MICROS)
        if is_full:
            _log.error("disk full", node=self._node, reason=full_text(self._node))
        else:
            _log.warning("disk has room again", node=self._node)
