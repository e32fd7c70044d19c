"""Goal: a leader that only its peers do not see costs clients an election, and not a timeout.

Method: the leader of a busy group is cut off from all other nodes for eight seconds, both ways or one
way, while clients go on to see everybody. Each operation that begins meanwhile is timed, in simulated
time: a seed always gives the same numbers.
"""

import statistics

import pytest
from sim_stopwatch import Stopwatch

from raftq.sim.run import Plan, carry_out

SEEDS = range(1, 6)
CUT_SECONDS = 8.0
MEDIAN_MAX = 800
WORST_MAX = 1_200

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(120)]


def scenario(watch, way):
    async def leader_is_cut_off(stage):
        await stage.leader()
        await stage.pause(2.0, 3.0)
        leader = await stage.leader()
        watch.hurt_at = stage.cluster.loop.now
        if way == "both ways":
            stage.cut(leader, stage.others(leader))
        elif way == "deaf":
            stage.deafen(leader)
        else:
            stage.mute(leader)
        await stage.pause(CUT_SECONDS, CUT_SECONDS)
        watch.healed_at = stage.cluster.loop.now
        stage.heal()
        await stage.pause(2.0, 2.0)

    return leader_is_cut_off


@pytest.mark.parametrize("way", ["both ways", "deaf", "mute"])
def test_clients_wait_for_an_election_and_meet_no_error(way, monkeypatch):
    longest = []
    for seed in SEEDS:
        with monkeypatch.context() as patch:
            watch = Stopwatch(patch)
            result = carry_out(seed, Plan(seconds=16, scenario=scenario(watch, way)))
        assert result.violations == ()
        assert watch.errors == [], seed
        assert len(watch.operations) > 1_000
        longest.append(watch.longest())
    assert statistics.median(longest) < MEDIAN_MAX, longest
    assert max(longest) < WORST_MAX, longest
