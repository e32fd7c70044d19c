"""Small real replicas for tests: logs written by the storage itself, of content that is known."""

import pickle
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from raftq import batch
from raftq.batch import key_hash
from raftq.env.clock import RealClock
from raftq.env.disk import RealDisk
from raftq.ids import Index, ReplicaId, Term, WriteSeq
from raftq.raft.entry import COMMANDS, GENESIS, NOOP, Command, build
from raftq.raft.membership import Membership
from raftq.raft.ready import Write
from raftq.spark.source import RaftqDataSource
from raftq.spark.tables import columns_of, schema_of
from raftq.storage.group_log import GroupLog, Sizes

LOG_TIME = 1_700_000_000_000_000
QUEUE = 7


class Author:
    """Makes entries like a leader: chained, stamped, with gapless offsets per partition."""

    def __init__(self):
        self.entries = []
        self.term = 1
        self.offsets = {}

    def copy(self):
        other = Author()
        other.entries = list(self.entries)
        other.term = self.term
        other.offsets = dict(self.offsets)
        return other

    @property
    def last(self):
        return self.entries[-1]

    def add(self, *commands, kind=COMMANDS):
        index = len(self.entries) + 1
        entry = build(
            previous_chain=self.entries[-1].chain if self.entries else GENESIS,
            index=Index(index),
            term=Term(self.term),
            kind=kind,
            log_time=LOG_TIME + 1_000 * index,
            commands=commands,
        )
        self.entries.append(entry)
        return entry

    def noop(self):
        return self.add(kind=NOOP)

    def publish(self, *batches):
        """One entry of these batches, each the arguments of `command`."""
        return self.add(*(self.command(**arguments) for arguments in batches))

    def command(
        self, bodies, *, queue=QUEUE, partition=0, offset=None, damage=None, count=None, **header
    ):
        place = (queue, partition)
        base = self.offsets.get(place, 0) if offset is None else offset
        data = batch.encode(bodies, queue=queue, partition=partition, **header)
        if damage is not None:
            data = bytearray(data)
            data[damage] ^= 0x40
            data = bytes(data)
        self.offsets[place] = base + len(bodies)
        return Command(batch.encode_stamp(queue, partition, base, count or len(bodies)), data)


class LooplessDisk(RealDisk):
    """A real disk without an event loop: completions of syncs wait until `complete`."""

    def __init__(self, root):
        super().__init__(root, sync_method="threads")
        self.waiting = []
        self._sync_with = lambda _, done: self.waiting.append(done)

    def complete(self):
        while self.waiting:
            self.waiting.pop(0)(None)

    def prepare(self, path, size, done, *, written):
        self._make(self._full(path), size, written)
        self.waiting.append(done)


class Writer:
    """Writes entries into a replica's directory as a follower would; one write is one unit."""

    def __init__(self, root, group=1, *, voters=3, incarnation=None, segment_bytes=1 << 20):
        self.disk = LooplessDisk(str(root))
        self.log = GroupLog.create(
            self.disk,
            RealClock(),
            f"group-{group}",
            incarnation=incarnation or key_hash(str(root).encode()) or 1,
            boot=1,
            membership=Membership(tuple(ReplicaId(n + 1) for n in range(voters))),
            sizes=Sizes(segment_bytes, segment_bytes, 0),
        )
        self.sequence = self.log.state.last_write

    def write(self, entries, *, commit=None, truncate_from=0, term=None):
        """`commit` is the entry that is known to be committed."""
        entries = tuple(entries)
        self.sequence += 1
        last = entries[-1]
        self.log.write(
            Write(
                seq=WriteSeq(self.sequence),
                reset=None,
                truncate_from=Index(truncate_from),
                entries=entries,
                term=Term(term or last.term),
                vote=ReplicaId(0),
                last_index=last.index,
                last_term=last.term,
                last_chain=last.chain,
                commit_index=commit.index if commit else Index(0),
                commit_chain=commit.chain if commit else GENESIS,
            )
        )
        self.disk.complete()

    def close(self, commit=None):
        """`commit` marks what the last unit could not know yet."""
        if commit is not None:
            self.log.set_commit(commit.index, commit.chain)
        self.log.close()
        self.disk.unlock()


@contextmanager
def reopened(root, group=1):
    """The log that `write_replica` left, and its disk."""
    disk = LooplessDisk(str(root))
    incarnation = key_hash(str(root).encode()) or 1
    directory = f"group-{group}"
    log = GroupLog.open(disk, RealClock(), directory, incarnation=incarnation, boot=1)
    yield log, disk
    log.close()
    disk.unlock()


def write_replica(root, entries, *, group=1, unit=3, commit=None, **options):
    """A whole replica: units of some entries, each telling that those before it are committed.

    With `commit`, nothing is known to be committed behind that entry.
    """
    commit = entries[-1] if commit is None else commit
    writer = Writer(root, group, **options)
    for start in range(0, len(entries), unit):
        known = entries[min(start, commit.index) - 1] if start else None
        writer.write(entries[start : start + unit], commit=known)
    writer.close(commit)


def write_cluster(root, author, *, nodes=3, **options):
    """The same log on some nodes."""
    for number in range(1, nodes + 1):
        write_replica(root / f"n{number}", author.entries, **options)


def read(path, table, columns=None, *, filters=(), **options):
    """A table by the reader alone, as Spark would drive it; through pickle, as Spark does."""
    schema = schema_of(table, columns_of(table) if columns is None else columns)
    source = RaftqDataSource({"path": str(path), "table": table, **options})
    reader = source.reader(schema)
    assert list(reader.pushFilters(list(filters))) == []
    partitions = reader.partitions()
    reader = pickle.loads(pickle.dumps(reader))
    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    batches = [
        batch
        for partition in partitions
        for batch in reader.read(pickle.loads(pickle.dumps(partition)))
    ]
    return pa.Table.from_batches(batches, arrow_schema)


def rows(path, table, columns=None, **options):
    """The same as a list of tuples, or of values when one column is asked for."""
    found = read(path, table, columns, **options).to_pydict()
    return list(
        next(iter(found.values())) if len(found) == 1 else zip(*found.values(), strict=True)
    )


def segments(root, group=1):
    return sorted((root / f"group-{group}").glob("segment-*.log"))


def flip(path, what, *, after=0):
    """Damage the first byte of `what` in a file."""
    data = bytearray(path.read_bytes())
    at = bytes(data).index(what, after)
    data[at] ^= 0x01
    path.write_bytes(bytes(data))
