"""One node's budget for replicas that catch up."""

import pytest

from raftq.host.catch_up import FORGOTTEN_MICROS, WINDOW_MICROS, CatchUpBudget, CatchUpShare
from raftq.limits import (
    CATCH_UP_BURST_BYTES,
    CATCH_UP_FLOOR_BYTES_PER_SECOND,
    CATCH_UP_IDLE_BYTES_PER_SECOND,
    CATCH_UP_PERCENT,
    SECOND,
)
from raftq.raft.replica import NEVER

PIECE = 256 * 1_024


class Clock:
    def __init__(self):
        self.now = 5 * SECOND

    def monotonic(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def budget(clock):
    return CatchUpBudget(clock)


def spend(clock, shares, *, micros, busy=None):
    """Each asks as often as it may; what each got. `busy`: (budget, bytes a second applied)."""
    got = dict.fromkeys(shares, 0)
    end = clock.now + micros
    applied_at = clock.now
    while clock.now < end:
        if busy and clock.now - applied_at >= 1_000:
            busy[0].applied(busy[1] * (clock.now - applied_at) // SECOND)
            applied_at = clock.now
        for share in shares:
            while share.wake(clock.now) and share.may_spend():
                share.spent(PIECE)
                got[share] += PIECE
        clock.now += 500
    return list(got.values())


def test_an_idle_node_gives_much(clock, budget):
    (got,) = spend(clock, [CatchUpShare(budget)], micros=SECOND)
    assert got == pytest.approx(CATCH_UP_IDLE_BYTES_PER_SECOND, rel=0.05)


def test_a_node_with_little_to_do_gives_the_floor(clock, budget):
    budget.applied(1)
    (got,) = spend(clock, [CatchUpShare(budget)], micros=SECOND, busy=(budget, 10_000))
    assert got == pytest.approx(CATCH_UP_FLOOR_BYTES_PER_SECOND, rel=0.1)


def test_who_catches_up_is_quicker_than_the_log_grows(clock, budget):
    rate = 3 * CATCH_UP_FLOOR_BYTES_PER_SECOND
    spend(clock, [], micros=2 * WINDOW_MICROS, busy=(budget, rate))
    (got,) = spend(clock, [CatchUpShare(budget)], micros=SECOND, busy=(budget, rate))
    assert got == pytest.approx(rate * CATCH_UP_PERCENT / 100, rel=0.1)
    assert got > rate


def test_a_node_that_is_idle_again_gives_much_again(clock, budget):
    budget.applied(1)
    assert budget.bytes_per_second(clock.now) == CATCH_UP_FLOOR_BYTES_PER_SECOND
    clock.now += 2 * WINDOW_MICROS
    assert budget.bytes_per_second(clock.now) == CATCH_UP_IDLE_BYTES_PER_SECOND


def test_what_was_not_used_is_not_saved_up(clock, budget):
    budget.applied(1)
    clock.now += 60 * SECOND
    budget.applied(1)
    share = CatchUpShare(budget)
    count = 0
    while share.may_spend():
        share.spent(PIECE)
        count += 1
    assert count == CATCH_UP_BURST_BYTES // PIECE
    assert clock.now < share.deadline < clock.now + SECOND


def test_all_that_wait_are_served_in_turn(clock, budget):
    budget.applied(1)
    shares = [CatchUpShare(budget) for _ in range(3)]
    got = spend(clock, shares, micros=SECOND, busy=(budget, 10_000))
    assert max(got) - min(got) <= 2 * CATCH_UP_BURST_BYTES


def test_who_does_not_ask_again_holds_nobody_up(clock, budget):
    budget.applied(1)
    lost, other = CatchUpShare(budget), CatchUpShare(budget)
    lost.spent(2 * CATCH_UP_BURST_BYTES)
    assert not lost.may_spend()
    clock.now += FORGOTTEN_MICROS // 2
    assert not other.may_spend(), "the other one was first"
    clock.now += FORGOTTEN_MICROS
    assert other.may_spend()


def test_a_wish_that_is_gone_leaves_no_deadline(clock, budget):
    """A deadline that has passed would be due for ever."""
    share = CatchUpShare(budget)
    share.spent(2 * CATCH_UP_BURST_BYTES)
    assert not share.may_spend()
    assert not share.wake(clock.now)
    clock.now = share.deadline
    assert share.wake(clock.now)
    assert share.deadline == NEVER
