"""The client's ledger as a table: which messages a client was told are safe.

JSON lines, the first of which names the format, or Parquet; a range of messages a row. A row is
written when its acknowledgement has come. So what is in the ledger must be in the log; what is in
the log may be missing here, unless whoever wrote it says that it is complete.

    queue, partition, base_offset, count     which messages, by their offsets
    index, chain                             the entry that holds them, and the hash chain there
    group                                    the group of that log; -1: not noted
    digest                                   xxh3-64 of their bodies, joined; null: not noted
    producer, epoch, sequence                who published them; producer 0: not noted

A line that was cut off at the end (the client was killed) is no row. It is read where the audit is
started, not on Spark's workers: that is where clients leave it.
"""

import json
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet

from raftq.errors import InvalidArgument
from raftq.spark.tables import signed

FORMAT: Final = "raftq-ledger"
VERSION: Final = 1

_REQUIRED: Final = ("queue", "partition", "base_offset", "count", "index", "chain")
_OPTIONAL: Final = {"group": -1, "digest": None, "producer": 0, "epoch": 0, "sequence": 0}
_SCHEMA: Final = pa.schema(
    [(name, pa.binary() if name == "chain" else pa.int64()) for name in (*_REQUIRED, *_OPTIONAL)]
)


def read_ledger(path: str | Path) -> pa.Table:
    """The rows of a ledger; producers and sequences as the tables of the log have them.

    Raises: InvalidArgument when the file is no ledger, or a line of it is no row.
    """
    path = Path(path)
    try:
        is_parquet = path.suffix == ".parquet"
        rows = parquet.read_table(path).to_pylist() if is_parquet else _lines(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise InvalidArgument(f"the ledger {path} cannot be read: {error}") from error
    columns: dict[str, list[Any]] = {name: [] for name in _SCHEMA.names}
    for number, row in enumerate(rows, 1):
        try:
            for name in _REQUIRED:
                columns[name].append(row[name])
            for name, default in _OPTIONAL.items():
                columns[name].append(row.get(name, default))
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidArgument(f"row {number} of the ledger {path} is none: {error}") from error
    try:
        columns["chain"] = [_bytes(chain) for chain in columns["chain"]]
        for name in ("producer", "sequence"):
            columns[name] = [signed(value or 0) for value in columns[name]]
        return pa.table(columns, schema=_SCHEMA)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidArgument(f"the ledger {path} has a value of another kind: {error}") from error


def _bytes(chain: str | bytes) -> bytes:
    return bytes.fromhex(chain) if isinstance(chain, str) else bytes(chain)


def _lines(path: Path) -> list[Any]:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    header = _parsed(lines[0], path, 1) if lines else None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise InvalidArgument(f"{path} is no ledger: its first line does not say {FORMAT!r}")
    if header.get("version") != VERSION:
        raise InvalidArgument(f"{path} is a ledger of another version than {VERSION}")
    return [
        _parsed(line, path, number) for number, line in enumerate(lines[1:], 2) if line[-1] == "\n"
    ]


def _parsed(line: str, path: Path, number: int) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise InvalidArgument(f"line {number} of {path} is no row of a ledger: {error}") from error
