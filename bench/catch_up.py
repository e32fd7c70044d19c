"""What it costs the others that a node catches up: publishing with n3 down, then with n3 coming back.

    python -m bench.catch_up [--pairs N] [--seconds S] [--load SHARE] [--empty] [--nice] [--json FILE]

Three node processes on loopback, one group, one client process that publishes lists of 100 B
messages. A pair is two windows of the same load: in the first n3 is down, in the second it has been
started again, far behind (it missed at least the first window), and catches up. With `--empty` its
directory is removed first and it is replaced, so that it begins with nothing, as a learner. The
windows alternate, and each second one is compared with the mean of those before and behind it, so
that a machine which grows slower or faster meanwhile counts for neither. A third window, when n3 has caught
up and only follows, tells what it costs to have it at all, where it shares processors and disk.

`--load 0` publishes as fast as it goes, from 6 lists in flight; else that share of what was reached
at first, one list after the other when it is due, however long those before it take. `--nice` lets
the node that catches up have only the processor time that nobody else wants: what is left then is
what the others themselves do for it.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from raftq.cli.processes import Processes
from raftq.client.client import AsyncClient
from raftq.errors import InvalidArgument, RaftqError

QUEUE = "catch-up"
LIST_MESSAGES = 2_000
MESSAGE_BYTES = 100
LISTS_IN_FLIGHT = 6
LATE = "n3"
CATCH_UP_SECONDS_MAX = 120.0


class Window(NamedTuple):
    """What one window of publishing reached."""

    messages_per_second: float
    p50_ms: float
    p99_ms: float
    cpu_seconds_per_million: float
    """Of the two nodes that are up all the time: what publishing costs them, and n3 as well."""


def cpu_seconds(nodes: Processes) -> float:
    """What n1 and n2 have spent so far."""
    spent = 0.0
    for name in ("n1", "n2"):
        stat = Path(f"/proc/{nodes.process_id(name)}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        spent += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return spent


async def publish(nodes: Processes, client: AsyncClient, *, seconds: float, rate: float) -> Window:
    """Lists for the given time; `rate` in messages a second, 0: as fast as it goes."""
    bodies = [random.randbytes(MESSAGE_BYTES)] * LIST_MESSAGES
    took: list[float] = []
    acknowledged = 0
    cpu = cpu_seconds(nodes)
    begin = time.perf_counter()
    end = begin + seconds

    async def send(due: float) -> None:
        nonlocal acknowledged
        await client.send_many(QUEUE, bodies)
        now = time.perf_counter()
        took.append(now - due)
        if now <= end:
            acknowledged += LIST_MESSAGES

    async def saturate() -> None:
        while (due := time.perf_counter()) < end:
            await send(due)

    if rate:
        sending = set()
        number = 0
        while (due := begin + number * LIST_MESSAGES / rate) < end:
            await asyncio.sleep(max(due - time.perf_counter(), 0))
            sending.add(task := asyncio.create_task(send(due)))
            task.add_done_callback(sending.discard)
            number += 1
        await asyncio.gather(*sending)
    else:
        await asyncio.gather(*(saturate() for _ in range(LISTS_IN_FLIGHT)))
    took.sort()
    return Window(
        acknowledged / seconds,
        took[len(took) // 2] * 1e3,
        took[len(took) * 99 // 100] * 1e3,
        (cpu_seconds(nodes) - cpu) / (len(took) * LIST_MESSAGES) * 1e6,
    )


async def commits(nodes: Processes, name: str) -> int:
    """How far the node has applied the group's log; 0 while it does not answer, or lacks some of it."""
    try:
        async with asyncio.timeout(2), AsyncClient(nodes.url_of(name)) as one:
            status = await one.status()
    except (RaftqError, OSError, TimeoutError):
        return 0
    rows = [row for row in status["groups"] if row["group"] == 1 and not row["health"]]
    return max((row["applied_index"] for row in rows), default=0)


async def replace(client: AsyncClient) -> None:
    """Ask until the empty directory has been taken in."""
    while True:
        try:
            await client.replace_node(LATE)
        except InvalidArgument as error:
            if "is up" in str(error):
                return
        except RaftqError:
            pass
        await asyncio.sleep(0.2)


async def come_back(nodes: Processes, client: AsyncClient, options: argparse.Namespace) -> None:
    if options.empty:
        shutil.rmtree(nodes.directory(LATE))
    nodes.start_node(LATE)
    if options.nice:
        os.setpriority(os.PRIO_PROCESS, nodes.process_id(LATE), 19)
    if options.empty:
        async with asyncio.timeout(60):
            await replace(client)


