"""What is said again and again is said seldom, with how often it happened meanwhile.

    if (unsaid := repeats.due((peer, "refused"), now=now)) is not None:
        _log.warning("peer refused", peer=peer, unsaid=unsaid)

Rule: what strangers cause must not cost memory: past `KEYS_MAX` they share one key.
"""

from typing import Final, NamedTuple

from raftq.ids import Micros
from raftq.limits import SECOND

QUIET_MICROS: Final = 60 * SECOND
KEYS_MAX: Final = 256
_OTHERS: Final = ("others", "")


class _Said(NamedTuple):
    until: int
    times: int


class Repeats:
    """The first `burst` of a kind are said, then none until a minute after the first."""

    def __init__(self, burst: int = 1) -> None:
        self._burst = burst
        self._said: dict[tuple[str, str], _Said] = {}

    def due(self, key: tuple[str, str], *, now: Micros) -> int | None:
        """How many were not said since the last one that was; None to be silent now."""
        if key not in self._said and len(self._said) >= KEYS_MAX:
            self._said = {each: said for each, said in self._said.items() if now < said.until}
            if len(self._said) >= KEYS_MAX:
                key = _OTHERS
        until, times = self._said.get(key, _Said(0, 0))
        if now < until:
            self._said[key] = _Said(until, times + 1)
            return 0 if times < self._burst else None
        self._said[key] = _Said(now + QUIET_MICROS, 1)
        return max(times - self._burst, 0)
