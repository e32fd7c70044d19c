"""One node's clocks: the simulation's time seen through an offset, a rate and a wall that jumps.

Invariant: `monotonic` never goes back, whatever is done to the rate; only the wall jumps. The rate
is in parts per million (500,000 runs at half speed) and concerns the clocks alone: the loop's
timers stay those of the simulation, as a machine's timers stay close to real time.
"""

from raftq.ids import Micros
from raftq.sim.loop import SimLoop

RATE_ONE = 1_000_000

NO_OFFSET = Micros(0)
EPOCH = Micros(1_800_000_000 * RATE_ONE)
"""Where walls begin: some day in 2027."""


class SimClock:
    """The clock port of one machine; it outlives the machine's processes."""

    def __init__(
        self,
        loop: SimLoop,
        *,
        offset: Micros = NO_OFFSET,
        wall_offset: Micros = NO_OFFSET,
        rate: int = RATE_ONE,
    ) -> None:
        assert offset >= 0, "a monotonic clock does not begin below zero"
        assert rate > 0, "time passes"
        self._loop = loop
        self._base = offset
        self._base_now = loop.now
        self._rate = rate
        self._wall_offset = EPOCH + wall_offset - offset

    def monotonic(self) -> Micros:
        return Micros(self._base + (self._loop.now - self._base_now) * self._rate // RATE_ONE)

    def wall(self) -> Micros:
        now = self._base + (self._loop.now - self._base_now) * self._rate // RATE_ONE
        return Micros(now + self._wall_offset)

    def set_rate(self, rate: int) -> None:
        """From now on the clocks run at `rate` millionths of true speed."""
        assert rate > 0, "time passes"
        self._base = self.monotonic()
        self._base_now = self._loop.now
        self._rate = rate

    def jump_wall(self, by: Micros) -> None:
        """Set the wall clock forward, or back if `by` is negative."""
        self._wall_offset += by
