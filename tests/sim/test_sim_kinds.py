"""Goal: every kind of fault, drawn alone and often, is survived; and snapshots, where they are small."""

import pytest

from raftq.host.tuning import Tuning
from raftq.sim.fault_plan import KINDS
from raftq.sim.run import Plan, carry_out, simulate

FAULTS = 6

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(120)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_alone_is_clean(kind):
    result = simulate(1, kinds=[kind], faults=FAULTS)
    assert result.violations == ()
    assert result.counters["faults"] == FAULTS


def test_a_node_whose_disk_was_full_comes_back():
    """It stops itself where nothing is left at all; a supervisor starts it until there is room."""
    stopped = 0
    for seed in range(1, 9):
        result = simulate(seed, kinds=["disk_full"], faults=FAULTS, table=True)
        assert result.violations == ()
        stopped += sum(event.text.startswith("stops: ") for event in result.events)
    assert stopped


def test_who_is_sent_a_snapshot_has_the_messages_too():
    plan = Plan(kinds=("pause", "power_loss", "isolate_leader"), tuning=Tuning(snapshot_entries=50))
    for seed in (3, 4):
        assert carry_out(seed, plan).violations == ()
