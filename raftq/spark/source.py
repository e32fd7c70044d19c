"""The data source "raftq": segment files of stopped or running nodes, as tables.

    register(spark)
    spark.read.format("raftq").option("path", "data").option("table", "messages").load()
    read_table(spark, ["data"], "batches", ["node", "queue", "base_offset", "count"])

Options (all texts; their names know no case):

    path        data directories of nodes, or directories of them, separated by commas
    table       replicas | entries | batches | messages (the default)
    payload     none | binary: whether `messages` has the column `body` (when no schema is given)
    batchRows   rows in one Arrow record batch, 2000 unless given
    onError     fail: what is damaged fails the query, with its place
                row:  it becomes a row with `error`, and what can be read is read

Rules:

1. The schema given is the projection: a column that is not in it costs nothing.
2. `node =`, `group =`, `queue =` and `partition =` (and `in`) are filters of the reader. A group's
   replicas are walked all the same, because its commit mark is that of all of them.
3. Paths are those of the machine where a task runs: local, or on a shared file system.
4. `register` switches on Spark's `spark.sql.python.filterPushdown.enabled`; without it Spark refuses
   every reader that takes filters.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    In,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from raftq.errors import Corrupted, InvalidArgument
from raftq.spark.columns import batch_columns, entry_columns, replica_columns
from raftq.spark.messages import message_columns
from raftq.spark.plan import Chunk, Portion, plan, portions, refuse_damage
from raftq.spark.rows import BatchRow, EntryRow, batch_rows, entry_rows, with_runs
from raftq.spark.tables import BATCHES, ENTRIES, MESSAGES, REPLICAS, columns_of, schema_of

FORMAT: Final = "raftq"

_FILTERED: Final[dict[str, tuple[str, ...]]] = {
    REPLICAS: ("node", "group"),
    ENTRIES: ("node", "group"),
    BATCHES: ("node", "group", "queue", "partition"),
    MESSAGES: ("node", "group", "queue", "partition"),
}
_ROWS_AT_ONCE: Final = 2_000


class PortionPartition(InputPartition):
    """One task's share."""

    def __init__(self, portion: Portion) -> None:
        self.portion = portion


