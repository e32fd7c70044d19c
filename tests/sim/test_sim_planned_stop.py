"""Goal: a planned restart of every node, under load, costs clients less than a blink and no error.

Method: each node in turn is stopped as SIGTERM stops it and started again when its process has ended,
while clients publish, receive and settle. In a second story the network loses the node, its chosen
successor dies, or its disk stalls just then: that may cost an election, and still no message.
"""

import statistics

import pytest
from sim_stopwatch import Stopwatch

from raftq.sim.run import Plan, carry_out

SEEDS = range(1, 6)
MEDIAN_MAX = 25
WORST_MAX = 50
"""Of simulated milliseconds: disks and network cost what they cost here, computing costs nothing."""

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(150)]


async def ended(stage, node):
    while node in stage.cluster.servers:
        await stage.pause(0.01, 0.01)


def every_node_in_turn(watch):
    async def scenario(stage):
        await stage.leader()
        await stage.pause(2.0, 2.5)
        watch.hurt_at = stage.cluster.loop.now
        for node in stage.others():
            stage.stop(node)
            await ended(stage, node)
            await stage.pause(0.1, 0.3)
            stage.restart(node)
            await stage.pause(1.0, 1.5)
        watch.healed_at = stage.cluster.loop.now

    return scenario


def test_a_rolling_restart_is_hardly_noticed(monkeypatch):
    longest = []
    for seed in SEEDS:
        with monkeypatch.context() as patch:
            watch = Stopwatch(patch)
            result = carry_out(seed, Plan(nodes=3, seconds=16, scenario=every_node_in_turn(watch)))
        assert result.violations == ()
        assert watch.errors == [], seed
        assert len(watch.operations) > 1_000
        longest.append(watch.longest())
    assert statistics.median(longest) < MEDIAN_MAX, longest
    assert max(longest) < WORST_MAX, longest


async def hand_overs_go_wrong(stage):
    await stage.leader()
    await stage.pause(1.0, 1.5)
    for _ in range(4):
        node = await stage.leader()
        other = stage.choose.choice(stage.others(node))
        what = stage.choose.randrange(5)
        stage.stop(node)
        await stage.pause(0.0, 0.02)
        if what == 0:
            stage.cut(node, stage.others(node))
        elif what == 1:
            stage.kill(other)
        elif what == 2:
            stage.power_loss(other)
        elif what == 3:
            stage.stall(other, 0.2, times=10)
        else:
            stage.power_loss(node)
        await stage.pause(0.2, 1.0)
        if what != 4:
            await ended(stage, node)
            stage.restart(node)
        stage.heal()
        await stage.pause(0.5, 1.0)


@pytest.mark.parametrize("seed", range(1, 9))
def test_what_goes_wrong_in_a_planned_stop_loses_nothing(seed):
    result = carry_out(seed, Plan(nodes=3, seconds=14, scenario=hand_overs_go_wrong))
    assert result.violations == ()
    assert result.counters["acknowledged"] > 300
