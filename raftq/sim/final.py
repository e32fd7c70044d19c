"""What must hold when everything is healed and drained: the replicas are one log and one machine.

Rule: it looks at the nodes' insides directly; what clients saw is the ledger's business.
"""

from collections.abc import Iterator

from raftq.batch import Batch
from raftq.host import Group
from raftq.ids import GroupId, Offset, Partition, QueueId
from raftq.queue.machine import QueueMachine
from raftq.sim.checkers import ViolationError
from raftq.sim.cluster import SimCluster
from raftq.sim.workload import SUBSCRIPTION, Workload, payload_of

READ_BYTES = 1 << 20


def has_converged(cluster: SimCluster) -> bool:
    """Every group has all its replicas, follows one leader, and has applied all that it has.

    Raises: ViolationError when one takes no part any more: no fault explains that.
    """
    for node, server in cluster.servers.items():
        for replica in server.host.groups.values():
            if replica.quarantined is not None:
                raise ViolationError(
                    f"{node} quarantined its replica of group {replica.group}: "
                    f"{replica.quarantined}"
                )
    if len(cluster.servers) < len(cluster.nodes) or not cluster.operator.is_done:
        return False
    return all(_is_settled(cluster, group) for group in _groups(cluster))


def scrub(cluster: SimCluster) -> None:
    """Have everything read that rot may have hit unseen."""
    for node, server in cluster.servers.items():
        for replica in server.host.groups.values():
            replica.mending.scrubber.begin(cluster.machine(node).clock.monotonic())
            replica.want_turn()


def is_scrubbed(cluster: SimCluster) -> bool:
    """Whether every replica has been read through, and nothing is lost anywhere."""
    return all(
        replica.mending.scrubber.passes and not replica.mending.health
        for server in cluster.servers.values()
        for replica in server.host.groups.values()
    )


def _groups(cluster: SimCluster) -> list[GroupId]:
    found = {group: True for node in cluster.servers.values() for group in node.host.groups}
    return sorted(found)


def _is_settled(cluster: SimCluster, group: GroupId) -> bool:
    replicas = cluster.replicas(group)
    some = next(iter(replicas.values()))
    if len(replicas) < len(dict.fromkeys(some.nodes.values())):
        return False
    if any(replica.mending.health for replica in replicas.values()):
        return False
    facts = {
        (replica.raft.term, replica.raft.leader, replica.raft.last_index, replica.applied_index)
        for replica in replicas.values()
    }
    return len(facts) == 1 and sum(replica.leading for replica in replicas.values()) == 1


def compare(cluster: SimCluster, workload: Workload) -> None:
    """Compare all replicas, and what they hold with what clients were promised.

    Raises: ViolationError.
    """
    with cluster.watch.kept():
        for group in _groups(cluster):
            for node, replica in cluster.replicas(group).items():
                _check_replica(cluster, node, replica)
        for plan in workload.queues:
            queue = next(iter(cluster.servers.values())).metadata.queue(plan.name)
            for number, group in enumerate(queue.groups):
                # Equal chains are equal logs, so one replica is read for all: of each partition another.
                replicas = list(cluster.replicas(group).items())
                node, replica = replicas[number % len(replicas)]
                _compare_messages(
                    workload, plan.name, queue.queue, Partition(number), node, replica
                )
            workload.ledger.drained(SUBSCRIPTION, plan.name)


def _check_replica(cluster: SimCluster, node: str, replica: Group) -> None:
    agreement, index = cluster.watch.agreement, replica.applied_index
    chain = replica.log.chain(index)
    if chain is None:
        raise ViolationError(f"{node} does not hold the end of group {replica.group}")
    agreement.committed(node, replica.group, index, chain)
    agreement.digest(node, replica.group, index, replica.machine.digest())


def _compare_messages(
    workload: Workload,
    name: str,
    queue: QueueId,
    partition: Partition,
    node: str,
    replica: Group,
) -> None:
    """What one replica holds of a partition, or has let go of, with what was promised."""
    machine = replica.machine
    assert isinstance(machine, QueueMachine)
    end = Offset(machine.next_offset(queue, partition) or 0)
    workload.ledger.log(
        node,
        name,
        partition,
        _records(replica, queue, partition, end),
        end=end,
        is_released=lambda start, stop: machine.is_settled(queue, partition, start, stop),
    )


def _records(
    replica: Group, queue: QueueId, partition: Partition, end: Offset
) -> Iterator[tuple[Offset, str]]:
    """All messages of a partition that are in a replica's log."""
    start = Offset(0)
    while start < end:
        found = replica.log.batches(queue, partition, start, end, READ_BYTES)
        if not found:
            return
        for stored in found:
            bodies = Batch(bytes(stored.data)).bodies()
            for position, body in enumerate(bodies):
                yield Offset(stored.base_offset + position), payload_of(body)
            start = Offset(stored.base_offset + len(bodies))
