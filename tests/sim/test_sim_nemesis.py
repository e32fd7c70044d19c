"""The nemesis alone, on a cluster that only remembers what was done to it."""

import collections
import random

import pytest

from raftq.sim.fault_plan import KINDS, SETTLE_MICROS, Fault, draw_plan
from raftq.sim.loop import SimLoop
from raftq.sim.nemesis import Nemesis

SECOND = 1_000_000


class Recorder:
    """Checks that each act makes sense when it comes."""

    nodes = ("n1", "n2", "n3", "n4", "n5")
    clients = ("c1", "c2")

    def __init__(self):
        self.acts = []
        self.state = dict.fromkeys(self.nodes, "up")
        self.blocked = set()
        self.full = set()
        self.latency = None
        self.rates = {}
        self.count = collections.Counter()

    def leader(self):
        return "n2" if self.state["n2"] == "up" else None

    def _turn(self, node, before, after, act):
        assert self.state[node] == before, (act, node)
        self.state[node] = after
        self._note(act, node)

    def _note(self, *act):
        self.acts.append(act)
        self.count[act[0]] += 1

    def kill(self, node):
        self._turn(node, "up", "down", "kill")

    def power_loss(self, node):
        if self.state[node] == "failing":
            self._note("power_loss", node)  # It may have stopped; whoever mends its disk starts it.
        else:
            self._turn(node, "up", "down", "power_loss")

    def restart(self, node):
        self._turn(node, "down", "up", "restart")

    def pause(self, node):
        self._turn(node, "up", "paused", "pause")

    def resume(self, node):
        self._turn(node, "paused", "up", "resume")

    def replace_disk(self, node):
        assert self.state[node] == "up"
        self._note("replace_disk", node)

    def rot(self, node, choose):
        self._note("rot", node)
        return "rot"

    def block(self, source, target):
        assert source != target
        assert (source, target) not in self.blocked
        self.blocked.add((source, target))
        self._note("block", source, target)

    def unblock(self, source, target):
        self.blocked.remove((source, target))
        self._note("unblock", source, target)

    def reset_connections(self, one, other):
        assert one != other
        self._note("reset", one, other)

    def stall_syncs(self, node, duration):
        assert self.state[node] == "up"
        assert 0 < duration <= 10 * SECOND
        self._note("stall", node, duration)

    def fail_syncs(self, node):
        self._turn(node, "up", "failing", "fail_syncs")

    def fail_next_sync(self, node):
        self._turn(node, "up", "failing", "fail_next_sync")

    def mend_syncs(self, node):
        self._turn(node, "failing", "up", "mend_syncs")

    def fill_disk(self, node):
        assert node not in self.full
        self.full.add(node)
        self._note("fill", node)

    def empty_disk(self, node):
        self.full.remove(node)
        self._note("empty", node)

    def slow_network(self, latency):
        self.latency = latency
        self._note("slow", latency)

    def jump_wall(self, node, by):
        self._note("jump", node, by)

    def set_clock_rate(self, node, rate):
        self.rates[node] = rate
        self._note("rate", node, rate)

    def is_whole(self):
        return (
            set(self.state.values()) == {"up"}
            and not self.blocked
            and not self.full
            and self.latency is None
            and set(self.rates.values()) <= {SECOND}
        )


def run(seed, *, faults=12, kinds=(), until=30 * SECOND):
    with SimLoop(seed=seed) as loop:
        cluster = Recorder()
        choose = random.Random(seed)
        nemesis = Nemesis(loop, cluster, choose)
        plan = draw_plan(choose, 30 * SECOND, faults=faults, kinds=kinds)
        nemesis.start(plan)
        loop.run_until(until)
        return plan, nemesis, cluster


@pytest.mark.parametrize("seed", range(40))
def test_a_plan_happens_and_everything_heals(seed):
    plan, nemesis, cluster = run(seed)
    assert len(plan) == len(nemesis.begun) == 12
    assert all(fault.at >= SETTLE_MICROS for fault in plan)
    assert nemesis.healed_at <= 30 * SECOND * 3 // 4
    assert cluster.is_whole()
    assert cluster.acts


def test_a_seed_is_a_plan():
    assert run(7)[2].acts == run(7)[2].acts
    assert run(7)[2].acts != run(8)[2].acts


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_kind_does_something_and_undoes_it(kind):
    for seed in range(5):
        _, _, cluster = run(seed, faults=3, kinds=[kind])
        assert cluster.acts
        assert cluster.is_whole()


def test_all_kinds_come_up():
    drawn = collections.Counter()
    for seed in range(60):
        drawn.update(fault.kind for fault in draw_plan(random.Random(seed), 30 * SECOND))
    assert set(drawn) == set(KINDS)


@pytest.mark.parametrize("seed", range(20))
def test_heal_ends_what_has_begun_and_prevents_the_rest(seed):
    with SimLoop(seed=seed) as loop:
        cluster = Recorder()
        choose = random.Random(seed)
        nemesis = Nemesis(loop, cluster, choose)
        nemesis.start(draw_plan(choose, 30 * SECOND, faults=15))
        loop.run_until(10 * SECOND)
        nemesis.heal()
        assert cluster.is_whole()
        assert nemesis.healed_at == 10 * SECOND
        count = len(cluster.acts)
        loop.run_until(60 * SECOND)
        assert len(cluster.acts) == count


def test_faults_of_one_process_never_overlap():
    """With every node down, what would be another kill becomes a reset of connections."""
    with SimLoop() as loop:
        cluster = Recorder()
        nemesis = Nemesis(loop, cluster, random.Random(1))
        nemesis.start([Fault(3 * SECOND, 5 * SECOND, "kill")] * 8)
        loop.run_until(4 * SECOND)
        assert set(cluster.state.values()) == {"down"}
        assert cluster.count == {"kill": 5, "reset": 3}
        loop.run_until(9 * SECOND)
        assert cluster.is_whole()


def test_overlapping_partitions_open_a_link_when_the_last_one_ends():
    with SimLoop() as loop:
        cluster = Recorder()
        cluster.clients = ()
        nemesis = Nemesis(loop, cluster, random.Random(1))
        nemesis.start(
            [
                Fault(2 * SECOND, 4 * SECOND, "isolate_leader"),
                Fault(3 * SECOND, 4 * SECOND, "isolate_leader"),
            ]
        )
        loop.run_until(6_500_000)
        assert ("n2", "n1") in cluster.blocked
        assert len(cluster.blocked) == 8
        loop.run_until(7_500_000)
        assert not cluster.blocked


def test_leaders_are_hit_more_often_than_others():
    hit = collections.Counter()
    for seed in range(60):
        hit.update(act[1] for act in run(seed, faults=2, kinds=["pause"])[2].acts)
    assert hit["n2"] > max(hit[node] for node in ("n1", "n3", "n4", "n5"))


def test_the_table_tells_what_happened():
    from raftq.sim.trace import Trace, table

    trace = Trace(keeps_events=True)
    with SimLoop(trace=trace) as loop:
        cluster = Recorder()
        nemesis = Nemesis(loop, cluster, random.Random(1))
        nemesis.start([Fault(SECOND, SECOND, "pause"), Fault(1_500_000, SECOND, "isolate_leader")])
        loop.run_until(5 * SECOND)
    lines = list(table(trace.events, cluster.nodes, width=14))
    assert lines[0].split() == ["seconds", *cluster.nodes]
    assert lines[1].split(maxsplit=1)[0] == "1.000000"
    assert "pause 1000 ms" in lines[1]
    assert "==== isolate leader" in lines[2]
    assert len(lines) == 5
    assert trace.digest() != Trace().digest()
