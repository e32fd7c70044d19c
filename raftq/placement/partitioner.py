"""Key to partition, exactly as every client in every language must do it.

    hash      = xxh3_64(key), seed 0, as an unsigned 64-bit integer
    partition = jump(hash, partitions):

        state = hash; last = 0; candidate = 0
        while candidate < partitions:
            last      = candidate
            state     = (state * 2862933555777941757 + 1) mod 2**64
            candidate = ((last + 1) * 2**31) div ((state >> 33) + 1)
        return last

This is jump consistent hash with its one division done in integers (all of them fit 64 bits), so
that no rounding of floating point can separate two clients.

Rules:

1. A message without a key, or with an empty one, goes to the producer's sticky partition.
2. The answer depends on the key and the number of partitions alone. The hash is the one that lies
   in a batch's key_hash column, so a broker can tell where a message belongs without its key.
"""

from functools import lru_cache
from typing import Final

from xxhash import xxh3_64_intdigest

from raftq.ids import Partition
from raftq.limits import MAX_PARTITIONS

_MULTIPLIER: Final = 2_862_933_555_777_941_757
_MASK: Final = (1 << 64) - 1

_REMEMBERED: Final = 8_192
"""Answers kept: a producer's keys repeat, and a look-up costs a fifth of a few turns of the loop."""


@lru_cache(maxsize=_REMEMBERED)
def partition_of_hash(key_hash: int, partitions: int) -> Partition:
    """The partition of a key that hashes to `key_hash`."""
    assert 1 <= partitions <= MAX_PARTITIONS
    state, last, candidate = key_hash, 0, 0
    while candidate < partitions:
        last = candidate
        state = state * _MULTIPLIER + 1 & _MASK
        candidate = (last + 1 << 31) // ((state >> 33) + 1)
    return Partition(last)


def partition_for(key: bytes | None, partitions: int, sticky: int = 0) -> Partition:
    """The partition of a message; `sticky` is any number that the producer holds on to for a while."""
    if not key:
        return Partition(sticky % partitions)
    if partitions == 1:
        return Partition(0)
    return partition_of_hash(xxh3_64_intdigest(key), partitions)
