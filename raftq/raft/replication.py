"""What a leader sends and hears: appends, heartbeats, their answers.

Rules:

1. Appends leave before the leader's own sync; the leader counts itself when that has returned.
2. An answer counts in the term it was given in, for the replica that gave it, and never lowers
   what is known. A refusal of anything but what is in doubt is late and ignored.
3. A missing tail (lost appends) is seen from heartbeat replies: they do not wait for the disk.
4. A replica that the group can do without for now, and that is so far behind that its entries have to
   be read back from the log, gets them in small pieces, and only as the shell allows. One that is
   needed for a quorum gets them as fast as it can take them.
5. Only the reply to the newest heartbeat, compared with what held when that heartbeat left, can
   show that a replica lost what it had acknowledged; every other message may have been overtaken.
"""

from raftq.errors import Corrupted
from raftq.ids import NOBODY, Index, Micros, ReplicaId
from raftq.limits import (
    CATCH_UP_INFLIGHT_BYTES,
    CATCH_UP_PIECE_BYTES,
    ELECTION_MICROS_MAX,
    ELECTION_MICROS_MIN,
    HEARTBEAT_MICROS,
    MAX_APPEND_BYTES,
)
from raftq.raft import handover, reads
from raftq.raft.commit import advance_commit, append, join_members, log_time
from raftq.raft.entry import NOOP
from raftq.raft.membership import Membership
from raftq.raft.messages import (
    Amnesiac,
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
)
from raftq.raft.progress import Progress, Stage
from raftq.raft.replica import NEVER, NO_CHECKPOINT, Replica, Role
from raftq.raft.snapshots import ask_for_chunk, begin_snapshot


def lead(leader: Replica) -> None:
    """An election is won."""
    now = leader.now
    leader.role = Role.LEADER
    leader.leader = leader.replica
    leader.votes = {}
    leader.election_deadline = leader.fast_deadline = NEVER
    leader.incoming = None
    leader.reads_asked = []
    leader.reads_waiting.clear()
    leader.term_start = Index(leader.log.last_index + 1)
    leader.recent_ends.clear()
    leader.recent_ends.append(leader.term_start)
    leader.matches = {leader.replica: leader.persistence.index}
    leader.progress = {}
    leader.checkpoint_claim = max(leader.checkpoints.items(), default=NO_CHECKPOINT)
    join_members(leader, leader.term_start)
    append(leader, NOOP, (), log_time(leader))
    leader.heartbeat_at = next_heartbeat(now)
    broadcast_heartbeat(leader)


