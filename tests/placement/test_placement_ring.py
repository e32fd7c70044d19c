"""The ring proposes the same for ever, evenly, and differently for few when a group comes."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftq.placement import Ring
from raftq.placement.ring import _point

PARTITIONS = [(queue, partition) for queue in range(250) for partition in range(8)]


def proposals(ring):
    return [ring.place(queue, partition, {}) for queue, partition in PARTITIONS]


def filled(ring):
    """Place all, one after the other, each seeing the load that those before made."""
    load = {}
    for queue, partition in PARTITIONS:
        group = ring.place(queue, partition, load)
        load[group] = load.get(group, 0) + 1
    return load


def test_golden_vectors():
    assert _point(b"group", 1, 0) == 3325182677917220080
    assert _point(b"place", 7, 3) == 13767594640534349552
    ring = Ring([1, 2, 3])
    placed = [ring.place(7, partition, {}) for partition in range(20)]
    assert placed == [2, 3, 2, 3, 2, 2, 1, 2, 1, 1, 1, 2, 3, 2, 2, 3, 1, 2, 1, 2]
    assert list(ring.preferences(7, 1)) == [3, 1, 2]


def test_the_order_of_groups_is_no_matter():
    assert proposals(Ring([3, 1, 2])) == proposals(Ring([1, 2, 3]))


def test_one_group_takes_all_at_any_load():
    ring = Ring([5])
    assert ring.place(1, 0, {}) == 5
    assert ring.place(1, 0, {5: 1_000_000}) == 5


@pytest.mark.parametrize("count", [3, 5, 10, 50])
def test_a_new_group_changes_its_share_of_proposals_and_no_others(count):
    before = proposals(Ring(range(1, count + 1)))
    after = proposals(Ring(range(1, count + 2)))
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {count + 1}
    assert len(moved) / len(PARTITIONS) == pytest.approx(1 / (count + 1), rel=0.3)


def test_a_group_that_leaves_changes_only_its_own():
    before = proposals(Ring([1, 2, 3, 4, 5]))
    after = proposals(Ring([1, 2, 4, 5]))
    changed = {old for old, new in zip(before, after, strict=True) if old != new}
    assert changed == {3}
    assert 3 not in after


@pytest.mark.parametrize(("count", "virtual_nodes"), [(3, 128), (10, 128), (50, 128), (10, 1)])
def test_load_stays_within_a_quarter_above_the_average(count, virtual_nodes):
    load = filled(Ring(range(1, count + 1), virtual_nodes))
    assert sum(load.values()) == len(PARTITIONS)
    assert max(load.values()) <= -(-len(PARTITIONS) * 5 // (4 * count))


@pytest.mark.parametrize("queue", range(40))
def test_with_few_partitions_no_group_stays_empty(queue):
    ring = Ring([1, 2, 3])
    load = {}
    for partition in range(7):
        group = ring.place(queue, partition, load)
        load[group] = load.get(group, 0) + 1
        counts = [load.get(group, 0) for group in (1, 2, 3)]
        assert max(counts) - min(counts) <= 1


def test_as_it_was_once_a_group_could_stay_empty():
    """What is in logs already is placed as it was."""
    ring = Ring([1, 2, 3])
    found = set()
    for queue in range(40):
        load = {}
        for partition in range(4):
            group = ring.place(queue, partition, load, even=False)
            load[group] = load.get(group, 0) + 1
        found.add(tuple(sorted(load.values())))
    assert found == {(2, 2), (1, 1, 2)}


def test_virtual_nodes_even_out_the_shares():
    def spread(virtual_nodes):
        counts = Counter(proposals(Ring(range(1, 11), virtual_nodes)))
        return max(counts.values()) - min(counts.values())

    assert spread(128) < spread(1) / 3


def test_a_full_group_passes_on_to_the_next_on_the_ring():
    ring = Ring([1, 2, 3])
    first, second, third = ring.preferences(7, 0)
    assert ring.place(7, 0, {first: 1, second: 1, third: 1}) == first
    assert ring.place(7, 0, {first: 9, second: 1, third: 1}) == second
    assert ring.place(7, 0, {first: 9, second: 9, third: 1}) == third


def test_load_of_groups_that_are_not_on_the_ring_does_not_count():
    """A group being drained still hosts much; that must not raise the bound of the others."""
    ring = Ring([1, 2, 3])
    first, second, _ = ring.preferences(7, 0)
    assert ring.place(7, 0, {first: 2, 99: 1_000_000}) == second


@given(
    st.lists(st.integers(1, 1_000), min_size=1, max_size=8, unique=True),
    st.dictionaries(st.integers(1, 1_000), st.integers(0, 50)),
    st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=60, derandomize=True)
def test_there_is_always_a_proposal_below_the_bound(groups, load, queue):
    ring = Ring(groups, virtual_nodes=8)
    group = ring.place(queue, 0, load)
    total = sum(load.get(member, 0) for member in groups)
    assert group in groups
    assert 4 * len(groups) * load.get(group, 0) < 5 * (total + 1) + 4 * len(groups)
    assert sorted(ring.preferences(queue, 0)) == sorted(groups)


def test_a_ring_is_made_of_different_groups():
    for wrong in ([], [1, 1]):
        with pytest.raises(AssertionError):
            Ring(wrong)
