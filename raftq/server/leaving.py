"""A planned stop: leaderships go to others, then clients, and only then the node.

    stop listening -> hand over all groups at once -> redirect clients -> close connections

1. Each group goes to a voter that lacks nothing, if one can be reached.
2. From then on a client's request for a group that is led elsewhere is answered with where, instead
   of being passed on: clients leave by themselves, with nothing in flight. They get a moment for
   that, and longer as long as requests are under way here.
3. Connections are closed before the logs, whose last marks are synced: nobody waits for those.

What clients' sessions hold is not released, neither what they hold now nor what those held who left
a moment ago: they attach again through another node, and a release that came first would hand out
to others what they are working on. Of one that never comes back the visibility timeout takes it.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from raftq.host import Group
from raftq.observability.logs import logger

if TYPE_CHECKING:
    from raftq.server.node import Node

_log = logger("raftq.server")

HAND_OVER_SECONDS: Final = 0.5
FAREWELL_SECONDS: Final = 0.05
"""Whoever publishes all the time asks at least once in so long, and is told where to go."""

UNDER_WAY_SECONDS: Final = 0.25
_LOOK_SECONDS: Final = 0.005


class Leaving:
    """One node's way out."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self.has_begun = False
        self._handed_over: list[Group] = []
        self._is_free = asyncio.Event()

    async def leave(self) -> None:
        """Returns when nothing depends on this node any more, or after a short while."""
        node = self._node
        self.has_begun = True
        node.port.stop_listening()
        is_followed = await self._hand_over()
        if node.port.connections and is_followed:
            await asyncio.sleep(FAREWELL_SECONDS)
            for _ in range(round(UNDER_WAY_SECONDS / _LOOK_SECONDS)):
                if not node.port.is_busy() and not node.router.is_busy():
                    break
                await asyncio.sleep(_LOOK_SECONDS)
        node.port.let_go()
        # What was answered leaves before closing the logs takes its time.
        await asyncio.sleep(0)
        for _ in range(round(FAREWELL_SECONDS / _LOOK_SECONDS)):
            if not node.port.connections:
                break
            await asyncio.sleep(_LOOK_SECONDS)

    async def _hand_over(self) -> bool:
        """Whether somebody leads, or could lead, in the place of this node."""
        linked = self._node.host.links.up()
        led = [group for group in self._node.host.groups.values() if group.leading]
        self._handed_over = [each for each in led if each.succession.hand_over(reachable=linked)]
        if not self._handed_over:
            return bool(linked)
        try:
            async with asyncio.timeout(HAND_OVER_SECONDS):
                await self._is_free.wait()
        except TimeoutError:
            left = [group.group for group in self._handed_over if group.leading]
            _log.warning("leaves although it leads", groups=left)
        return True

    def deposed(self) -> None:
        """Some group is led by nobody here any more."""
        if not any(group.leading for group in self._handed_over):
            self._is_free.set()
