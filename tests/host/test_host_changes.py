"""The way from any membership to the one that is wanted, one step at a time."""

import itertools

import pytest

from raftq.host.changes import left_for_good, next_step, unusable
from raftq.raft import Membership
from raftq.raft.changes import first_step
from raftq.raft.membership import after

JOINING = {9: "n3"}
LEAVING = {3: "n3"}


def step(present, caught_up=(), *, joining=JOINING, leaving=LEAVING):
    return next_step(present, list(caught_up), joining=joining, leaving=leaving)


def test_who_joins_is_a_learner_first():
    assert step(Membership((1, 2, 3))) == Membership((1, 2, 3), (9,))


def test_nothing_happens_before_it_has_caught_up():
    assert step(Membership((1, 2, 3), (9,))) is None


def test_then_it_takes_the_place_of_who_leaves_at_once():
    assert step(Membership((1, 2, 3), (9,)), [9]) == Membership((1, 2, 9))


def test_then_there_is_nothing_left_to_do():
    done = Membership((1, 2, 9), retired=3)
    assert step(done, [9]) is None
    assert left_for_good(done, JOINING, LEAVING) == (3,)


def test_one_that_is_not_made_yet_changes_nothing():
    assert step(Membership((1, 2, 3)), joining={}) is None


def test_a_successor_that_was_lost_too_leaves_with_the_first():
    leaving = {3: "n3", 9: "n3"}
    present = Membership((1, 2, 3), (9,))
    assert step(present, [9], joining={}, leaving=leaving) == Membership((1, 2, 3))
    joining = {11: "n3"}
    assert step(present, [9], joining=joining, leaving=leaving) == Membership((1, 2, 3), (11,))
    voted_in = Membership((1, 2, 9), retired=3)
    taken = step(voted_in, joining=joining, leaving=leaving)
    assert taken == Membership((1, 2, 9), (11,))
    assert step(taken, [11], joining=joining, leaving=leaving) == Membership((1, 2, 11))


def test_nobody_is_said_to_have_left_before_its_successor_votes():
    """A leader whose metadata lag might take it in again, as a learner that nobody knows."""
    leaving = {3: "n3", 9: "n3"}
    present = Membership((1, 2, 3), retired=9)
    assert left_for_good(present, {11: "n3"}, leaving) == ()
    assert left_for_good(Membership((1, 2, 11), retired=9), {11: "n3"}, leaving) == (3, 9)


def test_an_id_below_one_that_was_used_cannot_join():
    present = Membership((1, 2, 3), (9,))
    assert unusable(present, {8: "n2", 9: "n3"}) == (8,)
    assert unusable(Membership((1, 2, 3), retired=9), {9: "n3"}) == (9,)
    both = {"joining": {8: "n2", 9: "n3"}, "leaving": {2: "n2", 3: "n3"}}
    assert step(present, [9], **both) == Membership((1, 2, 9))


@pytest.mark.parametrize("caught_up", list(itertools.product([True, False], repeat=6)))
def test_every_step_is_one_that_the_core_takes_and_they_come_to_an_end(caught_up):
    """Two places at once; who has caught up changes from step to step."""
    joining, leaving = {8: "n2", 9: "n3"}, {2: "n2", 3: "n3"}
    present = Membership((1, 2, 3))
    for flag, other in [*itertools.pairwise(caught_up), (True, True), (True, True), (True, True)]:
        ready = [replica for replica, yes in ((8, flag), (9, other)) if yes]
        wanted = next_step(present, ready, joining=joining, leaving=leaving)
        if wanted is None:
            continue
        assert len(wanted.voters) == 3, "the group never has more or fewer voters"
        following = first_step(present, wanted)
        if following.outgoing:
            following = after(following, following.voters, following.learners)
        present = following
    assert present.voters == (1, 8, 9)
    assert present.learners == ()
    assert left_for_good(present, joining, leaving) == (2, 3)
