"""When the files of one replica are read again: once a day, a slice at a time, far below the disk's
speed. The first pass begins within the first hour, each group at a moment of its own.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from raftq.ids import Micros
from raftq.limits import SCRUB_BYTES_PER_SECOND, SCRUB_EVERY_MICROS, SECOND
from raftq.observability.logs import logger

if TYPE_CHECKING:
    from raftq.host.group import Group

_log = logger("raftq.host")

FIRST_PASS_MICROS = 60 * SECOND
FIRST_PASS_SPREAD = 3_600 * SECOND
_STEP = 617 * SECOND
"""From one group to the next, modulo the spread: it shares no factor with it."""


class Scrubber:
    """One group's passes."""

    def __init__(self, group: "Group", now: Micros) -> None:
        self._group = group
        self._pass: Iterator[int] | None = None
        self._known: tuple[str, ...] = ()
        self.deadline = Micros(now + FIRST_PASS_MICROS + group.group * _STEP % FIRST_PASS_SPREAD)
        self.passes = 0
        self.scrubbed_bytes = 0

    def begin(self, now: Micros) -> None:
        """Begin a pass now, unless one is under way."""
        if self._pass is None:
            self._known = self._group.log.damage
            self._pass = self._group.log.scrub()
        self.deadline = now

    def tick(self, now: Micros) -> None:
        if now < self.deadline:
            return
        if self._pass is None:
            self.begin(now)
        assert self._pass is not None
        size = next(self._pass, None)
        if size is None:
            self._finished(now)
        else:
            self.scrubbed_bytes += size
            pause = size * SECOND // SCRUB_BYTES_PER_SECOND
            self.deadline = Micros(now + max(pause, 1_000))

    def _finished(self, now: Micros) -> None:
        self._pass = None
        self.passes += 1
        self.deadline = Micros(now + SCRUB_EVERY_MICROS)
        group = self._group
        found = [reason for reason in group.log.damage if reason not in self._known]
        if found:
            _log.error("scrub found damage", group=group.group, found=found)
        if group.log.lost_snapshot:
            group.snapshotter.take_soon()
