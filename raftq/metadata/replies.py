"""What commands answer when they are not refused, and their effect.

`version` is the table's version at which the outcome can be seen in any copy: a node that answers
its client waits until its own copy has it.
"""

from typing import Literal, NamedTuple

from raftq.ids import GroupId, QueueId
from raftq.metadata.records import GroupState, QueueState


class NodeReply(NamedTuple):
    """The node is registered."""

    name: str
    version: int


class GroupReply(NamedTuple):
    """How the group stands now."""

    group: GroupId
    state: GroupState
    version: int


class GroupsReply(NamedTuple):
    """All groups besides group 0."""

    groups: tuple[GroupId, ...]
    version: int


class QueueReply(NamedTuple):
    """How the queue stands now. A queue that is gone is "deleted", with the config version 0."""

    queue: QueueId
    state: QueueState | Literal["deleted"]
    config_version: int
    version: int


class Changed(NamedTuple):
    """Effect: the table has changed, and has this version. There may be other work to do now."""

    version: int
