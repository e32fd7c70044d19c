"""raftq inside a process of the user's: a node, or a whole cluster for services and tests.

    node       one node with its ports, what `raftq node` runs
    cluster    several nodes in the running loop
    recovery   a stopped node's directory, for `raftq cluster recover`
    outside    the real clock, disk, network and entropy together
    metrics    what the admin port says of a node
    address    HOST:PORT, and free ones
    ledger     the file in which a client notes what was acknowledged to it; audits read it

Rule: embedded use changes nothing global in its process (logging, signals, collector, metrics).
Processes of their own are started by `raftq.cli.processes`.
"""

from raftq.embedded.cluster import Cluster
from raftq.embedded.node import Node

__all__ = ["Cluster", "Node"]
