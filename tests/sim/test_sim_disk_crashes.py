"""What a kill keeps, what a power loss takes: every way in which a real disk may lose is found."""

import pytest
from sim_disk_parts import Timers, durable_file, make, survivors

from raftq.sim.disk import SimDisk, SimulatedCrash


def test_a_kill_keeps_the_page_cache_and_ends_handles_and_completions():
    disk, timers = make()
    file = disk.open("a", create=True)
    file.write(0, [b"cached"])
    answers = []
    file.sync(answers.append)
    disk.prepare("b", 100, answers.append, written=True)
    disk.kill()
    timers.run()
    assert answers == []
    with pytest.raises(AssertionError):
        file.read(0, 1)
    assert disk.open("a").read(0, 9) == b"cached"
    assert disk.names("")[0] == "a"


def test_what_a_killed_process_wrote_is_still_not_synced():
    def story(disk: SimDisk) -> None:
        file = durable_file(disk, "a", b"")
        file.write(0, [b"cached"])
        disk.kill()

    # The size may survive without the bytes.
    seen = survivors(story, lambda disk: disk.contents("a"))
    assert seen == {b"", bytes(6), b"cached"}


def test_of_unsynced_sectors_any_subset_survives_in_any_order():
    def story(disk: SimDisk) -> None:
        file = durable_file(disk, "a", bytes(2_048))
        for sector in range(4):
            file.write(512 * sector, [b"%d" % sector * 512])

    def look(disk: SimDisk) -> tuple[bool, ...]:
        data = disk.contents("a")
        for sector in range(4):
            assert data[512 * sector : 512 * (sector + 1)] in {
                bytes(512),
                b"%d" % sector * 512,
            }
        return tuple(data[512 * sector] != 0 for sector in range(4))

    assert len(survivors(story, look, 600)) == 16


def test_a_long_write_is_torn_at_sectors():
    def story(disk: SimDisk) -> None:
        durable_file(disk, "a", bytes(1_536)).write(100, [b"x" * 1_400])

    def look(disk: SimDisk) -> tuple[bool, ...]:
        data = disk.contents("a")
        assert (data[:100], data[1_500:]) == (bytes(100), bytes(36))
        return data[100] != 0, data[512] != 0, data[1_024] != 0

    assert len(survivors(story, look)) == 8


def test_of_a_sector_written_twice_the_state_in_between_may_survive():
    def story(disk: SimDisk) -> None:
        file = durable_file(disk, "a", bytes(512))
        file.write(0, [b"1" * 200])
        file.write(200, [b"2" * 200])

    seen = survivors(story, lambda disk: disk.contents("a").rstrip(b"\0"))
    assert {b"", b"1" * 200, b"1" * 200 + b"2" * 200} <= seen


def test_an_unsynced_size_may_be_any_that_it_was():
    def story(disk: SimDisk) -> None:
        file = durable_file(disk, "a", b"x")
        for end in (600, 1_200, 1_800):
            file.write(end, [b"y"])

    assert survivors(story, lambda disk: len(disk.contents("a"))) == {1, 601, 1_201, 1_801}


def test_unsynced_names_survive_or_not_each_for_itself():
    def story(disk: SimDisk) -> None:
        durable_file(disk, "old", b"old")
        disk.open("new", create=True)
        disk.rename("old", "renamed")

    seen = survivors(story, lambda disk: tuple(disk.names("")))
    assert seen == {
        ("old",),
        ("renamed",),
        ("new", "old"),
        ("new", "renamed"),
    }


def test_a_rename_over_a_file_leaves_the_old_content_or_the_new():
    def story(disk: SimDisk) -> None:
        durable_file(disk, "a", b"old")
        file = disk.open("a.tmp", create=True)
        file.write(0, [b"new"])
        file.sync_now()
        disk.rename("a.tmp", "a")

    assert survivors(story, lambda disk: disk.contents("a")) == {b"old", b"new"}


def test_names_are_durable_after_the_sync_of_their_directory_alone():
    def story(disk: SimDisk) -> None:
        disk.make_directory("d")
        disk.open("d/a", create=True)
        disk.open("b", create=True)
        disk.sync_directory("d")

    seen = survivors(story, lambda disk: ("a" in disk.names("d"), "b" in disk.names("")))
    assert seen == {(True, False), (True, True)}


def test_a_removal_that_was_not_synced_may_be_undone():
    def story(disk: SimDisk) -> None:
        durable_file(disk, "a", b"back")
        disk.remove("a")

    assert survivors(story, lambda disk: tuple(disk.names(""))) == {(), ("a",)}


def test_every_operation_is_counted_and_each_can_be_the_last():
    kinds = []

    def story(disk: SimDisk, timers: Timers) -> None:
        disk.make_directory("d")
        file = disk.open("d/a", create=True)
        file.write(0, [b"x" * 5_000])
        file.sync(lambda _: None)
        disk.prepare("d/b", 100, lambda _: None, written=True)
        timers.run()
        file.sync_now()
        disk.rename("d/b", "d/c")
        disk.sync_directory("d")
        disk.remove("d/c")

    disk, timers = make()
    disk.on_operation = lambda number, kind, path: kinds.append((number, kind))
    story(disk, timers)
    expected = "make_directory create write sync prepare synced prepared sync_now rename"
    assert [kind for _, kind in kinds] == [*expected.split(), "sync_directory", "remove"]
    assert [number for number, _ in kinds] == list(range(1, disk.operations + 1))
    lengths = set()
    for crash_at in range(1, disk.operations + 1):
        cut, timers = make(crash_at)
        cut.crash_at = crash_at
        with pytest.raises(SimulatedCrash):
            story(cut, timers)
        assert cut.operations == crash_at
        if crash_at == 3:
            lengths.add(len(cut.contents("d/a")))
        cut.kill()
        assert cut.crash_at == 0
    assert all(length < 5_000 for length in lengths)


def test_equal_seeds_lose_the_same():
    def run(seed: int) -> bytes:
        disk, _ = make(seed)
        file = durable_file(disk, "a", bytes(8_192))
        for start in range(0, 8_000, 300):
            file.write(start, [b"%d" % (start % 10) * 300])
        disk.power_loss()
        return disk.contents("a")

    assert [run(seed) for seed in range(9)] == [run(seed) for seed in range(9)]
    assert len({run(seed) for seed in range(9)}) > 3
