"""The real clocks: whole microseconds from the kernel's nanoseconds, no floats on the way."""

import time

from raftq.ids import Micros


class RealClock:
    """This machine's monotonic and wall clocks."""

    __slots__ = ()

    def monotonic(self) -> Micros:
        return Micros(time.monotonic_ns() // 1_000)

    def wall(self) -> Micros:
        return Micros(time.time_ns() // 1_000)
