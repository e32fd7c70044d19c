"""Stories of entries: what a follower keeps, refuses, acknowledges and commits."""

import pytest
from raft_harness import Violated
from raft_stories import deposed_with_tail, led

from raftq.ids import Index, ReplicaId, Term
from raftq.limits import HEARTBEAT_MICROS
from raftq.raft.faults import NONE, Faults
from raftq.raft.messages import (
    Append,
    AppendReply,
    Heartbeat,
    VoteRequest,
)


def test_late_append_does_not_truncate_what_was_acknowledged():
    """An append of the same term, delayed beyond later ones, changes nothing."""
    cluster = led()
    late = []
    cluster.drop = lambda m: isinstance(m, Append) and m.to == 2 and not late.append(m)
    cluster.propose(1, b"a")
    cluster.drop = lambda m: False
    cluster.advance(300_000)
    cluster.propose(1, b"PAID")
    cluster.advance(100_000)
    before = cluster.core(2).last_index
    for message in late:
        cluster.step(message)
    cluster.advance(1_000)
    assert cluster.core(2).last_index == before
    assert cluster[2].log.platter.last_index == before


def test_success_never_rewinds_what_is_sent_next():
    """Acknowledgements of pipelined appends cause no resend of the middle."""
    cluster = led()
    indexes = [cluster.propose(1, b"%d" % i) for i in range(10)]
    sent = []
    cluster.drop = lambda m: isinstance(m, Append) and bool(sent.append(m))
    cluster.deliver()
    assert sent == []
    assert cluster.core(1).commit_index == indexes[-1]


def replies_crawl(faults):
    """They arrive when their receiver has been deposed and elected again, and is cut off."""
    cluster = led(5, faults=faults)
    crawling = []
    cluster.drop = lambda m: isinstance(m, AppendReply) and not crawling.append(m)
    for number in range(3):
        cluster.propose(1, b"old-%d" % number)
    cluster.deliver()
    cluster.drop = lambda m: False
    assert crawling
    cluster.elect(2)
    cluster.elect(1)
    cluster.isolate(1)
    index = cluster.propose(1, b"alone")
    for message in crawling:
        forged = message._replace(match_index=index)
        cluster.step(forged)
    return cluster, index


def test_acknowledgement_of_an_older_term_does_not_count():
    cluster, index = replies_crawl(NONE)
    assert cluster.core(1).commit_index < index


def test_whoever_counts_them_commits_what_it_holds_alone():
    cluster, index = replies_crawl(Faults(older_replies_counted=True))
    assert cluster.core(1).commit_index == index


def test_whoever_truncates_what_agrees_loses_what_was_acknowledged():
    """A late append of the same term ends before what was acknowledged since."""
    cluster = led(faults=Faults(truncates_what_agrees=True))
    late = []
    cluster.drop = lambda m: isinstance(m, Append) and m.to == 2 and not late.append(m)
    cluster.propose(1, b"a")
    cluster.drop = lambda m: False
    cluster.advance(300_000)
    # Where all is committed already, there is nothing left to truncate.
    cluster.drop = lambda m: isinstance(m, AppendReply)
    cluster.propose(1, b"PAID")
    cluster.deliver()
    before = cluster.core(2).last_index
    for message in late:
        cluster.step(message)
    assert cluster.core(2).last_index < before


def test_only_an_acknowledged_prefix_is_reported():
    """A follower with a longer, unverified tail reports what the append verified."""
    cluster = led()
    deposed_with_tail(cluster, tail=(b"x", b"y", b"z"))
    end = cluster.core(1).last_index
    cluster.heal()
    replies = []
    cluster.drop = lambda m: isinstance(m, AppendReply) and m.sender == 1 and replies.append(m)
    core = cluster.core(2)
    below = cluster.core(1).commit_index
    log = core.log
    cluster.step(
        Append(
            ReplicaId(2), ReplicaId(1), core.term, below, log.term(below), log.chain(below),
            core.commit_index, (),
        )
    )  # fmt: skip
    (reply,) = replies
    assert reply.success
    assert reply.match_index == below
    assert cluster.core(1).last_index == end
    assert cluster.core(1).commit_index == below


