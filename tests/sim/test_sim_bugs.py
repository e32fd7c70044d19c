"""Goal: the checkers see what they watch. Method: switch known bugs on, one at a time, and run the
scenario that leads to each until it is found; without the bug the same scenario is clean.
"""

import pytest

from raftq.sim.bugs import BUGS, look_for
from raftq.sim.checkers import Durability

SEEDS_MAX = 10
CLEAN_SEEDS = 2

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(240)]


def violations(name, **options):
    """What the first seed that finds the bug says."""
    for seed in range(1, SEEDS_MAX + 1):
        found = look_for(name, seed, **options).violations
        if found:
            return found
    return ()


@pytest.mark.parametrize("name", BUGS)
def test_a_known_bug_is_found(name):
    assert violations(name)


@pytest.mark.parametrize("name", ["ack-before-fsync", "vote-not-synced"])
def test_the_harm_is_found_even_if_nobody_watches_the_promises(name, monkeypatch):
    """Durability sees a broken rule at once; the others must see what comes of it."""
    for rule in ("acknowledged", "voted", "restored"):
        monkeypatch.setattr(Durability, rule, lambda *_, **__: None)
    assert violations(name)


@pytest.mark.parametrize("name", BUGS)
def test_without_the_bug_its_scenario_is_clean(name):
    for seed in range(1, CLEAN_SEEDS + 1):
        assert look_for(name, seed, is_there=False).violations == ()
