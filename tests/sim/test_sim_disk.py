"""The simulated disk keeps what was synced, and loses what was not in every way a real one may."""

import time

import pytest
from sim_disk_parts import durable_file, make, survivors

from raftq.errors import InvalidArgument
from raftq.sim.disk import SimDisk

# --- The port ----------------------------------------------------------------------------------


def test_bytes_are_read_as_written_with_zeros_in_the_holes():
    disk, _ = make()
    file = disk.open("a", create=True)
    file.write(3, [b"one", bytearray(b"two"), memoryview(b"!")])
    file.write(20, [b"end"])
    file.write(4, [b"XX"])
    assert file.size() == 23
    assert file.read(0, 100) == b"\0\0\0oXXtwo!" + bytes(10) + b"end"
    assert file.read(21, 1) == b"n"
    assert file.read(23, 5) == file.read(99, 5) == b""
    assert disk.open("a").read(3, 3) == b"oXX"
    assert file.path == "a"


def test_opening_creating_renaming_removing():
    disk, _ = make()
    with pytest.raises(FileNotFoundError):
        disk.open("a")
    with pytest.raises(FileNotFoundError):
        disk.open("no/a", create=True)
    disk.make_directory("d/e")
    disk.open("d/e/a", create=True)
    with pytest.raises(FileExistsError):
        disk.open("d/e/a", create=True)
    disk.open("d/b", create=True).write(0, [b"b"])
    assert (disk.names(""), disk.names("d"), disk.names("d/e")) == (["d"], ["b", "e"], ["a"])
    assert disk.names("nowhere") == []
    disk.rename("d/b", "d/e/a")
    assert disk.open("d/e/a").read(0, 9) == b"b"
    disk.remove("d/e/a")
    disk.remove("d/e")
    assert disk.names("d") == []
    with pytest.raises(FileNotFoundError):
        disk.remove("d/e/a")


def test_the_lock_is_held_once_and_ends_with_the_process():
    disk, _ = make()
    disk.lock()
    with pytest.raises(InvalidArgument):
        disk.lock()
    disk.kill()
    disk.lock()
    disk.unlock()
    disk.lock()


def test_space_is_counted_and_a_full_disk_takes_a_part():
    disk, timers = make(capacity_bytes=1_000)
    file = disk.open("a", create=True)
    file.write(0, [bytes(400)])
    assert disk.free_bytes() == 600
    file.write(0, [b"x" * 400])
    assert disk.free_bytes() == 600
    with pytest.raises(OSError, match="space"):
        file.write(400, [b"y" * 700])
    assert (file.size(), disk.free_bytes()) == (1_000, 0)
    answers = []
    disk.prepare("b", 10, answers.append, written=True)
    timers.run()
    assert [answer.errno for answer in answers] == [28]
    assert disk.names("") == ["a"]
    disk.remove("a")
    assert disk.free_bytes() == 1_000


def test_a_prepared_file_is_zeros_that_are_synced_but_its_name_is_not():
    disk, timers = make()
    answers = []
    disk.prepare("a", 3_000, answers.append, written=True)
    assert answers == []
    timers.run()
    assert answers == [None]
    disk.sync_directory("")
    disk.power_loss()
    assert disk.open("a").read(0, 5_000) == bytes(3_000)

    def story(disk: SimDisk) -> None:
        disk.prepare("a", 3_000, lambda _: None, written=True)

    sizes = survivors(story, lambda disk: len(disk.contents("a")) if disk.names("") else None)
    assert None in sizes
    assert len(sizes) > 10


# --- Syncs -------------------------------------------------------------------------------------


def test_a_sync_completes_later_and_only_once_at_a_time():
    disk, timers = make(sync_delay=700)
    file = disk.open("a", create=True)
    answers = []
    file.sync(answers.append)
    with pytest.raises(AssertionError):
        file.sync(answers.append)
    timers.run()
    assert (answers, timers.now, disk.syncs) == ([None], 700, 1)


