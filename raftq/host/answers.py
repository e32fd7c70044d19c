"""What a replica gives others that lost something: the answering half of repair.

Rules

1. Questions are answered whatever state this replica is in: what it gives is proved by who asked.
2. One answer is bounded, and leaves when the node's budget for replicas that catch up allows it. Of
   each asker only the newest question waits; it asks one at a time.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from raftq.errors import Corrupted
from raftq.host.catch_up import CatchUpShare
from raftq.ids import Index, Micros, ReplicaId
from raftq.limits import REPAIR_ANSWER_BYTES, SNAPSHOT_CHUNK_BYTES
from raftq.raft.membership import encode
from raftq.storage.suffix import suffix
from raftq.wire.repair_messages import (
    EntriesGiven,
    EntriesWanted,
    RepairMessage,
    SnapshotGiven,
    SnapshotWanted,
)

if TYPE_CHECKING:
    from raftq.host.group import Group


class Answers:
    """One group's."""

    def __init__(
        self, group: "Group", send: Callable[[RepairMessage], None], share: CatchUpShare
    ) -> None:
        self._group = group
        self._send = send
        self._share = share
        self._questions: dict[ReplicaId, EntriesWanted | SnapshotWanted] = {}

    @property
    def deadline(self) -> Micros:
        return self._share.deadline

    def step(self, question: EntriesWanted | SnapshotWanted) -> None:
        self._questions[question.sender] = question

    def tick(self, now: Micros) -> None:
        """Answer what may be answered now."""
        if not self._share.wake(now):
            return
        while self._questions and self._share.may_spend():
            question = self._questions.pop(next(iter(self._questions)))
            if isinstance(question, EntriesWanted):
                size = self._give_entries(question)
            else:
                size = self._give_snapshot(question)
            self._share.spent(size)

    def _give_entries(self, message: EntriesWanted) -> int:
        group = self._group
        found = suffix(group.log, message.first, message.last, REPAIR_ANSWER_BYTES)
        chain, entries = found if found is not None else (b"", ())
        self._send(
            EntriesGiven(
                group.replica, message.sender, message.number, message.last, chain, entries
            )
        )
        return sum(entry.size for entry in entries)

    def _give_snapshot(self, message: SnapshotWanted) -> int:
        group = self._group
        meta = group.log.snapshot
        data, done = b"", False
        if not message.index or message.index == meta.index:
            try:
                data, done = group.log.snapshots.read_bytes(
                    meta.index, message.position, SNAPSHOT_CHUNK_BYTES
                )
            except (LookupError, Corrupted, OSError):
                data = b""
        self._send(
            SnapshotGiven(
                group.replica,
                message.sender,
                message.number,
                meta.index if data else Index(0),
                meta.term,
                meta.log_time,
                meta.chain,
                message.position,
                encode(meta.membership),
                data,
                done,
            )
        )
        return len(data)
