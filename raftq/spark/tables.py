"""The tables of the data source: their columns, and why each is there.

    replicas   one row a replica: what its files hold, and what is wrong with them
    entries    one row a log entry
    batches    one row a stored publish: the header of its batch, and whether its bytes are right
    messages   one row a message

Rules:

1. What is asked for is what is computed: Spark's Python readers know no column pruning, so the
   schema that the user gives is the projection. `schema_of(table, columns)` makes one.
2. Unsigned 64-bit numbers (checksums, hashes, producers) have no Spark type. They keep their bits
   and become BIGINT; `signed` does the same to a number from elsewhere.
3. `marked` is false behind the commit mark: the entry is there, and was acknowledged or not.
4. `digest` is the xxh3-64 of a batch's bodies, joined. A *run* are the neighbours of one partition in
   one entry: what one acknowledgement may have covered. Ledgers name digests of such ranges.
5. `batches` of an entry are its rows of the table of batches: both tables in one reading.
6. What was released (`docs/STORAGE_FORMAT.md`, Letting go) is told, not guessed. A log that begins
   behind entry `base_index` has no rows up to there. A batch whose body gave way to its digest is a
   row with what its stamp says (queue, partition, base_offset, count) and `body_released`; what only
   the body knew is null. It has no rows in `messages`.
7. `error` is null but for `onError=row`, where it says why the rest of a row is missing.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from raftq.errors import InvalidArgument

REPLICAS: Final = "replicas"
ENTRIES: Final = "entries"
BATCHES: Final = "batches"
MESSAGES: Final = "messages"

_NODE: Final[dict[str, DataType]] = {"node": StringType(), "group": LongType()}
_ENTRY: Final[dict[str, DataType]] = {
    "index": LongType(),
    "term": LongType(),
    "log_time": TimestampType(),
}
_PUBLISH: Final[dict[str, DataType]] = {
    "queue": LongType(),
    "partition": LongType(),
    "base_offset": LongType(),
    "count": IntegerType(),
    "producer": LongType(),
    "epoch": LongType(),
    "sequence": LongType(),
}
_LAST: Final[dict[str, DataType]] = {"marked": BooleanType(), "error": StringType()}

_DIGESTS: Final[dict[str, DataType]] = {
    "digest": LongType(),
    "run_offset": LongType(),
    "run_count": LongType(),
    "run_digest": LongType(),
}
_IN_ENTRY: Final[dict[str, DataType]] = {
    **_PUBLISH,
    "checksum_ok": BooleanType(),
    "body_released": BooleanType(),
    **_DIGESTS,
    "error": StringType(),
}

_COLUMNS: Final[dict[str, dict[str, DataType]]] = {
    REPLICAS: {
        **_NODE,
        "directory": StringType(),
        "condition": StringType(),
        "problems": ArrayType(StringType()),
        "running": BooleanType(),
        "base_index": LongType(),
        "base_chain": BinaryType(),
        "base_log_time": TimestampType(),
        "first_index": LongType(),
        "last_index": LongType(),
        "commit_index": LongType(),
        "marked_through": LongType(),
        "segments": IntegerType(),
        "bytes": LongType(),
    },
    ENTRIES: {
        **_NODE,
        **_ENTRY,
        "kind": StringType(),
        "commands": IntegerType(),
        "bodies_released": IntegerType(),
        "size": IntegerType(),
        "chain": BinaryType(),
        "chain_ok": BooleanType(),
        "segment": LongType(),
        "position": LongType(),
        "batches": ArrayType(StructType([StructField(*item) for item in _IN_ENTRY.items()])),
        **_LAST,
    },
    BATCHES: {
        **_NODE,
        **_ENTRY,
        **_PUBLISH,
        "payload_bytes": LongType(),
        "checksum": LongType(),
        "checksum_ok": BooleanType(),
        "body_released": BooleanType(),
        "chain": BinaryType(),
        "chain_ok": BooleanType(),
        **_DIGESTS,
        **_LAST,
    },
    MESSAGES: {
        **_NODE,
        **_ENTRY,
        **{name: kind for name, kind in _PUBLISH.items() if name not in {"base_offset", "count"}},
        "offset": LongType(),
        "key": BinaryType(),
        "key_hash": LongType(),
        "headers": MapType(StringType(), StringType()),
        "time_us": LongType(),
        "size": IntegerType(),
        "body": BinaryType(),
        "body_hash": LongType(),
        **_LAST,
    },
}

_ON_REQUEST: Final = frozenset(
    {"batches", "body", "body_hash", "digest", "headers", "run_count", "run_digest", "run_offset"}
)
"""What costs a pass over the bodies, or a step of Python a message, is not given unasked."""

TABLES: Final = tuple(_COLUMNS)


def columns_of(table: str) -> tuple[str, ...]:
    """All columns of a table.

    Raises: InvalidArgument.
    """
    if table not in _COLUMNS:
        raise InvalidArgument(f"there is no table {table!r}; choose one of {', '.join(TABLES)}")
    return tuple(_COLUMNS[table])


def schema_of(table: str, columns: Sequence[str] | None = None) -> StructType:
    """The schema with these columns, in this order; without any, all but the costly ones.

    Raises: InvalidArgument.
    """
    known = columns_of(table)
    if columns is None:
        columns = [name for name in known if name not in _ON_REQUEST]
    unknown = [name for name in columns if name not in known]
    if unknown:
        raise InvalidArgument(
            f"table {table!r} has no column {', '.join(unknown)}; it has {', '.join(known)}"
        )
    types = _COLUMNS[table]
    return StructType([StructField(name, types[name]) for name in columns])


def signed(value: int) -> int:
    """An unsigned 64-bit number as BIGINT has it."""
    return value - (1 << 64) if value >> 63 else value
