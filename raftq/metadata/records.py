"""The rows of the table. Immutable: a change is another row in the place of the old one.

A row is encoded as the list of its fields in order, so fields are only ever added at the end, with
a default that means what their absence meant.
"""

from typing import Any, Literal

from msgspec import Struct

from raftq.ids import GroupId, NodeIncarnation, Partition, QueueId, ReplicaId

ReplicaState = Literal["pending", "created", "lost"]
GroupState = Literal["creating", "active"]
QueueState = Literal["creating", "active", "updating", "sealing", "deleting"]


class Node(Struct, frozen=True, array_like=True):
    """A node of the cluster. Its client address is empty until it has registered."""

    name: str
    incarnation: NodeIncarnation
    is_founder: bool
    host: str = ""
    port: int = 0
    labels: dict[str, str] = {}


class Replica(Struct, frozen=True, array_like=True):
    """A group's copy on one incarnation of a node."""

    replica: ReplicaId
    node: str
    incarnation: NodeIncarnation
    state: ReplicaState


class Group(Struct, frozen=True, array_like=True):
    """One Raft group. `replicas` are those that it shall have, one on each of its nodes.

    Invariants: until the group is active they are its first list of members, lost ones included;
    from then on none of them is lost: another has taken its place, and it stands in `leaving`.
    """

    group: GroupId
    state: GroupState
    replicas: tuple[Replica, ...]
    leaving: tuple[Replica, ...] = ()
    """Lost, and perhaps still members of the group's own configuration."""

    @property
    def nodes(self) -> dict[ReplicaId, str]:
        """Where whoever may be a member is: lost ones included."""
        return {replica.replica: replica.node for replica in (*self.replicas, *self.leaving)}

    @property
    def created(self) -> tuple[ReplicaId, ...]:
        """The replicas that exist, as far as was reported."""
        return tuple(found.replica for found in self.replicas if found.state == "created")

    def replica_on(self, node: str) -> Replica | None:
        return next((replica for replica in self.replicas if replica.node == node), None)


class Refusal(Struct, frozen=True, array_like=True):
    """Why the queue was not deleted. `version` is the one under which the delete had sealed it."""

    version: int
    partition: Partition
    reason: str


class Queue(Struct, frozen=True, array_like=True):
    """One queue. Invariant: len(groups) == len(reported) == its number of partitions."""

    queue: QueueId
    name: str
    config: dict[str, Any]
    version: int
    """Counts what was asked of the partitions, from 1."""
    state: QueueState
    groups: tuple[GroupId, ...]
    """The group of each partition."""
    reported: tuple[int, ...]
    """The last version that each partition's group has fulfilled, 0 for none."""
    force: bool = False
    """Deleting, whatever it holds."""
    refusal: Refusal | None = None
    """Of the last delete that was refused."""
