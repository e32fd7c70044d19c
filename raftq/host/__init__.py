"""Many groups on one node: the ready loop, peer links, coalesced heartbeats, bootstrap.

Theory of operation
-------------------
A `Host` owns a node's replicas and its links to other nodes. Each replica is a `Group`: a core
(`raftq.raft`), its log (`raftq.storage`) and a machine that the host is *given* (`raftq.machine`).
The host knows nothing of queues or metadata.

One *turn* of a group: everything that was proposed since the last turn is judged by the machine's
admission, stamped, and becomes one entry; the core says what to write, send and apply; the log
writes it and asks for a sync; committed entries are applied and their proposers answered. A turn is
asked for (`call_soon`, once) by a proposal, a message, a completed sync or a deadline, so it sees
everything that arrived in the same pass of the loop. There is no task, future or coroutine per
message, and nothing waits for the disk.

One *link* per pair of nodes carries all groups, forwarded requests and bootstrap. What is sent in
one pass leaves as one write; heartbeats of all groups leave as one frame of rows.

Rules
-----
1. What the core wants sent after a write leaves only when the log has reported that write's seq.
2. The next entry waits for the outstanding sync, unless 256 KiB are pending or 5 ms have passed.
   Pending plus unsynced bytes are bounded: then proposals are refused with Busy.
3. A proposal is answered exactly once: with the machine's reply once applied, or with an error
   whose `outcome` is true: ``not_applied`` only if it never entered the log here.
4. A link is accepted only from a node that the cluster knows, with the incarnation it knows.
5. A failed disk stops the node. A diverged or contradictory replica is quarantined: it takes no part
   any more, says so in its status, and deletes nothing. One that lost something inside goes on,
   does not lead, and fetches it from the others (`mending.py`, `repair.py`).
6. An empty data directory never votes (`bootstrap.py`). It may take a lost one's place, under ids
   that nobody had, and votes when the group has voted it in (`changes.py`).
"""

from raftq.host.group import Group
from raftq.host.host import Host
from raftq.host.identity import Identity, Member
from raftq.host.observer import Observer
from raftq.host.proposals import Done, Place, Redirect

__all__ = ["Done", "Group", "Host", "Identity", "Member", "Observer", "Place", "Redirect"]
