"""What a nemesis does to links: cuts of all shapes, resets, and a network that is slow as a whole.

Rules

1. Blocked links are counted: two partitions may overlap, and a link opens when the last one that
   blocks it ends.
2. A method is named after the kind of fault; it begins the fault, and returns what ends it.
"""

import collections
import random
from collections.abc import Callable, Iterable, Sequence

from raftq.ids import Micros
from raftq.sim.fault_plan import Fault
from raftq.sim.loop import SimLoop
from raftq.sim.network import Latency
from raftq.sim.target import Target

FLAP_MICROS_MIN = 50_000
FLAP_MICROS_MAX = 500_000

SLOW_NETWORKS = {
    "far": Latency(micros_min=20_000, micros_max=60_000),
    "lossy": Latency(spike_one_in=8, spike_micros=400_000),
    "narrow": Latency(bytes_per_micro=1),
}
"""What is lost below TCP comes late, in its turn."""


class LinkFaults:
    """The links of one cluster."""

    def __init__(self, loop: SimLoop, cluster: Target, choose: random.Random) -> None:
        self._loop = loop
        self._cluster = cluster
        self._choose = choose
        self._blocks: collections.Counter[tuple[str, str]] = collections.Counter()
        self._slow = 0

    @property
    def are_healed(self) -> bool:
        return not +self._blocks

    def _tell(self, text: str) -> None:
        self._loop.trace.event(self._loop.now, "", text)

    def _cut(self, pairs: Iterable[tuple[str, str]], text: str) -> Callable[[], None]:
        cut = tuple(pairs)
        self._tell(text)
        for pair in cut:
            self._blocks[pair] += 1
            if self._blocks[pair] == 1:
                self._cluster.block(*pair)

        def end() -> None:
            self._tell(f"healed: {text}")
            for pair in cut:
                self._blocks[pair] -= 1
                if self._blocks[pair] == 0:
                    self._cluster.unblock(*pair)

        return end

    def _sides(self, one: Sequence[str], other: Sequence[str], text: str) -> Callable[[], None]:
        """A clean cut; each client stays with one of the sides, or sees both."""
        one, other = list(one), list(other)
        for client in self._cluster.clients:
            side = self._choose.randrange(3)
            if side < 2:
                (one, other)[side].append(client)
        forth = [(a, b) for a in one for b in other]
        back = [(b, a) for a, b in forth]
        return self._cut([*forth, *back], f"{text} {'+'.join(one)} | {'+'.join(other)}")

    def _shuffled(self) -> list[str]:
        nodes = list(self._cluster.nodes)
        self._choose.shuffle(nodes)
        return nodes

    def partition(self, _fault: Fault) -> Callable[[], None]:
        nodes = self._shuffled()
        size = self._choose.randint(1, max(1, (len(nodes) - 1) // 2))
        return self._sides(nodes[:size], nodes[size:], "partition")

    def isolate_leader(self, _fault: Fault) -> Callable[[], None]:
        nodes = self._shuffled()
        leader = self._cluster.leader() or nodes[0]
        others = [node for node in nodes if node != leader]
        return self._sides([leader], others, "isolate leader")

    def one_way(self, _fault: Fault) -> Callable[[], None]:
        """One node can hear, or speak to, nobody, or a part of the others."""
        nodes = self._shuffled()
        others = nodes[1 : 1 + self._choose.randint(1, len(nodes) - 1)]
        if self._choose.randrange(2):
            return self._cut([(nodes[0], other) for other in others], f"{nodes[0]} is not heard")
        return self._cut([(other, nodes[0]) for other in others], f"{nodes[0]} does not hear")

    def bridge(self, _fault: Fault) -> Callable[[], None]:
        """Two halves that only one node connects."""
        nodes = self._shuffled()
        bridge, rest = nodes[0], nodes[1:]
        half = len(rest) // 2
        pairs = [(a, b) for a in rest[:half] for b in rest[half:]]
        return self._cut([*pairs, *[(b, a) for a, b in pairs]], f"bridge {bridge}")

    def flap(self, fault: Fault) -> Callable[[], None]:
        """A link between two nodes comes and goes."""
        one, other = self._shuffled()[:2]
        until = self._loop.now + fault.duration
        ending: list[Callable[[], None]] = []

        def turn() -> None:
            if ending:
                ending.pop()()
            elif self._loop.now < until:
                ending.append(self._cut([(one, other), (other, one)], f"flap {one} {other}"))
            if self._loop.now < until:
                pause = self._choose.randint(FLAP_MICROS_MIN, FLAP_MICROS_MAX)
                self._loop.call_at_micros(Micros(self._loop.now + pause), turn)

        def end() -> None:
            nonlocal until
            until = self._loop.now
            if ending:
                ending.pop()()

        turn()
        return end

    def cut_client(self, fault: Fault) -> Callable[[], None] | None:
        """A client loses a node, the leader by preference, which everybody else still sees."""
        if not self._cluster.clients:
            self.reset(fault)
            return None
        client = self._choose.choice(self._cluster.clients)
        node = self._cluster.leader() or self._choose.choice(self._cluster.nodes)
        return self._cut([(client, node), (node, client)], f"cut {client} from {node}")

    def reset(self, _fault: Fault) -> None:
        one = self._choose.choice(self._cluster.nodes)
        others = [host for host in (*self._cluster.nodes, *self._cluster.clients) if host != one]
        other = self._choose.choice(others)
        self._tell(f"reset {one} {other}")
        self._cluster.reset_connections(one, other)

    def slow_network(self, _fault: Fault) -> Callable[[], None]:
        kind = self._choose.choice(tuple(SLOW_NETWORKS))
        self._tell(f"{kind} network")
        self._slow += 1
        self._cluster.slow_network(SLOW_NETWORKS[kind])

        def end() -> None:
            self._slow -= 1
            if not self._slow:
                self._tell("network as usual")
                self._cluster.slow_network(None)

        return end
