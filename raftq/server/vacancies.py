"""Requests that wait for their group's next leader, where they arrived.

Between two leaders a node could only say that it knows none, and the asker would come back after a
pause of its own choosing, mostly too late or too early. So a request waits here for a moment, and
goes on in the very pass in which a leader is known. In order: what comes while others wait waits too.

Rules:

1. A request waits `WAIT_SECONDS` at most, then its asker is told that no leader is known.
2. Nothing waits on a node that does not see a majority of the group: the next leader is elsewhere,
   and so should the asker be.
3. What waits is bounded in bytes; beyond that requests are answered at once.
"""

from asyncio import TimerHandle
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from raftq.ids import GroupId
from raftq.limits import MIB
from raftq.server.request import Request
from raftq.wire.errors import NotLeader

if TYPE_CHECKING:
    from raftq.server.node import Node

WAIT_SECONDS: Final = 0.25
"""An election after a lost link takes a fifth of that; one after silence is mostly over by then."""

WAITING_BYTES_MAX: Final = 8 * MIB


class Vacancies:
    """One node's."""

    def __init__(self, node: "Node", go_on: Callable[[Request], None]) -> None:
        self._node = node
        self._go_on = go_on
        self._waiting: dict[GroupId, dict[Request, TimerHandle]] = {}
        self._bytes = 0

    def has(self, group: GroupId) -> bool:
        """Whether requests wait for the group's leader."""
        return group in self._waiting

    def wait(self, request: Request, group: GroupId) -> bool:
        """Keep the request until `filled`. False if it had better be answered now."""
        size = len(request.body)
        if self._bytes + size > WAITING_BYTES_MAX or not self._sees_majority(group):
            return False
        timer = self._node.loop.call_later(WAIT_SECONDS, self._give_up, request, group)
        self._waiting.setdefault(group, {})[request] = timer
        self._bytes += size
        request.on_cancel = lambda: self._give_up(request, group)
        return True

    def _sees_majority(self, group: GroupId) -> bool:
        replica = self._node.host.groups.get(group)
        if self._node.stopped or replica is None or replica.quarantined or replica.stopped:
            return False
        links = self._node.host.links
        seen = {each: links.link(name).is_lively for each, name in replica.nodes.items()}
        return replica.raft.membership.has_quorum({**seen, replica.replica: True})

    def filled(self, group: GroupId) -> None:
        """A leader was found: if it can be reached, all that wait for it go on, in order."""
        if group not in self._waiting or not self._node.router.is_reachable(group):
            return
        for request in self._taken(group):
            self._go_on(request)

    def _taken(self, group: GroupId) -> list[Request]:
        waiting = self._waiting.pop(group, {})
        for request, timer in waiting.items():
            timer.cancel()
            request.on_cancel = None
            self._bytes -= len(request.body)
        return list(waiting)

    def _give_up(self, request: Request, group: GroupId) -> None:
        waiting = self._waiting[group]
        waiting.pop(request).cancel()
        if not waiting:
            del self._waiting[group]
        self._bytes -= len(request.body)
        request.fail(NotLeader(None))

    def stop(self) -> None:
        """Nobody waits any more; the connections end."""
        for group in list(self._waiting):
            self._taken(group)
