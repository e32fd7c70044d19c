"""A simulated disk with timers and entropy of its own, for its tests."""

import heapq
import random

from raftq.sim.disk import SimDisk


class SeededEntropy:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, bound: int) -> int:
        return self._random.randrange(bound)

    def bits(self, count: int) -> int:
        return self._random.getrandbits(count) or 1


class Timers:
    def __init__(self) -> None:
        self.now = 0
        self._heap = []

    def call_later(self, delay, callback) -> None:
        heapq.heappush(self._heap, (self.now + delay, len(self._heap), callback))

    def run(self) -> None:
        while self._heap:
            self.now, _, callback = heapq.heappop(self._heap)
            callback()


def make(seed: int = 1, **options) -> tuple[SimDisk, Timers]:
    timers = Timers()
    return SimDisk(timers.call_later, SeededEntropy(seed), **options), timers


def durable_file(disk: SimDisk, path: str, data: bytes):
    file = disk.open(path, create=True)
    file.write(0, [data])
    file.sync_now()
    disk.sync_directory(path.rpartition("/")[0])
    return file


def survivors(story, look, seeds: int = 200) -> set:
    """What can be seen after a power loss, over many seeds."""
    seen = set()
    for seed in range(seeds):
        disk, _ = make(seed)
        story(disk)
        disk.power_loss()
        seen.add(look(disk))
    return seen
