"""The small parts that everything is counted with, each against something obviously right."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftq.queue.dead_letters import DeadLetters, DeadSpan
from raftq.queue.message_bytes import STRETCH_BYTES, THINNED_MARKS, MessageBytes
from raftq.queue.ranges import RangeSet
from raftq.queue.spans import Span, cut, not_taken

SMALL = settings(deadline=None, max_examples=150, derandomize=True)
RANGE = st.tuples(st.integers(0, 40), st.integers(1, 12)).map(lambda pair: (pair[0], sum(pair)))


def members(ranges):
    return {member for start, stop in ranges for member in range(start, stop)}


@SMALL
@given(st.lists(st.tuples(st.booleans(), RANGE), max_size=40), RANGE)
def test_a_range_set_is_a_set(changes, asked):
    held, expected = RangeSet(), set()
    for adds, (start, stop) in changes:
        wanted = set(range(start, stop))
        if adds and not wanted & expected:
            held.add(start, stop)
            expected |= wanted
        elif not adds and wanted <= expected:
            held.remove(start, stop)
            expected -= wanted
        ranges = list(held)
        assert members(ranges) == expected
        assert all(left[1] < right[0] for left, right in pairwise(ranges))
    start, stop = asked
    assert members(held.covered(start, stop)) == expected & set(range(start, stop))
    assert members(held.missing(start, stop)) == set(range(start, stop)) - expected
    assert held.first_missing(start) == min(set(range(start, 99)) - expected)
    assert list(RangeSet(*held.encoded())) == list(held)
    below = {member for member in expected if member < start}
    assert held.count_below(start) == len(below)
    held.forget_below(start)
    assert members(held) == expected - below
    assert held.count_below(start) == 0


@SMALL
@given(st.lists(RANGE, max_size=6), RANGE)
def test_dead_letters_are_found_within_a_range(ranges, asked):
    letters, dead = DeadLetters(), set()
    for start, stop in ranges:
        if not dead & set(range(start, stop)):
            letters.add(DeadSpan(start, stop, "rejected", "", 1, 0, ()))
            dead |= set(range(start, stop))
    wanted = set(range(*asked))
    assert letters.any_in(*asked) == bool(dead & wanted)
    assert members(letters.missing(*asked)) == wanted - dead


@SMALL
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=8), st.data()
)
def test_bytes_add_up_and_are_exact_where_each_length_is_given(batches, data):
    exact, coarse = MessageBytes(), MessageBytes()
    lengths = []
    for batch in batches:
        exact.append_each(batch)
        coarse.append(len(batch), sum(batch))
        lengths += batch
    end = len(lengths)
    begin = data.draw(st.integers(0, end - 1))
    start = data.draw(st.integers(begin, end - 1))
    stop = data.draw(st.integers(start + 1, end))
    middle = data.draw(st.integers(start, stop))
    exact.forget_below(begin)
    coarse.forget_below(begin)
    assert sum(lengths[start:stop]) == exact.between(start, stop)
    for sizes in (exact, coarse):
        if middle < end:
            assert sizes.between(start, stop) == sizes.between(start, middle) + (
                sizes.between(middle, stop)
            )
        limit = data.draw(st.integers(0, 60))
        fit = sizes.fitting(start, stop, limit)
        assert start <= fit <= stop
        assert fit == start or sizes.between(start, fit) <= limit
        assert fit == stop or sizes.between(start, fit + 1) > limit
        encoded = sizes.encoded()
        assert MessageBytes(*encoded).between(start, stop) == sizes.between(start, stop)


def test_a_batch_of_equal_messages_is_exact_with_one_mark():
    sizes = MessageBytes()
    sizes.append(10, 1_000)
    assert sizes.between(3, 4) == 100
    assert sizes.fitting(2, 10, 350) == 5


@pytest.mark.parametrize("forgotten", [0, 700, 5_000])
@pytest.mark.parametrize("size", [0, 100, STRETCH_BYTES // 3, 2 * STRETCH_BYTES])
def test_marks_are_thinned_out_to_a_bounded_number_and_stay_near_the_truth(size, forgotten):
    """Goal: memory goes with the bytes, not with the batches. Each batch is one message here."""
    random = Random(size)
    sizes, truth = MessageBytes(), [0]
    for count in range(1, 8_001):
        length = size and random.randrange(size // 2, size * 3 // 2)
        sizes.append(1, length)
        truth.append(truth[-1] + length)
        if count == forgotten:
            sizes.forget_below(forgotten - 3)
        while (crowd := sizes.crowd()) is not None:
            ends = [sizes.position(offset) for offset in crowd]
            sizes.thin(*crowd)
            assert ends == [sizes.position(offset) for offset in crowd]
        assert sizes.encoded() == MessageBytes(*sizes.encoded()).encoded()
        assert sizes.crowd() == MessageBytes(*sizes.encoded()).crowd()
    marks = len(sizes.encoded()[0]) // 8
    kept_bytes = truth[-1] - truth[max(0, forgotten - 3)]
    chunks = 8_000 // THINNED_MARKS
    assert marks <= 3 * THINNED_MARKS + chunks + 2 * kept_bytes // STRETCH_BYTES
    for offset in range(max(0, forgotten - 3), 8_000):
        assert abs(sizes.position(offset) - truth[offset]) <= STRETCH_BYTES


@SMALL
@given(st.lists(RANGE, max_size=6), RANGE)
def test_cutting_spans_takes_exactly_what_is_there(ranges, asked):
    spans, end = [], 0
    for start, stop in sorted(ranges):
        if start >= end:
            spans.append(Span(start, stop, len(spans), 0, ()))
            end = stop
    before = {(offset, span.delivery_count) for span in spans for offset in range(*span[:2])}
    wanted = set(range(*asked))
    taken = cut(spans, *asked)
    kept = {(offset, span.delivery_count) for span in spans for offset in range(*span[:2])}
    got = {(offset, span.delivery_count) for span in taken for offset in range(*span[:2])}
    assert got == {pair for pair in before if pair[0] in wanted}
    assert kept == before - got
    assert spans == sorted(spans)
    assert members(not_taken(taken, *asked)) == wanted - {offset for offset, _ in got}
