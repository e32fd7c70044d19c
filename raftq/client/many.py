"""Many messages at once: checked, cut into batches, and their receipts collected.

Rule: no Python statement per message where there are no keys, and few where there are.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from raftq.batch import Headers, encode_headers
from raftq.client.outgoing import BATCH_BYTES, BATCH_MESSAGES, OutgoingBatch
from raftq.client.receipts import Receipts
from raftq.errors import InvalidArgument, RaftqError
from raftq.ids import Partition
from raftq.limits import MAX_KEY_BYTES
from raftq.placement.partitioner import partition_for
from raftq.wire.requests import Published

NOT_MINE: Final = -1
"""Stands for a message of somebody else in a batch that is shared."""


def as_bytes(body: object) -> bytes:
    """A copy of any buffer: what may still change must not be in a batch.

    Raises: InvalidArgument.
    """
    if isinstance(body, bytes):
        return body
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    raise InvalidArgument(f"a body is bytes, not {type(body).__name__}; encode it first")


def check_extras(
    keys: Sequence[bytes | None] | None, headers: Sequence[Headers | None] | None
) -> None:
    """Keys and headers as a batch wants them: one bad message must not spoil the others.

    Raises: InvalidArgument.
    """
    if keys is not None:
        if set(map(type, keys)) - {bytes, type(None)}:
            raise InvalidArgument("a key is bytes; encode texts first")
        if max(map(len, filter(None, keys)), default=0) > MAX_KEY_BYTES:
            raise InvalidArgument(f"a key has at most {MAX_KEY_BYTES} bytes")
    previous: Headers | None = None
    for item in headers or ():
        if item is not previous:
            if item is not None and not isinstance(item, Mapping):
                raise InvalidArgument(f"headers are a map of names to values, not {item!r:.100}")
            encode_headers(item)
            previous = item


def cut(bodies: Sequence[bytes], size: int, count: int) -> Iterator[tuple[int, int]]:
    """Ranges of at most `count` bodies that end with the one that reaches `size` bytes."""
    ends = list(accumulate(map(len, bodies)))
    start = 0
    while start < len(ends):
        before = ends[start - 1] if start else 0
        stop = min(bisect_right(ends, before + size - 1) + 1, start + count, len(ends))
        yield start, stop
        start = stop


def by_partition(
    keys: Sequence[bytes | None], partitions: int, sticky: int
) -> Iterator[tuple[Partition, list[int]]]:
    """For each partition that gets any: the positions of its messages, ascending."""
    chosen: dict[bytes | None, list[int]] = {}
    lists: dict[Partition, list[int]] = {}
    for position, key in enumerate(keys):
        positions = chosen.get(key)
        if positions is None:
            partition = partition_for(key, partitions, sticky)
            positions = chosen[key] = lists.setdefault(partition, [])
        positions.append(position)
    yield from lists.items()


class Lot(NamedTuple):
    """One batch's share of many messages; `positions` says which, unless they are in order."""

    partition: Partition
    bodies: list[bytes]
    keys: list[bytes | None] | None
    headers: list[Headers | None] | None
    positions: list[int] | None


def divide(
    bodies: Sequence[bytes],
    keys: Sequence[bytes | None] | None,
    headers: Sequence[Headers | None] | None,
    partitions: int,
    sticky: int,
) -> Iterator[Lot]:
    """Batches for all messages: by key, or round the partitions where there are no keys."""
    if keys is None or partitions == 1:
        for start, stop in cut(bodies, BATCH_BYTES, BATCH_MESSAGES):
            sticky += 1
            yield Lot(
                Partition(sticky % partitions),
                list(bodies[start:stop]),
                list(keys[start:stop]) if keys is not None else None,
                list(headers[start:stop]) if headers is not None else None,
                None,
            )
        return
    for partition, positions in by_partition(keys, partitions, sticky):
        theirs = [bodies[position] for position in positions]
        for start, stop in cut(theirs, BATCH_BYTES, BATCH_MESSAGES):
            some = positions[start:stop]
            yield Lot(
                partition,
                theirs[start:stop],
                [keys[position] for position in some],
                [headers[position] for position in some] if headers is not None else None,
                some,
            )


async def collect(batches: list[OutgoingBatch], positions: list[list[int]] | None) -> Receipts:
    """Wait for all batches; their receipts.

    `positions` says which messages are in each batch, unless they are in order.

    Raises: the first error, with the positions of all messages that failed in `failed`.
    """
    published: list[Published] = []
    problem: RaftqError | None = None
    failed: list[int] = []
    begin = 0
    for number, batch in enumerate(batches):
        await batch.wait()
        try:
            published.append(batch.result())
        except RaftqError as error:
            problem = problem or error
            if positions is None:
                failed += range(begin, begin + batch.count)
            else:
                failed += [message for message in positions[number] if message != NOT_MINE]
        begin += batch.count
    if problem is not None:
        problem.failed = tuple(sorted(failed))
        raise problem
    return Receipts(published, positions)