async def caught_up(nodes: Processes, begun: float) -> float | None:
    """How long after `begun` n3 had all that was there when it was asked; None: not in time."""
    while time.perf_counter() - begun < CATCH_UP_SECONDS_MAX:
        others = max(await commits(nodes, "n1"), await commits(nodes, "n2"))
        while time.perf_counter() - begun < CATCH_UP_SECONDS_MAX:
            if await commits(nodes, LATE) >= others:
                return time.perf_counter() - begun
            await asyncio.sleep(0.1)
    return None


def compared(during: Window, before: Window, after: Window) -> dict[str, Any]:
    """The shares, and what they come from: [before, after] without n3, then while it catches up."""
    row: dict[str, Any] = {}
    for what, field, digits in (
        ("throughput", "messages_per_second", 0),
        ("p99", "p99_ms", 1),
        ("p50", "p50_ms", 1),
        ("cpu", "cpu_seconds_per_million", 2),
    ):
        down = [float(getattr(window, field)) for window in (before, after)]
        row[what] = round(2 * getattr(during, field) / sum(down), 3)
        row[f"{field}_down"] = [round(value, digits) for value in down]
        row[f"{field}_during"] = round(getattr(during, field), digits)
    return row


async def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    random.seed(options.seed)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="raftq-catch-up-", dir=options.data) as directory:
        async with (
            Processes(3, data=directory, groups=1, log_level="WARNING") as nodes,
            nodes.client() as client,
        ):
            await client.create_queue(QUEUE, partitions=1)
            nodes.kill(LATE)
            rate = (
                await publish(nodes, client, seconds=options.seconds, rate=0)
            ).messages_per_second
            rate *= options.load
            before = await publish(nodes, client, seconds=options.seconds, rate=rate)
            for number in range(options.pairs):
                begun = time.perf_counter()
                coming = asyncio.create_task(come_back(nodes, client, options))
                during = await publish(nodes, client, seconds=options.seconds, rate=rate)
                lag = max(await commits(nodes, "n1"), await commits(nodes, "n2"))
                lag -= await commits(nodes, LATE)
                await coming
                under_load = None
                if rate:
                    load = asyncio.create_task(endless(nodes, client, rate))
                    under_load = await caught_up(nodes, begun)
                    load.cancel()
                    await asyncio.gather(load, return_exceptions=True)
                whole = await caught_up(nodes, begun)
                three = await publish(nodes, client, seconds=options.seconds, rate=rate)
                if nodes.is_running(LATE):
                    nodes.kill(LATE)
                after = await publish(nodes, client, seconds=options.seconds, rate=rate)
                rows.append(
                    {
                        "pair": number,
                        **compared(during, before, after),
                        "throughput_following": round(
                            2
                            * three.messages_per_second
                            / (before.messages_per_second + after.messages_per_second),
                            3,
                        ),
                        "p99_ms_following": round(three.p99_ms, 1),
                        "lag_entries": lag,
                        "caught_up_under_load_s": under_load and round(under_load, 1),
                        "caught_up_s": whole and round(whole, 1),
                    }
                )
                print(json.dumps(rows[-1]), flush=True)
                before = after
    return rows


async def endless(nodes: Processes, client: AsyncClient, rate: float) -> None:
    while True:
        await publish(nodes, client, seconds=1.0, rate=rate)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one window")
    parser.add_argument("--load", type=float, default=0.0, help="share of the most; 0: saturated")
    parser.add_argument("--empty", action="store_true", help="n3 comes back with nothing")
    parser.add_argument("--nice", action="store_true", help="n3 gets what time is left")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=Path, help="where to make the temporary directory")
    parser.add_argument("--json", type=Path, help="append one line a pair to this file")
    options = parser.parse_args()
    rows = asyncio.run(measure(options))
    for what in ("throughput", "p99", "cpu"):
        middle = statistics.median(row[what] for row in rows)
        print(f"{what} while n3 catches up: {middle:.2f} of that without it")
    middle = statistics.median(row["throughput_following"] for row in rows)
    print(f"throughput while n3 has caught up and follows: {middle:.2f} of that without it")
    if options.json is not None:
        with options.json.open("a", encoding="ascii") as file:
            file.writelines(
                json.dumps({**vars(options), **row}, default=str) + "\n" for row in rows
            )


if __name__ == "__main__":
    main()
