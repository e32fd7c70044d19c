"""Replicas that have let go of history, by the storage's own hand, and the machine that allowed it."""

from spark_replicas import QUEUE, Author, Writer

from raftq.batch import read_stamp
from raftq.ids import Index, ReplicaId, Term
from raftq.machine import Bound, Meta
from raftq.queue import commands
from raftq.queue.config import QueueConfig
from raftq.queue.machine import QueueMachine
from raftq.raft.entry import COMMANDS, Command
from raftq.raft.entry import commands as commands_of
from raftq.raft.membership import Membership
from raftq.raft.ready import SnapshotMeta
from raftq.storage.batch_index import stamped

MEMBERS = Membership((ReplicaId(1), ReplicaId(2), ReplicaId(3)))
PRODUCER = 5
SEGMENT = 4_096
BODIES = [b"a body of some length %d" % number for number in range(6)]


class Leader(Author):
    """Makes entries as its machine would let it, and keeps a snapshot of every state."""

    def __init__(self, partitions=2):
        super().__init__()
        self.machine = QueueMachine()
        self.snapshots = [list(self.machine.snapshot())]
        self.sequences = {}
        self.noop()
        config = QueueConfig.from_user({"partitions": partitions})
        configure = [
            Command(commands.encode_configure(QUEUE, partition, 1, config))
            for partition in range(partitions)
        ]
        self.add(*configure)

    def add(self, *entry_commands, kind=COMMANDS):
        entry = super().add(*entry_commands, kind=kind)
        self.replies = [
            self.machine.apply(
                Meta(entry.index, entry.term, entry.log_time, position), header, body
            ).reply
            for position, (header, body) in enumerate(entry_commands)
        ]
        refused = [reply for reply in self.replies if isinstance(reply, Exception)]
        assert not refused, refused
        self.snapshots.append(list(self.machine.snapshot()))
        return entry

    def send(self, partition=0):
        """One batch of some messages, as a producer sends it."""
        sequence = self.sequences.get(partition, 0)
        self.sequences[partition] = sequence + len(BODIES)
        return self.publish(
            {
                "bodies": BODIES,
                "partition": partition,
                "producer": PRODUCER,
                "sequence": sequence,
                "keys": [b"k"] * len(BODIES),
            }
        )

    def settle(self, partition=0):
        """All that was published there is done with."""
        return self.add(
            Command(commands.encode_purge(0, 0, 0, 0, queue=QUEUE, partition=partition))
        )

    def release(self, through):
        bounds = [
            Bound(QUEUE, partition, self.machine.describe(QUEUE, partition).needed_from)
            for partition in (0, 1)
        ]
        for entry in reversed(self.entries[through:]):
            for bound in self.published(entry):
                bounds[bound.partition] = bound
        chain = self.chain_at(through)
        return self.add(Command(self.machine.release_command(through, chain, tuple(bounds))))

    def published(self, entry):
        for header, _ in commands_of(entry):
            if stamped(header):
                stamp = read_stamp(header)
                yield Bound(stamp.queue, stamp.partition, stamp.base_offset)

    def chain_at(self, index):
        return self.entries[index - 1].chain if index else bytes(16)


def build(count=40):
    """Two partitions; all that is in the first is settled, and half of the second."""
    leader = Leader()
    for number in range(count):
        leader.send(partition=number % 2)
        if number == count // 2:
            leader.settle(1)
    leader.settle(0)
    return leader


def first_needed(leader, partition=1):
    """The last entry before the first one that holds a message that is needed."""
    needed = leader.machine.describe(QUEUE, partition).needed_from
    return next(
        entry.index - 1
        for entry in leader.entries
        if Bound(QUEUE, partition, needed) in leader.published(entry)
    )


def released_leader():
    """`build`, and the command that releases what lies before the first message that is needed."""
    leader = build()
    leader.release(first_needed(leader))
    for _ in range(8):
        leader.send()
    return leader


class Replica(Writer):
    """One replica of a leader's log, which then lets go of what it is told."""

    def __init__(self, root, leader, *, snapshots=(-6, -3)):
        super().__init__(root, segment_bytes=SEGMENT)
        self.leader = leader
        last = len(leader.entries)
        for index, entry in enumerate(leader.entries):
            self.write([entry], commit=leader.entries[index - 1] if index else None)
        for place in snapshots:
            self.snapshot(last + place)

    def snapshot(self, index):
        leader = self.leader
        log_time = leader.entries[index - 1].log_time
        meta = SnapshotMeta(Index(index), Term(1), leader.chain_at(index), log_time, MEMBERS)
        over = []
        writer = self.log.begin_snapshot(meta, lambda: over.append(True))
        for piece in leader.snapshots[index]:
            writer.write(piece)
        writer.finish()
        self.disk.complete()
        assert over == [True]
        assert writer.problem is None

    def pack(self, judge=None):
        machine = self.leader.machine

        def is_settled(queue, partition, start, stop, _published):
            return machine.is_settled(queue, partition, start, stop)

        for _ in self.log.compaction.passes(judge or is_settled):
            self.disk.complete()
        self.disk.complete()
        return self

    def release(self, through=None, chain=None):
        released, released_chain = self.leader.machine.released
        assert self.log.compaction.release(Index(through or released), chain or released_chain)
        self.disk.complete()
        return self

    def end(self):
        self.close(self.leader.last)
        return self
