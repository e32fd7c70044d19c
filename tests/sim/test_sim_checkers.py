"""Each checker accepts what may happen and finds what must not."""

import pytest

from raftq.raft import Membership
from raftq.sim.checkers import (
    CommitQuorum,
    Durability,
    ElectionSafety,
    LeaderCompleteness,
    LogAgreement,
    MembershipRules,
    ViolationError,
)
from raftq.sim.ledger import Availability, Delivery, Ledger, Place

G = 3


def chain(letter):
    return letter.encode() * 16


# --- ElectionSafety --------------------------------------------------------------------------------


def test_one_leader_per_term_and_group():
    checker = ElectionSafety()
    checker.leader_elected("n1", G, 1)
    checker.leader_elected("n1", G, 1)
    checker.leader_elected("n2", G, 2)
    checker.leader_elected("n2", G + 1, 1)
    assert checker.elections == 3
    with pytest.raises(ViolationError, match="two leaders in term 1 of group 3: n1 and n3"):
        checker.leader_elected("n3", G, 1)


# --- LogAgreement ----------------------------------------------------------------------------------


def test_logs_may_conflict_in_another_term_but_not_in_the_same():
    checker = LogAgreement()
    checker.appended("n1", G, 5, 1, chain("a"))
    checker.appended("n2", G, 5, 1, chain("a"))
    checker.appended("n2", G, 5, 2, chain("b"))
    checker.appended("n2", G + 1, 5, 1, chain("c"))
    with pytest.raises(ViolationError, match="n1 and n3 have an entry of term 1 at index 5"):
        checker.appended("n3", G, 5, 1, chain("c"))


def test_what_is_committed_never_changes():
    checker = LogAgreement()
    checker.committed("n1", G, 5, chain("a"))
    checker.committed("n2", G, 5, chain("a"))
    checker.committed("n1", G, 6, chain("b"))
    with pytest.raises(ViolationError, match="n3 committed another log up to index 6 than n1"):
        checker.committed("n3", G, 6, chain("c"))


def test_a_node_must_not_change_its_own_mind():
    checker = LogAgreement()
    checker.committed("n1", G, 5, chain("a"))
    with pytest.raises(ViolationError):
        checker.committed("n1", G, 5, chain("b"))


def test_machines_apply_each_index_once_in_order():
    checker = LogAgreement()
    checker.restored("n1", G, 0)
    checker.applied("n1", G, 1)
    checker.applied("n1", G, 2)
    checker.restored("n1", G, 9)
    checker.applied("n1", G, 10)
    with pytest.raises(ViolationError, match="applied index 12 after index 10"):
        checker.applied("n1", G, 12)
    with pytest.raises(ViolationError, match="applied index 10 after index 10"):
        checker.applied("n1", G, 10)


def test_machines_are_equal_at_an_equal_index():
    checker = LogAgreement()
    checker.digest("n1", G, 10, b"x")
    checker.digest("n2", G, 10, b"x")
    checker.digest("n2", G, 20, b"y")
    with pytest.raises(ViolationError, match="machines of n2 and n3 differ at index 20"):
        checker.digest("n3", G, 20, b"z")


# --- LeaderCompleteness ----------------------------------------------------------------------------


def elect(checker, term, log):
    checker.leader_elected("n2", G, term, last_index=max(log, default=0), chain_at=log.get)


def test_a_new_leader_with_everything_is_fine():
    checker = LeaderCompleteness()
    checker.committed(G, 4, chain("d"), 1)
    checker.committed(G, 5, chain("e"), 1)
    checker.committed(G + 1, 9, chain("z"), 1)
    elect(checker, 2, {4: chain("d"), 5: chain("e"), 6: chain("x")})


def test_a_snapshot_covers_what_it_covers():
    checker = LeaderCompleteness()
    checker.committed(G, 5, chain("e"), 1)
    elect(checker, 2, {8: chain("h")})


def test_a_late_winner_of_an_older_term_is_fine():
    checker = LeaderCompleteness()
    checker.committed(G, 5, chain("e"), 3)
    elect(checker, 2, {4: chain("d")})


def test_a_leader_whose_log_is_too_short():
    checker = LeaderCompleteness()
    checker.committed(G, 5, chain("e"), 1)
    with pytest.raises(ViolationError, match="ends at index 4"):
        elect(checker, 2, {4: chain("d")})


