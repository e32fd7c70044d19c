"""All audits over a cluster's data directories, on an embedded local Spark: what `raftq audit` does.

Theory of operation. One session; narrow tables of headers, read once and kept; then each audit is a
small query on them. Bodies do not leave Python. Messages are read only where the order audit has a
suspicion.

On a local master, logs up to some gigabytes are read here, by the very reader of the data source,
while the JVM starts: to start Spark's Python processes would take longer than the reading.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from raftq.errors import InvalidArgument
from raftq.limits import MIB
from raftq.spark.plan import data_directories, plan
from raftq.spark.questions import (
    AUDITS,
    HEADERS,
    Questions,
    ask_machines,
    ask_released,
    tables,
)
from raftq.spark.report import AuditReport, AuditSummary, Finding
from raftq.spark.session import missing_package, session

if TYPE_CHECKING:
    from pyarrow import Table
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["AUDITS", "AuditReport", "AuditSummary", "Finding", "audit", "audit_with"]

MACHINEHEADERS_MAX: Final = 100_000
"""The machine audit replays this much of each group: a few seconds."""

_SHORT_JOB_BYTES: Final = 4096 * MIB
"""Below this, a JVM that starts fast is better than one that computes fast."""


_AT_ONCE: Final = 2
"""Audits that are asked at the same time: Spark plans one while it computes another."""

Progress = Callable[[str, int, int], None]
"""Called with what begins now, and how many of how many steps are done."""


def _no_progress(_step: str, _done: int, _total: int) -> None:
    """Nobody watches."""


def audit(
    directories: Iterable[str | Path],
    *,
    ledger: str | Path | None = None,
    ledger_is_complete: bool = False,
    master: str = "local[2]",
    only: Sequence[str] | None = None,
    machine_entries_max: int = MACHINEHEADERS_MAX,
    progress: Progress = _no_progress,
) -> AuditReport:
    """Run all audits, or `only` some, and say what they found.

    `directories` are data directories of nodes, or hold them. `ledger` names what was acknowledged
    to clients; `ledger_is_complete` that nothing else was ever sent. `machine_entries_max` bounds
    how much of each group is replayed; 0 leaves the machine audit out.

    Raises: InvalidArgument, SparkUnavailableError, SparkQueryError, OSError.
    """
    begun = time.monotonic()
    chosen = _chosen(only)
    paths = tuple(str(Path(directory).resolve()) for directory in directories)
    size = sum(
        path.stat().st_size
        for directory in data_directories(paths).values()
        for path in directory.glob("group-*/*.log")
    )
    is_short = size < _SHORT_JOB_BYTES
    progress("starting Spark", 0, len(chosen) + 2)
    with ThreadPoolExecutor(1) as pool:
        read_here = is_short and master.startswith("local")
        headers = pool.submit(_read_headers, paths) if read_here else None
        with session(
            app_name="raftq audit",
            master=master,
            memory="1g",
            short_job=is_short,
        ) as spark:
            report = audit_with(
                spark,
                paths,
                headers=headers.result() if headers else None,
                ledger=ledger,
                ledger_is_complete=ledger_is_complete,
                only=chosen,
                machine_entries_max=machine_entries_max,
                progress=progress,
            )
    return replace(report, seconds=time.monotonic() - begun)


def _read_headers(directories: Sequence[str]) -> "Table":
    """The table of entries with their batches, without Spark."""
    try:
        import pyarrow as pa  # noqa: PLC0415 - it comes with an extra.

        from raftq.spark.source import RaftqReader, arrow_schema  # noqa: PLC0415
        from raftq.spark.tables import ENTRIES, schema_of  # noqa: PLC0415
    except ImportError as error:
        raise missing_package(error) from error
    schema = schema_of(ENTRIES, HEADERS)
    options = {"path": ",".join(directories), "table": ENTRIES, "onError": "row"}
    reader = RaftqReader(options, schema)
    batches = [batch for portion in reader.partitions() for batch in reader.read(portion)]
    return pa.Table.from_batches(batches, arrow_schema(schema))


def _chosen(only: Sequence[str] | None) -> tuple[str, ...]:
    unknown = [name for name in only or () if name not in AUDITS]
    if unknown:
        raise InvalidArgument(
            f"there is no audit {', '.join(unknown)}; choose of {', '.join(AUDITS)}"
        )
    return tuple(AUDITS) if only is None else tuple(name for name in AUDITS if name in only)


def audit_with(
    spark: "SparkSession",
    directories: Sequence[str],
    *,
    headers: "Table | None" = None,
    ledger: str | Path | None = None,
    ledger_is_complete: bool = False,
    only: Sequence[str] | None = None,
    machine_entries_max: int = MACHINEHEADERS_MAX,
    progress: Progress = _no_progress,
) -> AuditReport:
    """As `audit`, in a session that is there already; Spark reads the `headers` unless given."""
    from raftq.spark.history import read_history  # noqa: PLC0415 - it needs the extra.

    begun = time.monotonic()
    chosen = _chosen(only)
    steps = _steps(progress, len(chosen) + 2)
    next(steps)("reading headers")
    planned = plan(directories)
    history = read_history(planned)
    with (
        ThreadPoolExecutor(_AT_ONCE + 1) as pool,
        tables(spark, directories, planned, history, headers, ledger) as shared,
    ):
        asked: dict[str, Future[AuditSummary]] = {}
        if "machine" in chosen:
            asked["machine"] = pool.submit(ask_machines, planned, machine_entries_max)
        if "released" in chosen:
            asked["released"] = pool.submit(ask_released, history)
        # The first query brings the headers into memory, where all others find them.
        messages, copies = _counted(shared.batches)
        questions = Questions(spark, directories, history, shared, ledger_is_complete)
        for name in chosen:
            if name not in asked:
                asked[name] = pool.submit(questions.ask, name)
        answers = []
        for name in chosen:
            next(steps)(name)
            answers.append(asked[name].result())
    next(steps)("done")
    return AuditReport(
        directories=tuple(map(str, directories)),
        nodes=tuple(sorted({one.node for one in planned})),
        groups=len({one.group for one in planned}),
        messages=messages,
        copies=copies,
        seconds=time.monotonic() - begun,
        audits=tuple(answers),
        history=tuple(found.to_map() for found in history.beginnings),
    )


def _steps(progress: Progress, total: int) -> Iterator[Callable[[str], None]]:
    for done in range(1, total + 1):
        yield lambda step, done=done: progress(step, done, total)  # type: ignore[misc]


def _counted(batches: "DataFrame") -> tuple[int, int]:
    """Messages in the longest replica of each group, and on all replicas."""
    by_node = batches.groupBy("node", "group").agg({"count": "sum"}).collect()
    longest: dict[int, int] = {}
    for _, group, count in by_node:
        longest[group] = max(longest.get(group, 0), count or 0)
    return sum(longest.values()), sum(count or 0 for _, _, count in by_node)
