"""Commands about nodes."""

from msgspec.structs import replace

from raftq.errors import Busy, ClusterMismatch
from raftq.limits import MAX_NODES
from raftq.metadata.commands import RegisterNode
from raftq.metadata.records import Node
from raftq.metadata.replies import NodeReply
from raftq.metadata.tables import Tables


def register(tables: Tables, command: RegisterNode) -> NodeReply:
    """Note where the node is reached. A node that is new to the cluster hosts nothing by that.

    Raises: ClusterMismatch, Busy.
    """
    known = tables.nodes.get(command.name)
    if known is None:
        if len(tables.nodes) >= MAX_NODES:
            raise Busy(f"a cluster has at most {MAX_NODES} nodes")
        known = Node(command.name, command.incarnation, is_founder=False)
    elif known.incarnation != command.incarnation:
        raise ClusterMismatch(
            f"node {command.name!r} is known with another data directory; a directory that is new "
            "is another node and needs another name"
        )
    node = replace(known, host=command.host, port=command.port, labels=command.labels)
    if node != tables.nodes.get(command.name):
        tables.put_node(node)
    return NodeReply(node.name, tables.version)
