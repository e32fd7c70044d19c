"""Linearizable reads without clocks.

A read is answered with a commit index that a leader had after the read was asked for, once a quorum
has answered a heartbeat round that *began* after it was asked for: then no other leader can have
committed anything before the read began. A leader that has committed nothing in its term may not
know what is committed; its reads wait for its no-op.
"""

from raftq.raft.replica import Replica


def round_begins(leader: Replica) -> None:
    """A heartbeat round is about to leave: every read asked for until now may count on it."""
    if leader.reads_asked and leader.commit_index >= leader.term_start:
        for context in leader.reads_asked:
            leader.reads_waiting.append((leader.round, leader.commit_index, context))
        leader.reads_asked = []


def needs_round(leader: Replica) -> bool:
    return bool(leader.reads_asked) and leader.commit_index >= leader.term_start


def confirm(leader: Replica) -> None:
    """Answer the reads whose round a quorum has replied to."""
    waiting = leader.reads_waiting
    if not waiting:
        return
    acked = {
        progress.replica: progress.round_acked
        for progress in leader.progress.values()
        if not progress.amnesiac
    }
    acked[leader.replica] = leader.round
    confirmed = leader.electorate.committed(acked)
    while waiting and waiting[0][0] <= confirmed:
        _, index, context = waiting.popleft()
        leader.confirmed_reads.append((context, index))
