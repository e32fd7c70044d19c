"""A small file is there whole, old or new, whatever operation a crash cuts."""

import itertools

import pytest
from storage_world import World

from raftq.sim.disk import SimulatedCrash
from raftq.storage import small_file


def test_what_was_saved_is_loaded_and_what_never_was_is_none():
    disk = World().disk
    assert small_file.load(disk, "node") is None
    small_file.save(disk, "node", b"one")
    small_file.save(disk, "node", b"two")
    disk.power_loss()
    assert small_file.load(disk, "node") == b"two"
    assert disk.paths() == ["node"]


@pytest.mark.parametrize("how", ["kill", "power"])
def test_a_save_cut_at_every_operation_leaves_the_old_or_the_new(how):
    for after, seed in itertools.product(range(1, 20), range(1, 6)):
        disk = World(seed).disk
        small_file.save(disk, "node", b"old" * 300)
        disk.crash_at = disk.operations + after
        try:
            small_file.save(disk, "node", b"new" * 500)
            finished = True
        except SimulatedCrash:
            finished = False
        disk.kill() if how == "kill" else disk.power_loss()
        found = small_file.load(disk, "node")
        assert found in ({b"new" * 500} if finished else {b"old" * 300, b"new" * 500})
        small_file.save(disk, "node", b"again")
        assert small_file.load(disk, "node") == b"again"
    assert finished


def test_a_save_onto_a_full_disk_keeps_the_old():
    disk = World().disk
    small_file.save(disk, "node", b"old")
    disk.capacity_bytes = disk.used_bytes + 10
    with pytest.raises(OSError, match="space"):
        small_file.save(disk, "node", b"new")
    assert small_file.load(disk, "node") == b"old"
    disk.capacity_bytes += 1_000
    small_file.save(disk, "node", b"new")
    assert small_file.load(disk, "node") == b"new"