class RaftqDataSource(DataSource):
    """What Spark makes for each `format("raftq")`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    @property
    def table(self) -> str:
        return str(self.options.get("table", MESSAGES))

    def schema(self) -> StructType:
        columns = [field.name for field in schema_of(self.table).fields]
        if _choice(self.options, "payload", "none", "binary") == "binary":
            if self.table != MESSAGES:
                raise InvalidArgument(f"only table {MESSAGES!r} has a payload, not {self.table!r}")
            columns.insert(columns.index("marked"), "body")
        return schema_of(self.table, columns)

    def reader(self, schema: StructType) -> "RaftqReader":
        return RaftqReader(self.options, schema)


def _choice(options: Any, name: str, *choices: str) -> str:
    """The value of an option; the first choice unless given."""
    value = str(options.get(name, choices[0]))
    if value not in choices:
        raise InvalidArgument(f"option {name} is {' or '.join(choices)}, not {value!r}")
    return value


class RaftqReader(DataSourceReader):
    """Plans the read in one process and does it in others: what it holds is pickled."""

    def __init__(self, options: Any, schema: StructType) -> None:
        self.table = str(options.get("table", MESSAGES))
        known = columns_of(self.table)
        self.columns = tuple(field.name for field in schema.fields)
        if schema != schema_of(self.table, self.columns):
            raise InvalidArgument(
                f"the schema given for table {self.table!r} has other types than its columns have: "
                f"{schema_of(self.table, known).simpleString()}"
            )
        self.paths = tuple(filter(None, map(str.strip, str(options.get("path", "")).split(","))))
        if not self.paths:
            raise InvalidArgument('name the data directories: .option("path", "data/n1,data/n2")')
        self.fails = _choice(options, "onError", "fail", "row") == "fail"
        try:
            self.rows_at_once = int(options.get("batchRows", _ROWS_AT_ONCE))
        except ValueError as error:
            raise InvalidArgument(f"option batchRows is a number: {error}") from error
        if self.rows_at_once < 1:
            raise InvalidArgument("option batchRows is at least 1")
        self.schema = schema
        self.filters: dict[str, frozenset[Any]] = {}

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name.
        for condition in filters:
            if not isinstance(condition, EqualTo | In) or (
                condition.attribute not in {(name,) for name in _FILTERED[self.table]}
            ):
                yield condition
            elif isinstance(condition, EqualTo):
                self._keep(condition.attribute[0], [condition.value])
            else:
                self._keep(condition.attribute[0], condition.value)

    def _keep(self, column: str, values: Iterable[Any]) -> None:
        known = self.filters.get(column)
        self.filters[column] = frozenset(values) if known is None else known & frozenset(values)

    def partitions(self) -> list[InputPartition]:
        planned = plan(self.paths, self.filters.get("group"))
        nodes = self.filters.get("node")
        if self.table == REPLICAS:
            chosen = [one for one in planned if nodes is None or one.node in nodes]
            batch = replica_columns(chosen, arrow_schema(self.schema))
            return [ReplicasPartition(batch)]
        if self.fails:
            refuse_damage(planned)
        return [PortionPartition(portion) for portion in portions(planned, nodes)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, ReplicasPartition):
            return iter([partition.batch])
        if not isinstance(partition, PortionPartition):
            return iter(())  # Spark's own, in the place of none.
        return self._read(partition.portion.chunks)

    def _read(self, chunks: Sequence[Chunk]) -> Iterator[pa.RecordBatch]:
        schema, rows_at_once = arrow_schema(self.schema), self.rows_at_once
        entries = (row for chunk in chunks for row in map(self._judged_entry, entry_rows(chunk)))
        if self.table == ENTRIES:
            if "batches" in self.columns:
                entries = (row._replace(batches=tuple(self._batches(row))) for row in entries)
            yield from entry_columns(entries, schema, rows_at_once)
            return
        batches = (batch for row in entries for batch in self._batches(row))
        if self.table == MESSAGES:
            # Of a batch whose body was released no message is known.
            batches = (batch for batch in batches if not batch.body_released)
            yield from message_columns(batches, schema, rows_at_once)
        else:
            yield from batch_columns(batches, schema, rows_at_once)

    def _batches(self, row: EntryRow) -> list[BatchRow]:
        columns = set(self.columns)
        found = batch_rows(
            row,
            # Messages of a batch are believed only when its bytes are: they could say anything.
            check=self.table == MESSAGES or not columns.isdisjoint(("checksum_ok", "batches")),
            queues=self.filters.get("queue"),
            partitions=self.filters.get("partition"),
        )
        for batch in found:
            self._judge_batch(batch)
        if columns.isdisjoint(("run_offset", "run_count", "run_digest", "batches")):
            return found
        return with_runs(found)

    def _judged_entry(self, row: EntryRow) -> EntryRow:
        if self.fails and (row.error or row.chain_ok is False):
            raise Corrupted(f"{_place(row)}: {row.error or 'its chain value is not right'}")
        return row

    def _judge_batch(self, row: BatchRow) -> None:
        if self.fails and row.error:
            raise Corrupted(f"{_place(row.row)}: {row.error}")


class ReplicasPartition(InputPartition):
    """The table of replicas: planning has found out all that it says."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch


def arrow_schema(schema: StructType) -> pa.Schema:
    """The very schema that Spark expects of record batches."""
    return to_arrow_schema(schema, timezone="UTC")


def _place(row: EntryRow) -> str:
    chunk = row.chunk
    where = f"{chunk.directory}/{chunk.live.name}"
    if row.found is not None:
        where += f" at {row.found.position}"
    return f"node {chunk.node}, group {chunk.group}, entry {row.index} in {where}"


def register(spark: SparkSession) -> None:
    """Makes `format("raftq")` known to a session, and lets it take filters."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(RaftqDataSource)


def read_table(
    spark: SparkSession,
    directories: Iterable[str],
    table: str,
    columns: Sequence[str] | None = None,
    **options: str,
) -> DataFrame:
    """A table with just these columns; `register` was called for the session before."""
    reader = spark.read.format(FORMAT).schema(schema_of(table, columns))
    return reader.options(path=",".join(map(str, directories)), table=table, **options).load()
