"""Known bugs, switched on by the simulator alone, to prove that its checkers see them."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Faults:
    """Which bugs are there; in production none."""

    duplicate_answered_early: bool = False
    """A duplicate of an original still in flight is answered at once: the answer may be a lie."""

    no_dedup: bool = False
    """A batch is taken whatever its producer's numbers say."""

    release_unchecked: bool = False
    """A release lets go of whatever its bounds say, also of what is still needed."""


NO_FAULTS = Faults()
