"""A seed is a run: in this process and in others, whatever their hash seed."""

import os
import pathlib
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import sim_toy

TOY = pathlib.Path(sim_toy.__file__)
SEED = TOY.with_name("sim_seed.py")


def in_another_process(seed, hash_seed, *, script=TOY):
    result = subprocess.run(
        [sys.executable, str(script), str(seed)],
        env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
    )
    return result.stdout


@pytest.mark.parametrize("seed", [1, 2])
def test_two_processes_give_one_trace(seed):
    first = in_another_process(seed, "random")
    assert len(first.split()) == 3
    assert first == in_another_process(seed, "12345")


@pytest.mark.simulation
@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", [5, 9])
def test_a_run_of_the_cluster_is_the_same_in_every_process(seed):
    """Whatever order sets of str have there: nothing that the nodes do may depend on it."""
    first = in_another_process(seed, "1", script=SEED)
    assert first == in_another_process(seed, "2", script=SEED)
    assert first.split()[0] == str(seed)


def test_another_seed_is_another_run():
    first, callbacks = sim_toy.simulate(3, seconds=10, faults=5)
    again, callbacks_again = sim_toy.simulate(3, seconds=10, faults=5)
    other, _ = sim_toy.simulate(4, seconds=10, faults=5)
    assert first.digest() == again.digest()
    assert callbacks == callbacks_again
    assert first.digest() != other.digest()


def test_many_seeds_pass_under_faults():
    """The toy survives everything the nemesis does, and the simulator keeps its own asserts."""
    begun = time.perf_counter()
    callbacks = 0
    for seed in range(100, 110):
        trace, count = sim_toy.simulate(seed, seconds=12, faults=6)
        callbacks += count
        counts = [event for event in trace.events if event.text.startswith("count")]
        assert len(counts) > 3, "it hardly counted"
    print(f"{callbacks / (time.perf_counter() - begun):,.0f} callbacks/s")
