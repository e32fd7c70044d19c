"""The nemesis: lets the faults of a plan (`fault_plan.py`) happen, and heals them.

Theory of operation. Whom a fault hits is drawn when it begins, because that depends on who leads then
and who is down already. Every fault ends before the plan does; afterwards everything is healed, so
that what must hold in the end (availability, nothing lost) can be asked for.

Rules

1. Faults of one node's process (kill, power loss, pause) never overlap on that node. A fault that
   finds no free node resets connections instead: a plan of n faults is always n faults.
2. What is done to links is the business of `link_faults.py`.
3. What is drawn depends on the seed and the order of events alone.
"""

import random
from collections.abc import Callable, Sequence

from raftq.ids import Micros
from raftq.sim.fault_plan import Fault
from raftq.sim.link_faults import LinkFaults
from raftq.sim.loop import MICROS, SimLoop
from raftq.sim.target import Target

JUMP_MICROS_MAX = 365 * 24 * 3_600 * MICROS
RATES = ((800_000, 1_200_000), (500_000, 2_000_000))
"""Clocks run a little fast or slow for a while, or up to twice as fast, or half."""

LEAP_MICROS = 1 * MICROS
LEAP_PAUSE_MICROS_MAX = 400_000

POWER_AFTER_SYNC_MICROS_MAX = 30_000

CRASH_PAUSE_MICROS_MAX = 400_000
"""So long a node in a crash loop runs, or does not run."""

DURING_CHANGES = ("", "kill", "power_loss", "pause", "isolate_leader", "partition")
"""What happens besides while a lost disk is replaced; nothing is among them."""

