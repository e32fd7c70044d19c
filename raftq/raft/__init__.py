"""The consensus core: messages and time in, `Ready` out. Pure.

Theory of operation
-------------------
A `Raft` is one replica's share of one group. It owns the role, the term, the vote, what it knows of
its peers and the recent part of the log; it owns no socket, file, clock, thread or randomness.

    tick(monotonic, wall)        time passes; deadlines are compared, nothing else looks at a clock
    step(message)                a peer said something
    propose(commands, log_time)  the leader appends one entry                 -> its index
    propose_membership(wanted)   the leader begins a change to other voters and learners
                                 -> index of its first step; refused with a reason
    read_index(context)          a linearizable read: its index comes in a later Ready
    transfer_leadership(to)      hand over to a voter, after it has caught up
    link_lost(replica)           an established link over which this leader's heartbeats came broke
    link_up(replica)             a link was established: probe at once
    ready()                      what to persist, send, apply (contract: `ready.py`) or None
    persisted(seq), applied(i)   the shell's reports
    checkpoint(i, digest)        the own machine's digest, compared with the leader's
    compacted(), repaired()      the log's snapshot moved; what was unreadable can be read again
    snapshot_chunk(...)          a piece that `Ready.snapshot_send` asked for
    snapshot_gone(to, index)     the snapshot that it asked for is not held
    snapshot_received(i, valid)  all of `Ready.snapshot_receive` was kept and checked
    log_time()                   the stamp for the next entry (the leader's part of `clock.py`)
    membership, membership_at(i) the configuration in force, and as of an index
    removed                      this replica knows that it is a member no more
    status()                     all of it for people; of each follower, whether it has caught up

Rules
-----
1.  Nothing that promises durable state leaves before the state is synced: append replies, vote
    requests, vote replies, and a replica's vote for itself. A leader's appends leave at once; the
    leader counts itself only when its own sync has returned.
2.  A completion is matched by write sequence, never by index.
3.  Truncate only on conflict, and never at or below the commit index (that is a broken promise:
    the core refuses and reports divergence).
4.  An entry is committed by counting only in the leader's own term; a new leader appends a no-op.
5.  A heartbeat moves a follower's commit only to an index where its own chain equals the one sent.
    An unequal chain above its commit index is an ordinary conflict; at or below it, divergence.
6.  Append replies are judged by their term and sender; match_index never falls within a term. A
    follower that reports, in the leader's own term, a log end below what it acknowledged, is
    amnesiac: it stops counting and is told so.
7.  PreVote and CheckQuorum together: a pre-vote is granted only without contact to a live leader
    for the smallest election timeout (counted from start for a restarted voter), or after having
    lost that leader's link too. Stickiness guards PreVote alone; a real vote is judged by term,
    vote and log. A leader that does not hear a quorum within an election timeout steps down.
8.  Votes are counted by voter, once each. Nobody stands for a new term, or grants a pre-vote, while
    its own term and vote are not durable: a stalled disk costs one term, not one per timeout.
9.  Fast failover: after `link_lost` campaign 5 ms + 30 ms * rank + 0..10 ms later, PreVote first;
    any frame of the present leader cancels it; granting a pre-vote puts off one's own by 50 ms; an
    election lost in this mode is retried after another such delay. Rank: order of the replica ids
    of the other voters, rotated by the term.
10. A read is answered with the commit index of a leader that has committed in its term, once a
    quorum has replied to a heartbeat round begun after the read was asked for. No leases.
11. Replication starts at the first index that can be read whole; a follower behind gets the
    snapshot, in chunks tied to the leader's term, index and chain; only matching chunks are joined,
    also those of the next leader, and a snapshot at or below the receiver's commit index is
    acknowledged, not installed. Who is far behind and not needed for a quorum gets what the shell
    allows (`ready.Allowance`).
12. Nothing is proposed by a leader before its no-op is applied, except the no-op; no membership
    change before the no-op is committed, nor while another one is not, nor during a hand-over.
13. An amnesiac replica never campaigns and never grants; it answers appends but is not counted. A
    replica that is not a voter of its current configuration never campaigns. It does grant: it may
    have become a voter by an entry that it does not have yet, and only the candidate knows.
14. A configuration is in force from its place in the log on, committed or not, and no more once
    that place is truncated; a snapshot carries the one at its index. Whatever is counted (votes,
    matches, read rounds, clocks, who is heard) is counted by `Replica.electorate`, and during a
    joint change on both sides.
15. Learners get everything and count for nothing. One becomes a voter when it has caught up: it
    lacks nothing that the log held an election timeout ago, and says that nothing below is lost
    there. Leadership is handed to nobody who has not said so. No change is begun to voters of whom no
    quorum is heard.
16. One voter may change at once; more go through a joint configuration, which whoever leads leaves
    when it is committed. Replica ids ascend and are never reused: the configuration remembers the
    highest that is gone.
17. A leader that is not among the voters leads on without counting itself until that is committed;
    then it hands over to the voter that has most, and stops in any case after an election timeout.
    Who is removed is still sent the entry that says so, and its commit, for a few seconds: it
    campaigns no more. If it never hears, pre-votes and its shorter log keep it harmless.

The shell tells the time (`tick`) before it passes on what arrived: messages are judged at the time
of the last tick. After any call it takes `ready()` until that gives None.

Where and why this departs from the paper: `docs/decisions/raft-divergence.md`.
"""

from raftq.raft.changes import ChangeRefused, Reason
from raftq.raft.core import NotLeader, Raft, Role, Status
from raftq.raft.entry import Command, Entry
from raftq.raft.membership import Membership
from raftq.raft.messages import Message
from raftq.raft.ready import HardState, LogReader, Ready, SnapshotMeta, Write

__all__ = [
    "ChangeRefused",
    "Command",
    "Entry",
    "HardState",
    "LogReader",
    "Membership",
    "Message",
    "NotLeader",
    "Raft",
    "Ready",
    "Reason",
    "Role",
    "SnapshotMeta",
    "Status",
    "Write",
]
