"""The replicated table, what is derived from it, and its bytes.

A snapshot is a sequence of sections, each `u32 length · CBOR list`:

    [format, cluster (16 bytes), version, next group, next replica, next queue, rows of each kind]
    then rows of nodes (by name), groups and queues (by id), at most 32 to a section

Rules: rows enter by `put_*` alone, which count the version up; what is derived is not in the
snapshot and never decides anything that the rows do not decide.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from struct import Struct as Layout
from typing import Any, Final, TypeVar

import msgspec

from raftq.errors import ClusterMismatch, Corrupted, InvalidArgument
from raftq.ids import METADATA_GROUP, ClusterId, GroupId, NodeIncarnation, QueueId, ReplicaId
from raftq.limits import FORMAT_VERSION, MAX_CBOR_DEPTH
from raftq.metadata import plain
from raftq.metadata.records import Group, Node, Queue, Replica
from raftq.placement import Ring

_LENGTH: Final = Layout("<I")
_SECTION_ROWS: Final = 32
"""A row takes about 10 us to encode, the largest queue 100: a section stays below 5 ms."""

_HEAD_FIELDS: Final = 9
_Row = TypeVar("_Row", Node, Group, Queue)


class Tables:
    """Rows by their keys. Read the attributes; change them by the methods."""

    def __init__(self, cluster: ClusterId, founders: Sequence[tuple[str, NodeIncarnation]]) -> None:
        assert founders, "a cluster has a node"
        ordered = sorted(founders)
        assert len({name for name, _ in ordered}) == len(ordered), "a founder twice"
        self.cluster = cluster
        self.version = 0
        self.next_group = GroupId(1)
        self.next_replica = ReplicaId(len(ordered) + 1)
        self.next_queue = QueueId(1)
        self.nodes = {
            name: Node(name, incarnation, is_founder=True) for name, incarnation in ordered
        }
        replicas = tuple(
            Replica(ReplicaId(number), name, incarnation, "created")
            for number, (name, incarnation) in enumerate(ordered, 1)
        )
        self.groups = {METADATA_GROUP: Group(METADATA_GROUP, "active", replicas)}
        self.queues: dict[QueueId, Queue] = {}
        self._derive()

    def _derive(self) -> None:
        self.names = {queue.name: queue.queue for queue in self.queues.values()}
        self.unfinished: dict[QueueId, None] = {}
        self.load: dict[GroupId, int] = {}
        """Partitions that each group hosts or shall host."""
        for queue in self.queues.values():
            self._count(queue, 1)
            if queue.state != "active":
                self.unfinished[queue.queue] = None
        self._ring: Ring | None = None

    def _count(self, queue: Queue, step: int) -> None:
        for group in queue.groups:
            self.load[group] = self.load.get(group, 0) + step

    # --- Changes ------------------------------------------------------------------------------

    def put_node(self, node: Node) -> None:
        self.nodes[node.name] = node
        self.version += 1

    def put_group(self, group: Group) -> None:
        self.groups[group.group] = group
        self._ring = None
        self.version += 1

    def put_queue(self, queue: Queue) -> None:
        before = self.queues.get(queue.queue)
        if before is None:
            self.names[queue.name] = queue.queue
            self._count(queue, 1)
        else:
            assert before.name == queue.name
            assert before.groups == queue.groups
        self.queues[queue.queue] = queue
        if queue.state == "active":
            self.unfinished.pop(queue.queue, None)
        else:
            self.unfinished[queue.queue] = None
        self.version += 1

    def remove_queue(self, queue: Queue) -> None:
        del self.queues[queue.queue]
        del self.names[queue.name]
        self.unfinished.pop(queue.queue, None)
        self._count(queue, -1)
        self.version += 1

    # --- Questions ----------------------------------------------------------------------------

    def queue_named(self, name: str) -> Queue | None:
        queue = self.names.get(name)
        return None if queue is None else self.queues[queue]

    def ring(self) -> Ring | None:
        """The active groups that host partitions, as a ring; None if there is none."""
        if self._ring is None:
            active = [
                group.group
                for group in self.groups.values()
                if group.group != METADATA_GROUP and group.state == "active"
            ]
            self._ring = Ring(active) if active else None
        return self._ring

    # --- Bytes --------------------------------------------------------------------------------

    def sections(self) -> Iterator[bytes]:
        """The state as of this call, whatever changes while the sections are drawn."""
        nodes = [self.nodes[name] for name in sorted(self.nodes)]
        groups = [self.groups[group] for group in sorted(self.groups)]
        queues = [self.queues[queue] for queue in sorted(self.queues)]
        head = [
            FORMAT_VERSION,
            self.cluster.to_bytes(16, "little"),
            self.version,
            self.next_group,
            self.next_replica,
            self.next_queue,
            len(nodes),
            len(groups),
            len(queues),
        ]
        return _sections(head, [*nodes, *groups, *queues])

    def restore(self, slices: Iterable[bytes]) -> None:
        """Become what `sections` told, however its bytes were cut.

        Raises: Corrupted, ClusterMismatch.
        """
        try:
            self._restore(_items(b"".join(slices)))
        except (InvalidArgument, msgspec.ValidationError) as error:
            raise Corrupted(f"a snapshot of the metadata cannot be read: {error}") from error

    def _restore(self, items: Iterator[Any]) -> None:
        head: list[Any] = [next(items, None) for _ in range(_HEAD_FIELDS)]
        if head[0] != FORMAT_VERSION:
            raise Corrupted(f"a metadata snapshot of format {head[0]}; {FORMAT_VERSION} is known")
        cluster, version, group, replica, queue, *counts = head[1:]
        if cluster != self.cluster.to_bytes(16, "little"):
            raise ClusterMismatch("the metadata snapshot belongs to another cluster")
        nodes = _rows(items, counts[0], Node)
        groups = _rows(items, counts[1], Group)
        queues = _rows(items, counts[2], Queue)
        if next(items, None) is not None:
            raise Corrupted("a metadata snapshot has rows behind its end")
        self.version = version
        self.next_group, self.next_replica = GroupId(group), ReplicaId(replica)
        self.next_queue = QueueId(queue)
        self.nodes = {row.name: row for row in nodes}
        self.groups = {row.group: row for row in groups}
        self.queues = {row.queue: row for row in queues}
        self._derive()


def _sections(head: list[Any], rows: list[Node | Group | Queue]) -> Iterator[bytes]:
    yield _section(head)
    for start in range(0, len(rows), _SECTION_ROWS):
        some = rows[start : start + _SECTION_ROWS]
        yield _section([_values(row) for row in some])


def _values(row: Node | Group | Queue) -> list[Any]:
    """Its fields. Who is leaving is left out where nobody is: such a group keeps its old digest."""
    values: list[Any] = msgspec.to_builtins(row, builtin_types=(bytes,))
    return values[:-1] if isinstance(row, Group) and not row.leaving else values


def _section(values: list[Any]) -> bytes:
    encoded = plain.encode(values)
    return _LENGTH.pack(len(encoded)) + encoded


def _items(data: bytes) -> Iterator[Any]:
    """The values of all sections, one after the other. Raises: InvalidArgument, Corrupted."""
    position = 0
    while position < len(data):
        if len(data) - position < _LENGTH.size:
            raise Corrupted("a metadata snapshot is cut short")
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        values = plain.decode(data[position : position + length], MAX_CBOR_DEPTH)
        if type(values) is not list:
            raise Corrupted("a section of a metadata snapshot is no list")
        yield from values
        position += length


def _rows(items: Iterator[Any], count: object, kind: type[_Row]) -> list[_Row]:
    if type(count) is not int:
        raise Corrupted("a metadata snapshot does not count its rows")
    rows = [msgspec.convert(values, kind) for values in islice(items, count)]
    if len(rows) != count:
        raise Corrupted("a metadata snapshot lacks rows")
    return rows