def test_a_leader_with_another_log():
    checker = LeaderCompleteness()
    checker.committed(G, 5, chain("e"), 1)
    with pytest.raises(ViolationError, match="has another log at index 5"):
        elect(checker, 2, {5: chain("x"), 6: chain("y")})


# --- Durability ------------------------------------------------------------------------------------


def test_an_entry_is_acknowledged_when_its_write_is_synced():
    checker = Durability()
    checker.wrote("n1", G, 7, first=10, last=12)
    checker.acknowledged("n1", G, 12, after=7)
    checker.acknowledged("n1", G, 9, after=6)
    with pytest.raises(ViolationError, match="acknowledges index 11, which is in write 7"):
        checker.acknowledged("n1", G, 11, after=6)


def test_an_index_that_was_written_again_is_as_durable_as_its_newest_write():
    checker = Durability()
    checker.wrote("n1", G, 7, first=10, last=12)
    checker.truncated("n1", G, 11)
    checker.wrote("n1", G, 8, first=11, last=11)
    checker.acknowledged("n1", G, 10, after=7)
    with pytest.raises(ViolationError, match="index 11, which is in write 8"):
        checker.acknowledged("n1", G, 11, after=7)


def test_a_vote_is_given_when_its_write_is_synced():
    checker = Durability()
    checker.wrote_vote("n1", G, 3, 5, 2)
    checker.wrote_vote("n1", G, 4, 5, 2)
    checker.voted("n1", G, 5, after=3)
    with pytest.raises(ViolationError, match="votes in term 5 by write 3"):
        checker.voted("n1", G, 5, after=2)


def test_what_was_acknowledged_is_there_after_a_restart():
    checker = Durability()
    checker.wrote("n1", G, 7, first=10, last=12)
    checker.acknowledged("n1", G, 12, after=7)
    checker.restored("n1", G, 11, is_whole=True)  # It had not left yet.
    checker.wrote("n1", G, 8, first=12, last=13)
    checker.acknowledged("n1", G, 13, after=8)
    checker.synced("n1", G, 8)
    checker.restored("n1", G, 13, is_whole=True)
    checker.restored("n1", G, 5, is_whole=False)  # It knows that something is missing.
    with pytest.raises(
        ViolationError, match="acknowledged index 13; after a restart it ends at 12"
    ):
        checker.restored("n1", G, 12, is_whole=True)


def test_a_truncation_takes_promises_back():
    checker = Durability()
    checker.wrote("n1", G, 7, first=10, last=12)
    checker.acknowledged("n1", G, 12, after=7)
    checker.truncated("n1", G, 11)
    checker.synced("n1", G, 7)
    checker.restored("n1", G, 10, is_whole=True)
    with pytest.raises(ViolationError, match="acknowledged index 10"):
        checker.restored("n1", G, 9, is_whole=True)


def test_what_is_committed_is_not_truncated():
    checker = LogAgreement()
    checker.committed("n1", G, 5, chain("a"))
    checker.truncated("n2", G, 5, chain("b"))
    checker.truncated("n2", G, 6, chain("a"))
    with pytest.raises(ViolationError, match="n2 truncates index 5, which n1 has committed"):
        checker.truncated("n2", G, 5, chain("a"))


# --- CommitQuorum ----------------------------------------------------------------------------------


def test_what_is_committed_is_promised_by_a_quorum():
    single, joint = Membership((1, 2, 3)), Membership((1, 2, 4), (), (1, 2, 3))
    promised = {1: 9, 2: 9, 3: 0, 4: 0}
    CommitQuorum.committed("n1", G, 9, promised=promised, memberships=[single])
    CommitQuorum.committed("n1", G, 9, promised=promised, memberships=[joint])
    promised = {1: 9, 2: 8, 3: 9}
    CommitQuorum.committed("n1", G, 9, promised=promised, memberships=[joint, single])
    with pytest.raises(ViolationError, match="n1 committed index 9"):
        CommitQuorum.committed("n1", G, 9, promised=promised, memberships=[joint])
    with pytest.raises(ViolationError):
        CommitQuorum.committed("n1", G, 10, promised=promised, memberships=[single])


