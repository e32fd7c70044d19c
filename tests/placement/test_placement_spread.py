"""Replicas use as many racks as there are, then the least loaded nodes, the same every time."""

from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftq.errors import InvalidArgument
from raftq.placement import Candidate, choose_nodes

SIX = [Candidate(f"n{number}", "abc"[number % 3]) for number in range(6)]


def racks_of(chosen, candidates):
    racks = {candidate.node: candidate.rack for candidate in candidates}
    return Counter(racks[node] for node in chosen)


def test_golden_vectors():
    chosen = [choose_nodes(group, SIX, 3) for group in range(3)]
    assert chosen == [("n3", "n1", "n5"), ("n0", "n2", "n1"), ("n4", "n5", "n3")]


def test_three_replicas_take_three_racks_even_when_one_is_loaded():
    loaded = [node._replace(load=100 if node.rack == "a" else 0) for node in SIX]
    for group in range(20):
        assert racks_of(choose_nodes(group, loaded, 3), loaded) == {"a": 1, "b": 1, "c": 1}


def test_within_a_rack_the_least_loaded_node_is_taken():
    nodes = [node._replace(load=10 - number) for number, node in enumerate(SIX)]
    assert sorted(choose_nodes(1, nodes, 3)) == ["n3", "n4", "n5"]


def test_the_order_of_candidates_is_no_matter():
    expected = choose_nodes(4, SIX[:4], 3)
    assert {choose_nodes(4, order, 3) for order in permutations(SIX[:4])} == {expected}


def test_groups_of_an_empty_cluster_scatter_over_equal_nodes():
    nodes = [Candidate(f"n{number}") for number in range(5)]
    counts = Counter(node for group in range(500) for node in choose_nodes(group, nodes, 3))
    assert min(counts.values()) > 0.8 * 300
    assert max(counts.values()) < 1.2 * 300


def test_nodes_without_a_label_share_one_rack():
    nodes = [Candidate("n1", "", 0), Candidate("n2", "", 0), Candidate("n3", "a", 50)]
    assert "n3" in choose_nodes(1, nodes, 2)


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 9)), min_size=1, max_size=12),
    st.data(),
)
@settings(deadline=None, max_examples=150, derandomize=True)
def test_no_rack_has_two_more_than_one_with_nodes_left(labels, data):
    nodes = [Candidate(f"n{number}", rack, load) for number, (rack, load) in enumerate(labels)]
    count = data.draw(st.integers(1, len(nodes)))
    chosen = choose_nodes(data.draw(st.integers(0, 2**32 - 1)), nodes, count)
    assert len(set(chosen)) == count
    used = racks_of(chosen, nodes)
    for rack, size in Counter(node.rack for node in nodes).items():
        if used[rack] < size:
            assert max(used.values()) <= used[rack] + 1


def test_too_few_nodes_are_refused():
    with pytest.raises(InvalidArgument, match="3 replicas on 2 nodes"):
        choose_nodes(1, SIX[:2], 3)
