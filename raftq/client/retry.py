"""How long a call goes on trying, and what it says when it gives up.

Rules:

1. An error decides by itself: `retriable` says whether to try again, `outcome` whether that is safe.
   A call that may be repeated (`repeatable`) is tried again in either case.
2. A redirect (NotLeader, Moved) means that nothing happened, and is followed quickly: a new leader
   is elected within a fraction of a second.
3. Pauses grow and are spread by chance, so that clients do not come back in step.
4. When the time is over, the last error is raised if it names what is wrong (no quorum, no
   connection, too busy), else Timeout. If any attempt may have been applied, its outcome is
   "unknown".
"""

import asyncio
from typing import Final

from raftq.client.ports import SECOND_US, Outside
from raftq.errors import ConnectionFailed, NoQuorum, Outcome, RaftqError, Timeout
from raftq.wire.errors import Moved, NotLeader, WireError

ATTEMPT_SECONDS: Final = 5.0
"""One attempt waits this long for its reply before another way is tried."""

_PAUSE_FIRST_US: Final = 10_000
_PAUSE_MAX_US: Final = 500_000
_REDIRECT_PAUSE_MAX_US: Final = 80_000
_DOUBLINGS_MAX: Final = 8


class Patience:
    """The time of one call. Ask `after` whenever an attempt fails."""

    __slots__ = ("_outside", "_seconds", "_tries", "unknown", "until")

    def __init__(self, outside: Outside, seconds: float) -> None:
        self._outside = outside
        self._seconds = seconds
        self._tries = 0
        self.until = outside.clock.monotonic() + int(seconds * SECOND_US)
        self.unknown = False
        """Whether an attempt may have been applied."""

    def left(self) -> float:
        """Seconds until the call must end; never negative."""
        return max(self.until - self._outside.clock.monotonic(), 0) / SECOND_US

    def attempt(self) -> float:
        """Seconds that the next attempt may take."""
        return min(self.left(), ATTEMPT_SECONDS)

    async def after(self, error: WireError, *, repeatable: bool = True) -> None:
        """Pause before the next attempt, or raise what the call ends with."""
        pause_us = self.pause_us(error, repeatable=repeatable)
        await asyncio.sleep(pause_us / SECOND_US)

    def pause_us(self, error: WireError, *, repeatable: bool = True) -> int:
        """How long to pause before the next attempt.

        Raises: what the call ends with, if there is to be no other attempt.
        """
        if isinstance(error, RaftqError):
            if error.outcome == "unknown":
                self.unknown = True
                if not repeatable:
                    raise error
            if not error.retriable:
                raise error
        pause = pause_before(self._outside, self._tries, error)
        self._tries += 1
        if self._outside.clock.monotonic() + pause >= self.until:
            raise self.final(error)
        return pause

    def final(self, error: WireError | None) -> RaftqError:
        """What a call ends with whose time is over, and whose last attempt met `error`."""
        return final_error(error, self._seconds, unknown=self.unknown)


def pause_before(outside: Outside, tries: int, error: WireError | None) -> int:
    """Microseconds to wait before try number `tries` + 1."""
    if isinstance(error, NotLeader) and error.leader is not None and tries < 2:
        return 0
    limit = _REDIRECT_PAUSE_MAX_US if isinstance(error, NotLeader) else _PAUSE_MAX_US
    longest = min(_PAUSE_FIRST_US << min(tries, _DOUBLINGS_MAX), limit)
    pause = longest // 2 + outside.entropy.below(longest // 2)
    asked = int(error.retry_after * SECOND_US) if isinstance(error, RaftqError) else 0
    return max(pause, asked)


def final_error(error: WireError | None, seconds: float, *, unknown: bool) -> RaftqError:
    """What to raise after `seconds` of trying, the last of which met `error`."""
    outcome: Outcome = "unknown" if unknown else "not_applied"
    if isinstance(error, NotLeader | Moved):
        found: RaftqError = NoQuorum(
            f"no leader could be reached within {seconds:g} s; bring nodes back, then retry",
            outcome=outcome,
        )
    elif error is None or (isinstance(error, Timeout) and not isinstance(error, ConnectionFailed)):
        found = Timeout(f"no answer within {seconds:g} s", outcome=outcome)
    else:
        found = type(error)(
            f"{error} (tried for {seconds:g} s)",
            outcome=outcome,
            retry_after=error.retry_after,
            failed=error.failed,
        )
    found.__cause__ = error
    return found