def test_promises_count_once_they_have_left():
    checker = Durability()
    checker.restored("n1", G, 0, is_whole=True)
    checker.wrote("n1", G, 1, first=1, last=4)
    checker.acknowledged("n1", G, 4, after=1)
    assert checker.promised("n1", G, synced=0) == 0
    assert checker.promised("n1", G, synced=1) == 4
    checker.truncated("n1", G, 3)
    assert checker.promised("n1", G, synced=1) == 2


# --- MembershipRules -------------------------------------------------------------------------------


def test_configurations_follow_one_another():
    def changed(before, following, *, commit_index=9, term_start=8, before_index=7):
        MembershipRules.changed(
            "n1",
            G,
            before,
            following,
            before_index=before_index,
            commit_index=commit_index,
            term_start=term_start,
        )

    three, four = Membership((1, 2, 3)), Membership((1, 2, 3, 4))
    other, joint = Membership((1, 2, 4)), Membership((1, 2, 4), (), (1, 2, 3))
    changed(three, four)
    changed(three, joint)
    changed(joint, other)
    with pytest.raises(ViolationError, match="before anything of its own term"):
        changed(three, four, commit_index=7)
    with pytest.raises(ViolationError, match="while the change at 10"):
        changed(three, four, before_index=10)
    with pytest.raises(ViolationError, match="majorities need not meet"):
        changed(three, other)


# --- Ledger ----------------------------------------------------------------------------------------


def place(offset, partition=0, queue="q"):
    return Place(queue, partition, offset)


def delivery(offset, payload, count=1, subscription="s"):
    return Delivery(subscription, place(offset), payload, count)


@pytest.fixture
def ledger():
    ledger = Ledger()
    for payload in "abcd":
        ledger.attempted("q", payload)
    ledger.acknowledged(place(0), "a")
    ledger.acknowledged(place(1), "b")
    return ledger


def test_an_honest_run(ledger):
    # c was never acknowledged: it may be there, d may not.
    ledger.delivered(delivery(0, "a"))
    ledger.delivered(delivery(1, "b"))
    ledger.delivered(delivery(1, "b", 2))
    ledger.delivered(delivery(2, "c"))
    ledger.delivered(delivery(0, "a", 1, subscription="t"))
    ledger.settled(delivery(1, "b", 2))
    ledger.log("n1", "q", 0, [(0, "a"), (1, "b"), (2, "c")])
    ledger.log("n2", "q", 0, [(0, "a"), (1, "b")])
    ledger.log("n1", "q", 1, [])
    ledger.drained("s", "q")
    assert ledger.acknowledged_count == 2
    assert ledger.delivered_count == 5


def test_a_late_delivery_of_a_lower_count_is_fine(ledger):
    ledger.delivered(delivery(0, "a", 2))
    ledger.settled(delivery(0, "a", 2))
    ledger.delivered(delivery(0, "a", 1))


def test_released_messages_must_have_been_delivered(ledger):
    ledger.delivered(delivery(0, "a"))
    ledger.log("n1", "q", 0, [(1, "b")], is_released=lambda start, stop: stop <= 1)
    with pytest.raises(ViolationError, match="goes on at offset 1, not 0"):
        ledger.log("n1", "q", 0, [(1, "b")])
    with pytest.raises(ViolationError, match="acknowledged message lost: b"):
        ledger.log("n1", "q", 0, [(2, "c")], is_released=lambda start, stop: True)
    with pytest.raises(ViolationError, match="ends at 2, its machine at 3"):
        ledger.log("n1", "q", 0, [(0, "a"), (1, "b")], end=3)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([(0, "a")], "acknowledged message lost: b"),
        ([], "acknowledged message lost: a"),
        ([(0, "a"), (2, "b")], "goes on at offset 2, not 1"),
        ([(1, "b")], "goes on at offset 1, not 0"),
        ([(0, "b"), (1, "a")], "where a was before"),
        ([(0, "a"), (1, "b"), (2, "a")], "a is at q/0 offsets 0 and 2"),
        ([(0, "a"), (1, "b"), (2, "x")], "x was found at n1 in q; nobody sent it"),
    ],
)
def test_a_log_with_something_lost_moved_doubled_or_invented(ledger, records, message):
    with pytest.raises(ViolationError, match=message):
        ledger.log("n1", "q", 0, records)


