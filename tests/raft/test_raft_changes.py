"""Which configuration may follow which, and the memory of ids that are gone."""

import pytest
from raft_stories import led

from raftq.raft import ChangeRefused, Membership, Reason
from raftq.raft.changes import first_step
from raftq.raft.membership import after, decode, encode


@pytest.mark.parametrize(
    ("present", "wanted", "step"),
    [
        # Learners alone, or one voter, in one entry.
        (Membership((1, 2, 3)), Membership((1, 2, 3), (4,)), Membership((1, 2, 3), (4,))),
        (Membership((1, 2, 3), (4,)), Membership((1, 2, 3, 4)), Membership((1, 2, 3, 4))),
        (Membership((1, 2, 3)), Membership((1, 2)), Membership((1, 2), retired=3)),
        (Membership((1, 2, 3)), Membership((1, 2), (3,)), Membership((1, 2), (3,))),
        (Membership((1, 2), (5,), (), 3), Membership((1, 2)), Membership((1, 2), retired=5)),
        # Any more through a joint configuration, in which the old voters are not gone yet.
        (Membership((1, 2, 3), (4,)), Membership((1, 2, 4)), Membership((1, 2, 4), (), (1, 2, 3))),
        (Membership((1,), (2, 3)), Membership((2,)), Membership((2,), (), (1,), 3)),
        (
            Membership((1, 2, 3), (4,)),
            Membership((1, 2, 3, 4), (), (1, 2, 3)),
            Membership((1, 2, 3, 4), (), (1, 2, 3)),
        ),
    ],
)
def test_first_step_to_what_is_wanted(present, wanted, step):
    assert first_step(present, wanted) == step


@pytest.mark.parametrize(
    ("present", "wanted", "reason"),
    [
        (Membership((1,)), Membership(()), Reason.INVALID),
        (Membership((1, 2)), Membership((2, 1)), Reason.INVALID),
        (Membership((1, 2)), Membership((1, 1, 2)), Reason.INVALID),
        (Membership((1, 2)), Membership((1, 2), (2,)), Reason.INVALID),
        (Membership((1, 2, 3), (4,)), Membership((1, 2, 4), (), (1, 2)), Reason.INVALID),
        (Membership((1, 2, 3), (4,)), Membership((1, 4), (2, 3)), Reason.INVALID),
        (Membership((1, 2, 3)), Membership((1, 2, 3, 4)), Reason.NOT_A_LEARNER),
        (Membership((1, 3)), Membership((1, 3), (2,)), Reason.ID_USED),
        (Membership((1, 2), (), (), 5), Membership((1, 2), (5,)), Reason.ID_USED),
        (Membership((1, 2), (), (), 5), Membership((1, 2, 3)), Reason.ID_USED),
    ],
)
def test_steps_that_are_refused(present, wanted, reason):
    with pytest.raises(ChangeRefused) as refused:
        first_step(present, wanted)
    assert refused.value.reason is reason
    assert not refused.value.may_succeed_later


def test_joint_configuration_forgets_nobody_until_it_is_left():
    joint = after(Membership((1, 2, 3), (4,)), (2, 3, 4), (), (1, 2, 3))
    assert joint.retired == 0
    assert after(joint, joint.voters, joint.learners) == Membership((2, 3, 4), retired=1)


@pytest.mark.parametrize(
    ("membership", "replica", "gone"),
    [
        (Membership((1, 2), retired=3), 3, True),
        (Membership((1, 4), retired=3), 2, True),
        (Membership((1, 4), retired=3), 4, False),
        (Membership((1, 4), retired=3), 5, False),
        (Membership((4,), (), (1,), 3), 1, False),
        (Membership(()), 7, False),
    ],
)
def test_who_is_removed(membership, replica, gone):
    assert membership.has_removed(replica) is gone
    assert decode(encode(membership)) == membership


def test_one_change_at_a_time():
    cluster = led(3, learners=(4, 5))
    core = cluster.core(1)
    core.propose_membership(Membership((1, 2, 3, 4), (5,)))
    with pytest.raises(ChangeRefused) as refused:
        core.propose_membership(Membership((1, 2, 3), (4, 5)))
    assert refused.value.reason is Reason.IN_PROGRESS
    assert refused.value.may_succeed_later
    cluster.pump(cluster[1])
    cluster.advance(200_000)
    core.propose_membership(Membership((1, 2, 3), (4, 5)))


def test_a_step_of_a_joint_change_is_a_change_in_progress():
    cluster = led(3, learners=(4, 5))
    cluster.change(1, (1, 4, 5))
    with pytest.raises(ChangeRefused) as refused:
        cluster.change(1, (1, 4))
    assert refused.value.reason is Reason.IN_PROGRESS
    cluster.advance(200_000)
    cluster.change(1, (1, 4))
    cluster.advance(200_000)
    assert cluster.core(1).membership == Membership((1, 4), retired=5)


def test_nothing_is_appended_by_a_refused_change():
    cluster = led()
    core = cluster.core(1)
    before = core.last_index, core.membership
    with pytest.raises(ChangeRefused):
        cluster.change(1, (1, 2, 3, 4))
    assert (core.last_index, core.membership) == before
