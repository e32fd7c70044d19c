"""What a node spends on replicas that catch up: so many bytes a second, fewer while others wait.

Everything that only brings a replica up to date comes out of one budget of the node that gives it:
entries read back from the log, pieces of snapshots, answers to repairs. What costs the others is the
loop's time, a queue in front of heartbeats and votes on the same link, and the processor and disk
that the receiver takes where it shares them; all three grow with the bytes, so bytes are counted.

Rules

1. While entries are applied here, a share above their own rate is given, but never less than a
   floor: who catches up must be quicker than the log grows, or would never arrive. While nothing
   is, much more.
2. Who asks may go when something is left, and may overdraw it by one piece; the debt is paid off
   before the next. So pieces leave one by one, and no pass of the loop does more than a few.
3. Who was refused waits in a queue. Who is not first in it is refused as well, unless those before
   have not asked again in time: they may not want anything any more.
"""

from raftq.env import Clock
from raftq.ids import Micros
from raftq.limits import (
    CATCH_UP_BURST_BYTES,
    CATCH_UP_FLOOR_BYTES_PER_SECOND,
    CATCH_UP_IDLE_BYTES_PER_SECOND,
    CATCH_UP_PERCENT,
    SECOND,
)
from raftq.raft.replica import NEVER

WINDOW_MICROS = 250_000
"""Over which the rate of applied entries is taken."""

ASK_AGAIN_MICROS = 1_000
FORGOTTEN_MICROS = 100_000
"""Who waits and has not asked for so long does not wait any more."""


class CatchUpBudget:
    """One node's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left = CATCH_UP_BURST_BYTES
        self._filled_at = clock.monotonic()
        self._waiting: dict[CatchUpShare, Micros] = {}
        self._window_began = self._filled_at
        self._applied = 0
        self._applied_before = 0
        """In the window before this one."""
        self.spent_bytes = 0

    def applied(self, size: int) -> None:
        """So many bytes of entries were applied here: what the node is for."""
        self._turn_window(self._clock.monotonic())
        self._applied += size

    def _turn_window(self, now: Micros) -> None:
        passed = now - self._window_began
        if passed >= WINDOW_MICROS:
            self._applied_before = self._applied if passed < 2 * WINDOW_MICROS else 0
            self._applied = 0
            self._window_began = now

    def bytes_per_second(self, now: Micros) -> int:
        """What may be spent at present."""
        self._turn_window(now)
        busiest = max(self._applied_before, self._applied)
        if not busiest:
            return CATCH_UP_IDLE_BYTES_PER_SECOND
        rate = busiest * SECOND // WINDOW_MICROS
        return min(
            max(rate * CATCH_UP_PERCENT // 100, CATCH_UP_FLOOR_BYTES_PER_SECOND),
            CATCH_UP_IDLE_BYTES_PER_SECOND,
        )

    def may_spend(self, share: "CatchUpShare") -> bool:
        """Whether that one may send a piece now; else it waits, see `share.deadline`."""
        now = self._clock.monotonic()
        rate = self.bytes_per_second(now)
        earned = (now - self._filled_at) * rate // SECOND
        if earned:
            self._filled_at = now
            self._left = min(self._left + earned, CATCH_UP_BURST_BYTES)
        waiting = self._waiting
        while waiting:
            first = next(iter(waiting))
            if first is share or now - waiting[first] <= FORGOTTEN_MICROS:
                break
            del waiting[first]
        if self._left > 0 and next(iter(waiting), share) is share:
            waiting.pop(share, None)
            share.deadline = NEVER
            return True
        waiting[share] = now
        missing = max(1 - self._left, 0) * SECOND // rate
        share.deadline = Micros(now + max(missing, ASK_AGAIN_MICROS))
        return False

    def spent(self, size: int) -> None:
        self._left -= size
        self.spent_bytes += size


class CatchUpShare:
    """One asker's: of a group, the core's appends, or its snapshots, or its answers to repairs."""

    def __init__(self, budget: CatchUpBudget) -> None:
        self._budget = budget
        self.deadline: Micros = NEVER
        """When to ask again, for who was refused."""

    def may_spend(self) -> bool:
        return self._budget.may_spend(self)

    def spent(self, size: int) -> None:
        self._budget.spent(size)

    def wake(self, now: Micros) -> bool:
        """Whether it is time to ask, for who was refused too; forgets that it was, if so."""
        if self.deadline <= now:
            self.deadline = NEVER
        return self.deadline == NEVER
