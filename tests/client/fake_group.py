"""One group of the fake cluster: the real queue machine, applied at once."""

from collections import defaultdict
from dataclasses import dataclass

from raftq import batch
from raftq.machine import Admitted, DuplicateOf, Meta
from raftq.queue import commands
from raftq.queue.config import QueueConfig
from raftq.queue.machine import QueueMachine
from raftq.wire import requests
from raftq.wire.frames import FrameKind

K = FrameKind


class FakeGroup:
    """One group: its machine, and the batches of its log."""

    def __init__(self, cluster, number, leader):
        self.cluster = cluster
        self.number = number
        self.leader = leader
        self.machine = QueueMachine()
        self.admission = self.machine.admission()
        self.index = 0
        self.published = 0
        self.log = defaultdict(list)
        self.watches = []
        self.applied = []

    def apply(self, header, body=b""):
        """Admit and apply one command; its reply, or the error, as a value."""
        now = self.cluster.clock.wall()
        deadline = self.machine.next_deadline()
        if deadline is not None and deadline <= now:
            self.index += 1
            self.machine.apply(Meta(self.index, 1, now, 0), self.machine.tick_command(), b"")
        verdict = self.admission.admit(header, body, self.index + 1, now)
        if isinstance(verdict, DuplicateOf):
            return verdict.reply
        if not isinstance(verdict, Admitted):
            return verdict
        self.index += 1
        applied = self.machine.apply(Meta(self.index, 1, now, 0), verdict.header, body)
        self.admission.applied(self.index)
        self.applied.append(header[0])
        if header[0] == batch.PUBLISH:
            stamp = batch.read_stamp(verdict.header)
            self.published += stamp.count
            self.log[stamp.queue, stamp.partition].append(
                requests.StoredBatch(stamp.partition, stamp.base_offset, now, bytes(body))
            )
        self.cluster.loop.call_soon(self.look)
        return applied.reply

    def look(self):
        """Answer the watches that have something to take."""
        for watch in list(self.watches):
            wanted, answer, _ = watch
            if self.machine.has_ready(wanted.queue, wanted.subscription):
                self.drop(watch)
                answer(K.READY)

    def drop(self, watch):
        if watch in self.watches:
            self.watches.remove(watch)
            watch[2].cancel()

    def tick(self):
        """Let log time pass."""
        self.apply(commands.encode_release(1, 0, goodbye=True))


@dataclass
class FakeQueue:
    name: str
    id: int
    groups: tuple
    config: QueueConfig

    def as_map(self):
        return {
            "name": self.name,
            "id": self.id,
            "config": self.config.to_map(),
            "state": "active",
            "partitions": [
                {"partition": number, "group": group} for number, group in enumerate(self.groups)
            ],
        }
