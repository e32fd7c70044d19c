"""What may be set differently where a node is put together; the defaults are the product's.

Simulations use small values, so that what production does once an hour happens in every run. All
replicas of a cluster need not agree on them; `checkpoint_entries` only says where digests are
compared, and only equal places are.
"""

from dataclasses import dataclass
from typing import Final

from raftq.limits import (
    CHECKPOINT_ENTRIES,
    EXPIRE_EVERY_MICROS,
    RETENTION_EVERY_MICROS,
    SNAPSHOT_EVERY_BYTES,
    SNAPSHOT_EVERY_ENTRIES,
)
from raftq.storage.log_writer import DEFAULT_SIZES, Sizes


@dataclass(frozen=True, slots=True)
class Tuning:
    """When a group takes snapshots and digests and lets go, and how large its log's files are."""

    snapshot_entries: int = SNAPSHOT_EVERY_ENTRIES
    snapshot_bytes: int = SNAPSHOT_EVERY_BYTES
    """A snapshot is taken when the log behind the last one is longer than either."""

    checkpoint_entries: int = CHECKPOINT_ENTRIES
    retention_micros: int = RETENTION_EVERY_MICROS
    """How often a log looks for what may go, if no snapshot makes it look before."""

    expire_micros: int = EXPIRE_EVERY_MICROS
    sizes: Sizes = DEFAULT_SIZES


DEFAULT_TUNING: Final = Tuning()