def test_corrupt_entry_voids_its_append():
    cluster = led()
    entry = None

    def corrupt(message):
        nonlocal entry
        if isinstance(message, Append) and message.to == 2 and message.entries:
            entry = message
            return True
        return False

    cluster.drop = corrupt
    cluster.propose(1, b"good")
    cluster.drop = lambda m: False
    bad = entry.entries[0]._replace(vectors=(entry.entries[0].vectors[0], b"evil"))
    before = cluster.core(2).last_index
    cluster.step(entry._replace(entries=(bad,)))
    assert cluster.core(2).last_index == before
    assert cluster.core(2).corrupt_messages == 1
    cluster.advance(300_000)
    assert cluster.converged()


def test_repair_of_a_long_divergent_tail_takes_few_round_trips():
    """Whole terms are skipped: 200 divergent entries do not take 200 refusals."""
    cluster = led()
    deposed_with_tail(cluster, tail=[b"%d" % i for i in range(200)])
    refusals = []
    cluster.drop = lambda m: (
        isinstance(m, AppendReply) and not m.success and bool(refusals.append(m))
    )
    cluster.heal()
    cluster.advance(200_000)
    assert cluster.converged()
    assert len(refusals) <= 4


def heartbeat_before_append(cluster):
    """The new leader's heartbeat reaches the deposed one before any append does."""
    cluster.heal()
    cluster.wire.clear()
    cluster.drop = lambda m: isinstance(m, Append)
    cluster.advance(2 * HEARTBEAT_MICROS)
    core = cluster.core(1)
    assert core.leader == 2
    return core


def test_heartbeat_does_not_commit_a_deposed_leaders_tail():
    cluster = led()
    deposed_with_tail(cluster)
    committed = cluster.core(1).commit_index
    core = heartbeat_before_append(cluster)
    assert core.commit_index == committed
    assert b"LOST-1" not in cluster[1].bodies


def test_heartbeat_over_a_conflicting_tail_is_no_divergence():
    cluster = led()
    deposed_with_tail(cluster)
    core = heartbeat_before_append(cluster)
    assert core.diverged is None
    cluster.drop = lambda m: False
    cluster.advance(300_000)
    assert cluster.converged()
    assert b"KEPT-0" in cluster[1].bodies


def test_unequal_chain_at_the_commit_index_is_divergence():
    cluster = led()
    core = cluster.core(2)
    core.step(
        Heartbeat(
            ReplicaId(1), ReplicaId(2), core.term, 99, core.commit_index, b"?" * 16,
            Index(0), bytes(16),
        )
    )  # fmt: skip
    assert core.diverged
    assert core.ready() is None
    core.step(VoteRequest(ReplicaId(3), ReplicaId(2), Term(50), Index(99), Term(49), pre=False))
    assert core.ready() is None


def test_conflict_below_the_commit_index_is_refused_not_truncated():
    cluster = led()
    cluster.propose(1, b"committed")
    cluster.advance(100_000)
    core = cluster.core(2)
    log = core.log
    other = cluster.core(1).log.entries(core.commit_index, Index(core.commit_index + 1), 1)[0]
    other = other._replace(chain=b"!" * 16)
    previous = Index(core.commit_index - 1)
    core.step(
        Append(
            ReplicaId(1), ReplicaId(2), core.term, previous, log.term(previous),
            log.chain(previous), core.commit_index, (other,),
        )
    )  # fmt: skip
    # Such an entry cannot be verified, so it does not even get as far as being compared.
    assert core.corrupt_messages == 1
    assert core.last_index == cluster.core(1).last_index


def test_machine_digests_are_compared():
    cluster = led()
    for replica in (1, 2, 3):
        cluster.core(replica).checkpoint(Index(1), b"same" * 4 if replica < 3 else b"else" * 4)
    with pytest.raises(Violated, match="machine"):
        cluster.advance(2 * HEARTBEAT_MICROS)
    assert cluster.core(2).diverged is None
    assert "machine" in cluster.core(3).diverged


def test_new_learner_of_an_idle_group_is_brought_up():
    """It gets the log although nothing else is proposed."""
    cluster = led()
    cluster.join(4)
    cluster.isolate(4)
    core = cluster.core(1)
    cluster.change(1, (1, 2, 3), (4,))
    cluster.advance(200_000)
    assert cluster.core(4).last_index < core.last_index
    cluster.heal()
    cluster.advance(300_000)
    assert cluster.core(4).commit_index == core.last_index
