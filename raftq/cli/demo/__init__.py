"""`raftq demo`: real input, three processes, one of them killed half way, everything counted.

    input      files of this machine, as messages: a line each, and a manifest for each file
    publish    one producer; what was acknowledged to it, and when
    rebuild    competing consumers; the files built anew on the other side
    nodes      the leader that is killed and started again; the replicas compared
    audit      what Spark finds in the files that the nodes have left
    verdict    the figures, and whether all is right
    command    the command, its phases, and what it shows

Rules

1. A message counts as acknowledged when its receipt has come, and as consumed when a consumer has
   received it; both are noted by partition and offset, with a digest of the body, by different
   clients. Nothing is concluded from a count alone.
2. The demo fails if anything is lost, handed out twice without a reason, out of order, not
   identical, or simply not known.
"""

from raftq.cli.demo.command import demo

__all__ = ["demo"]