def test_replicas_with_different_logs(ledger):
    ledger.log("n1", "q", 0, [(0, "a"), (1, "b"), (2, "c")])
    with pytest.raises(ViolationError, match="where c was before"):
        ledger.log("n2", "q", 0, [(0, "a"), (1, "b"), (2, "d")])


def test_one_payload_in_two_partitions(ledger):
    ledger.log("n1", "q", 0, [(0, "a"), (1, "b"), (2, "c")])
    with pytest.raises(ViolationError, match="c was found at n1"):
        ledger.log("n1", "q", 1, [(0, "c")])


def test_two_acknowledgements_of_one_place_or_two_places_of_one_payload(ledger):
    with pytest.raises(ViolationError, match=r"c was acknowledged at .* where b was before"):
        ledger.acknowledged(place(1), "c")
    with pytest.raises(ViolationError, match=r"a was acknowledged at .* and before at"):
        ledger.acknowledged(place(7), "a")
    with pytest.raises(ViolationError, match="nobody sent it there"):
        ledger.acknowledged(place(0, queue="other"), "d")
    with pytest.raises(ViolationError, match="twice"):
        ledger.attempted("q", "a")


def test_a_delivery_of_something_else(ledger):
    with pytest.raises(ViolationError, match="where a was before"):
        ledger.delivered(delivery(0, "c"))


def test_a_doubled_delivery_that_does_not_say_so(ledger):
    ledger.delivered(delivery(0, "a"))
    with pytest.raises(ViolationError, match="handed out twice as delivery 1"):
        ledger.delivered(delivery(0, "a"))


def test_a_delivery_after_settling(ledger):
    ledger.delivered(delivery(0, "a"))
    ledger.settled(delivery(0, "a"))
    with pytest.raises(ViolationError, match="settled by delivery 1 and handed out as 2"):
        ledger.delivered(delivery(0, "a", 2))


def test_a_stale_receipt_that_settles(ledger):
    ledger.delivered(delivery(0, "a"))
    ledger.delivered(delivery(0, "a", 2))
    with pytest.raises(ViolationError, match="settled by delivery 1 and handed out as 2"):
        ledger.settled(delivery(0, "a"))


def test_an_acknowledged_message_that_never_comes_out(ledger):
    ledger.delivered(delivery(0, "a"))
    with pytest.raises(ViolationError, match=r"b at .* never reached s"):
        ledger.drained("s", "q")


# --- Availability ----------------------------------------------------------------------------------


def test_success_soon_enough_after_healing():
    checker = Availability(bound=3_000_000)
    checker.succeeded(1)
    checker.healed(1_000_000)
    checker.succeeded(4_000_000)
    checker.succeeded(40_000_000)
    checker.finish(50_000_000)


def test_success_too_late():
    checker = Availability(bound=3_000_000)
    checker.healed(1_000_000)
    with pytest.raises(ViolationError, match=r"3\.000 s"):
        checker.succeeded(4_000_001)


def test_no_success_at_all():
    checker = Availability(bound=3_000_000)
    checker.succeeded(1)
    checker.healed(1_000_000)
    checker.finish(2_000_000)
    with pytest.raises(ViolationError):
        checker.finish(9_000_000)


def test_what_was_refused_is_nowhere(ledger):
    ledger.attempted("orders", "p/9")
    ledger.refused("p/9")
    with pytest.raises(ViolationError, match="was refused as not applied"):
        ledger.read(Place("orders", 0, 50), "p/9")


def test_what_is_somewhere_was_not_refused(ledger):
    ledger.attempted("orders", "p/9")
    ledger.read(Place("orders", 0, 50), "p/9")
    with pytest.raises(ViolationError, match="was refused as not applied, and is at"):
        ledger.refused("p/9")


def test_what_one_producer_sent_stays_in_its_order():
    ledger = Ledger()
    for offset, payload in enumerate(("p-1", "q-1", "p-3", "p-2", "r/2", "r/1")):
        ledger.attempted("orders", payload)
        if payload != "p-2":
            ledger.acknowledged(Place("orders", 0, offset), payload)
    records = list(enumerate(("p-1", "q-1", "p-3", "p-2", "r/2", "r/1")))
    ledger.log("n1", "orders", 0, records)  # p-2 was given up, and stored late.
    ledger.acknowledged(Place("orders", 0, 3), "p-2")
    with pytest.raises(ViolationError, match="has p-2 behind p-3"):
        ledger.log("n1", "orders", 0, records)
