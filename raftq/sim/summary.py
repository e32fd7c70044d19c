"""Many runs in one: how much was simulated, what was done to it, and which seeds are not clean."""

import collections
from typing import Any

from raftq.sim.run import Result

SECONDS_PER_HOUR = 3_600
FAULT = "fault "


class Summary:
    """Sums up results, in any order."""

    def __init__(self) -> None:
        self.seeds = 0
        self.failed: dict[int, str] = {}
        """Seeds that are not clean, with the first thing that was seen."""
        self.faults: collections.Counter[str] = collections.Counter()
        self.milliseconds = 0
        self.operations = 0
        self.acknowledged = 0
        self.unavailable_milliseconds = 0
        """The longest that clients had to wait after the faults of a run were healed."""

    def add(self, result: Result) -> None:
        counters = result.counters
        self.seeds += 1
        if result.violations:
            self.failed[result.seed] = result.violations[0]
        self.milliseconds += counters.get("milliseconds", 0)
        self.operations += counters.get("operations", 0)
        self.acknowledged += counters.get("acknowledged", 0)
        waited = counters.get("unavailable milliseconds", 0)
        self.unavailable_milliseconds = max(self.unavailable_milliseconds, waited)
        for name, count in counters.items():
            if name.startswith(FAULT):
                self.faults[name.removeprefix(FAULT)] += count

    def as_map(self, seconds: float) -> dict[str, Any]:
        """The totals after `seconds` of real time."""
        return {
            "seeds": self.seeds,
            "violations": len(self.failed),
            "failed_seeds": {str(seed): text for seed, text in sorted(self.failed.items())},
            "seconds": round(seconds, 1),
            "seeds_per_hour": round(self.seeds * SECONDS_PER_HOUR / max(seconds, 1)),
            "simulated_hours": round(self.milliseconds / 1_000 / SECONDS_PER_HOUR, 2),
            "operations": self.operations,
            "acknowledged": self.acknowledged,
            "unavailable_ms": self.unavailable_milliseconds,
            "faults": dict(sorted(self.faults.items())),
        }
