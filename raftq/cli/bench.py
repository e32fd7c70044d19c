"""`raftq bench`: the canonical workload against a cluster, with figures that can be compared.

Every case becomes one JSON line in the results file: what was asked, what was reached, what it cost
the client and, where the nodes run on this machine, the nodes. Nothing in that file is ever changed;
rows of different machines or loads are not comparable, rows of one run are.
"""

import json
import os
import platform
import statistics
import tempfile
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from raftq import __version__
from raftq.cli.options import JsonOption
from raftq.cli.output import console, error_console, print_json, print_table, print_text
from raftq.cli.processes import Processes
from raftq.cli.workloads import CASES, Bench, Measured
from raftq.client.client import AsyncClient
from raftq.embedded.ledger import LedgerRow, write_ledger
from raftq.env import loop
from raftq.errors import InvalidArgument

NODES: Final = 3
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


def bench(
    workload: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CASE]...", help=f"Cases: {', '.join(CASES)}. None: all."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="A running cluster. Without it three nodes are started, and stopped."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long each timed case runs.")] = 5.0,
    rounds: Annotated[int, typer.Option(help="How often all cases run, in turn.")] = 1,
    results: Annotated[
        Path | None, typer.Option(help="Append one JSON line per case and round to this file.")
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(help="Write down what was acknowledged, for `raftq audit --ledger`."),
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(help="Keep the nodes' data in this new or empty directory.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure: saturated publishing, synchronous publishers, draining a backlog.

    Each figure is what this one client process sees, three nodes on this machine unless --url names
    others, every acknowledgement synced on a majority. Medians over rounds are printed.

        raftq bench
        raftq bench publish-100 drain --seconds 10 --rounds 5 --results bench/results/canonical.jsonl
        raftq bench publish-100 --keep ./b --ledger ./b.jsonl && raftq audit ./b --ledger ./b.jsonl
    """
    cases = workload or list(CASES)
    unknown = [case for case in cases if case not in CASES]
    if unknown:
        raise typer.BadParameter(f"no case is called {unknown[0]!r}; there are {', '.join(CASES)}")
    if not 0.2 <= seconds <= 3_600 or not 1 <= rounds <= 1_000:
        raise typer.BadParameter("--seconds is 0.2 to 3600, --rounds 1 to 1000")
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise typer.BadParameter(f"--keep {keep}: the directory is not empty")
    rows: list[LedgerRow] | None = [] if ledger is not None else None
    measured = loop.run(_run(cases, url=url, seconds=seconds, rounds=rounds, keep=keep, rows=rows))
    if ledger is not None and rows is not None:
        write_ledger(ledger, rows)
    if results is not None:
        results.parent.mkdir(parents=True, exist_ok=True)
        with results.open("a", encoding="ascii") as file:
            file.writelines(json.dumps(row) + "\n" for row in measured)
    if as_json:
        for row in measured:
            print_json(row)
    else:
        _print(measured)


async def _run(
    cases: list[str],
    *,
    url: str | None,
    seconds: float,
    rounds: int,
    keep: Path | None,
    rows: list[LedgerRow] | None,
) -> list[dict[str, Any]]:
    measured: list[dict[str, Any]] = []
    noted: set[tuple[int, int]] = set()
    async with AsyncExitStack() as stack:
        nodes: Processes | None = None
        if url is None:
            data = keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            nodes = await stack.enter_async_context(Processes(NODES, data=data))
            url = nodes.url
        client = await stack.enter_async_context(AsyncClient(url))
        progress = stack.enter_context(_progress())
        task = progress.add_task("", total=rounds * len(cases))
        for number in range(rounds):
            for case in cases:
                progress.update(task, description=f"round {number + 1}: {case}")
                before = await _costs(nodes)
                found = await CASES[case](Bench(client, url, seconds, rows, noted))
                after = await _costs(nodes)
                measured.append(_row(case, number, found, before, after))
                progress.advance(task)
    return measured


def _progress() -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        console=error_console(),
        transient=True,
    )


async def _costs(nodes: Processes | None) -> dict[str, float]:
    """What the nodes have spent so far; only of processes that we started."""
    if nodes is None:
        return {}
    costs = {"node_cpu_seconds": 0.0, "node_rss_bytes": 0.0, "syncs": 0.0}
    for name in nodes.names:
        directory = Path(f"/proc/{nodes.process_id(name)}")
        fields = (directory / "stat").read_text().rpartition(")")[2].split()
        costs["node_cpu_seconds"] += (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
        resident = int((directory / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        costs["node_rss_bytes"] = max(costs["node_rss_bytes"], resident)
        async with AsyncClient(nodes.url_of(name)) as one:
            status = await one.status()
        costs["syncs"] += sum(group["syncs"] for group in status["groups"])
    return costs


def _row(
    case: str, number: int, found: Measured, before: dict[str, float], after: dict[str, float]
) -> dict[str, Any]:
    if not found.messages:
        raise InvalidArgument(f"{case}: nothing was measured; give it more --seconds")
    row: dict[str, Any] = {
        "case": case,
        "round": number,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "raftq": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "messages": found.messages,
        "seconds": round(found.seconds, 3),
        "messages_per_second": round(found.messages / found.seconds),
        "megabytes_per_second": round(found.bytes / found.seconds / 1e6, 1),
        "client_us_per_message": round(found.client_cpu_seconds / found.messages * 1e6, 3),
        "p50_ms": found.p50_ms,
        "p99_ms": found.p99_ms,
        "p999_ms": found.p999_ms,
    }
    if after:
        # The nodes also worked while the case was set up: their costs are upper bounds.
        spent = after["node_cpu_seconds"] - before["node_cpu_seconds"]
        row["node_cpu_seconds"] = round(spent, 2)
        row["node_cpu_seconds_per_million"] = round(spent / found.messages * 1e6, 2)
        row["node_syncs"] = int(after["syncs"] - before["syncs"])
        row["node_rss_megabytes_max"] = round(after["node_rss_bytes"] / 1e6, 1)
    return row


def _print(measured: list[dict[str, Any]]) -> None:
    table = []
    for case in dict.fromkeys(row["case"] for row in measured):
        rows = [row for row in measured if row["case"] == case]

        def middle(name: str, digits: int, rows: list[dict[str, Any]] = rows) -> str:
            values = [row[name] for row in rows if row.get(name) is not None]
            return f"{statistics.median(values):,.{digits}f}" if values else "-"

        table.append(
            [
                case,
                middle("messages_per_second", 0),
                middle("megabytes_per_second", 1),
                middle("p50_ms", 2),
                middle("p99_ms", 2),
                middle("client_us_per_message", 2),
                middle("node_cpu_seconds_per_million", 2),
                middle("node_rss_megabytes_max", 0),
            ]
        )
    print_table(
        [
            "case",
            "messages/s",
            "MB/s",
            "p50 ms",
            "p99 ms",
            "client us/msg",
            "nodes CPU s/M",
            "RSS MB",
        ],
        table,
    )
    if console().is_terminal:
        print_text("Medians over the rounds. Compare rows of one run only.")
