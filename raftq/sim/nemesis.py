"""The nemesis: lets the faults of a plan (`fault_plan.py`) happen, and heals them.

Theory of operation. Whom a fault hits is drawn when it begins, because that depends on who leads then
and who is down already. Every fault ends before the plan does; afterwards everything is healed, so
that what must hold in the end (availability, nothing lost) can be asked for.

Rules

1. Faults of one node's process (kill, power loss, pause) never overlap on that node. A fault that
   finds no free node resets connections instead: a plan of n faults is always n faults.
2. Blocked links are counted: two partitions may overlap, and a link opens when the last one that
   blocks it ends.
3. What is drawn depends on the seed and the order of events alone.
"""

import collections
import random
from collections.abc import Callable, Iterable, Sequence

from raftq.ids import Micros
from raftq.sim.fault_plan import Fault
from raftq.sim.loop import MICROS, SimLoop
from raftq.sim.network import Latency
from raftq.sim.target import Target

JUMP_MICROS_MAX = 365 * 24 * 3_600 * MICROS
RATE_SPREAD = 200_000
"""Clocks run up to 20 % fast or slow for a while."""

FLAP_MICROS_MIN = 50_000
FLAP_MICROS_MAX = 500_000
CRASH_PAUSE_MICROS_MAX = 400_000
"""So long a node in a crash loop runs, or does not run."""

SLOW_NETWORKS = {
    "far": Latency(micros_min=20_000, micros_max=60_000),
    "lossy": Latency(spike_one_in=8, spike_micros=400_000),
    "narrow": Latency(bytes_per_micro=1),
}
"""What is lost below TCP comes late, in its turn."""

DURING_CHANGES = ("", "kill", "power_loss", "pause", "isolate_leader", "partition")
"""What happens besides while a lost disk is replaced; nothing is among them."""

LEADER_ONE_IN = 2
"""How often the leader is chosen, where one is to be chosen."""


