"""A node: where host, machines and protocol are joined, and what answers clients.

Theory of operation
-------------------
A `Node` owns a `Host` (replicas and peer links) and a client port. A request comes from a client's
connection or, forwarded, over a peer link; either way it is a `Request`, answered exactly once. The
`Router` brings it to the replica that leads its group: here, or one hop further. Handlers turn it
into a proposal and the applied reply into the answer:

    publish.py    PUBLISH            verify, stamp, propose
    receive.py    RECEIVE            takers of one pass become one DELIVER; watches wait
    settle.py     SETTLE             ack, nack, extend
    replay.py     READ               batches from the log, consuming nothing
    answering.py                     how a request hears of its proposal
    admin.py      CONTROL            administration; fan-out to group leaders
    reconcile.py  metadata -> world  replicas to make, partitions to configure, reports to make
    replicas.py   this node's replicas; made.py remembers what was made and moves aside what counts no more
    recover.py    one replica goes on alone: decided offline (survey.py looks), finished at the start
    members.py    metadata -> world  whose links are accepted, where replicas are, who joins and leaves

Rules

1. Brokers never read a message's body or headers; a batch is verified where it is proposed.
2. A request is answered with what became of it, or with an error whose outcome is true.
3. Watches, timers and connections are this node's and volatile; everything that must survive a node
   is a command in a log.
4. What a client held is released by the node whose own socket of that client closed: at once after
   a goodbye, after one second otherwise. A broken peer link releases nothing.
5. No task or future per data request: handlers are plain functions, answers are callbacks.
"""

from raftq.host import Member
from raftq.server.node import Address, Node, NodeConfig

__all__ = ["Address", "Member", "Node", "NodeConfig"]
