"""Seeded randomness: a generator for each name, all derived from one seed.

A name's generator depends on the seed and the name alone: what one node draws changes nothing for
another, and a new purpose with a name of its own leaves the draws of the old ones as they were.
"""

import random

import xxhash


def derived_seed(seed: int, *names: str) -> int:
    """A seed for the purpose that `names` spell; hashing is xxh3's, never Python's."""
    assert all("/" not in name for name in names), "a slash would make two purposes one"
    return xxhash.xxh3_128_intdigest("/".join((str(seed), *names)).encode())


def generator(seed: int, *names: str) -> random.Random:
    return random.Random(derived_seed(seed, *names))


class SimEntropy:
    """The entropy port of one process."""

    __slots__ = ("_random",)

    def __init__(self, seed: int, *names: str) -> None:
        self._random = generator(seed, *names)

    def below(self, bound: int) -> int:
        assert bound > 0, "an empty range has no member"
        return self._random.randrange(bound)

    def bits(self, count: int) -> int:
        assert count > 0, "no bits make no integer"
        return self._random.randrange(1, 1 << count)
