"""What a fault can use: the nodes, the network, chance, and the words that say what was done."""

import asyncio
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from chaos_history import Probes
from chaos_network import Cut, Network, is_served
from chaos_nodes import Nodes

NANO = 1_000_000_000
RECOVER_SECONDS = 20.0
_LOOK_SECONDS = 0.02
_PROBES_WANTED = 3


class ViolationError(Exception):
    """Something happened that must never happen; the message says what."""


@dataclass(slots=True)
class Stage:
    """One episode: a fault, from its injection until everything is well again."""

    nodes: Nodes
    network: Network
    probes: Probes
    choose: random.Random
    groups: dict[int, int]
    """The groups whose partitions are probed, each with that partition."""
    voters: dict[int, list[str]]
    """Which nodes hold each group."""
    work: Path
    """Where files of the harness go."""
    injected_at: float = 0.0
    healed_at: float = 0.0
    done: list[str] = field(default_factory=list)
    excused: set[int] = field(default_factory=set)
    """Groups that nobody could serve while the network was cut."""
    damaged: dict[str, str] = field(default_factory=dict)
    """Nodes that are expected to stay unready, and why."""

    def say(self, text: str) -> None:
        """What is done, in the words of the report; the first one is the moment of injection."""
        self.done.append(text)
        if not self.injected_at:
            self.injected_at = time.monotonic()

    async def seconds(self, least: float, most: float) -> None:
        await asyncio.sleep(self.choose.uniform(least, most))

    def any_node(self) -> str:
        return self.choose.choice(self.nodes.names)

    async def leader(self) -> tuple[str, int]:
        """The leader of one of the probed groups, and the group."""
        group = self.choose.choice(list(self.groups))
        async with asyncio.timeout(RECOVER_SECONDS):
            while True:
                leader = (await self.nodes.leaders()).get(group)
                if leader is not None:
                    return leader, group
                await asyncio.sleep(_LOOK_SECONDS)

    def cut(self, cuts: list[Cut]) -> None:
        """Let these packets vanish; a group that has no majority anywhere may stand still."""
        self.excused |= {
            group for group, voters in self.voters.items() if not is_served(voters, cuts)
        }
        self.network.cut(cuts)

    def gap(self, end: float) -> float:
        """The longest time that a partition accepted nothing, though its group could be served."""
        self.probes.look()
        partitions = [self.groups[group] for group in self.groups if group not in self.excused]
        return self.probes.gap(self.injected_at or end, end, partitions)

    def others(self, *names: str) -> list[str]:
        """All nodes but these, in an order of chance."""
        found = [name for name in self.nodes.names if name not in names]
        self.choose.shuffle(found)
        return found

    def until(self, seconds: float) -> int:
        """A moment as the fault layer knows it."""
        return time.monotonic_ns() + round(seconds * NANO)

    def start_healed(self, name: str) -> None:
        """Start a node that has ended, on a disk that is well again."""
        self.nodes.layers[name].heal()
        self.nodes.start_node(name)

    async def ended(self, name: str, seconds: float) -> int:
        """Wait until the node has ended by itself; its exit status.

        Raises: ViolationError.
        """
        deadline = time.monotonic() + seconds
        while (status := self.nodes.exit_status(name)) is None:
            if time.monotonic() > deadline:
                raise ViolationError(f"{name} did not stop itself within {seconds:g} s")
            await asyncio.sleep(_LOOK_SECONDS)
        return status

    async def ready(self, name: str, deadline: float) -> None:
        """Wait until the node says that it is ready.

        Raises: ViolationError.
        """
        while reasons := await self.nodes.not_ready(name):
            if not self.nodes.is_running(name):
                raise ViolationError(f"after healing, {self.nodes.last_words(name)}")
            if time.monotonic() > deadline:
                raise ViolationError(
                    f"{RECOVER_SECONDS:g} s after healing {name} is not ready: {'; '.join(reasons)}"
                )
            await asyncio.sleep(_LOOK_SECONDS)

    async def recover(self) -> None:
        """Heal everything, and wait until all nodes are ready and all partitions accept messages.

        Raises: ViolationError.
        """
        self.network.heal()
        self.nodes.heal()
        self.healed_at = time.monotonic()
        for name in self.nodes.names:
            if not self.nodes.is_running(name):
                self.start_healed(name)
        deadline = self.healed_at + RECOVER_SECONDS
        while not self.probes.all_since(self.healed_at, _PROBES_WANTED):
            if time.monotonic() > deadline:
                raise ViolationError(
                    f"{RECOVER_SECONDS:g} s after healing a partition accepts no message"
                )
            await asyncio.sleep(_LOOK_SECONDS)
        for name in self.nodes.names:
            if name not in self.damaged:
                await self.ready(name, deadline)
