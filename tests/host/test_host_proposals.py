"""Every proposal is answered exactly once, with what is true."""

import pytest

from raftq.errors import InvalidArgument, Timeout
from raftq.host.proposals import Place, Proposal, Proposals, Redirect
from raftq.limits import (
    HOLD_BYTES,
    HOLD_MICROS,
    IN_LOG_BYTES_MAX,
    MAX_COMMANDS,
    TARGET_ENTRY_BYTES,
)
from raftq.machine import Admitted, DuplicateOf, Later
from raftq.raft.entry import COMMANDS, build

NOW = 1_000_000


class Verdicts:
    """An admission that says what the header says."""

    def __init__(self):
        self.seen = []

    def admit(self, header, body, index, log_time):
        self.seen.append((header, index, log_time))
        word, _, number = header.partition(b" ")
        if word == b"twin":
            return DuplicateOf(int(number), f"original {int(number)}")
        if word == b"bug":
            raise RuntimeError("a bug of the machine")
        if word == b"later":
            return Later(int(number))
        if word == b"refuse":
            return InvalidArgument("no")
        return Admitted(header + b" stamped")

    def applied(self, index):
        pass


class Answers(dict):
    """What each proposer heard; hearing twice is a failure."""

    def to(self, name):
        def done(reply, place):
            assert name not in self, f"{name} was answered twice"
            self[name] = (reply, place)

        return done


@pytest.fixture
def proposals():
    return Proposals()


@pytest.fixture
def answers():
    return Answers()


def add(proposals, answers, *headers, body=b""):
    for header in headers:
        proposals.add(Proposal(header, body, answers.to(header)), NOW)


def take(proposals, index, applied=0):
    def place(asked):
        return Place(asked, 1, bytes(16), 0) if asked <= applied else None

    return proposals.take(Verdicts(), index=index, log_time=5, place=place)


def entry_at(index, term):
    return build(previous_chain=bytes(16), index=index, term=term, kind=COMMANDS, log_time=5)


def apply(proposals, index, term, replies=()):
    entry = entry_at(index, term)
    place = Place(index, term, entry.chain, 5)
    proposals.applied(entry, list(replies), place, lambda: Redirect("n2"))
    return place


def fail(proposals):
    proposals.fail(unknown=Redirect("n2", applied=True), not_applied=Redirect("n2"))


def test_admitted_commands_are_stamped_and_answered_in_order(proposals, answers):
    add(proposals, answers, b"a", b"b", body=b"body")
    assert proposals.pending_bytes == 10
    batch = take(proposals, 7)
    assert [(c.header, c.body) for c in batch] == [(b"a stamped", b"body"), (b"b stamped", b"body")]
    assert proposals.pending_bytes == 0
    assert answers == {}
    proposals.proposed(7, 3, 0)
    place = apply(proposals, 7, 3, ["one", "two"])
    assert answers == {b"a": ("one", place), b"b": ("two", place)}
    fail(proposals)
    apply(proposals, 7, 3, ["one", "two"])


def test_no_entry_is_made_while_too_much_is_not_applied_yet(proposals, answers):
    """Goal: slow followers cannot make a leader hold ever more of what is not committed."""
    add(proposals, answers, b"a")
    take(proposals, 7)
    proposals.proposed(7, 3, IN_LOG_BYTES_MAX + 1)
    add(proposals, answers, b"b")
    assert not proposals.is_due(now=NOW, unsynced_bytes=0, applied=6)
    apply(proposals, 7, 3, ["one"])
    assert proposals.is_due(now=NOW, unsynced_bytes=0, applied=7)


def test_a_refused_proposal_hears_at_once_and_enters_no_entry(proposals, answers):
    add(proposals, answers, b"refuse", b"a")
    batch = take(proposals, 7)
    assert [command.header for command in batch] == [b"a stamped"]
    refusal, place = answers[b"refuse"]
    assert isinstance(refusal, InvalidArgument)
    assert place is None


def test_a_duplicate_of_what_is_applied_hears_at_once(proposals, answers):
    add(proposals, answers, b"twin 5")
    batch = take(proposals, 7, applied=6)
    assert batch == []
    assert answers[b"twin 5"] == ("original 5", Place(5, 1, bytes(16), 0))


def test_a_duplicate_of_what_is_in_flight_waits_for_the_original(proposals, answers):
    add(proposals, answers, b"a", b"twin 7")
    take(proposals, 7, applied=6)
    proposals.proposed(7, 3, 0)
    assert answers == {}
    place = apply(proposals, 7, 3, ["one"])
    assert answers == {b"a": ("one", place), b"twin 7": ("original 7", place)}


def test_a_duplicate_fails_with_its_original(proposals, answers):
    add(proposals, answers, b"a", b"twin 7")
    take(proposals, 7, applied=6)
    proposals.proposed(7, 3, 0)
    fail(proposals)
    assert answers[b"a"][0].outcome == "unknown"
    assert answers[b"twin 7"][0].outcome == "unknown"


def test_another_leaders_entry_in_its_place_refuses_original_and_duplicate(proposals, answers):
    """The old leader applies the new one's entry before it has noticed its own end."""
    add(proposals, answers, b"a", b"twin 7")
    take(proposals, 7, applied=6)
    proposals.proposed(7, 3, 0)
    apply(proposals, 7, 4, ["somebody else's"])
    for name in (b"a", b"twin 7"):
        reply, place = answers[name]
        assert isinstance(reply, Redirect), "an acknowledged message would be lost"
        assert reply.outcome == "not_applied"
        assert place is None


