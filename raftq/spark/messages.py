"""The messages of stored batches as Arrow record batches, without a step of Python a message.

A batch's own columns lie in the file as Arrow wants them. A value that all messages of a batch
share is made once and repeated. Only headers and hashes of bodies cost a step each.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from raftq import batch
from raftq.batch import Batch, Header, HeaderValue
from raftq.spark.columns import BATCH, PORTION_BYTES
from raftq.spark.rows import BatchRow, blobs_start

_Make = Callable[[memoryview, Header, int], pa.Array]
_INT32_MAX: Final = 2**31 - 1


def _numbers(view: memoryview, kind: str) -> np.ndarray:
    return np.frombuffer(view, kind)


def _offset(_data: memoryview, header: Header, base_offset: int) -> pa.Array:
    return pa.array(np.arange(base_offset, base_offset + header.count, dtype=np.int64))


def _sequence(_data: memoryview, header: Header, _: int) -> pa.Array:
    first = np.uint64(header.sequence)
    return pa.array((first + np.arange(header.count, dtype=np.uint64)).view(np.int64))


def _size(data: memoryview, header: Header, _: int) -> pa.Array:
    lengths = batch.column(data, header, "body_length")
    assert lengths is not None
    return pa.array(_numbers(lengths, "<i4"))


def _time_us(data: memoryview, header: Header, _: int) -> pa.Array:
    times = batch.column(data, header, "time")
    if times is None:
        return pa.array(np.full(header.count, header.base_time, dtype=np.int64))
    return pa.array(_numbers(times, "<i8"))


def _key_hash(data: memoryview, header: Header, _: int) -> pa.Array:
    hashes = batch.column(data, header, "key_hash")
    lengths = batch.column(data, header, "key_length")
    if hashes is None or lengths is None:
        return pa.nulls(header.count, pa.int64())
    return pa.array(_numbers(hashes, "<i8"), mask=_numbers(lengths, "<u4") == 0)


def _blobs(data: memoryview, lengths: memoryview, start: int, *, zero_is_null: bool) -> pa.Array:
    sizes = _numbers(lengths, "<u4")
    ends = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=ends[1:])
    assert ends[-1] <= _INT32_MAX, "a batch is shorter than 2 GiB"
    present = np.packbits(sizes > 0, bitorder="little") if zero_is_null else None
    return pa.BinaryArray.from_buffers(
        pa.binary(),
        len(sizes),
        [
            None if present is None else pa.py_buffer(present),
            pa.py_buffer(ends.astype(np.int32)),
            pa.py_buffer(data[start : start + int(ends[-1])]),
        ],
    )


def _key(data: memoryview, header: Header, _: int) -> pa.Array:
    lengths = batch.column(data, header, "key_length")
    if lengths is None:
        return pa.nulls(header.count, pa.binary())
    start = blobs_start(data, header) + header.body_bytes
    return _blobs(data, lengths, start, zero_is_null=True)


def _body(data: memoryview, header: Header, _: int) -> pa.Array:
    lengths = batch.column(data, header, "body_length")
    assert lengths is not None
    return _blobs(data, lengths, blobs_start(data, header), zero_is_null=False)


def _body_hash(data: memoryview, header: Header, _: int) -> pa.Array:
    hashes = np.fromiter(
        map(xxh3_64_intdigest, Batch(data, header).bodies()), np.uint64, header.count
    )
    return pa.array(hashes.view(np.int64))


def _text(value: HeaderValue) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


def _headers(data: memoryview, header: Header, _: int) -> pa.Array:
    maps = [
        [(name, _text(value)) for name, value in headers.items()]
        for headers in Batch(data, header).headers()
    ]
    return pa.array(maps, type=pa.map_(pa.string(), pa.string()))


_OF_MESSAGE: Final[dict[str, _Make]] = {
    "offset": _offset,
    "sequence": _sequence,
    "size": _size,
    "time_us": _time_us,
    "key": _key,
    "key_hash": _key_hash,
    "headers": _headers,
    "body": _body,
    "body_hash": _body_hash,
}


def message_columns(
    rows: Iterable[BatchRow], schema: pa.Schema, rows_at_once: int
) -> Iterator[pa.RecordBatch]:
    """The messages of the batches, some whole batches at once."""
    waiting: list[BatchRow] = []
    count = size = 0
    for row in rows:
        waiting.append(row)
        count += _messages_in(row)
        size += row.size
        if count >= rows_at_once or size >= PORTION_BYTES:
            yield _joined(waiting, schema)
            waiting, count, size = [], 0, 0
    if waiting:
        yield _joined(waiting, schema)


def _joined(rows: list[BatchRow], schema: pa.Schema) -> pa.RecordBatch:
    counts = [_messages_in(row) for row in rows]
    repeated = pa.array(np.repeat(np.arange(len(rows)), counts))
    arrays = []
    for field in schema:
        make = _OF_MESSAGE.get(field.name)
        if make is None:
            extract = BATCH[field.name]
            shared = pa.array([extract(row) for row in rows], type=field.type)
            arrays.append(shared.take(repeated))
        else:
            arrays.append(_concatenated(rows, make, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _messages_in(row: BatchRow) -> int:
    """A batch that cannot be trusted is one row, which says why."""
    return 1 if row.header is None or row.error else row.header.count


def _concatenated(rows: list[BatchRow], make: _Make, kind: pa.DataType) -> pa.Array:
    parts = []
    for row in rows:
        if row.header is None or row.error:
            parts.append(pa.nulls(1, kind))
        else:
            parts.append(make(row.data, row.header, row.stamp.base_offset).cast(kind))
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
