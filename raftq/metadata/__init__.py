"""The metadata machine: which nodes, groups and queues there are, and what lives where. Pure.

Theory of operation
-------------------
Group 0's state. It is a table and nothing else: commands change the table, and every node compares
its applied copy with the world and does what is missing (`work_for_node`, `work_for_group`), then
reports that it is done, by another command. Work is derived from the table alone, so whoever leads
a group can take it up after a crash, and doing it twice is doing it once.

*Nodes.* The founders are given to the constructor: they are what bootstrap agreed on. A node owns
replicas by its incarnation: another incarnation of a known name is another node, and is refused,
until `ReplaceNode` gives it the name. From then on the one before it is refused, for ever.

*Groups* are made in three steps. `CreateGroup` (or `EnsureGroups`) allocates replica ids that are
never used again; each node makes its directory, syncs it, and reports `ReplicaCreated`; when all
have reported, the group is active, and only then may anybody vote in it. A node that finds its own
report but no directory has lost that replica: it says `ReplicaLost` and must not run it. Groups
begin with group 0 itself, whose replicas 1..n are the founders in order of names.

*Lost replicas* never come back, neither one that its node reports, nor those of a node that is
replaced. Each gets a successor: on the same node, under a new id, with an empty directory, so that
nobody believes that it holds what the lost one has acknowledged, or promised to vote. Until the
group's leader has voted the one in and the other out, the lost one is listed as leaving
(`work_for_members`); successors may be lost in their turn.

*Recovered groups.* Where a majority is lost for good a person may decide that one replica goes on
alone (`GroupRecovered`): under a new id it hosts the group, and all others are lost as above.

*Queues* have a version, and one rule: each change of state asks something of all partitions under
a new version, each partition's group does it and is reported with that version, and when all have,
the next state follows:

    creating --(all configured)--> active --update--> updating --(all configured)--> active
    any of these --delete--> sealing --(all sealed and empty)--> deleting --(all dropped)--> gone
    sealing --(one is not empty)--> updating             the delete is refused, nothing was dropped
    any --delete with force--> deleting

A delete without force must lose nothing, so nothing is dropped before every partition is known to
be empty and to stay so. *Sealed* means: the partition, configured with that version, refuses
publishes, until a higher version opens it again. Empty and sealed stays empty, so reports may be
late, repeated, or of a leader that is none any more. Deleting is final, from then on nothing opens
a partition again; offsets are never reused, because a queue made again under the name has another
id. Without force the drops still ask for an empty partition: where sealing is not honoured, a
message published in between is not lost; its partition stays until it is drained or forced.

The mapping of a partition to its group is proposed by the ring, with bounded load, once, and stored.

Rules

1.  Replicated rules of `raftq.machine` hold: a refusal is a reply and changes nothing; whatever the
    bytes of a command, apply does not raise.
2.  Every command may be repeated: the second time it succeeds and changes nothing, or is refused.
    `CreateGroup` without a number is the exception.
3.  Ids of groups, replicas and queues ascend and are never used again.
4.  `version` counts changes of the table. A command that changes something has the effect
    `Changed`; a reply carries the version at which it can be seen in any copy.
5.  Records are immutable: what a query returned, and what a snapshot captured, does not change.
6.  A configuration is a plain map that the server has validated; here it is bounded, stored and
    compared. Only `partitions` (1 where left out) and `dedicated` are read.
"""

from raftq.metadata.commands import (
    Command,
    CreateGroup,
    CreateQueue,
    DeleteQueue,
    EnsureGroups,
    GroupRecovered,
    PartitionDropped,
    PartitionReady,
    PartitionRefused,
    RegisterNode,
    ReplaceNode,
    ReplicaCreated,
    ReplicaLost,
    ReplicasLeft,
    UpdateQueue,
    encode,
)
from raftq.metadata.machine import MetadataMachine
from raftq.metadata.records import Group, Node, Queue, Refusal, Replica
from raftq.metadata.replies import Changed, GroupReply, GroupsReply, NodeReply, QueueReply
from raftq.metadata.work import Configure, Drop, MemberWork, NodeWork, ReplicaWork, Seal

__all__ = [
    "Changed",
    "Command",
    "Configure",
    "CreateGroup",
    "CreateQueue",
    "DeleteQueue",
    "Drop",
    "EnsureGroups",
    "Group",
    "GroupRecovered",
    "GroupReply",
    "GroupsReply",
    "MemberWork",
    "MetadataMachine",
    "Node",
    "NodeReply",
    "NodeWork",
    "PartitionDropped",
    "PartitionReady",
    "PartitionRefused",
    "Queue",
    "QueueReply",
    "Refusal",
    "RegisterNode",
    "ReplaceNode",
    "Replica",
    "ReplicaCreated",
    "ReplicaLost",
    "ReplicaWork",
    "ReplicasLeft",
    "Seal",
    "UpdateQueue",
    "encode",
]
