"""What a directed scenario has in hand: the cluster, time, chance, and the way back.

A scenario is a coroutine that runs outside all processes, as the nemesis does. Where the nemesis
draws faults, a scenario goes through the steps of one counter-example; the seed varies the moments.

Rule: whatever a scenario breaks, `heal` mends; it is called when the scenario is over.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from raftq.ids import GroupId, Micros
from raftq.sim.checkers import ViolationError
from raftq.sim.cluster import SimCluster
from raftq.sim.loop import MICROS

LEADER_SECONDS_MAX = 10
LOOK_SECONDS = 0.01
HURRY_SECONDS = 0.001
COMMAND_SECONDS = 0.01
SYNC_LOOK_SECONDS = 0.001
SYNC_LOOKS_MAX = 1_000
REPLACE_LOOK_SECONDS = 0.1
REPLACE_LOOKS_MAX = 200
MANY = 1_000


class Stage:
    """The cluster, as a scenario handles it."""

    def __init__(self, cluster: SimCluster, choose: random.Random) -> None:
        self.cluster = cluster
        self.choose = choose
        self._down: dict[str, bool] = {}
        self._commands = 0

    @property
    def nodes(self) -> list[str]:
        return list(self.cluster.nodes)

    def tell(self, text: str, node: str = "") -> None:
        self.cluster.loop.trace.event(self.cluster.loop.now, node, text)

    async def pause(self, low: float, high: float) -> None:
        """Let between `low` and `high` seconds pass."""
        await asyncio.sleep(low + (high - low) * self.choose.random())

    async def leader(self, group: GroupId | None = None) -> str:
        """Who leads (that group), as soon as anybody does."""
        for _ in range(int(LEADER_SECONDS_MAX / LOOK_SECONDS)):
            leader = self.cluster.leader(group)
            if leader is not None:
                return leader
            await asyncio.sleep(LOOK_SECONDS)
        return self.nodes[0]

    async def new_leader(
        self, old: str, *, seconds: float, group: GroupId | None = None
    ) -> str | None:
        """Another leader than `old`, or None if there is none in time."""
        for _ in range(int(seconds / LOOK_SECONDS)):
            leader = self.cluster.leader(group)
            if leader not in {None, old}:
                return leader
            await asyncio.sleep(LOOK_SECONDS)
        return None

    async def leads(self, node: str, group: GroupId, *, seconds: float) -> bool:
        """Whether the node comes to lead the group in time."""
        for _ in range(int(seconds / LOOK_SECONDS)):
            if self.cluster.leader(group) == node:
                return True
            await asyncio.sleep(LOOK_SECONDS)
        return False

    async def just_synced(self, node: str) -> None:
        """Wait until something that the node was sent has just become durable there."""
        before = self._persisted(node)
        for _ in range(SYNC_LOOKS_MAX):
            await asyncio.sleep(SYNC_LOOK_SECONDS)
            if self._persisted(node) != before:
                return

    def _persisted(self, node: str) -> list[int]:
        replicas = self.cluster.servers[node].host.groups.values()
        return [replica.persisted for replica in replicas]

    def others(self, *nodes: str) -> list[str]:
        """All other nodes, in an order of chance."""
        others = [node for node in self.nodes if node not in nodes]
        self.choose.shuffle(others)
        return others

    # --- Breaking ------------------------------------------------------------------------------

    def cut(self, one: str, others: Iterable[str]) -> None:
        """Nothing passes between a host and some others."""
        others = list(others)
        self.tell(f"cut {one} | {'+'.join(others)}")
        for other in others:
            self.cluster.block(one, other)
            self.cluster.block(other, one)

    def block(self, source: str, target: str) -> None:
        """Nothing gets from one host to the other; the way back is open."""
        self.tell(f"block {source} > {target}")
        self.cluster.block(source, target)

    def reset(self, one: str, others: Iterable[str]) -> None:
        """All connections between a host and some others break; the ends learn it when they can."""
        for other in others:
            self.cluster.reset_connections(one, other)

    def join(self, one: str, other: str) -> None:
        self.tell(f"join {one} {other}")
        self.cluster.unblock(one, other)
        self.cluster.unblock(other, one)

    async def command(self, node: str, times: int) -> None:
        """Have the node, if it leads group 0, put so many commands into that group's log."""
        for _ in range(times):
            self._commands += 1
            self.cluster.control(node, do="create_queue", name=f"extra-{self._commands}", config={})
            await asyncio.sleep(COMMAND_SECONDS)

    def transfer(self, old: str, new: str) -> None:
        """A leader hands over, as an operator may ask it to."""
        self.tell(f"hands over to {new}", old)
        for replica in self.cluster.servers[old].host.groups.values():
            if replica.leading:
                replica.transfer(new)

    def deafen(self, node: str) -> None:
        """The node is heard by all other nodes and hears none of them."""
        self.tell("does not hear", node)
        for other in self.others(node):
            self.cluster.block(other, node)

    def mute(self, node: str) -> None:
        """The node hears all other nodes and is heard by none of them."""
        self.tell("is not heard", node)
        for other in self.others(node):
            self.cluster.block(node, other)

    def stall(self, node: str, seconds: float, *, times: int = MANY, where: str = "") -> None:
        """The next syncs of the node's files, or of those whose path contains `where`, take longer."""
        self.tell(f"stall {seconds:.3f} s", node)
        disk = self.cluster.machine(node).disk
        disk.stall(Micros(int(seconds * MICROS)), times=times, path_contains=where)

    def fail_next_sync(self, node: str) -> None:
        """The node's next sync fails, and what it was to cover is lost with the power."""
        self.tell("a sync will fail", node)
        self.cluster.fail_next_sync(node)

    async def hurry_changes(self, *, seconds: float) -> None:
        """Who leads a group is asked for the next step of its change, however fresh its term is."""
        for _ in range(int(seconds / HURRY_SECONDS)):
            for name in self.cluster.serving():
                self.cluster.hurry_changes(name)
            await asyncio.sleep(HURRY_SECONDS)

    def kill(self, *nodes: str) -> None:
        for node in nodes:
            self.tell("kill", node)
            self._down[node] = True
            self.cluster.kill(node)

    def stop(self, node: str) -> None:
        """A planned stop; `restart` when the process has ended."""
        self.tell("planned stop", node)
        self._down[node] = True
        self.cluster.stop(node)

    def power_loss(self, *nodes: str) -> None:
        for node in nodes:
            self.tell("power loss", node)
            self._down[node] = True
            self.cluster.machine(node).disk.end_stalls()
            self.cluster.power_loss(node)

    def lose_disk(self, node: str) -> None:
        """The node comes back with an empty disk."""
        self.tell("loses its disk", node)
        self.cluster.lose_disk(node)

    # --- Mending -------------------------------------------------------------------------------

    def restart(self, *nodes: str) -> None:
        for node in nodes:
            self.tell("restart", node)
            del self._down[node]
            self.cluster.restart(node)

    async def replace(self, node: str) -> None:
        """Have the cluster take the node's new directory for its own, as an operator would."""
        operator = self.cluster.operator
        operator.replace(node)
        for _ in range(REPLACE_LOOKS_MAX):
            await asyncio.sleep(REPLACE_LOOK_SECONDS)
            if not operator.is_asking(node):
                return
        raise ViolationError(f"{node} cannot be replaced")

    async def replaced(self) -> None:
        """Wait until all groups have the members that they shall have, as everybody knows."""
        for _ in range(REPLACE_LOOKS_MAX):
            await asyncio.sleep(REPLACE_LOOK_SECONDS)
            if self.cluster.operator.is_done:
                return
        raise ViolationError("members are still changing")

    def heal(self) -> None:
        """All links open, all disks quick, all nodes up."""
        self.cluster.fabric.heal()
        self.cluster.end_stalls()
        for node in self.nodes:
            if self.cluster.has_failing_syncs(node):
                self._down.pop(node, None)
                self.cluster.mend_syncs(node)
        self.restart(*tuple(self._down))


Scenario = Callable[[Stage], Coroutine[Any, Any, None]]
