"""From the live ranges of a replica to its entries and stored batches, each judged.

What a row costs is a few steps of Python an entry or a batch, never a message.

A batch whose body was released is known by its stamp alone: where it was published, and how many
messages it had. Its digest stands in its place, and could look like anything: it is never read.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from xxhash import xxh3_64

from raftq import batch
from raftq.batch import Header, Stamp
from raftq.errors import Corrupted, RaftqError
from raftq.ids import Offset, Partition, QueueId
from raftq.spark.plan import Chunk
from raftq.storage.offline import PlainFile
from raftq.storage.reader import FoundEntry, commands, entries_in, replaced

__all__ = [
    "KINDS",
    "NO_STAMP",
    "BatchRow",
    "EntryRow",
    "Run",
    "batch_rows",
    "blobs_start",
    "bodies_of",
    "commands",
    "entry_rows",
    "with_runs",
]

KINDS: Final = {0: "noop", 1: "commands", 2: "membership"}


class EntryRow(NamedTuple):
    """One entry. `chain_ok` is None when the entry before it is lost: then nothing proves it.

    Without an entry the bytes at `index` could not be read, and `error` says why.
    """

    chunk: Chunk
    index: int  # type: ignore[assignment]  # Hides a method of tuples that nobody needs.
    found: FoundEntry | None
    chain_ok: bool | None
    error: str | None
    batches: "tuple[BatchRow, ...]" = ()
    """Where they were asked for."""

    @property
    def size(self) -> int:
        return 0 if self.found is None else self.found.entry.size

    @property
    def marked(self) -> bool:
        return self.index <= self.chunk.marked_through


class BatchRow(NamedTuple):
    """One stored batch. Without a header its body was released, or `error` says why it is none."""

    row: EntryRow
    stamp: Stamp
    data: memoryview
    header: Header | None
    checksum_ok: bool | None
    error: str | None
    run: "Run | None" = None
    body_released: bool = False

    @property
    def size(self) -> int:
        return len(self.data)


class Run(NamedTuple):
    """Neighbours of one partition in one entry; `digest` is over all their bodies, joined."""

    base_offset: int
    count: int  # type: ignore[assignment]  # Hides a method of tuples that nobody needs.
    digest: int


def entry_rows(chunk: Chunk) -> Iterator[EntryRow]:
    """The entries of a chunk, in order. What lies behind bytes that are not understood is lost."""
    live = chunk.live
    before = live.first_index - 1
    follows = live.previous_chain is not None
    with PlainFile(Path(chunk.directory) / live.name) as file:
        entries = entries_in(file, live)
        while True:
            try:
                found = next(entries, None)
            except Corrupted as error:
                yield EntryRow(chunk, before + 1, None, False, str(error))
                return
            if found is None:
                return
            index = found.entry.index
            proved = found.proved if found.proved or (follows and index == before + 1) else None
            yield EntryRow(chunk, index, found, proved, None)
            before, follows = index, True


def batch_rows(
    row: EntryRow,
    *,
    check: bool,
    queues: frozenset[int] | None = None,
    partitions: frozenset[int] | None = None,
) -> list[BatchRow]:
    """The batches of an entry; of these queues and partitions, if some are named.

    An entry that cannot be read gives one row, which says why. `check` computes checksums.
    """
    if row.found is None:
        return [BatchRow(row, NO_STAMP, memoryview(b""), None, None, row.error)]
    try:
        publishes = [
            (batch.read_stamp(header), None if is_gone else memoryview(body))
            for (header, body), is_gone in zip(
                commands(row.found.entry), replaced(row.found.entry), strict=True
            )
            if len(header) == batch.STAMP_BYTES and header[0] == batch.PUBLISH
        ]
    except RaftqError as error:
        return [BatchRow(row, NO_STAMP, memoryview(b""), None, None, str(error))]
    return [
        _judged(row, stamp, data, check=check)
        for stamp, data in publishes
        if (queues is None or stamp.queue in queues)
        and (partitions is None or stamp.partition in partitions)
    ]


def blobs_start(data: memoryview, header: Header) -> int:
    """Where the bodies begin: the keys, then the headers, follow them up to the end."""
    lengths = batch.column(data, header, "header_length")
    headers_bytes = 0 if lengths is None else int(np.frombuffer(lengths, "<u4").sum())
    return len(data) - headers_bytes - header.key_bytes - header.body_bytes


def bodies_of(data: memoryview, header: Header) -> memoryview:
    """All bodies of a batch, one behind the other."""
    start = blobs_start(data, header)
    return data[start : start + header.body_bytes]


def with_runs(rows: list[BatchRow]) -> list[BatchRow]:
    """The batches of one entry, each with the run that it is part of."""
    rows = list(rows)
    for run, positions in _runs(rows):
        for position in positions:
            rows[position] = rows[position]._replace(run=run)
    return rows


def _runs(rows: list[BatchRow]) -> Iterator[tuple[Run, list[int]]]:
    by_partition: dict[tuple[int, int], list[int]] = {}
    for position, row in enumerate(rows):
        if row.header is not None:
            by_partition.setdefault((row.stamp.queue, row.stamp.partition), []).append(position)
    for positions in by_partition.values():
        start = 0
        for end in range(1, len(positions) + 1):
            before = rows[positions[end - 1]].stamp
            if end < len(positions) and (
                rows[positions[end]].stamp.base_offset == before.base_offset + before.count
            ):
                continue
            yield _run([rows[position] for position in positions[start:end]]), positions[start:end]
            start = end


def _run(rows: list[BatchRow]) -> Run:
    hasher = xxh3_64()
    for row in rows:
        assert row.header is not None
        hasher.update(bodies_of(row.data, row.header))
    first, last = rows[0].stamp, rows[-1].stamp
    count = last.base_offset + last.count - first.base_offset
    return Run(first.base_offset, count, hasher.intdigest())


NO_STAMP = Stamp(QueueId(-1), Partition(-1), Offset(-1), 0, 0)
"""Stands for what cannot be read."""


def _judged(row: EntryRow, stamp: Stamp, data: memoryview | None, *, check: bool) -> BatchRow:
    checksum_ok: bool | None = None
    if data is None:
        return BatchRow(row, stamp, memoryview(b""), None, None, None, body_released=True)
    try:
        header = batch.read_header(data)
    except RaftqError as error:
        return BatchRow(row, stamp, data, None, False if check else None, str(error))
    problem = None
    if (header.queue, header.partition, header.count) != (
        stamp.queue,
        stamp.partition,
        stamp.count,
    ):
        problem = (
            f"the batch says queue {header.queue}, partition {header.partition}, "
            f"{header.count} messages; its stamp says {stamp.queue}, {stamp.partition}, {stamp.count}"
        )
    elif check:
        try:
            batch.verify_checksum(data)
        except Corrupted as error:
            problem = str(error)
    if check:
        checksum_ok = problem is None
    return BatchRow(row, stamp, data, header, checksum_ok, problem)
