"""What clients did and heard, in a file: one JSON array a line, written by a client process as it goes.

    ["attempt", time, queue, payload]                    a send is about to begin
    ["ack", time, queue, partition, offset, payload]     it was acknowledged
    ["refused", time, payload]                           it is certain that nothing was stored
    ["delivered" | "settled", time, queue, partition, offset, payload, delivery_count]
    ["read", time, queue, partition, offset, payload]    a reader was given it
    ["ok", time, kind]  ["failed", time, kind, error, outcome, text]   how a call ended
    ["broken", time, text]                               a client saw what must never be seen

Times are CLOCK_MONOTONIC seconds, the same in all processes. Acknowledgements of probes are also
written to a file of their own, at once: [time, partition].
"""

import asyncio
import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FLUSH_SECONDS = 0.1


class History:
    """Writes; what is written reaches the file within `FLUSH_SECONDS`, while `keep_flushing` runs."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def write(self, kind: str, *facts: object) -> None:
        self._file.write(json.dumps([kind, round(time.monotonic(), 6), *facts]) + "\n")

    async def keep_flushing(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_history(path: Path) -> Iterator[list[Any]]:
    """All events; what a killed client did not finish writing is none."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


class ProbeWriter:
    """Where a client process tells at once that a probe was acknowledged."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

    def acknowledged(self, partition: int) -> None:
        os.write(self._fd, b"[%.6f, %d]\n" % (time.monotonic(), partition))


class Probes:
    """The harness's view: when each probed partition accepted a message."""

    def __init__(self, path: Path, partitions: list[int]) -> None:
        path.touch()
        self._file = path.open("rb")
        self._rest = b""
        self.times: dict[int, list[float]] = {partition: [] for partition in partitions}

    def look(self) -> None:
        """Read what has come."""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in lines:
            at, partition = json.loads(line)
            self.times[partition].append(at)

    def all_since(self, moment: float, count: int) -> bool:
        """Whether every partition has accepted so many since."""
        self.look()
        return all(len(each) >= count and each[-count] > moment for each in self.times.values())

    def gap(self, begin: float, end: float, partitions: list[int]) -> float:
        """The longest time that one of these accepted nothing, of pauses that end in this time."""
        longest = 0.0
        for times in map(self.times.__getitem__, partitions):
            for early, late in itertools.pairwise([*times, end]):
                if begin < late and early < end:
                    longest = max(longest, late - early)
        return longest

    def close(self) -> None:
        self._file.close()
