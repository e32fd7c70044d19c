"""What a node says of itself when asked: the reasons why it is not ready, and its metrics.

Rule: everything is read from the node's present state when somebody looks. Nothing is counted twice,
nothing costs anything while nobody looks, and the registry belongs to the one node.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from raftq.observability.admin_port import METRICS_TYPE, Answer, Page
from raftq.server import Node
from raftq.server.made import moved_aside
from raftq.version import VERSION

_GROUP_GAUGES = {
    "raftq_group_term": "Raft term of the replica.",
    "raftq_group_commit_index": "Highest index known to be committed.",
    "raftq_group_applied_index": "Highest index applied to the machine.",
    "raftq_group_last_index": "Highest index in the log.",
    "raftq_group_is_leader": "1 where this replica leads its group.",
    "raftq_group_has_leader": "1 where this replica knows a leader of its group.",
    "raftq_group_lost_entries": "Entries that damage took and no repair has brought back yet.",
    "raftq_group_is_quarantined": "1 where the replica takes no part because it is damaged.",
}
_GROUP_COUNTERS = {
    "raftq_group_syncs": "Completed syncs of the log since the node started.",
    "raftq_group_repaired_entries": "Lost entries that were fetched from other replicas.",
    "raftq_group_scrubbed_bytes": "Bytes of sealed files that were read again and verified.",
    "raftq_group_written_bytes": "Bytes written to the log since the node started.",
    "raftq_group_failed_snapshots": "Snapshots that came to nothing since the node started.",
    "raftq_group_log_time_alarms": "Entries made here whose log time was beside the clocks.",
}


def not_ready(node: Node) -> list[str]:
    """Why a load balancer should send clients elsewhere; empty when there is no reason."""
    if node.failure is not None:
        return [f"the disk failed: {node.failure}"]
    if node.stopped:
        return ["the node is stopping"]
    state = node.host.identity.state
    if state != "active":
        why = node.host.bootstrap_state.problem or f"this node is {state}, waiting for its members"
        return [f"the cluster has not begun: {why}"]
    reasons = []
    machine = node.metadata.machine
    if machine is None or len(machine.groups()) < 2:
        reasons.append("the cluster has no groups for queues yet")
    for group in node.host.groups.values():
        if group.quarantined is not None:
            reasons.append(f"group {group.group} is quarantined here: {group.quarantined}")
        elif group.leader_node is None:
            reasons.append(f"group {group.group} has no leader that this node knows")
        elif group.leader_node == node.config.name and not group.leading:
            reasons.append(f"group {group.group} has just been given to this node to lead")
    if machine is not None:
        wanted = machine.work_for_node(node.host.identity.name, node.host.identity.incarnation)
        reasons += [
            f"group {work.group} has no running replica here yet"
            for work in (*wanted.create, *wanted.run)
            if work.group not in node.host.groups
        ]
    reasons += [f"this node lost its replica of group {group}" for group in node.replicas.lost]
    reasons += [
        f"group {group} has gone on with replicas {list(others)}: its recovery here is void; empty the "
        "data directory and replace this node"
        for group, others in node.replicas.void.items()
    ]
    return reasons


class NodeCollector(Collector):
    """Makes the metric families of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        node = self._node
        identity = node.host.identity
        build = GaugeMetricFamily(
            "raftq_node_info", "What runs here; always 1.", labels=["node", "version", "cluster"]
        )
        build.add_metric([identity.name, VERSION, f"{identity.cluster:032x}"], 1)
        yield build
        yield GaugeMetricFamily(
            "raftq_node_is_ready",
            "1 while /health/ready has no reason against it.",
            value=not not_ready(node),
        )
        yield GaugeMetricFamily(
            "raftq_node_linked_peers", "Nodes with a link.", value=len(list(node.host.links.up()))
        )
        yield GaugeMetricFamily(
            "raftq_client_connections",
            "Open client connections.",
            value=len(node.port.connections),
        )
        yield CounterMetricFamily(
            "raftq_client_refused",
            "Client connections refused since the node started.",
            value=node.port.refused,
        )
        yield GaugeMetricFamily(
            "raftq_node_directories_moved_aside",
            "Directories of replicas that count no more, kept for the operator.",
            value=len(moved_aside(node.environment.disk)),
        )
        yield GaugeMetricFamily(
            "raftq_disk_free_bytes",
            "Free bytes on the disk of the data directory.",
            value=node.environment.disk.free_bytes(),
        )
        yield from self._groups()

    def _groups(self) -> Iterator[Metric]:
        gauges = {
            name: GaugeMetricFamily(name, text, labels=["group"])
            for name, text in _GROUP_GAUGES.items()
        }
        counters = {
            name: CounterMetricFamily(name, text, labels=["group"])
            for name, text in _GROUP_COUNTERS.items()
        }
        for group in self._node.host.groups.values():
            label = [str(group.group)]
            values: dict[str, int] = {
                "raftq_group_term": group.raft.term,
                "raftq_group_commit_index": group.raft.commit_index,
                "raftq_group_applied_index": group.applied_index,
                "raftq_group_last_index": group.raft.last_index,
                "raftq_group_is_leader": group.leading,
                "raftq_group_has_leader": group.leader_node is not None,
                "raftq_group_lost_entries": sum(
                    hole.last - hole.first + 1 for hole in group.log.holes
                ),
                "raftq_group_is_quarantined": group.quarantined is not None,
            }
            for name, value in values.items():
                gauges[name].add_metric(label, value)
            counters["raftq_group_repaired_entries"].add_metric(
                label, group.log.patches.repaired_entries
            )
            counters["raftq_group_scrubbed_bytes"].add_metric(
                label, group.mending.scrubber.scrubbed_bytes
            )
            counters["raftq_group_syncs"].add_metric(label, group.log.syncs)
            alarms = group.log_time_alarm.count
            counters["raftq_group_log_time_alarms"].add_metric(label, alarms)
            failed = group.snapshotter.failures
            counters["raftq_group_failed_snapshots"].add_metric(label, failed)
            counters["raftq_group_written_bytes"].add_metric(label, group.log.bytes_written)
        yield from gauges.values()
        yield from counters.values()


def metrics_page(node: Node) -> Page:
    """The page of one node's metrics, over a registry of its own."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(NodeCollector(node))
    return lambda: Answer(200, METRICS_TYPE, generate_latest(registry))
