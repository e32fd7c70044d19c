"""Integers that must not be mixed.

Every number that crosses a module border has a type of its own, so that mypy refuses an offset
where an index is meant. At run time they are plain ints: nothing is paid for it.
"""

from typing import NewType

ClusterId = NewType("ClusterId", int)
"""128-bit random identity of a cluster, minted at bootstrap."""

NodeIncarnation = NewType("NodeIncarnation", int)
"""64-bit random identity of one data directory. A wiped node is a new incarnation."""

GroupId = NewType("GroupId", int)
"""One Raft group. Group 0 is the metadata group."""

ReplicaId = NewType("ReplicaId", int)
"""A group's copy on a node. Never reused within a cluster; 0 means "nobody"."""

Term = NewType("Term", int)
"""Raft term; 0 before the first election."""

Index = NewType("Index", int)
"""Position in a group's Raft log; the first entry has index 1, 0 means "before the log"."""

WriteSeq = NewType("WriteSeq", int)
"""Sequence number of one write to one group's storage; never repeats, unlike an index."""

QueueId = NewType("QueueId", int)
"""Identity of a queue inside the cluster. Names are for people; a recreated queue has a new id."""

Partition = NewType("Partition", int)
"""Number of a partition inside its queue, from 0."""

Offset = NewType("Offset", int)
"""Position of a message in a partition, from 0, gapless."""

ProducerId = NewType("ProducerId", int)
"""Identity of an idempotent producer; 0 means "not idempotent"."""

SessionId = NewType("SessionId", int)
"""A client's session in one group: the index of the entry that opened it."""

Micros = NewType("Micros", int)
"""A duration or a log time in whole microseconds. Log time counts from the Unix epoch."""

METADATA_GROUP = GroupId(0)
NOBODY = ReplicaId(0)
