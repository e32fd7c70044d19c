"""What group 0's log holds: one struct for each command, and its bytes.

    u8 kind (1) · CBOR map {"do": name of the command, its fields}

There is no body. Field names are the format: a field is never renamed, and a new one has a default
that means what its absence meant. A map with a field that is not known is refused, not half obeyed.

Rule: bounds of single fields stand here, as types; whatever depends on the table is for apply.
"""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from raftq.errors import InvalidArgument
from raftq.ids import GroupId, NodeIncarnation, Partition, QueueId, ReplicaId
from raftq.limits import MAX_CBOR_BYTES, MAX_NODE_NAME, MAX_PARTITIONS, MAX_REASON_BYTES
from raftq.machine import Buffer
from raftq.metadata import plain

KIND: Final = b"\x01"

MAX_ID: Final = (1 << 32) - 1
"""Ids of groups and queues are 32 bits in frames, batches and on the ring."""
MAX_GROUPS: Final = 4_096
"""A node's reconciler walks all groups at every change."""
MAX_REPLICAS: Final = 7
"""Of one group; more cost a round trip to ever slower disks and hardly add safety."""
DEFAULT_REPLICAS: Final = 3
MAX_LEAVING: Final = 1_000
"""Replicas named in one report; who leaves more reports again."""
MAX_LABELS: Final = 64
MAX_VERSION: Final = 1 << 62
"""Far above what can be counted; leaves the arithmetic within 64 bits."""

MAX_DEPTH: Final = 8
"""Of a command's map. Snapshots nest the same values two deeper and must be able to."""

NodeName = Annotated[str, Meta(min_length=1, max_length=MAX_NODE_NAME)]
Label = Annotated[str, Meta(max_length=256)]
Labels = Annotated[dict[Label, Label], Meta(max_length=MAX_LABELS)]
Incarnation = Annotated[NodeIncarnation, Meta(ge=1)]
AnyGroup = Annotated[GroupId, Meta(ge=0, le=MAX_ID)]
AnyQueue = Annotated[QueueId, Meta(ge=1, le=MAX_ID)]
AnyPartition = Annotated[Partition, Meta(ge=0, lt=MAX_PARTITIONS)]
AnyReplica = Annotated[ReplicaId, Meta(ge=1, le=MAX_VERSION)]
Version = Annotated[int, Meta(ge=1, le=MAX_VERSION)]


class _Command(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="do"):
    """Base of all commands."""


class RegisterNode(_Command, frozen=True, tag="register_node"):
    """A node tells where clients reach it. Founders do, and nodes that are new to the cluster."""

    name: NodeName
    incarnation: Incarnation
    host: Annotated[str, Meta(min_length=1, max_length=255)]
    port: Annotated[int, Meta(ge=0, le=65_535)]
    labels: Labels = {}


class CreateGroup(_Command, frozen=True, tag="create_group"):
    """A group on these nodes. `group` is the next number, or None; naming it makes it repeatable."""

    nodes: Annotated[tuple[NodeName, ...], Meta(min_length=1, max_length=MAX_REPLICAS)]
    group: AnyGroup | None = None


class EnsureGroups(_Command, frozen=True, tag="ensure_groups"):
    """There shall be at least `count` groups besides group 0, spread over the founders."""

    count: Annotated[int, Meta(ge=1, le=MAX_GROUPS)]
    replicas: Annotated[int, Meta(ge=1, le=MAX_REPLICAS)] = DEFAULT_REPLICAS
    """Of each new group; with fewer founders, as many as there are."""


class ReplicaCreated(_Command, frozen=True, tag="created"):
    """The node has made and synced the directory of this replica."""

    group: AnyGroup
    replica: AnyReplica
    incarnation: Incarnation


class ReplicaLost(_Command, frozen=True, tag="lost"):
    """The node had reported this replica, and its directory is gone."""

    group: AnyGroup
    replica: AnyReplica
    incarnation: Incarnation


class ReplaceNode(_Command, frozen=True, tag="replace_node"):
    """The node's data directory is gone: another one, empty, takes its name and its places."""

    name: NodeName
    incarnation: Incarnation
    """The directory that is gone."""
    successor: Incarnation


class ReplicasLeft(_Command, frozen=True, tag="left"):
    """The group's committed configuration does without these replicas, which were leaving."""

    group: AnyGroup
    replicas: Annotated[tuple[AnyReplica, ...], Meta(min_length=1, max_length=MAX_LEAVING)]


class GroupRecovered(_Command, frozen=True, tag="recovered"):
    """A person gave up the majority of the group: what one of its replicas held goes on, alone."""

    group: AnyGroup
    replica: AnyReplica
    """The new id of that replica, the group's only voter."""
    node: NodeName
    incarnation: Incarnation
    former: Annotated[tuple[AnyReplica, ...], Meta(min_length=1, max_length=MAX_LEAVING)]
    """The members of the group as its log knew them."""
    highest: AnyReplica
    """All ids up to this one may have been given away by the same decision."""


class CreateQueue(_Command, frozen=True, tag="create_queue", omit_defaults=True):
    """A queue of this name and configuration."""

    name: str
    config: dict[str, Any]
    even: bool = False
    """Where its partitions go: as the ring proposes now, or as it did when that was not said."""


class UpdateQueue(_Command, frozen=True, tag="update_queue"):
    """The whole configuration that follows the one of `expected_version`."""

    name: str
    config: dict[str, Any]
    expected_version: Version


class DeleteQueue(_Command, frozen=True, tag="delete_queue"):
    """The queue shall go: if it is empty, or with `force`, whatever it holds."""

    name: str
    force: bool


class PartitionReady(_Command, frozen=True, tag="partition_ready"):
    """The group has done what `version` asks: configured; or sealed, and found to be empty."""

    queue: AnyQueue
    partition: AnyPartition
    version: Version


class PartitionRefused(_Command, frozen=True, tag="partition_refused"):
    """The partition is not empty, so it cannot be deleted without force."""

    queue: AnyQueue
    partition: AnyPartition
    version: Version
    reason: Annotated[str, Meta(max_length=MAX_REASON_BYTES)]


class PartitionDropped(_Command, frozen=True, tag="partition_dropped"):
    """The group has dropped the partition."""

    queue: AnyQueue
    partition: AnyPartition


Command = (
    RegisterNode
    | CreateGroup
    | EnsureGroups
    | ReplicaCreated
    | ReplicaLost
    | ReplaceNode
    | ReplicasLeft
    | GroupRecovered
    | CreateQueue
    | UpdateQueue
    | DeleteQueue
    | PartitionReady
    | PartitionRefused
    | PartitionDropped
)


def encode(command: Command) -> bytes:
    """The header that carries the command.

    Raises: InvalidArgument when a value is out of its range or not plain.
    """
    try:
        values = msgspec.to_builtins(command, builtin_types=(bytes,))
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"a value of a command is not plain: {error}") from error
    header = KIND + plain.encode(values)
    decode(header, b"")
    return header


def decode(header: Buffer, body: Buffer) -> Command:
    """The command that the header carries.

    Raises: InvalidArgument, whatever the bytes are.
    """
    if not 1 < len(header) <= MAX_CBOR_BYTES or bytes(header[:1]) != KIND or len(body):
        raise InvalidArgument("a command of the metadata group is a kind and a map, without a body")
    values = plain.decode(bytes(header[1:]), MAX_DEPTH)
    try:
        command: Command = msgspec.convert(values, Command)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"a command of the metadata group: {error}") from error
    return command