class Nemesis:
    """Carries a plan out on a cluster."""

    def __init__(self, loop: SimLoop, cluster: Target, choose: random.Random) -> None:
        self.healed_at = Micros(0)
        """When the last fault ended, or will."""
        self.begun: list[Fault] = []
        self._loop = loop
        self._cluster = cluster
        self._choose = choose
        self._occupied: dict[str, str] = {}
        self._blocks: collections.Counter[tuple[str, str]] = collections.Counter()
        self._rates: dict[str, bool] = {}
        self._full: dict[str, bool] = {}
        self._slow = 0
        self._ending: dict[int, Callable[[], None]] = {}
        self._number = 0
        self._is_over = False

    def start(self, plan: Sequence[Fault]) -> None:
        """Let the plan happen, counted from now."""
        assert len(self._cluster.nodes) > 1, "links need two nodes"
        now = self._loop.now
        for fault in plan:
            self.healed_at = max(self.healed_at, Micros(now + fault.at + fault.duration))
            self._loop.call_at_micros(Micros(now + fault.at), self._begin, fault)

    def heal(self) -> None:
        """End everything now, in the order it began; nothing begins any more."""
        self._is_over = True
        for number in tuple(self._ending):
            self._end(number)
        assert not self._occupied, "a node was forgotten"
        assert not +self._blocks, "a link was forgotten"
        self.healed_at = self._loop.now

    def _begin(self, fault: Fault) -> None:
        if self._is_over:
            return
        ending: Callable[[], None] | None = getattr(self, f"_{fault.kind}")(fault)
        self.begun.append(fault)
        self._number += 1
        if ending is not None:
            self._ending[self._number] = ending
            moment = Micros(self._loop.now + fault.duration)
            self._loop.call_at_micros(moment, self._end, self._number)

    def _end(self, number: int) -> None:
        ending = self._ending.pop(number, None)
        if ending is not None:
            ending()

    def _tell(self, text: str, node: str = "") -> None:
        self._loop.trace.event(self._loop.now, node, text)

    # --- Processes -----------------------------------------------------------------------------

    def _victim(self, fault: Fault) -> str | None:
        """A node that is free, the leader by preference; without one, connections are reset."""
        free = [node for node in self._cluster.nodes if node not in self._occupied]
        if not free:
            self._reset(fault)
            return None
        leader = self._cluster.leader()
        if leader in free and self._choose.randrange(LEADER_ONE_IN) == 0:
            return leader
        return self._choose.choice(free)

    def _take(self, node: str, fault: Fault) -> None:
        self._occupied[node] = fault.kind
        self._tell(f"{fault.kind} {fault.duration // 1_000} ms", node)

    def _release(self, node: str, text: str) -> None:
        del self._occupied[node]
        self._tell(text, node)

    def _kill(self, fault: Fault) -> Callable[[], None] | None:
        node = self._victim(fault)
        if node is None:
            return None
        self._take(node, fault)
        self._cluster.kill(node)
        return lambda: self._restart(node)

    def _power_loss(self, fault: Fault) -> Callable[[], None] | None:
        node = self._victim(fault)
        if node is None:
            return None
        self._take(node, fault)
        self._cluster.power_loss(node)
        return lambda: self._restart(node)

    def _power_loss_of_all(self, fault: Fault) -> Callable[[], None] | None:
        nodes = [node for node in self._cluster.nodes if node not in self._occupied]
        for node in nodes:
            self._take(node, fault)
            self._cluster.power_loss(node)

        def end() -> None:
            self._choose.shuffle(nodes)
            for node in nodes:
                self._restart(node)

        return end

    def _restart(self, node: str) -> None:
        self._release(node, "restart")
        self._cluster.restart(node)

    def _pause(self, fault: Fault) -> Callable[[], None] | None:
        node = self._victim(fault)
        if node is None:
            return None
        self._take(node, fault)
        self._cluster.pause(node)

        def end() -> None:
            self._release(node, "resume")
            self._cluster.resume(node)

        return end

    def _crash_loop(self, fault: Fault) -> Callable[[], None] | None:
        """A node that is killed again and again, while it recovers too."""
        node = self._victim(fault)
        if node is None:
            return None
        self._take(node, fault)
        self._cluster.kill(node)
        is_down, is_over = True, False

        def turn() -> None:
            nonlocal is_down
            if is_over:
                return
            if is_down:
                self._cluster.restart(node)
            else:
                self._cluster.kill(node)
            is_down = not is_down
            self._loop.call_at_micros(Micros(self._loop.now + self._crash_pause()), turn)

        def end() -> None:
            nonlocal is_over
            is_over = True
            self._release(node, "crashes no more")
            if is_down:
                self._cluster.restart(node)

        self._loop.call_at_micros(Micros(self._loop.now + self._crash_pause()), turn)
        return end

    def _lose_disk(self, fault: Fault) -> Callable[[], None] | None:
        """A node comes back empty and is replaced; while the groups change, something else fails."""
        node = self._victim(fault)
        if node is None:
            return None
        self._tell("loses its disk", node)
        self._cluster.replace_disk(node)
        other = self._choose.choice(DURING_CHANGES)
        endings: list[Callable[[], None] | None] = []
        is_over = False

        def fail() -> None:
            if not is_over:
                endings.append(getattr(self, f"_{other}")(fault))

        def end() -> None:
            nonlocal is_over
            is_over = True
            for ending in endings:
                if ending is not None:
                    ending()

        if other:
            moment = self._loop.now + self._choose.randrange(fault.duration)
            self._loop.call_at_micros(Micros(moment), fail)
        return end

    def _crash_pause(self) -> int:
        return self._choose.randrange(1, CRASH_PAUSE_MICROS_MAX)

    def _combination(self, fault: Fault) -> Callable[[], None]:
        """A node pauses, another loses its power, and the rest is cut in two, all at once."""
        endings = [self._pause(fault), self._power_loss(fault), self._partition(fault)]

        def end() -> None:
            for ending in endings:
                if ending is not None:
                    ending()

        return end

    # --- Links ---------------------------------------------------------------------------------

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

    def _partition(self, _fault: Fault) -> Callable[[], None]:
        nodes = self._shuffled()
        size = self._choose.randint(1, max(1, (len(nodes) - 1) // 2))
        return self._sides(nodes[:size], nodes[size:], "partition")

    def _isolate_leader(self, _fault: Fault) -> Callable[[], None]:
        nodes = self._shuffled()
        leader = self._cluster.leader() or nodes[0]
        others = [node for node in nodes if node != leader]
        return self._sides([leader], others, "isolate leader")

    def _one_way(self, _fault: Fault) -> Callable[[], None]:
        """One node can hear, or speak to, nobody, or a part of the others."""
        nodes = self._shuffled()
        others = nodes[1 : 1 + self._choose.randint(1, len(nodes) - 1)]
        if self._choose.randrange(2):
            return self._cut([(nodes[0], other) for other in others], f"{nodes[0]} is not heard")
        return self._cut([(other, nodes[0]) for other in others], f"{nodes[0]} does not hear")

    def _bridge(self, _fault: Fault) -> Callable[[], None]:
        """Two halves that only one node connects."""
        nodes = self._shuffled()
        bridge, rest = nodes[0], nodes[1:]
        half = len(rest) // 2
        pairs = [(a, b) for a in rest[:half] for b in rest[half:]]
        return self._cut([*pairs, *[(b, a) for a, b in pairs]], f"bridge {bridge}")

    def _flap(self, fault: Fault) -> Callable[[], None]:
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

    def _cut_client(self, fault: Fault) -> Callable[[], None] | None:
        """A client loses a node, the leader by preference, which everybody else still sees."""
        if not self._cluster.clients:
            self._reset(fault)
            return None
        client = self._choose.choice(self._cluster.clients)
        node = self._cluster.leader() or self._choose.choice(self._cluster.nodes)
        return self._cut([(client, node), (node, client)], f"cut {client} from {node}")

    def _reset(self, _fault: Fault) -> None:
        one = self._choose.choice(self._cluster.nodes)
        others = [host for host in (*self._cluster.nodes, *self._cluster.clients) if host != one]
        other = self._choose.choice(others)
        self._tell(f"reset {one} {other}")
        self._cluster.reset_connections(one, other)

    def _slow_network(self, _fault: Fault) -> Callable[[], None]:
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

    # --- Disks and clocks ----------------------------------------------------------------------

    def _stall(self, fault: Fault) -> None:
        node = self._victim(fault)
        if node is not None:
            self._tell(f"stall {fault.duration // 1_000} ms", node)
            self._cluster.stall_syncs(node, fault.duration)

    def _sync_error(self, fault: Fault) -> Callable[[], None] | None:
        node = self._victim(fault)
        if node is None:
            return None
        self._take(node, fault)
        self._cluster.fail_syncs(node)

        def end() -> None:
            self._release(node, "syncs work")
            self._cluster.mend_syncs(node)

        return end

    def _one_without(self, having: dict[str, bool], fault: Fault) -> str | None:
        """A node that is not among those, and is from now on; if all are, connections are reset."""
        free = [node for node in self._cluster.nodes if node not in having]
        if not free:
            self._reset(fault)
            return None
        node = self._choose.choice(free)
        having[node] = True
        return node

    def _disk_full(self, fault: Fault) -> Callable[[], None] | None:
        node = self._one_without(self._full, fault)
        if node is None:
            return None
        self._tell("disk full", node)
        self._cluster.fill_disk(node)

        def end() -> None:
            del self._full[node]
            self._tell("disk has room", node)
            self._cluster.empty_disk(node)

        return end

    def _rot(self, _fault: Fault) -> None:
        node = self._choose.choice(self._cluster.nodes)
        self._tell(self._cluster.rot(node, self._choose), node)

    def _jump(self, _fault: Fault) -> None:
        node = self._choose.choice(self._cluster.nodes)
        scale = self._choose.choice((1_000, MICROS, 3_600 * MICROS, JUMP_MICROS_MAX))
        by = Micros(self._choose.randint(-scale, scale))
        self._tell(f"wall {by // 1_000:+} ms", node)
        self._cluster.jump_wall(node, by)

    def _rate(self, fault: Fault) -> Callable[[], None] | None:
        node = self._one_without(self._rates, fault)
        if node is None:
            return None
        rate = MICROS + self._choose.randint(-RATE_SPREAD, RATE_SPREAD)
        self._tell(f"clock rate {rate}", node)
        self._cluster.set_clock_rate(node, rate)

        def end() -> None:
            del self._rates[node]
            self._tell("clock rate ok", node)
            self._cluster.set_clock_rate(node, MICROS)

        return end
