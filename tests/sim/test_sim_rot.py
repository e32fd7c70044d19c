"""Goal: rot on any node, of any kind, different on each, is healed and seen by no client.

Method: whole runs in which files rot again and again, alone and among all other faults; in the end
everything is read through, every replica must be whole, and all replicas one log.
"""

import random

import pytest

from raftq.sim.fault_plan import KINDS
from raftq.sim.rot import MARGIN, Rot
from raftq.sim.run import simulate

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(300)]


@pytest.mark.parametrize("seed", range(1, 4))
def test_rot_alone_is_clean(seed):
    assert simulate(seed, kinds=["rot"], faults=12).violations == ()


@pytest.mark.parametrize("seed", range(1, 7))
def test_rot_among_other_faults_is_clean(seed):
    assert simulate(seed, kinds=[*KINDS, *["rot"] * 6], faults=8).violations == ()


def test_the_same_entries_never_rot_on_two_nodes(monkeypatch):
    """Else nothing could heal them. Also: a run does make rot, on more than one node."""
    hit = []
    strike = Rot.strike

    def watched(self, node, disk, choose):
        said = strike(self, node, disk, choose)
        hit.append((node, said))
        for ranges in self._bad.values():
            for one, first, last in ranges:
                for other, low, high in ranges:
                    assert one == other or last + MARGIN < low or high + MARGIN < first
        return said

    monkeypatch.setattr(Rot, "strike", watched)
    for seed in (1, 2, 3):
        simulate(seed, kinds=["rot"], faults=12)
    done = {node for node, said in hit if said != "nothing to rot"}
    assert len(done) > 1
    assert len({said.split(" of ")[0].split(" at ")[0] for _, said in hit}) > 2


def test_nothing_rots_on_an_empty_disk():
    class Empty:
        def paths(self):
            return []

    assert Rot().strike("n1", Empty(), random.Random(1)) == "nothing to rot"
