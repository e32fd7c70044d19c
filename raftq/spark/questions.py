"""One audit after the other, from the tables that they share to what is told of each."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from raftq.spark.plan import Planned
from raftq.spark.report import AuditSummary, Finding

if TYPE_CHECKING:
    from pyarrow import Table
    from pyspark.sql import DataFrame, SparkSession

    from raftq.spark.audits.answer import Answer
    from raftq.spark.history import History

FINDINGS_MAX: Final = 100
"""As many findings of one audit are told; all are counted."""


class Question(NamedTuple):
    """What one audit asks, and what it counts."""

    text: str
    unit: str


AUDITS: Final = {
    "integrity": Question(
        "is every byte what was written, and every entry linked to the one before it?", "entries"
    ),
    "offsets": Question("are the offsets of each partition gapless?", "batches"),
    "replicas": Question("do all replicas hold the same log?", "entries"),
    "acknowledged": Question("where is every message that was acknowledged?", "messages"),
    "duplicates": Question("is a producer's message there twice?", "batches"),
    "order": Question("are a producer's messages of one key in order?", "batches"),
    "released": Question(
        "was all that is gone settled, and released by a command?", "messages without a body"
    ),
    "machine": Question("do the machines of all replicas come to the same state?", "entries"),
}

HEADERS: Final = (
    *("node", "group", "index", "kind", "commands", "bodies_released"),
    *("chain", "chain_ok", "marked", "error", "batches"),
)
"""The columns of entries that the audits need; batches come nested in them."""


_LIMITED: Final = frozenset({"offsets", "acknowledged", "duplicates", "order"})
"""Audits that say nothing of history that is gone; the others have notes of their own."""


class Tables(NamedTuple):
    """What the audits are functions of."""

    replicas: "DataFrame"
    entries: "DataFrame"
    batches: "DataFrame"
    ledger: "DataFrame | None"
    bounds: "DataFrame | None"
    """Of partitions in groups that have let go of something; None when none has."""


_BOUNDS: Final = "group long, queue long, partition long, released_index long, released long"


@contextmanager
def tables(
    spark: "SparkSession",
    directories: Sequence[str],
    planned: Sequence[Planned],
    history: "History",
    headers: "Table | None",
    ledger: str | Path | None,
) -> Iterator[Tables]:
    """The tables of headers, kept in memory while the audits run.

    Each reading of the data source starts some Python processes, so there is one: batches come
    nested in their entries.
    """
    # They come with an extra, as does everything that they import.
    from raftq.spark.ledger import read_ledger  # noqa: PLC0415
    from raftq.spark.source import read_table, register  # noqa: PLC0415

    if headers is None:
        register(spark)
        entries = read_table(spark, directories, "entries", HEADERS, onError="row").cache()
    else:
        entries = spark.createDataFrame(headers).cache()
    in_entry = ("node", "group", "`index`", "chain", "chain_ok", "marked", "inline(batches)")
    acknowledged = bounds = None
    named: set[tuple[int, int]] = set()
    if ledger is not None:
        rows = read_ledger(ledger)
        acknowledged = spark.createDataFrame(rows)
        named = set(zip(rows["queue"].to_pylist(), rows["partition"].to_pylist(), strict=True))
    if history.groups:
        bounds = spark.createDataFrame(history.bounds(named), _BOUNDS)
    try:
        yield Tables(
            replicas=_replica_table(spark, planned),
            entries=entries.drop("batches"),
            batches=entries.selectExpr(*in_entry),
            ledger=acknowledged,
            bounds=bounds,
        )
    finally:
        entries.unpersist()


def _replica_table(spark: "SparkSession", planned: Sequence[Planned]) -> "DataFrame":
    import pyarrow as pa  # noqa: PLC0415

    from raftq.spark.columns import replica_columns  # noqa: PLC0415 - it comes with an extra.
    from raftq.spark.source import arrow_schema  # noqa: PLC0415
    from raftq.spark.tables import REPLICAS, schema_of  # noqa: PLC0415

    schema = arrow_schema(schema_of(REPLICAS))
    return spark.createDataFrame(pa.Table.from_batches([replica_columns(planned, schema)], schema))


@dataclass(frozen=True, slots=True)
class Questions:
    """Everything that is needed to ask any of the audits."""

    spark: "SparkSession"
    directories: Sequence[str]
    history: "History"
    tables: Tables
    ledger_is_complete: bool

    def ask(self, name: str) -> AuditSummary:
        """One audit of the tables, timed."""
        begun = time.monotonic()
        if name == "acknowledged" and self.tables.ledger is None:
            return skipped(name, "no ledger was given")
        told = _told(name, self._answer(name))
        # What is gone is never passed over in silence.
        limits = self.history.limits(name) if name in _LIMITED else []
        findings = (*told.findings, *limits)[:FINDINGS_MAX]
        told = replace(told, findings=findings, notes=told.notes + len(limits))
        return replace(told, seconds=time.monotonic() - begun)

    def _answer(self, name: str) -> "Answer":
        from raftq.spark.audits import (  # noqa: PLC0415 - they come with an extra.
            acknowledged,
            duplicates,
            integrity,
            offsets,
            replicas,
        )

        replica_table, entries, batches, ledger, bounds = self.tables
        if name == "integrity":
            return integrity.integrity(replica_table, entries, batches)
        if name == "offsets":
            return offsets.offsets(replica_table, batches, ledger, bounds)
        if name == "replicas":
            return replicas.replicas(replica_table, entries)
        if name == "duplicates":
            return duplicates.duplicates(batches)
        if name == "order":
            return self._order()
        assert name == "acknowledged"
        assert ledger is not None
        let_go = None if bounds is None else acknowledged.LetGo(bounds, entries)
        return acknowledged.acknowledged(
            batches, ledger, let_go, is_complete=self.ledger_is_complete
        )

    def _order(self) -> "Answer":
        """Messages are read only of queues in which batches are out of order."""
        from raftq.spark.audits import order  # noqa: PLC0415
        from raftq.spark.source import read_table, register  # noqa: PLC0415

        batches = self.tables.batches
        suspects = order.suspicions(batches).cache()
        queues = [row.queue for row in suspects.select("queue").distinct().collect()]
        messages = None
        if queues:
            register(self.spark)
            columns = ["node", "group", "queue", "partition", "producer", "epoch", "sequence"]
            columns += ["offset", "key_hash"]
            messages = read_table(self.spark, self.directories, "messages", columns, onError="row")
            messages = messages.where(messages["queue"].isin(queues))
        return order.order(batches, suspects, messages)


def ask_machines(planned: Sequence[Planned], entries_max: int) -> AuditSummary:
    """An audit that is no query, timed."""
    from raftq.spark.audits.machine import machine  # noqa: PLC0415 - only when it is asked for.

    begun = time.monotonic()
    if not entries_max:
        return skipped("machine", "left out by request")
    found, checked, compared = machine(planned, entries_max=entries_max)
    figures = {"digests_compared": compared}
    return _listed("machine", found, checked, figures, seconds=time.monotonic() - begun)


def ask_released(history: "History") -> AuditSummary:
    """What was found when the history was read."""
    from raftq.spark.audits.released import released  # noqa: PLC0415 - as above.

    found, checked, figures = released(history)
    return _listed("released", found, checked, figures, seconds=0.0)


def _listed(
    name: str, found: list[Finding], checked: int, figures: dict[str, int], *, seconds: float
) -> AuditSummary:
    """The answer of an audit that is no query."""
    notes = sum(finding.is_note for finding in found)
    return replace(
        skipped(name, ""),
        checked=checked,
        violations=len(found) - notes,
        notes=notes,
        figures=figures,
        findings=tuple(sorted(found, key=_severity)[:FINDINGS_MAX]),
        seconds=seconds,
    )


def _told(name: str, answer: "Answer") -> AuditSummary:
    """The findings of an audit, and how many there are: one query, unless there are very many."""
    first = answer.findings.limit(FINDINGS_MAX + 1)
    *rows, total = first.unionByName(answer.summary, allowMissingColumns=True).collect()
    found = [Finding(*row[: len(Finding._fields)]) for row in rows]
    notes = sum(finding.is_note for finding in found)
    violations = len(found) - notes
    if len(found) > FINDINGS_MAX:
        counts = {row[0]: row[1] for row in answer.findings.groupBy("is_note").count().collect()}
        notes, violations = counts.get(True, 0), counts.get(False, 0)
    return AuditSummary(
        name=name,
        question=AUDITS[name].text,
        checked=total.checked,
        unit=AUDITS[name].unit,
        violations=violations,
        notes=notes,
        seconds=0.0,
        figures=total.figures,
        findings=tuple(sorted(found[:FINDINGS_MAX], key=_severity)),
    )


def _severity(finding: Finding) -> tuple[bool, str, int]:
    return finding.is_note, finding.node or "", finding.offset or 0


def skipped(name: str, reason: str) -> AuditSummary:
    """An answer without a look."""
    return AuditSummary(
        name=name,
        question=AUDITS[name].text,
        checked=0,
        unit=AUDITS[name].unit,
        violations=0,
        notes=0,
        seconds=0.0,
        figures={},
        findings=(),
        skipped=reason,
    )
