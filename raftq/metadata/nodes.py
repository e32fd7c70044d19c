"""Commands about nodes."""

from msgspec.structs import replace

from raftq.errors import Busy, ClusterMismatch, InvalidArgument
from raftq.limits import MAX_NODES
from raftq.metadata import groups
from raftq.metadata.commands import RegisterNode, ReplaceNode
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
            "is another node: give it another name, or let it replace this one"
        )
    node = replace(known, host=command.host, port=command.port, labels=command.labels)
    if node != tables.nodes.get(command.name):
        tables.put_node(node)
    return NodeReply(node.name, tables.version)


def replace_node(tables: Tables, command: ReplaceNode) -> NodeReply:
    """Give the node's name and places to another data directory; the old one is refused for ever.

    Raises: InvalidArgument, ClusterMismatch.
    """
    known = tables.nodes.get(command.name)
    if known is None:
        raise InvalidArgument(f"no node {command.name!r} is known")
    if known.incarnation == command.successor:
        return NodeReply(known.name, tables.version)
    if known.incarnation != command.incarnation:
        raise ClusterMismatch(
            f"node {command.name!r} has been replaced meanwhile; see `raftq cluster status`"
        )
    # The place of its clients' port is not known before it has told so itself.
    tables.put_node(replace(known, incarnation=command.successor, host="", port=0))
    groups.lose_replicas_of(tables, command.name, command.incarnation)
    return NodeReply(known.name, tables.version)
