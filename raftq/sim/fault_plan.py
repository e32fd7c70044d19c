"""What the nemesis will do in a run, drawn from the seed at once.

A plan says when each fault begins, of what kind it is and how long it lasts; `nemesis.py` says what a
kind is.
"""

import random
from collections.abc import Iterable
from typing import NamedTuple

from raftq.ids import Micros
from raftq.sim.loop import MICROS

FAULTS_MIN = 5
QUIET_SHARE = 4
"""The last so-manieth part of a run is free of faults."""

SETTLE_MICROS = 2 * MICROS
"""Before the first fault: a cluster must have come up to be torn down."""

STALL_MICROS_MAX = 10 * MICROS


class Fault(NamedTuple):
    """One line of a plan."""

    at: Micros
    duration: Micros
    kind: str


class Shape(NamedTuple):
    """How often a kind is drawn, and how long it lasts."""

    weight: int
    micros_min: int
    micros_max: int


KINDS = {
    "kill": Shape(4, 100_000, 5 * MICROS),
    "power_loss": Shape(4, 500_000, 6 * MICROS),
    "power_loss_of_all": Shape(1, 500_000, 3 * MICROS),
    "crash_loop": Shape(2, 300_000, 4 * MICROS),
    "pause": Shape(3, 100_000, 6 * MICROS),
    "combination": Shape(2, 300_000, 5 * MICROS),
    "partition": Shape(3, 300_000, 6 * MICROS),
    "isolate_leader": Shape(3, 300_000, 6 * MICROS),
    "one_way": Shape(2, 300_000, 6 * MICROS),
    "bridge": Shape(2, 300_000, 6 * MICROS),
    "flap": Shape(1, 1 * MICROS, 4 * MICROS),
    "cut_client": Shape(1, 300_000, 4 * MICROS),
    "reset": Shape(2, 1, 2),
    "slow_network": Shape(2, 300_000, 6 * MICROS),
    "stall": Shape(3, 50_000, STALL_MICROS_MAX),
    "sync_error": Shape(2, 300_000, 5 * MICROS),
    "sync_error_of_all": Shape(1, 500_000, 3 * MICROS),
    "disk_full": Shape(2, 1 * MICROS, 6 * MICROS),
    "jump": Shape(1, 1, 2),
    "leap": Shape(1, 1 * MICROS, 5 * MICROS),
    "rate": Shape(1, 1 * MICROS, 8 * MICROS),
    "rot": Shape(2, 1, 2),
    "lose_disk": Shape(2, 1 * MICROS, 6 * MICROS),
}

TAKE_COPIES = ("rot", "lose_disk")
"""A plan has one of them at most, and one lost disk: a copy of everything has to be left somewhere."""

LOSS = "lose_disk"
INSTEAD_OF_LOSS = "power_loss"


def draw_plan(
    choose: random.Random, duration: Micros, *, faults: int = FAULTS_MIN, kinds: Iterable[str] = ()
) -> list[Fault]:
    """A plan of exactly `faults` faults that are over when the quiet part of `duration` begins."""
    names = tuple(kinds) or tuple(KINDS)
    if set(TAKE_COPIES) <= set(names):
        left_out = choose.choice(TAKE_COPIES)
        names = tuple(name for name in names if name != left_out)
    weights = [KINDS[name].weight for name in names]
    end = duration - duration // QUIET_SHARE
    assert end > SETTLE_MICROS, "too short for faults"
    plan = []
    has_loss = False
    for drawn in choose.choices(names, weights, k=faults):
        name = INSTEAD_OF_LOSS if drawn == LOSS and has_loss else drawn
        has_loss = has_loss or name == LOSS
        shape = KINDS[name]
        longest = min(shape.micros_max, end - SETTLE_MICROS)
        length = choose.randint(min(shape.micros_min, longest), longest)
        at = choose.randint(SETTLE_MICROS, end - length)
        plan.append(Fault(Micros(at), Micros(length), name))
    return sorted(plan)