def next_heartbeat(now: Micros) -> Micros:
    """Aligned, so that the heartbeats of many groups share a frame."""
    return Micros((now // HEARTBEAT_MICROS + 1) * HEARTBEAT_MICROS)


# --- Out ------------------------------------------------------------------------------------------


def flush(leader: Replica) -> None:
    """Send every replica what it may be sent. Called once per Ready."""
    if reads.needs_round(leader):
        broadcast_heartbeat(leader)
    last = leader.log.last_index
    shared: Append | None = None
    for progress in leader.progress.values():
        # What is on the way is bounded per follower, so this ends.
        while progress.next <= last and progress.may_send():
            shared = send_entries(leader, progress, shared)
            if shared is None:
                break


def send_entries(leader: Replica, progress: Progress, like: Append | None) -> Append | None:
    """One append from `next` on, or the way to a snapshot (then None).

    `like` is the append just sent to another replica: usually the same entries are due here.
    """
    log = leader.log
    index = progress.next
    previous = Index(index - 1)
    spare = False
    if like is not None and like.prev_index == previous:
        message = Append(like.sender, progress.replica, *like[2:])
    else:
        # Asked first: whoever has to wait costs no read.
        spare = not log.is_recent(index) and _can_do_without(leader, progress)
        if spare and (
            progress.inflight_bytes >= CATCH_UP_INFLIGHT_BYTES or not leader.allowance.may_spend()
        ):
            return None
        before = log.before(index)
        if before is None:
            begin_snapshot(leader, progress)
            return None
        limit = CATCH_UP_PIECE_BYTES if spare else MAX_APPEND_BYTES
        try:
            entries = tuple(log.entries(index, Index(log.last_index + 1), limit))
        except (Corrupted, LookupError):
            log.note_damage(index)
            return None
        message = Append(
            leader.replica,
            progress.replica,
            leader.term,
            previous,
            *before,
            leader.commit_index,
            entries,
        )
    leader.send_now.append(message)
    entries = message.entries
    last = entries[-1]
    size = last.size if len(entries) == 1 else sum([entry.size for entry in entries])
    progress.sent(last.index, size)
    if spare:
        leader.allowance.spent(size)
    return message


def _can_do_without(leader: Replica, progress: Progress) -> bool:
    """Whether everything is committed, and will be, by those who are heard, without that one."""
    oldest = leader.now - ELECTION_MICROS_MIN

    def heard(replica: ReplicaId) -> bool:
        known = leader.progress.get(replica)
        return known is not None and known.heard >= oldest

    others = {
        replica: match
        for replica, match in leader.matches.items()
        if replica == leader.replica or (replica != progress.replica and heard(replica))
    }
    return leader.electorate.committed(others) >= leader.commit_index


def send_empty(leader: Replica, progress: Progress) -> None:
    """Ask whether the log agrees right before `next`, at the price of no entry."""
    before = leader.log.before(progress.next)
    if before is None:
        begin_snapshot(leader, progress)
        return
    leader.send_now.append(
        Append(
            leader.replica,
            progress.replica,
            leader.term,
            Index(progress.next - 1),
            *before,
            leader.commit_index,
            (),
        )
    )


def broadcast_heartbeat(leader: Replica) -> None:
    leader.round += 1
    for progress in leader.progress.values():
        _heartbeat(leader, progress)
    if leader.reads_asked:
        reads.round_begins(leader)
        # A quorum of one has nobody to wait for.
        reads.confirm(leader)


def send_heartbeat(leader: Replica, progress: Progress) -> None:
    """To one replica alone; a round of its own, so that its reply cannot be mistaken."""
    leader.round += 1
    _heartbeat(leader, progress)


def _heartbeat(leader: Replica, progress: Progress) -> None:
    progress.sent_round = leader.round
    progress.sent_match = progress.match
    progress.sent_next = progress.next
    progress.sent_commit = leader.commit_index
    checkpoint_index, checkpoint_digest = leader.checkpoint_claim
    leader.send_now.append(
        Heartbeat(
            leader.replica,
            progress.replica,
            leader.term,
            leader.round,
            leader.commit_index,
            leader.commit_chain,
            checkpoint_index,
            checkpoint_digest,
        )
    )


# --- In -------------------------------------------------------------------------------------------


def on_append_reply(leader: Replica, message: AppendReply) -> None:
    if leader.role is not Role.LEADER or (
        message.term != leader.term and not leader.faults.older_replies_counted
    ):
        return
    progress = leader.progress.get(message.sender)
    if progress is None:
        return
    progress.heard = leader.now
    leader.clocks.hear_delayed(message.sender, message.wall - leader.now)
    if not message.success:
        _refused(leader, progress, message)
        return
    match = message.match_index
    if match > leader.log.last_index:
        return
    if match > progress.match:
        progress.acknowledged(match)
        if progress.round_acked <= progress.judged_from:
            progress.damaged = not message.whole
        if not progress.amnesiac:
            leader.matches[message.sender] = match
            if match > leader.commit_index:
                advance_commit(leader)
    if progress.stage is not Stage.REPLICATE and match >= progress.next - 1:
        # What it lacks may still have to come by snapshot; sending entries finds that out.
        progress.begin_replicate()
    if leader.transfer_to == message.sender:
        handover.go_on(leader)


def _refused(leader: Replica, progress: Progress, message: AppendReply) -> None:
    """Go back to the highest place where both logs may still agree."""
    refused = message.refused_index
    if progress.stage is Stage.SNAPSHOT or not progress.match < refused < progress.next:
        # A follower holds what it acknowledged, so this speaks of the past.
        return
    if progress.stage is Stage.PROBE and refused != progress.next - 1:
        return
    hint = min(message.hint_index, Index(refused - 1))
    agreed = leader.log.last_at_most(hint, message.hint_term)
    progress.begin_probe(Index(max(progress.match, agreed) + 1))


def on_heartbeat_reply(leader: Replica, message: HeartbeatReply) -> None:
    if leader.role is not Role.LEADER or message.term != leader.term:
        return
    progress = leader.progress.get(message.sender)
    if progress is None:
        return
    progress.heard = leader.now
    leader.clocks.hear(message.sender, message.wall - leader.now)
    if message.round > progress.round_acked:
        progress.round_acked = message.round
        if leader.reads_waiting:
            reads.confirm(leader)
    if message.round > progress.judged_from:
        progress.damaged = not message.whole
    if message.round != progress.sent_round:
        return
    if leader.departing and _knows_that_it_left(leader, progress, message.last_index):
        del leader.progress[progress.replica]
        del leader.departing[progress.replica]
        return
    if message.last_index < progress.sent_match:
        _lost_what_it_acknowledged(leader, progress, message.last_index)
        return
    if progress.match < leader.log.last_index or progress.stage is not Stage.REPLICATE:
        _nudge(leader, progress, message.last_index)
    if leader.transfer_to == message.sender:
        handover.go_on(leader)


def _knows_that_it_left(leader: Replica, progress: Progress, last_index: Index) -> bool:
    """Whether a former member has the configuration without it, and knows that it is committed."""
    departure = leader.departing.get(progress.replica)
    return (
        departure is not None
        and progress.match >= departure.index
        and last_index >= progress.sent_commit >= departure.index
    )


def _lost_what_it_acknowledged(leader: Replica, progress: Progress, last_index: Index) -> None:
    progress.amnesiac = True
    leader.matches.pop(progress.replica, None)
    leader.send_now.append(Amnesiac(leader.replica, progress.replica, leader.term))
    # It goes on as a copy: everything behind what it still has is sent anew.
    progress.match = Index(0)
    progress.begin_probe(Index(last_index + 1))


def _nudge(leader: Replica, progress: Progress, last_index: Index) -> None:
    """The follower lives; make sure that nothing on the way to it or from it was lost for ever."""
    stage = progress.stage
    if stage is Stage.PROBE:
        if progress.paused or progress.next > leader.log.last_index:
            send_empty(leader, progress)
        return
    if stage is Stage.SNAPSHOT:
        if progress.snapshot_asked:
            # Give the shell a round to answer; then it is asked again.
            progress.snapshot_asked = False
        else:
            ask_for_chunk(leader, progress)
        return
    if last_index < progress.sent_next - 1:
        # Appends that left before the heartbeat did not arrive.
        progress.begin_probe(Index(max(progress.match, last_index) + 1))
    elif progress.match == progress.sent_match and progress.match < progress.sent_next - 1:
        # All arrived, but a whole round brought no answer: it may have been lost.
        send_empty(leader, progress)


def on_amnesiac(leader: Replica, message: Amnesiac) -> None:
    """A replica says of itself that it must not be counted."""
    progress = leader.progress.get(message.sender)
    if leader.role is Role.LEADER and message.term == leader.term and progress is not None:
        progress.amnesiac = True
        leader.matches.pop(message.sender, None)


# --- Time, and leaving ----------------------------------------------------------------------------


def tick(leader: Replica) -> None:
    now = leader.now
    if now < leader.heartbeat_at:
        return
    leader.heartbeat_at = next_heartbeat(now)
    if not hears_quorum_of(leader, leader.electorate):
        leader.become_follower(leader.term, NOBODY)
        return
    if now >= leader.transfer_deadline:
        handover.give_up(leader)
        if leader.role is not Role.LEADER:
            return
    for former in [at for at, departure in leader.departing.items() if now >= departure.until]:
        del leader.progress[former]
        del leader.departing[former]
    leader.recent_ends.append(leader.log.last_index)
    broadcast_heartbeat(leader)


def hears_quorum_of(leader: Replica, membership: Membership) -> bool:
    """CheckQuorum: whether a quorum was heard within an election timeout."""
    oldest = leader.now - ELECTION_MICROS_MAX
    heard = {
        progress.replica: progress.heard >= oldest and not progress.amnesiac
        for progress in leader.progress.values()
    }
    heard[leader.replica] = True
    return membership.has_quorum(heard)


def link_down(leader: Replica, replica: ReplicaId) -> None:
    """What was on the way is lost; wait for the link, or for a heartbeat reply."""
    progress = leader.progress.get(replica)
    if progress is not None and progress.stage is Stage.REPLICATE:
        progress.begin_probe(Index(progress.match + 1))
        progress.paused = True


def link_up(leader: Replica, replica: ReplicaId) -> None:
    """Do not wait for the next heartbeat."""
    progress = leader.progress.get(replica)
    if progress is None:
        return
    if progress.stage is Stage.SNAPSHOT:
        ask_for_chunk(leader, progress)
    elif progress.stage is Stage.REPLICATE:
        progress.begin_probe(Index(progress.match + 1))
    progress.paused = False
    send_heartbeat(leader, progress)
