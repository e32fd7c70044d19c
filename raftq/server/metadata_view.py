"""This node's copy of the metadata, arranged for the data path: two dictionary look-ups a batch.

The truth is the applied state of group 0; this view is rebuilt when its version moves, which is
rare. It may lag behind other nodes: whoever acts on it is checked again where it matters.
"""

from raftq.errors import QueueNotFound
from raftq.ids import GroupId, Partition, QueueId
from raftq.limits import DEFAULT_MESSAGE_BYTES
from raftq.metadata import MetadataMachine, Queue


class MetadataView:
    """Caches over the metadata machine."""

    def __init__(self) -> None:
        self._machine: MetadataMachine | None = None
        self._version = -1
        self._groups: dict[tuple[QueueId, Partition], GroupId] = {}
        self._message_bytes: dict[QueueId, int] = {}

    def attach(self, machine: MetadataMachine) -> None:
        self._machine = machine
        self._version = -1
        self.refresh()

    @property
    def machine(self) -> MetadataMachine | None:
        """The applied machine; None before the cluster has begun."""
        return self._machine

    def refresh(self) -> bool:
        """Whether the metadata changed since the last call."""
        machine = self._machine
        if machine is None or machine.version == self._version:
            return False
        self._version = machine.version
        self._groups = {
            (queue.queue, Partition(number)): group
            for queue in machine.queues()
            for number, group in enumerate(queue.groups)
        }
        self._message_bytes = {
            queue.queue: queue.config.get("max_message_bytes", DEFAULT_MESSAGE_BYTES)
            for queue in machine.queues()
        }
        return True

    def group_of(self, queue: QueueId, partition: Partition) -> GroupId | None:
        return self._groups.get((queue, partition))

    def max_message_bytes(self, queue: QueueId) -> int:
        return self._message_bytes.get(queue, DEFAULT_MESSAGE_BYTES)

    def nodes_of(self, group: GroupId) -> list[str]:
        """The nodes with a replica of the group."""
        found = self._machine.group(group) if self._machine is not None else None
        return list(found.nodes.values()) if found is not None else []

    def queue(self, name: str) -> Queue:
        """Raises: QueueNotFound."""
        found = self._machine.queue_by_name(name) if self._machine is not None else None
        if found is None:
            raise QueueNotFound(
                f"no queue is called {name!r}; create it (raftq queue create {name}), "
                "or check the spelling (raftq queue list)"
            )
        return found
