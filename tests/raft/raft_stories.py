"""Where many stories begin."""

from raft_harness import Cluster

from raftq.ids import ReplicaId


def led(size=3, leader=1, **options):
    """A calm group led by replica 1, with its no-op applied everywhere."""
    cluster = Cluster(size, **options)
    cluster.elect(leader)
    cluster.advance(200_000)
    assert cluster.leader() == leader
    return cluster


def deposed_with_tail(cluster, tail=(b"LOST-1", b"LOST-2")):
    """1 is cut off with entries of its own; 2 leads the next term and has committed others."""
    cluster.isolate(1)
    for body in tail:
        cluster.propose(1, body)
    cluster.wire.clear()
    cluster.core(2).link_lost(ReplicaId(1))
    cluster.core(3).link_lost(ReplicaId(1))
    cluster.elect(2)
    for number in range(len(tail)):
        cluster.propose(2, b"KEPT-%d" % number)
    cluster.advance(100_000)
    assert cluster.core(2).commit_index > cluster.core(1).commit_index
