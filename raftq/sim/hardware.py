"""One simulated machine: what outlives its processes, and what the nemesis does to it.

Rules

1. A machine has one clock and one disk for ever, and one process at a time; each start makes a new
   process with a network port and an entropy of its own.
2. What one machine draws changes nothing for another.
"""

from collections.abc import Callable

from raftq.env import Environment
from raftq.ids import Micros
from raftq.sim.clock import RATE_ONE, SimClock
from raftq.sim.disk import SimDisk
from raftq.sim.entropy import SimEntropy, generator
from raftq.sim.loop import MICROS, SimLoop
from raftq.sim.network import Fabric
from raftq.sim.process import Process

UPTIME_MICROS_MAX = 3_600 * MICROS
WALL_ERROR_MICROS_MAX = 50_000
RATE_ERROR_MAX = 200
SYNC_MICROS_MIN = 150
SYNC_MICROS_MAX = 2_000
"""Machines are not alike: neither their clocks nor their disks."""


class Hardware:
    """The machine that is the host `name` of the network."""

    def __init__(self, loop: SimLoop, fabric: Fabric, name: str, *, seed: int) -> None:
        choose = generator(seed, "hardware", name)
        self.name = name
        self.starts = 0
        self.boot = 1
        """Number of the machine's run: a killed process finds it unchanged, after power loss not."""
        self.process: Process | None = None
        self.clock = SimClock(
            loop,
            offset=Micros(choose.randrange(UPTIME_MICROS_MAX)),
            wall_offset=Micros(choose.randint(-WALL_ERROR_MICROS_MAX, WALL_ERROR_MICROS_MAX)),
            rate=RATE_ONE + choose.randint(-RATE_ERROR_MAX, RATE_ERROR_MAX),
        )
        self.disk = SimDisk(
            self._call_later,
            SimEntropy(seed, "disk", name),
            sync_delay=Micros(choose.randint(SYNC_MICROS_MIN, SYNC_MICROS_MAX)),
        )
        self._loop = loop
        self._fabric = fabric
        self._seed = seed

    @property
    def is_up(self) -> bool:
        """A process exists; it may be paused."""
        return self.process is not None

    def start(self) -> tuple[Process, Environment]:
        """Boot, if need be, and make a new process with its four ports."""
        assert self.process is None, f"{self.name} runs already"
        self.starts += 1
        self._fabric.power_on(self.name)
        self.process = Process(self._loop, self.name)
        environment = Environment(
            clock=self.clock,
            disk=self.disk,
            network=self._fabric.network(self.name, self.process),
            entropy=SimEntropy(self._seed, "process", self.name, str(self.starts)),
            boot=self.boot,
        )
        return self.process, environment

    def kill(self) -> None:
        """The process is killed; page cache and kernel go on."""
        process = self._ended()
        self._fabric.process_killed(process)
        self.disk.kill()

    def power_loss(self) -> None:
        """The machine stops: silent, and what was not synced may be lost."""
        if self.process is not None:
            self._ended()
        self._fabric.power_off(self.name)
        self.disk.power_loss()
        self.boot += 1

    def pause(self) -> None:
        assert self.process is not None, f"{self.name} is down"
        self.process.pause()

    def resume(self) -> None:
        assert self.process is not None, f"{self.name} is down"
        self.process.resume()

    def _ended(self) -> Process:
        process = self.process
        assert process is not None, f"{self.name} is down already"
        self.process = None
        process.kill()
        return process

    def _call_later(self, delay: Micros, callback: Callable[[], None]) -> object:
        return self._loop.call_at_micros(Micros(self._loop.now + delay), callback)
