"""What people do for a cluster: have it take a node's new directory for the one that was lost.

An operator is no process: it asks whatever nodes run, again and again, until one says yes. It knows
nothing of how far a replacement is; `is_done` looks.
"""

from typing import TYPE_CHECKING

from raftq.ids import Micros
from raftq.wire.frames import FrameKind

if TYPE_CHECKING:
    from raftq.sim.cluster import SimCluster

ASK_EVERY = Micros(500_000)


class Operator:
    """The operator of one simulated cluster."""

    def __init__(self, cluster: "SimCluster") -> None:
        self._cluster = cluster
        self._asking: dict[str, bool] = {}

    def replace(self, node: str) -> None:
        """See to it that the node's empty directory becomes a member."""
        self._cluster.loop.trace.event(self._cluster.loop.now, node, "shall be replaced")
        if node not in self._asking:
            self._asking[node] = True
            self._ask(node, [])

    def _ask(self, node: str, answers: list[list[int]]) -> None:
        cluster = self._cluster
        if [FrameKind.CONTROLLED] in answers:
            del self._asking[node]
            cluster.loop.trace.event(cluster.loop.now, node, "is being replaced")
            return
        asked = [name for name in cluster.serving() if name != node]
        answers = [cluster.control(name, do="replace_node", name=node) for name in asked]
        again = Micros(cluster.loop.now + ASK_EVERY)
        cluster.loop.call_at_micros(again, self._ask, node, answers)

    def is_asking(self, node: str) -> bool:
        """Whether nobody has agreed yet."""
        return node in self._asking

    @property
    def is_done(self) -> bool:
        """Whether all groups have the members that they shall have, as every node knows."""
        if self._asking:
            return False
        machines = [server.metadata.machine for server in self._cluster.servers.values()]
        known = [machine.groups() for machine in machines if machine is not None]
        leaving = [group.leaving for groups in known for group in groups if group.leaving]
        return len(known) == len(self._cluster.nodes) and not leaving
