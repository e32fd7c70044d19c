"""The ledger: what was acknowledged to a client, written down by the client for an audit.

A text file of JSON lines. The first line is the header, every other one a range of messages that
were acknowledged together: neighbours in one partition, in one entry of its group's log.

    {"format": "raftq-ledger", "version": 1, "cluster": "<32 hex digits, or empty>"}
    {"queue": 3, "partition": 0, "base_offset": 1200, "count": 480, "group": 2, "term": 4,
     "index": 97, "chain": "<32 hex digits>", "digest": -81985529216486896, "bytes": 65540,
     "producer": 0, "epoch": 0, "sequence": 0}

    queue, partition      the queue's id, and the partition
    base_offset, count    the offsets base_offset .. base_offset + count - 1 were acknowledged
    group                 the group that hosts the partition; -1 where the client did not note it
    term, index, chain    the entry that holds them, and the hash chain of the group's log there
    digest                xxh3-64, as a signed 64-bit integer, of the bodies joined in the order of
                          their offsets
    bytes                 the length of the joined bodies
    producer, epoch,      who published the batch and under which number; producer 0 stands for "not
    sequence              noted"

Rules

1. A row is written when its acknowledgement has come, never before: a range in the ledger that is
   not in the log is a lost message. What is missing here may be in the log all the same.
2. Rows come in any order. No offset of a partition is in two rows, unless the log itself is broken.
3. A line that is cut off at the end (the client was killed) is no row.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from raftq.errors import Corrupted

FORMAT: Final = "raftq-ledger"
VERSION: Final = 1
NO_GROUP: Final = -1


class LedgerRow(NamedTuple):
    """One range of acknowledged messages."""

    queue: int
    partition: int
    base_offset: int
    count: int  # type: ignore[assignment]  # Hides tuple.count, which nobody asks a row for.
    group: int
    term: int
    index: int  # type: ignore[assignment]  # As above.
    chain: str
    digest: int
    bytes: int
    producer: int = 0
    epoch: int = 0
    sequence: int = 0


def digest_of(bodies: Iterable[bytes]) -> int:
    """The digest of a range, as it stands in a row."""
    unsigned = xxh3_64_intdigest(b"".join(bodies))
    return unsigned - (1 << 64) if unsigned >= 1 << 63 else unsigned


def write_ledger(path: Path, rows: Iterable[LedgerRow], *, cluster: str = "") -> int:
    """Write a whole ledger; returns how many rows it has."""
    count = 0
    with path.open("w", encoding="ascii") as file:
        header = {"format": FORMAT, "version": VERSION, "cluster": cluster}
        file.write(json.dumps(header) + "\n")
        for row in rows:
            file.write(json.dumps(row._asdict()) + "\n")
            count += 1
    return count


def read_ledger(path: Path) -> Iterator[LedgerRow]:
    """The rows of a ledger.

    Raises: Corrupted, OSError.
    """
    lines = path.read_text(encoding="ascii").splitlines(keepends=True)
    if not lines or _parsed(lines[0], path, 1).get("format") != FORMAT:
        raise Corrupted(f"{path} is not a ledger: its first line does not say {FORMAT!r}")
    if _parsed(lines[0], path, 1).get("version") != VERSION:
        raise Corrupted(f"{path} is a ledger of another version than {VERSION}")
    yield from _rows(lines[1:], path)


def _rows(lines: Sequence[str], path: Path) -> Iterator[LedgerRow]:
    for number, line in enumerate(lines, 2):
        if not line.endswith("\n"):
            return
        try:
            yield LedgerRow(**_parsed(line, path, number))  # type: ignore[arg-type]
        except TypeError as error:
            raise Corrupted(f"{path}, line {number}: {error}") from error


def _parsed(line: str, path: Path, number: int) -> dict[str, object]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise Corrupted(f"{path}, line {number}: {error}") from error
    if not isinstance(value, dict):
        raise Corrupted(f"{path}, line {number}: a row is an object")
    return value