Ending = Callable[[], None]
"""Ends a fault; it is called once."""

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
        self._links = LinkFaults(loop, cluster, choose)
        self._rates: dict[str, bool] = {}
        self._walls: dict[str, bool] = {}
        self._full: dict[str, bool] = {}
        self._ending: dict[int, Ending] = {}
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
        assert self._links.are_healed, "a link was forgotten"
        self.healed_at = self._loop.now

    def _begin(self, fault: Fault) -> None:
        if self._is_over:
            return
        ending = self._act(fault.kind, fault)
        self.begun.append(fault)
        self._number += 1
        if ending is not None:
            self._ending[self._number] = ending
            moment = Micros(self._loop.now + fault.duration)
            self._loop.call_at_micros(moment, self._end, self._number)

    def _act(self, kind: str, fault: Fault) -> Ending | None:
        """Begin a fault of that kind."""
        act: Callable[[Fault], Ending | None] = getattr(self._links, kind, None) or getattr(
            self, f"_{kind}"
        )
        return act(fault)

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
            self._links.reset(fault)
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

    def _kill(self, fault: Fault) -> Ending | None:
        node = self._victim(fault)
        if node is None:
            return None
        self._take(node, fault)
        self._cluster.kill(node)
        return lambda: self._restart(node)

    def _power_loss(self, fault: Fault) -> Ending | None:
        node = self._victim(fault)
        if node is None:
            return None
        self._take(node, fault)
        self._cluster.power_loss(node)
        return lambda: self._restart(node)

    def _power_loss_of_all(self, fault: Fault) -> Ending | None:
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

    def _pause(self, fault: Fault) -> Ending | None:
        node = self._victim(fault)
        if node is None:
            return None
        self._take(node, fault)
        self._cluster.pause(node)

        def end() -> None:
            self._release(node, "resume")
            self._cluster.resume(node)

        return end

    def _crash_loop(self, fault: Fault) -> Ending | None:
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

    def _lose_disk(self, fault: Fault) -> Ending | None:
        """A node comes back empty and is replaced; while the groups change, something else fails."""
        node = self._victim(fault)
        if node is None:
            return None
        self._tell("loses its disk", node)
        self._cluster.replace_disk(node)
        other = self._choose.choice(DURING_CHANGES)
        endings: list[Ending | None] = []
        is_over = False

        def fail() -> None:
            if not is_over:
                endings.append(self._act(other, fault))

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

    def _combination(self, fault: Fault) -> Ending:
        """A node pauses, another loses its power, and the rest is cut in two, all at once."""
        endings = [self._pause(fault), self._power_loss(fault), self._links.partition(fault)]

        def end() -> None:
            for ending in endings:
                if ending is not None:
                    ending()

        return end

    # --- Disks and clocks ----------------------------------------------------------------------

    def _stall(self, fault: Fault) -> None:
        node = self._victim(fault)
        if node is not None:
            self._tell(f"stall {fault.duration // 1_000} ms", node)
            self._cluster.stall_syncs(node, fault.duration)

    def _sync_error(self, fault: Fault) -> Ending | None:
        node = self._victim(fault)
        if node is None:
            return None
        self._take(node, fault)
        self._cluster.fail_syncs(node)

        def end() -> None:
            self._release(node, "syncs work")
            self._cluster.mend_syncs(node)

        return end

    def _sync_error_of_all(self, fault: Fault) -> Ending:
        """One sync fails on every free node, and soon afterwards their power."""
        nodes = [node for node in self._cluster.nodes if node not in self._occupied]
        for node in nodes:
            self._take(node, fault)
            self._cluster.fail_next_sync(node)
        are_off = False

        def power_loss() -> None:
            nonlocal are_off
            if not are_off:
                are_off = True
                for node in nodes:
                    self._cluster.power_loss(node)

        def end() -> None:
            power_loss()
            self._choose.shuffle(nodes)
            for node in nodes:
                self._release(node, "restart")
                self._cluster.mend_syncs(node)

        delay = self._choose.randrange(POWER_AFTER_SYNC_MICROS_MAX)
        self._loop.call_at_micros(Micros(self._loop.now + delay), power_loss)
        return end

    def _one_without(self, having: dict[str, bool], fault: Fault) -> str | None:
        """A node that is not among those, and is from now on; if all are, connections are reset."""
        free = [node for node in self._cluster.nodes if node not in having]
        if not free:
            self._links.reset(fault)
            return None
        node = self._choose.choice(free)
        having[node] = True
        return node

    def _disk_full(self, fault: Fault) -> Ending | None:
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

    def _one_with_wrong_wall(self) -> str:
        """Of a minority only: log time follows a quorum's clocks, and would stand still with them."""
        nodes = self._cluster.nodes
        is_minority = len(self._walls) < (len(nodes) - 1) // 2
        node = self._choose.choice(nodes if is_minority else tuple(self._walls))
        self._walls[node] = True
        return node

    def _jump(self, _fault: Fault) -> None:
        node = self._one_with_wrong_wall()
        scale = self._choose.choice((1_000, MICROS, 3_600 * MICROS, JUMP_MICROS_MAX))
        by = Micros(self._choose.randint(-scale, scale))
        self._tell(f"wall {by // 1_000:+} ms", node)
        self._cluster.jump_wall(node, by)

    def _leap(self, _fault: Fault) -> Ending:
        """The wall clock goes back a second, again and again."""
        node = self._one_with_wrong_wall()
        self._tell("leaps back", node)
        is_over = False

        def turn() -> None:
            if not is_over:
                self._cluster.jump_wall(node, Micros(-LEAP_MICROS))
                pause = self._choose.randrange(1, LEAP_PAUSE_MICROS_MAX)
                self._loop.call_at_micros(Micros(self._loop.now + pause), turn)

        def end() -> None:
            nonlocal is_over
            is_over = True
            self._tell("leaps no more", node)

        turn()
        return end

    def _rate(self, fault: Fault) -> Ending | None:
        node = self._one_without(self._rates, fault)
        if node is None:
            return None
        rate = self._choose.randint(*self._choose.choice(RATES))
        self._tell(f"clock rate {rate}", node)
        self._cluster.set_clock_rate(node, rate)

        def end() -> None:
            del self._rates[node]
            self._tell("clock rate ok", node)
            self._cluster.set_clock_rate(node, MICROS)

        return end
