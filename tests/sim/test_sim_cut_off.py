"""Goal: a leader that only its peers do not see costs clients an election, and not a timeout.

Method: the leader of a busy group is cut off from all other nodes for eight seconds, both ways or one
way, while clients go on to see everybody. Each operation that begins meanwhile is timed, in simulated
time: a seed always gives the same numbers.
"""

import statistics

import pytest

from raftq.errors import ProducerFenced, StaleReceipt
from raftq.sim.run import Plan, carry_out
from raftq.sim.workers import WAIT_SECONDS, Worker

MILLISECOND = 1_000
SEEDS = range(1, 6)
CUT_SECONDS = 8.0
MEDIAN_MAX = 800
WORST_MAX = 1_200

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(120)]


class Stopwatch:
    """Times the operations of all workers, and keeps the errors that users had to handle."""

    def __init__(self, monkeypatch):
        self.operations = []
        self.errors = []
        self.cut_at = self.healed_at = None
        call, send, failed = Worker.call, Worker.send, Worker.failed

        async def timed_call(worker, kind, work):
            begun = worker.workload.loop.now
            result = await call(worker, kind, work)
            wait = WAIT_SECONDS * 1e6 if kind == "receive" else 0
            self.operations.append((begun, worker.workload.loop.now - wait, kind))
            return result

        async def timed_send(worker, kind, *args):
            begun = worker.workload.loop.now
            await send(worker, kind, *args)
            self.operations.append((begun, worker.workload.loop.now, kind))

        def noted(worker, kind, error, *rest):
            if not isinstance(error, ProducerFenced | StaleReceipt):
                self.errors.append((worker.workload.loop.now, kind, error))
            failed(worker, kind, error, *rest)

        monkeypatch.setattr(Worker, "call", timed_call)
        monkeypatch.setattr(Worker, "send", timed_send)
        monkeypatch.setattr(Worker, "failed", noted)

    def scenario(self, way):
        async def leader_is_cut_off(stage):
            await stage.leader()
            await stage.pause(2.0, 3.0)
            leader = await stage.leader()
            self.cut_at = stage.cluster.loop.now
            if way == "both ways":
                stage.cut(leader, stage.others(leader))
            elif way == "deaf":
                stage.deafen(leader)
            else:
                stage.mute(leader)
            await stage.pause(CUT_SECONDS, CUT_SECONDS)
            self.healed_at = stage.cluster.loop.now
            stage.heal()
            await stage.pause(2.0, 2.0)

        return leader_is_cut_off

    def longest(self):
        """Milliseconds of the longest operation that was under way during the cut."""
        return max(
            (end - begun) // MILLISECOND
            for begun, end, _ in self.operations
            if end >= self.cut_at and begun < self.healed_at
        )


@pytest.mark.parametrize("way", ["both ways", "deaf", "mute"])
def test_clients_wait_for_an_election_and_meet_no_error(way, monkeypatch):
    longest = []
    for seed in SEEDS:
        with monkeypatch.context() as patch:
            watch = Stopwatch(patch)
            result = carry_out(seed, Plan(seconds=16, scenario=watch.scenario(way)))
        assert result.violations == ()
        assert watch.errors == [], seed
        assert len(watch.operations) > 1_000
        longest.append(watch.longest())
    assert statistics.median(longest) < MEDIAN_MAX, longest
    assert max(longest) < WORST_MAX, longest
