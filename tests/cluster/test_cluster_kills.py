"""Real processes, real kills, and an application that notices nothing but a pause."""

import asyncio
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from cluster_load import Load, assert_replicas_equal

from raftq.cli.processes import Processes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(150)]

KILLS = 20
GAP_SECONDS_MAX = 5.0


def children():
    """Processes of nodes that this process has started and that still exist."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if int(status[1]) == os.getpid() and b"raftq" in command and status[0] != "Z":
                found.append(int(entry.name))
    return found


def report(name, gaps, load):
    print(
        f"\n{name}: {len(gaps)} events, gaps between acks: median {statistics.median(gaps):.3f} s, "
        f"longest {max(gaps):.3f} s; {len(load.acked)} acked, {load.repeated()} delivered again"
    )


async def run_kills(directory, *, seed, kills):
    choose = random.Random(seed)
    gaps = []
    async with Processes(3, data=directory) as processes:
        load = Load(processes.url, seed=seed)
        await load.start()
        await asyncio.sleep(0.5)
        for _ in range(kills):
            await asyncio.sleep(choose.random() * 0.3)
            victim = choose.choice(processes.names)
            killed_at = time.monotonic()
            processes.kill(victim)
            await asyncio.sleep(0.2 + choose.random() * 0.4)
            processes.start_node(victim)
            await processes.ready(seconds=20)
            gaps.append(load.longest_gap(killed_at, time.monotonic()))
            assert load.problems == []
        await load.finish()
        await assert_replicas_equal(processes)
        await load.judge()
    report("kill -9", gaps, load)
    assert children() == []
    return gaps


def test_killed_nodes_lose_and_double_nothing(tmp_path):
    gaps = asyncio.run(run_kills(tmp_path, seed=1, kills=KILLS))
    assert len(gaps) == KILLS
    assert max(gaps) < GAP_SECONDS_MAX


async def run_restarts(directory):
    gaps = []
    async with Processes(3, data=directory) as processes:
        load = Load(processes.url, seed=2)
        await load.start()
        await asyncio.sleep(0.5)
        for victim in (*processes.names, *processes.names):
            begun = time.monotonic()
            await processes.terminate(victim)
            processes.start_node(victim)
            await processes.ready(seconds=20)
            gaps.append(load.longest_gap(begun, time.monotonic()))
            assert load.problems == []
        await load.finish()
        await assert_replicas_equal(processes)
        await load.judge()
    report("SIGTERM", gaps, load)
    return gaps


def test_a_rolling_restart_is_a_short_pause(tmp_path):
    assert max(asyncio.run(run_restarts(tmp_path))) < GAP_SECONDS_MAX
    assert children() == []


async def run_all_at_once(directory):
    async with Processes(3, data=directory) as processes:
        load = Load(processes.url, seed=3)
        await load.start()
        for _ in range(2):
            await asyncio.sleep(0.5)
            processes.kill_all()
            await asyncio.sleep(0.2)
            for name in processes.names:
                processes.start_node(name)
            await processes.ready(seconds=20)
        await load.finish()
        await assert_replicas_equal(processes)
        await load.judge()


def test_all_nodes_killed_at_once_come_back_with_everything(tmp_path):
    asyncio.run(run_all_at_once(tmp_path))
    assert children() == []


async def reasons_with(processes, node, text, *, seconds=30):
    """Why the node is not ready, once that is among it; else what it said last."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        reasons = await processes.not_ready(node)
        if any(text in reason for reason in reasons):
            return reasons
        if asyncio.get_running_loop().time() > deadline:
            return reasons
        await asyncio.sleep(0.1)


async def run_wiped(directory):
    async with Processes(3, data=directory) as processes:
        load = Load(processes.url, seed=4)
        await load.start()
        await asyncio.sleep(0.3)
        processes.kill("n3")
        shutil.rmtree(processes.directory("n3"))
        processes.start_node("n3")
        reasons = await reasons_with(processes, "n3", "wiped or replaced")
        # Only two of the three may vote now: with one of them gone, nobody may.
        processes.kill("n2")
        acked = len(load.acked)
        await asyncio.sleep(0.5)
        acked = len(load.acked)
        await asyncio.sleep(3)
        assert len(load.acked) == acked, "the wiped node voted"
        processes.start_node("n2")
        await load.finish()
        await load.judge()
        return reasons, processes.log_path("n3").read_text()


def test_a_wiped_node_never_votes_and_says_why(tmp_path):
    reasons, log = asyncio.run(run_wiped(tmp_path))
    assert any("wiped or replaced" in reason for reason in reasons)
    assert "wiped or replaced" in log


async def run_two_on_one_directory(directory):
    async with Processes(1, data=directory) as processes:
        addresses = processes.addresses["n1"]
        second = await asyncio.to_thread(
            subprocess.run,
            [
                sys.executable, "-m", "raftq", "node", "--name", "n1",
                "--data", str(processes.directory("n1")), "--listen", "127.0.0.1:0",
                "--cluster", f"n1={addresses.peers}",
            ],
            capture_output=True, text=True, timeout=30, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        async with processes.client() as client:
            await client.create_queue("still-there")
        return second, processes.process_id("n1")


def test_two_processes_on_one_directory_are_one_too_many(tmp_path):
    second, first = asyncio.run(run_two_on_one_directory(tmp_path))
    assert second.returncode != 0
    assert f"in use by process {first}" in second.stderr + second.stdout
    assert "Traceback" not in second.stderr


PARENT = """
    import asyncio, sys
    from raftq.cli.processes import Processes

    async def main():
        async with Processes(3, data=sys.argv[1]) as processes:
            print(*(processes.process_id(name) for name in processes.names), flush=True)
            await asyncio.sleep(100)

    asyncio.run(main())
"""


def test_no_node_outlives_who_started_it(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(PARENT), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        nodes = [int(each) for each in parent.stdout.readline().split()]
        assert len(nodes) == 3
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and any(Path(f"/proc/{each}").exists() for each in nodes):
        time.sleep(0.02)
    assert [each for each in nodes if Path(f"/proc/{each}").exists()] == []
