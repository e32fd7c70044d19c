"""Notices when a group's log time does not go as time does.

Log time is what a quorum of the voters' clocks has passed, so one wrong clock moves nothing; several
wrong ones, or a leader whose own clock is wrong, do. Nothing is refused for that, but deadlines and
delays come early or late, so somebody should know: when log time has gone more than
`LOG_TIME_ALARM_MICROS` farther or less far than the leader's monotonic clock since the last entry,
or is that far from the leader's wall clock.
"""

from typing import Final

from raftq.ids import GroupId, Micros
from raftq.limits import LOG_TIME_ALARM_MICROS, SECOND
from raftq.observability.logs import logger

_log = logger("raftq.host")

QUIET_MICROS: Final = 60 * SECOND
"""A clock that stays wrong is said once in so long."""


class LogTimeAlarm:
    """One leader's; `count` goes on over its leaderships."""

    def __init__(self, group: GroupId) -> None:
        self.count = 0
        """Entries whose log time was an alarm."""
        self._group = group
        self._ahead: int | None = None
        """Log time of the last entry minus the monotonic clock then; None at the beginning."""
        self._quiet_until = Micros(0)

    def leadership_begins(self) -> None:
        """Another leader's entries came between: the next one is compared with the wall only."""
        self._ahead = None

    def entry(self, log_time: Micros, *, now: Micros, wall: Micros) -> None:
        """The leader is about to make an entry of this time."""
        ahead = log_time - now
        jump = 0 if self._ahead is None else ahead - self._ahead
        lag = wall - log_time
        self._ahead = ahead
        if max(abs(jump), abs(lag)) <= LOG_TIME_ALARM_MICROS:
            return
        self.count += 1
        if now >= self._quiet_until:
            self._quiet_until = Micros(now + QUIET_MICROS)
            _log.warning(
                "log time is off: check the clocks of the nodes",
                group=self._group,
                jump_us=jump,
                behind_own_clock_us=lag,
                entries=self.count,
            )
