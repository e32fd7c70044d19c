"""Drives a metadata machine as a cluster would: commands in, and everybody doing their work."""

from raftq.ids import ClusterId, GroupId, Index, Micros, NodeIncarnation, Term
from raftq.machine import Meta
from raftq.metadata import (
    Configure,
    CreateQueue,
    Drop,
    EnsureGroups,
    MetadataMachine,
    PartitionDropped,
    PartitionReady,
    ReplicaCreated,
    encode,
)

CLUSTER = ClusterId(0x0123456789ABCDEF0123456789ABCDEF)
FOUNDERS = [
    ("n1", NodeIncarnation(101)),
    ("n2", NodeIncarnation(2**64 - 1)),
    ("n3", NodeIncarnation(103)),
]
INCARNATIONS = dict(FOUNDERS)


def new_machine():
    return MetadataMachine(CLUSTER, FOUNDERS)


def apply_header(machine, header, body=b""):
    return machine.apply(Meta(Index(1), Term(1), Micros(0), 0), header, body)


def apply(machine, command):
    """The reply, with what must hold of every command: a refusal changes nothing."""
    before, digest = machine.version, machine.digest()
    reply, effects = apply_header(machine, encode(command))
    assert (machine.digest() == digest) == (machine.version == before)
    assert machine.version >= before
    assert [effect.version for effect in effects] == (
        [machine.version] if machine.version != before else []
    )
    if isinstance(reply, Exception):
        assert machine.version == before
    return reply


def create_groups(machine, count=3):
    """`count` groups, active."""
    apply(machine, EnsureGroups(count=count))
    do_node_work(machine)


def do_node_work(machine):
    for name, incarnation in FOUNDERS:
        for work in machine.work_for_node(name, incarnation).create:
            apply(
                machine,
                ReplicaCreated(group=work.group, replica=work.replica, incarnation=incarnation),
            )


def create_queue(machine, name="orders", **config):
    """A queue, active."""
    reply = apply(machine, CreateQueue(name=name, config=config))
    do_group_work(machine)
    queue = machine.queue_by_id(reply.queue)
    assert queue.state == "active"
    return queue


def all_work(machine):
    return [work for group in machine.groups() for work in machine.work_for_group(group.group)]


def report_of(work):
    """What a leader reports when the work went well; a sealed partition was empty."""
    if isinstance(work, Drop):
        return PartitionDropped(queue=work.queue, partition=work.partition)
    return PartitionReady(queue=work.queue, partition=work.partition, version=work.version)


def do_group_work(machine, kinds=(Configure,)):
    """All work of these kinds that there is now, also what it leads to."""
    while wanted := [work for work in all_work(machine) if isinstance(work, kinds)]:
        for work in wanted:
            apply(machine, report_of(work))


def group_ids(machine):
    return [group.group for group in machine.groups() if group.group != GroupId(0)]
