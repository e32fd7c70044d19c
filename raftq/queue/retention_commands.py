"""The commands by which a group lets go of history, and how their headers are written.

The host of the leader proposes them, without a session. Their bytes stand in `command_layout`, what
they mean in the package's docstring.
"""

from collections.abc import Iterable
from typing import NamedTuple

from raftq.ids import Index, Offset, Partition, QueueId
from raftq.limits import FORMAT_VERSION
from raftq.machine import Bound
from raftq.queue import command_layout as layout
from raftq.queue.command_packing import Names, packed


class Outcome(NamedTuple):
    """How many messages ended in the same way for one subscription."""

    subscription: str
    outcome: str
    """"settled", or the reason for which they were discarded."""
    messages: int


class ReleasedRange(NamedTuple):
    """Of one partition: the offsets [before, offset) are released, and what had become of them."""

    queue: QueueId
    partition: Partition
    before: Offset
    offset: Offset
    outcomes: tuple[Outcome, ...]


class ReleaseHistory(NamedTuple):
    """All entries up to `through` may go. It is also the summary that stays of them."""

    after: Index
    chain_after: bytes
    """The release before this one: they are chained, and none can be left out unnoticed."""
    through: Index
    chain: bytes
    ranges: tuple[ReleasedRange, ...]
    """Ascending by queue and partition."""


class Expire(NamedTuple):
    """Partitions that are logs forget what lies below."""

    bounds: tuple[Bound, ...]
    """Ascending by queue and partition."""


def encode_release_history(command: ReleaseHistory) -> bytes:
    names = Names()
    rows, outcomes = [], []
    for queue, partition, before, offset, found in command.ranges:
        where = (queue, partition, before, offset)
        rows.append(packed(layout.RELEASED_STRUCT, *where, len(found)))
        outcomes += [
            packed(layout.OUTCOME_STRUCT, names.number(row[0]), names.number(row[1]), row[2])
            for row in found
        ]
    head = packed(
        layout.RELEASE_HISTORY_STRUCT,
        layout.RELEASE_HISTORY,
        FORMAT_VERSION,
        len(names),
        len(rows),
        command.after,
        command.chain_after,
        command.through,
        command.chain,
    )
    return b"".join((head, *rows, *outcomes, names.encoded()))


def encode_expire(bounds: Iterable[Bound]) -> bytes:
    rows = [packed(layout.BOUND_STRUCT, *bound) for bound in bounds]
    return b"".join((packed(layout.EXPIRE_STRUCT, layout.EXPIRE, FORMAT_VERSION, len(rows)), *rows))
