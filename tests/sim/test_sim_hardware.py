"""A machine through its lives, and the table of what happened."""

import asyncio

import pytest

from raftq.sim.hardware import Hardware
from raftq.sim.loop import SimLoop
from raftq.sim.network import Fabric
from raftq.sim.trace import Event, Trace, table

SECOND = 1_000_000


@pytest.fixture
def loop():
    with SimLoop() as loop:
        yield loop


def test_a_kill_keeps_the_page_cache_and_the_boot_number(loop):
    machine = Hardware(loop, Fabric(loop, seed=1), "n1", seed=1)
    process, environment = machine.start()
    assert machine.is_up
    assert environment.clock is machine.clock
    environment.disk.lock()
    file = process.call(environment.disk.open, "a", create=True)
    file.write(0, [b"unsynced"])
    completions = []
    process.call(file.sync, completions.append)
    with pytest.raises(AssertionError, match="runs already"):
        machine.start()
    machine.kill()
    assert not machine.is_up
    loop.run_for(SECOND)
    assert completions == []
    _, again = machine.start()
    again.disk.lock()
    assert again.disk.open("a").read(0, 100) == b"unsynced"
    assert again.boot == environment.boot
    assert again.entropy.bits(64) != environment.entropy.bits(64)
    assert machine.starts == 2


def test_power_loss_keeps_what_was_synced_and_changes_the_boot_number(loop):
    machine = Hardware(loop, Fabric(loop, seed=1), "n1", seed=1)
    process, environment = machine.start()
    file = process.call(environment.disk.open, "a", create=True)
    environment.disk.sync_directory("")
    file.write(0, [b"synced"])
    completions = []
    process.call(file.sync, completions.append)
    loop.run_for(SECOND)
    assert completions == [None]
    machine.power_loss()
    _, again = machine.start()
    assert again.disk.open("a").read(0, 6) == b"synced"
    assert again.boot != environment.boot


def test_a_paused_machine_is_killed_like_any_other(loop):
    machine = Hardware(loop, Fabric(loop, seed=1), "n1", seed=1)
    process, _ = machine.start()
    task = process.spawn(asyncio.sleep(1))
    machine.pause()
    loop.run_for(2 * SECOND)
    machine.power_loss()
    with pytest.raises(AssertionError, match="down"):
        machine.resume()
    loop.run_for(2 * SECOND)
    assert not task.done()


def test_machines_differ_and_repeat():
    def facts(seed):
        with SimLoop() as loop:
            fabric = Fabric(loop, seed=seed)
            machines = [Hardware(loop, fabric, name, seed=seed) for name in ("n1", "n2")]
            loop.run_for(SECOND)
            return [(m.clock.monotonic(), m.clock.wall(), m.disk.sync_delay) for m in machines]

    one, other = facts(1)
    assert one != other
    assert facts(1) == [one, other]
    assert facts(2) != [one, other]


def test_the_table_has_a_column_per_node():
    events = [
        Event(0, "n1", "start"),
        Event(1_500_000, "n2", "a text that is longer than its column"),
        Event(1_500_001, "", "partition"),
        Event(12_000_000, "c1", "send"),
    ]
    assert list(table(events, ["n1", "n2"], width=10)) == [
        "   seconds  n1        n2",
        "  0.000000  start",
        "  1.500000            a text th",
        "  1.500001  ==== partition ====",
        " 12.000000  ==== c1: send ====",
    ]


def test_the_hash_covers_everything_in_order():
    def digest(*calls):
        trace = Trace()
        for name, *arguments in calls:
            getattr(trace, name)(*arguments)
        return trace.digest()

    first = digest(("mix", 1, 2, 3, b"data"), ("event", 4, "n1", "text"))
    assert first == digest(("mix", 1, 2, 3, memoryview(b"data")), ("event", 4, "n1", "text"))
    assert first != digest(("event", 4, "n1", "text"), ("mix", 1, 2, 3, b"data"))
    assert first != digest(("mix", 2, 2, 3, b"data"), ("event", 4, "n1", "text"))
    assert first != digest(("mix", 1, 2, 3, b"datb"), ("event", 4, "n1", "text"))
    assert first != digest(("mix", 1, 2, 3, b"data"), ("event", 4, "n2", "text"))


def test_a_lost_disk_comes_back_empty(loop):
    machine = Hardware(loop, Fabric(loop, seed=1), "n1", seed=1)
    _, environment = machine.start()
    environment.disk.make_directory("d")
    environment.disk.open("d/a", create=True).write(0, [b"data"])
    machine.kill()
    machine.disk.lose_all()
    _, environment = machine.start()
    assert environment.disk.names("") == []
    with pytest.raises(FileNotFoundError):
        environment.disk.open("d/a")
    environment.disk.make_directory("d")
    environment.disk.open("d/a", create=True).write(0, [b"new"])
    assert environment.disk.contents("d/a") == b"new"
