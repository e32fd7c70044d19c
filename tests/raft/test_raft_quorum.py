"""Quorum arithmetic against a slow version that enumerates."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from raftq.errors import Corrupted
from raftq.raft.membership import Membership, decode, encode, quorum_value

import pytest  # isort: skip

IDS = st.lists(st.integers(1, 9), unique=True, max_size=7).map(lambda ids: tuple(sorted(ids)))
VOTERS = IDS.filter(bool)
VALUES = st.dictionaries(st.integers(1, 9), st.integers(0, 20))
ANSWERS = st.dictionaries(st.integers(1, 9), st.booleans())


def majorities(voters):
    return combinations(voters, len(voters) // 2 + 1)


def dumb_value(voters, values):
    """The best that any majority has reached as a whole."""
    return max(min(values.get(voter, 0) for voter in group) for group in majorities(voters))


def dumb_quorum(voters, granted):
    return any(all(granted.get(v) for v in group) for group in majorities(voters))


@settings(deadline=None, max_examples=300, derandomize=True)
@given(voters=VOTERS, values=VALUES)
def test_value_that_a_majority_has_reached(voters, values):
    assert quorum_value(voters, values) == dumb_value(voters, values)


@settings(deadline=None, max_examples=300, derandomize=True)
@given(voters=VOTERS, outgoing=IDS, values=VALUES)
def test_joint_configuration_needs_both(voters, outgoing, values):
    expected = dumb_value(voters, values)
    if outgoing:
        expected = min(expected, dumb_value(outgoing, values))
    assert Membership(voters, (), outgoing).committed(values) == expected


@settings(deadline=None, max_examples=300, derandomize=True)
@given(voters=VOTERS, outgoing=IDS, granted=ANSWERS)
def test_votes_won_and_lost(voters, outgoing, granted):
    membership = Membership(voters, (), outgoing)
    sides = [side for side in (voters, outgoing) if side]
    assert membership.has_quorum(granted) == all(dumb_quorum(s, granted) for s in sides)
    hopeful = {v: granted.get(v, True) for v in range(1, 10)}
    assert membership.is_lost(granted) == (not all(dumb_quorum(s, hopeful) for s in sides))


@settings(deadline=None, max_examples=100, derandomize=True)
@given(voters=VOTERS, learners=IDS, outgoing=IDS, retired=st.integers(0, 9))
def test_bytes_of_a_membership(voters, learners, outgoing, retired):
    membership = Membership(voters, learners, outgoing, retired)
    assert decode(encode(membership)) == membership
    assert decode(memoryview(encode(membership))) == membership
    with pytest.raises(Corrupted):
        decode(encode(membership)[:-1])


def test_bytes_of_who_knows_nobody():
    """Without voters there are no members either, and no quorum of them."""
    blank = Membership(())
    assert decode(encode(blank)) == blank
    assert not blank.has_quorum({1: True})
    assert blank.committed({1: 9}) == 0
    with pytest.raises(Corrupted):
        decode(encode(Membership((), (1,))))


def test_bytes_without_former_members_are_as_they_always_were():
    assert encode(Membership((1, 2), (3,))).hex() == (
        "0100020001000000010000000000000002000000000000000300000000000000"
    )


def test_two_quorums_always_meet():
    for size in range(1, 8):
        voters = tuple(range(1, size + 1))
        groups = [set(group) for group in majorities(voters)]
        assert all(one & other for one in groups for other in groups)
