"""Keys go where they always went; growing a queue moves few of them."""

from collections import Counter

import pytest
from xxhash import xxh3_64_intdigest

from raftq.batch import key_hash
from raftq.placement import partition_for, partition_of_hash

KEYS = [f"key-{number}".encode() for number in range(20_000)]
COUNTS = (1, 2, 3, 4, 7, 16, 100, 1024)

GOLDEN = {
    b"a": [0, 1, 1, 1, 1, 14, 14, 350],
    b"customer-7": [0, 0, 2, 2, 2, 2, 99, 323],
    bytes(range(256)): [0, 0, 2, 3, 3, 15, 25, 559],
}


@pytest.mark.parametrize("key", GOLDEN, ids=lambda key: key[:10].hex())
def test_golden_vectors(key):
    """What a client in another language must compute, partition by number of partitions."""
    assert [partition_for(key, partitions) for partitions in COUNTS] == GOLDEN[key]
    assert [partition_of_hash(key_hash(key), n) for n in COUNTS] == GOLDEN[key]


def test_extreme_hashes_stay_in_range():
    for partitions in COUNTS:
        for extreme in (0, 1, 2**63, 2**64 - 1):
            assert 0 <= partition_of_hash(extreme, partitions) < partitions


def test_the_hash_is_the_one_in_a_batch():
    assert all(key_hash(key) == xxh3_64_intdigest(key) for key in KEYS[:100])


@pytest.mark.parametrize("partitions", [2, 3, 4, 7, 16])
def test_keys_spread_evenly(partitions):
    counts = Counter(partition_for(key, partitions) for key in KEYS)
    average = len(KEYS) / partitions
    assert len(counts) == partitions
    assert max(counts.values()) < 1.1 * average
    assert min(counts.values()) > 0.9 * average


@pytest.mark.parametrize("partitions", [1, 2, 3, 4, 15, 63])
def test_growing_moves_only_what_the_new_partition_takes(partitions):
    before = [partition_for(key, partitions) for key in KEYS]
    after = [partition_for(key, partitions + 1) for key in KEYS]
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {partitions}
    share = len(moved) / len(KEYS)
    assert share == pytest.approx(1 / (partitions + 1), rel=0.15)


def test_without_a_key_the_sticky_partition_is_taken():
    for nothing in (None, b""):
        assert [partition_for(nothing, 4, sticky) for sticky in range(6)] == [0, 1, 2, 3, 0, 1]
    assert partition_for(b"customer-7", 4, 0) == partition_for(b"customer-7", 4, 3)


def test_the_number_of_partitions_is_checked():
    for wrong in (0, 1025):
        with pytest.raises(AssertionError):
            partition_of_hash(5, wrong)
