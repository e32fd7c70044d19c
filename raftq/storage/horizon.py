"""What a log has let go of: the file `horizon` beside the segments, and what it adds up to.

A log begins behind its *base*, and is read from its segments, but for *packed* ones: their entries
were written anew (`patch.py`), shorter, with digests in the place of the bodies that nobody needs,
and their files are gone. The file is a small file (`small_file.py`) with this payload:

     0        4         8                16              24
     +--------+---------+----------------+---------------+----------------------------------+
     | packed | base    | reset_index    | zeros         | base: a reset record (`unit.py`) |
     | u32    | bytes   | u64            | u64           |                                  |
     +--------+---------+----------------+---------------+----------------------------------+
     | packed x { sequence u64 | continues_segment u64 | continues_position u64             |
     |            | first u64 | last u64 }                                                  |
     +--------------------------------------------------------------------------------------+

Rule 1. `base`: entries up to there were released by a command in the log; nobody asks for them.
Rule 2. `reset_index`: where it is not 0, the Reset there (a snapshot that was installed) begins no
        new log: what lies between the base and it is this log's too, and is fetched from the others.
Rule 3. A packed item stands for the segments from `sequence` back to the one that continued
        `continues_segment`, where the list goes on. Of their entries [first, last] are the log's,
        and stand in patches; nothing does where first > last. What older segments hold from `first`
        on was truncated there.
Rule 4. A file is removed only when the horizon that says so, and the patches in its place, are
        durable. If the horizon is lost, a packed segment looks like one that damage took: patches
        fill that hole, and what was released is let go of again, when the machine is there.
Rule 5. A packed segment is older than one with a unit that is known to be synced: term and vote
        are never taken from a horizon.
"""

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class, only named like a module.
from typing import Final, NamedTuple

from raftq.env import Disk
from raftq.errors import Corrupted
from raftq.ids import Index
from raftq.raft.ready import SnapshotMeta
from raftq.storage import small_file
from raftq.storage.unit import decode_reset, encode_reset

HORIZON: Final = "horizon"
_HEAD: Final = Struct("<IIQ8x")
_ITEM: Final = Struct("<QQQQQ")


class Packed(NamedTuple):
    """Segments that are gone; see rule 3."""

    sequence: int
    continues_segment: int
    continues_position: int
    first: Index
    last: Index

    @property
    def is_empty(self) -> bool:
        return self.first > self.last


@dataclass(frozen=True, slots=True)
class Horizon:
    """The contents of the file; that of a log that lets go of nothing is None, and has no file."""

    base: SnapshotMeta
    reset_index: Index
    packed: tuple[Packed, ...]
    """Ascending by sequence; no two of them follow each other."""

    def with_packed(self, added: Packed) -> "Horizon":
        """One more; neighbours become one."""
        items: list[Packed] = []
        for item in sorted([*self.packed, added]):
            if items and item.continues_segment == items[-1].sequence:
                items[-1] = _joined(items[-1], item)
            else:
                items.append(item)
        return Horizon(self.base, self.reset_index, tuple(items))

    def with_base(self, base: SnapshotMeta) -> "Horizon":
        """The log begins later. What was fetched of a Reset, and released since, is no matter."""
        reset_index = Index(0) if self.reset_index <= base.index else self.reset_index
        return Horizon(base, reset_index, self.packed)


def _joined(older: Packed, newer: Packed) -> Packed:
    parts = [part for part in (older, newer) if not part.is_empty]
    return Packed(
        newer.sequence,
        older.continues_segment,
        older.continues_position,
        min((part.first for part in parts), default=Index(1)),
        parts[-1].last if parts else Index(0),
    )


def encode(horizon: Horizon) -> bytes:
    base = encode_reset(horizon.base)
    head = _HEAD.pack(len(horizon.packed), len(base), horizon.reset_index)
    return head + base + b"".join(_ITEM.pack(*item) for item in horizon.packed)


def decode(payload: bytes) -> Horizon:
    """The inverse.

    Raises: Corrupted.
    """
    try:
        count, base_bytes, reset_index = _HEAD.unpack_from(payload)
        base = decode_reset(memoryview(payload)[_HEAD.size : _HEAD.size + base_bytes])
        rows = list(_ITEM.iter_unpack(payload[_HEAD.size + base_bytes :]))
    except StructError as error:
        raise Corrupted(f"a horizon is cut short: {error}") from error
    if len(rows) != count:
        raise Corrupted(f"a horizon claims {count} packed segments and has {len(rows)}")
    return Horizon(base, Index(reset_index), tuple(Packed._make(row) for row in rows))


def load(disk: Disk, directory: str) -> Horizon | None:
    """Raises: Corrupted, OSError."""
    payload = small_file.load(disk, f"{directory}/{HORIZON}")
    return None if payload is None else decode(payload)


def save(
    disk: Disk, directory: str, horizon: Horizon, done: Callable[[OSError | None], None]
) -> None:
    """Durable when `done` is called without an error."""
    small_file.save_later(disk, f"{directory}/{HORIZON}", encode(horizon), done)
