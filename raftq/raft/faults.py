"""Bugs that can be switched on, so that checkers can be shown to find them. All off by default.

Each switch breaks one rule of the core in the smallest way that a careless implementation would.
Only tests and the simulator ever pass anything but `NONE`.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(slots=True, frozen=True)
class Faults:
    """One switch per rule that can be broken."""

    vote_unsynced: bool = False
    """Votes, one's own included, are given before they are synced."""

    ack_before_fsync: bool = False
    """Appends are acknowledged, and counted by the leader for itself, before they are synced."""

    completion_by_index: bool = False
    """A completion marks its indexes as durable even if they were truncated meanwhile."""

    heartbeat_commit_unchecked: bool = False
    """A heartbeat moves the commit index of a log whose chain was not compared."""

    older_replies_counted: bool = False
    """A leader counts what was acknowledged in an earlier term: it may have been truncated since."""

    truncates_what_agrees: bool = False
    """A follower ends its log where an append ends, also when all of that was there already."""

    no_pre_vote: bool = False
    """Campaigns begin with a real election."""

    change_before_noop: bool = False
    """A leader changes the membership before anything of its own term is committed."""

    change_while_pending: bool = False
    """A leader changes the membership before the change before it is committed."""

    new_half_counted: bool = False
    """During a joint change only the incoming voters are asked."""

    learners_counted: bool = False
    """Learners count like voters."""

    membership_when_committed: bool = False
    """A configuration is in force from its commit on, not from its place in the log on."""


NONE: Final = Faults()
