"""Arrow record batches from rows: exactly the columns asked for, and nothing is made for others.

Replicas, entries and batches are few; their columns are made from lists. What becomes of the many
messages of a batch is in `messages`.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
from xxhash import xxh3_64_intdigest

from raftq.limits import MIB
from raftq.spark.plan import Planned
from raftq.spark.rows import KINDS, BatchRow, EntryRow, bodies_of, commands
from raftq.spark.tables import signed
from raftq.storage.reader import replaced

Extracts = dict[str, Callable[[Any], object]]

_REPLICA: Final[Extracts] = {
    "node": lambda one: one.node,
    "group": lambda one: one.group,
    "directory": lambda one: str(one.directory),
    "condition": lambda one: one.replica.condition.value,
    "problems": lambda one: list(one.replica.problems),
    "running": lambda one: one.running,
    "base_index": lambda one: one.replica.base.index,
    "base_chain": lambda one: one.replica.base.chain,
    "base_log_time": lambda one: one.replica.base.log_time or None,
    "first_index": lambda one: one.replica.first_index,
    "last_index": lambda one: one.replica.last_index,
    "commit_index": lambda one: one.replica.commit_index,
    "marked_through": lambda one: one.marked_through,
    "segments": lambda one: len(one.replica.segments),
    "bytes": lambda one: sum(live.stop - live.start for live in one.replica.ranges),
}

_ENTRY: Final[Extracts] = {
    "node": lambda row: row.chunk.node,
    "group": lambda row: row.chunk.group,
    "index": lambda row: row.index,
    "term": lambda row: row.found and row.found.entry.term,
    "log_time": lambda row: row.found and row.found.entry.log_time,
    "kind": lambda row: row.found and KINDS[row.found.entry.kind],
    "commands": lambda row: row.found and len(commands(row.found.entry)),
    "bodies_released": lambda row: row.found and sum(replaced(row.found.entry)),
    "size": lambda row: row.found and row.found.entry.size,
    "chain": lambda row: row.found and row.found.entry.chain,
    "chain_ok": lambda row: row.chain_ok,
    "segment": lambda row: row.chunk.live.segment,
    "position": lambda row: row.found and row.found.position,
    "marked": lambda row: row.marked,
    "error": lambda row: row.error,
}


def _of_entry(name: str) -> Callable[[Any], object]:
    extract = _ENTRY[name]
    return lambda row: extract(row.row)


def _of_stamp(name: str) -> Callable[[Any], object]:
    return lambda row: getattr(row.stamp, name) if row.stamp.count else None


def _of_header(name: str) -> Callable[[Any], object]:
    return lambda row: row.header and signed(getattr(row.header, name))


BATCH: Final[Extracts] = {
    **{
        name: _of_entry(name)
        for name in ("node", "group", "index", "term", "log_time", "chain", "chain_ok", "marked")
    },
    **{name: _of_stamp(name) for name in ("queue", "partition", "base_offset", "count")},
    **{
        name: _of_header(name)
        for name in ("producer", "epoch", "sequence", "payload_bytes", "checksum")
    },
    "checksum_ok": lambda row: row.checksum_ok,
    "body_released": lambda row: row.body_released,
    "digest": lambda row: row.header and signed(xxh3_64_intdigest(bodies_of(row.data, row.header))),
    "run_offset": lambda row: row.run and row.run.base_offset,
    "run_count": lambda row: row.run and row.run.count,
    "run_digest": lambda row: row.run and signed(row.run.digest),
    "error": lambda row: row.error,
}


PORTION_BYTES: Final = 16 * MIB
"""Rows hold on to the bytes that they were read from: no more than this are waiting at once."""


def replica_columns(planned: Iterable[Planned], schema: pa.Schema) -> pa.RecordBatch:
    return _listed(list(planned), schema, _REPLICA)


def entry_columns(
    rows: Iterable[EntryRow], schema: pa.Schema, rows_at_once: int
) -> Iterator[pa.RecordBatch]:
    for some in _portions(rows, rows_at_once):
        yield _listed(some, schema, _ENTRY)


def batch_columns(
    rows: Iterable[BatchRow], schema: pa.Schema, rows_at_once: int
) -> Iterator[pa.RecordBatch]:
    for some in _portions(rows, rows_at_once):
        yield _listed(some, schema, BATCH)


def _portions(rows: Iterable[Any], rows_at_once: int) -> Iterator[list[Any]]:
    waiting: list[Any] = []
    size = 0
    for row in rows:
        waiting.append(row)
        size += row.size
        if len(waiting) >= rows_at_once or size >= PORTION_BYTES:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting


def _listed(rows: list[Any], schema: pa.Schema, extracts: Extracts) -> pa.RecordBatch:
    """One value a row and column; a column whose extract gives None is null there."""
    arrays = [
        _nested(rows, field.type)
        if field.name == "batches"
        else pa.array([extracts[field.name](row) for row in rows], type=field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _nested(rows: list[EntryRow], kind: pa.ListType) -> pa.Array:
    """The batches of each entry, as a list of structs."""
    ends = pa.array(accumulate((len(row.batches) for row in rows), initial=0), type=pa.int32())
    batches = [batch for row in rows for batch in row.batches]
    fields = list(kind.value_type)
    values = [
        pa.array([BATCH[field.name](batch) for batch in batches], type=field.type)
        for field in fields
    ]
    structs = pa.StructArray.from_arrays(values, fields=fields)
    return pa.ListArray.from_arrays(ends, structs, type=kind)
