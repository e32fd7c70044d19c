"""Goal: real processes: two of three disks are gone for good, and the third one's node goes on.

Method: kill -9 under load, the directories of n2 and n3 are removed; the command on n1's directory; n1
starts alone. Everything that was on its disk is there, also what nobody had been told of. An old
directory that comes back is refused; empty ones take the places, and then n1 may die.
"""

import asyncio
import json
import shutil
import subprocess
import sys

import pytest

import raftq
from raftq.cli.log import entries_of, find_replicas, read_directory
from raftq.cli.processes import Processes
from raftq.errors import InvalidArgument
from raftq.storage.recovered import recovered_in

pytestmark = pytest.mark.timeout(90)
GROUPS = [0, 1, 2, 3]
PARTITIONS = 6


def command(*words, status=0):
    done = subprocess.run(
        [sys.executable, "-m", "raftq", *map(str, words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr if status else done.stdout


async def filled(client):
    """What was acknowledged: partition and offset of each body."""
    await client.create_queue("q", partitions=PARTITIONS)
    acked = {}

    async def send(start):
        for number in range(start, start + 100):
            receipt = await client.send("q", b"%d" % number, key=b"%d" % number)
            acked[b"%d" % number] = (receipt.partition, receipt.offset)

    await asyncio.gather(*(send(1_000 * producer) for producer in range(1, 5)))
    return acked


async def everything(client):
    """What every partition holds: partition and offset of each body."""
    found = {}
    for partition in range(PARTITIONS):
        async for message in client.reader("q", partition=partition, follow=False):
            found[message.body] = (message.partition, message.offset)
    return found


def chains(directory):
    """Chain value at each index, and what was decided, of each group in a data directory."""
    found = {}
    for path in find_replicas([directory]):
        replica = read_directory(path)
        entries = [each.entry for each in entries_of(replica)]
        decided = [recovered_in(entry) for entry in entries if recovered_in(entry)]
        found[int(replica.group)] = ({entry.index: entry.chain for entry in entries}, decided)
    return found


async def old_directory_is_refused(processes, old):
    shutil.copytree(old, processes.directory("n2"))
    processes.start_node("n2")
    reason = "node 'n1' belongs to another cluster"
    for _ in range(100):
        if reason in processes.log_path("n1").read_text():
            break
        await asyncio.sleep(0.1)
    assert reason in processes.log_path("n1").read_text()
    await asyncio.sleep(1)
    assert all("no leader" in each for each in await processes.not_ready("n2"))
    assert await processes.not_ready("n1") == []
    processes.kill("n2")
    shutil.rmtree(processes.directory("n2"))


async def grow_back(processes, client, *, start=True):
    for name in ("n2", "n3") if start else ():
        processes.start_node(name)
    for name in ("n2", "n3"):
        await until(lambda status, name=name: candidate(status, name), client)
        assert await client.replace_node(name) == GROUPS
    await until(lambda status: not status["changing"], client)
    await processes.ready()


def candidate(status, name):
    return next(node["replacement"] for node in status["nodes"] if node["name"] == name)


async def until(holds, client):
    for _ in range(200):
        if holds(await client.status()):
            return
        await asyncio.sleep(0.1)
    raise AssertionError("it did not come to be")


async def recovered(directory):
    async with Processes(3, data=directory / "data") as processes:
        async with processes.client() as client:
            acked = await filled(client)
            await asyncio.sleep(1)
        survivor = processes.directory("n1")
        assert "in use by process" in command("cluster", "recover", "--data", survivor, status=1)
        for name in processes.names:
            processes.kill(name)
        old = directory / "old-n2"
        shutil.copytree(processes.directory("n2"), old)
        for name in ("n2", "n3"):
            shutil.rmtree(processes.directory(name))
        before = chains(survivor)
        held = json.loads(command("cluster", "recover", "--data", survivor, "--json"))
        assert [each["group"] for each in held["groups"]] == GROUPS
        assert chains(survivor) == before, "looking changes nothing"
        words = ("cluster", "recover", "--data", survivor, "--all", "--yes", "--json")
        done = json.loads(command(*words))
        assert [each["group"] for each in done["recovered"]] == GROUPS
        for group, (entries, decided) in chains(survivor).items():
            assert before[group][0].items() <= entries.items()
            assert len(entries) == len(before[group][0]) + 1
            assert [each["node"] for each in decided] == ["n1"]
        processes.start_node("n1")
        await processes.ready()
        async with raftq.AsyncClient(processes.url_of("n1")) as client:
            assert acked.items() <= (await everything(client)).items()
            await client.send("q", b"again", key=b"1")
            await old_directory_is_refused(processes, old)
            await grow_back(processes, client)
        processes.kill("n1")
        await processes.ready()
        async with raftq.AsyncClient(processes.url_of("n2")) as client:
            await client.send("q", b"without n1", key=b"1")
            there = await everything(client)
            assert acked.items() <= there.items()
            assert there.keys() - acked.keys() == {b"again", b"without n1"}
            taken = await client.receive("q", max_messages=1_000, wait=5)
            assert taken
            await client.ack(taken)
        processes.start_node("n1")
        await processes.ready()
        await processes.stop()


async def started_again(data):
    """As `raftq dev` does: what is left is enough, and what was given up is not started beside it."""
    shutil.copytree(data / "n2", data / "n2.kept")
    for name in ("n2", "n3"):
        shutil.rmtree(data / name)
    command("cluster", "recover", "--data", data / "n1", "--all", "--yes")
    (data / "n2.kept").rename(data / "n2")
    processes = Processes(3, data=data)
    with pytest.raises(InvalidArgument, match="recovered without n2"):
        await processes.start(patience=1)
    shutil.rmtree(data / "n2")
    await processes.start(patience=1)
    try:
        async with raftq.AsyncClient(processes.url_of("n1")) as client:
            await grow_back(processes, client, start=False)
            assert len(await everything(client)) == 400
    finally:
        await processes.stop()


async def stopped_cluster(data):
    async with Processes(3, data=data) as processes:
        async with processes.client() as client:
            await filled(client)
            await asyncio.sleep(1)
        await processes.stop()


def test_a_recovered_local_cluster_starts_with_what_is_left(tmp_path):
    asyncio.run(stopped_cluster(tmp_path))
    asyncio.run(started_again(tmp_path))


def test_two_disks_of_three_are_gone_and_the_third_goes_on(tmp_path):
    asyncio.run(recovered(tmp_path))
    data = tmp_path / "data"
    assert "sound" in command("log", "verify", data)
    shown = command("log", "inspect", data / "n2" / "group-1", "--entries")
    assert "RECOVERED on n1" in shown
