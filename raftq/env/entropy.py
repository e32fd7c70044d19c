"""Real randomness: a generator seeded by the kernel.

Identities are drawn from it, so that its seed is as wide as its state needs; it is not for secrets.
"""

import os
import random

SEED_BYTES = 32


class RealEntropy:
    """Uniform integers, different in every process."""

    __slots__ = ("_random",)

    def __init__(self) -> None:
        self._random = random.Random(os.urandom(SEED_BYTES))

    def below(self, bound: int) -> int:
        assert bound > 0, "an empty range has no member"
        return self._random.randrange(bound)

    def bits(self, count: int) -> int:
        assert count > 0, "no bits make no integer"
        return self._random.randrange(1, 1 << count)