def test_what_cannot_be_judged_yet_blocks_what_is_behind_it(proposals, answers):
    add(proposals, answers, b"a", b"later 7", b"b")
    batch = take(proposals, 7, applied=6)
    assert [command.header for command in batch] == [b"a stamped"]
    proposals.proposed(7, 3, 0)
    assert not proposals.is_due(now=NOW * 2, unsynced_bytes=0, applied=6)
    apply(proposals, 7, 3, ["one"])
    assert proposals.is_due(now=NOW * 2, unsynced_bytes=0, applied=7)
    fail(proposals)
    assert answers[b"later 7"][0].outcome == "not_applied"
    assert answers[b"b"][0].outcome == "not_applied"


def test_at_the_end_of_leadership_everybody_hears_the_truth(proposals, answers):
    add(proposals, answers, b"in the log")
    take(proposals, 7)
    proposals.proposed(7, 3, 0)
    add(proposals, answers, b"pending", body=b"x" * 100)
    fail(proposals)
    assert answers[b"in the log"][0].outcome == "unknown"
    assert answers[b"pending"][0].outcome == "not_applied"
    assert proposals.pending_bytes == 0
    assert not proposals.is_pending


def test_when_judging_fails_who_was_taken_before_hears_too(proposals, answers):
    add(proposals, answers, b"a", b"bug", b"behind it")
    with pytest.raises(RuntimeError):
        take(proposals, 7)
    assert answers == {}
    fail(proposals)
    assert {name: reply.outcome for name, (reply, _) in answers.items()} == {
        b"a": "not_applied",
        b"bug": "not_applied",
        b"behind it": "not_applied",
    }


def test_who_proposes_again_while_hearing_of_the_end_is_kept_for_later(proposals, answers):
    def again(reply, place):
        add(proposals, answers, b"again")

    proposals.add(Proposal(b"first", b"", again), NOW)
    fail(proposals)
    assert proposals.is_pending
    assert answers == {}
    fail(proposals)
    assert answers[b"again"][0].outcome == "not_applied"


def test_the_hold_rule(proposals, answers):
    assert not proposals.is_due(now=NOW, unsynced_bytes=0, applied=0)
    add(proposals, answers, b"a")
    assert proposals.is_due(now=NOW, unsynced_bytes=0, applied=0)
    assert not proposals.is_due(now=NOW + HOLD_MICROS - 1, unsynced_bytes=1, applied=0)
    assert proposals.is_due(now=NOW + HOLD_MICROS, unsynced_bytes=1, applied=0)
    add(proposals, answers, b"b", body=bytes(HOLD_BYTES))
    assert proposals.is_due(now=NOW, unsynced_bytes=1, applied=0)


def test_what_is_late_is_refused_and_what_is_in_the_log_is_not(proposals, answers):
    proposals.add(Proposal(b"in the log", b"", answers.to(b"in the log"), NOW + 10), NOW)
    take(proposals, 7)
    proposals.proposed(7, 3, 0)
    for name, give_up_at in ((b"patient", NOW + 30), (b"late", NOW + 10), (b"later", NOW + 20)):
        proposals.add(Proposal(name, b"body", answers.to(name), give_up_at), NOW)
    add(proposals, answers, b"without a limit")
    proposals.refuse_late(NOW + 9)
    assert answers == {}
    proposals.refuse_late(NOW + 10)
    assert list(answers) == [b"late"]
    problem, place = answers[b"late"]
    assert isinstance(problem, Timeout)
    assert (problem.outcome, place) == ("not_applied", None)
    proposals.refuse_late(NOW + 20)
    assert list(answers) == [b"late", b"later"]
    assert proposals.pending_bytes == len(b"patientbody" + b"without a limit")
    assert [command.header for command in take(proposals, 8)] == [
        b"patient stamped",
        b"without a limit stamped",
    ]
    proposals.proposed(8, 3, 0)
    proposals.refuse_late(NOW + 100)
    assert list(answers) == [b"late", b"later"]


def count_of_an_entry(proposals, index):
    batch = take(proposals, index)
    proposals.proposed(index, 3, 0)
    return len(batch)


def test_an_entry_is_bounded_by_bytes_and_by_commands(proposals, answers):
    add(proposals, answers, b"a", b"b", b"c", body=bytes(TARGET_ENTRY_BYTES // 2))
    assert count_of_an_entry(proposals, 7) == 1
    assert count_of_an_entry(proposals, 8) == 1
    add(proposals, answers, b"huge", body=bytes(3 * TARGET_ENTRY_BYTES))
    assert count_of_an_entry(proposals, 9) == 1
    assert count_of_an_entry(proposals, 10) == 1
    add(proposals, answers, *(b"%d" % number for number in range(MAX_COMMANDS + 1)))
    assert count_of_an_entry(proposals, 11) == MAX_COMMANDS
    assert count_of_an_entry(proposals, 12) == 1
    assert proposals.pending_bytes == 0


def test_a_proposer_that_fails_on_its_answer_harms_nobody_else(proposals, answers):
    def broken(reply, place):
        raise ValueError("no use for this")

    proposals.add(Proposal(b"broken", b"", broken), NOW)
    add(proposals, answers, b"a")
    take(proposals, 7)
    proposals.proposed(7, 3, 0)
    place = apply(proposals, 7, 3, ["one", "two"])
    assert answers == {b"a": ("two", place)}