def test_a_stalled_sync_takes_longer_once():
    disk, timers = make(sync_delay=700)
    disk.stall(50_000, path_contains="a")
    times = []
    other, file = disk.open("b", create=True), disk.open("a", create=True)
    for opened in (other, file):
        opened.sync(lambda _: times.append(timers.now))
    timers.run()
    file.sync(lambda _: times.append(timers.now))
    timers.run()
    assert times == [700, 50_700, 51_400]


def test_a_sync_covers_what_was_written_before_it_was_asked_for_and_no_more():
    def story(disk: SimDisk) -> None:
        file = durable_file(disk, "a", b"")
        file.write(0, [b"covered"])
        file.sync(lambda _: None)
        file.write(7, [b"later"])
        timers_of[disk].run()

    timers_of = {}
    seen = set()
    for seed in range(60):
        disk, timers = make(seed)
        timers_of[disk] = timers
        story(disk)
        disk.power_loss()
        seen.add(disk.contents("a"))
    assert {b"covered", b"coveredlater"} <= seen
    assert all(data.startswith(b"covered") for data in seen)


def test_a_sync_of_one_file_says_nothing_of_another():
    def story(disk: SimDisk) -> None:
        one, two = durable_file(disk, "one", b""), durable_file(disk, "two", b"")
        one.write(0, [b"one"])
        two.write(0, [b"two"])
        one.sync_now()

    seen = survivors(story, lambda disk: (disk.contents("one"), disk.contents("two")))
    assert {(b"one", b""), (b"one", b"two")} <= seen


def test_after_a_failed_sync_the_pages_are_lost_although_later_syncs_succeed():
    def story(disk: SimDisk) -> None:
        file = durable_file(disk, "a", b"old")
        file.write(0, [b"new"])
        disk.fail_syncs(1)
        with pytest.raises(OSError, match="error"):
            file.sync_now()
        assert file.read(0, 3) == b"new"
        file.sync_now()

    assert survivors(story, lambda disk: disk.contents("a")) == {b"old"}


def test_syncs_may_fail_for_ever_and_for_chosen_paths():
    disk, timers = make()
    disk.fail_syncs(-1, path_contains="bad")
    answers = []
    bad, good = disk.open("bad", create=True), disk.open("good", create=True)
    for _ in range(3):
        bad.sync(answers.append)
        good.sync(answers.append)
        timers.run()
    assert [error.errno if error else None for error in answers] == [5, None] * 3


# --- Damage ------------------------------------------------------------------------------------


def test_damage_is_done_where_it_is_asked_for_and_survives_everything():
    disk, _ = make()
    durable_file(disk, "a", bytes(range(256)) * 8)
    before = disk.contents("a")
    disk.flip_bit("a", 700, 3)
    disk.zero("a", 10, 20)
    disk.lose_sector("a", 2, keep_bytes=100)
    disk.misdirect_sector("a", 0, 3)
    disk.kill()
    disk.power_loss()
    after = disk.contents("a")
    assert after[700] == before[700] ^ 8
    assert after[10:20] == bytes(10)
    assert after[1_024:1_124] == before[1_024:1_124]
    assert after[1_124:1_536] == bytes(412)
    assert after[1_536:] == after[:512]
    disk.truncate("a", 5)
    assert disk.contents("a") == before[:5]
    disk.unreadable.add("a")
    with pytest.raises(OSError, match="error"):
        disk.open("a").read(0, 1)
    disk.lose_file("a")
    disk.power_loss()
    assert (disk.paths(), disk.used_bytes) == ([], 0)


# --- Costs -------------------------------------------------------------------------------------


def test_appending_is_cheap_and_what_is_synced_is_not_kept_twice():
    """Generous bounds: the usual figures are a tenth of them."""
    disk, timers = make()
    disk.prepare("a", 32 << 20, lambda _: None, written=True)
    timers.run()
    file = disk.open("a")
    data = [b"h" * 152, b"x" * 4_000]
    begun = time.perf_counter()
    for number in range(4_000):
        file.write(number * 4_152, data)
        if number % 4 == 3:
            file.sync(lambda _: None)
            timers.run()
    took = time.perf_counter() - begun
    assert took / 4_000 < 150e-6
    assert not disk._names["a"].writes
