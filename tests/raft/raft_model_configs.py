"""The small worlds that are explored whole: who there is, what may happen, and how often.

A bound leaves out what lies beyond it and nothing else: an event that would lead there does not
happen. All that is not bounded here may happen at any time and any number of times.
"""

from dataclasses import dataclass, replace

from raftq.raft.faults import Faults
from raftq.raft.messages import Append, AppendReply, Heartbeat, HeartbeatReply

HEARTBEATS = (Heartbeat, HeartbeatReply)
ALL_BUT_VOTES = (*HEARTBEATS, Append, AppendReply)


@dataclass(slots=True, frozen=True)
class Config:
    """One world and its bounds."""

    name: str
    what: str
    voters: int = 3
    learners: tuple[int, ...] = ()
    newcomers: tuple[int, ...] = ()
    """Replicas that exist from the start, empty, and wait to be joined."""
    first: str = "asked"
    """How it begins. `asked`: replica 1 has just timed out, nobody has voted, which stands for all
    three by symmetry; `led`: replica 1 leads, and its no-op is committed and applied everywhere."""
    entries_before: int = 0
    """Commands that are committed before it begins."""
    behind: tuple[int, ...] = ()
    """Replicas that have not heard of these."""
    terms: int = 2
    """Highest term."""
    rounds: int = 1
    """Heartbeat rounds of one leader."""
    crashes: int = 0
    """In the whole world; each is followed by the restart."""
    entries: int = 0
    """Commands in a log."""
    changes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    """Configurations that may be wanted, as (voters, learners)."""
    changes_max: int = 0
    """Membership entries in a log."""
    may_campaign: tuple[int, ...] = (1, 2, 3)
    may_crash: tuple[int, ...] = (1, 2, 3)
    may_compact: tuple[int, ...] = ()
    slow_disks: tuple[int, ...] = (1, 2, 3)
    """Whose writes complete one by one, any time later; those of the others at once."""
    pre_vote: bool = False
    """Without it a campaign begins with a real election, at any moment: which is more than what
    pre-votes leave possible."""
    lonely: bool = False
    """Whether a leader may resign because it hears nobody."""
    pieces: int = 1
    """Of a snapshot."""
    lost: tuple[type, ...] = ()
    """Kinds of messages that never arrive."""
    fault: str = ""
    """What is switched on in the core, from `faults.py`."""
    promises: bool = True
    """Whether a promise of what is not durable is a violation by itself."""

    @property
    def faults(self):
        switches = {self.fault: True} if self.fault else {}
        return Faults(no_pre_vote=not self.pre_vote, **switches)


ELECTION = Config(
    "election",
    "three replicas stand for two terms; slow disks; one crash",
    lost=ALL_BUT_VOTES,
    crashes=1,
)
TERMS = Config(
    "three-terms",
    "three replicas stand for three terms; disks are fast",
    lost=ALL_BUT_VOTES,
    terms=3,
    slow_disks=(),
)
PRE_VOTE = Config(
    "pre-vote",
    "two of three replicas ask before they stand for the first term; disks are fast",
    lost=ALL_BUT_VOTES,
    terms=1,
    pre_vote=True,
    slow_disks=(),
    may_campaign=(1, 2),
)
REPLICATION = Config(
    "replication",
    "a leader with one command and its successor; slow disks; the successor may crash",
    first="led",
    lost=HEARTBEATS,
    entries=1,
    may_campaign=(2,),
    crashes=1,
    may_crash=(2,),
)
HEARTBEAT = Config(
    "heartbeats",
    "a leader with one command and one more round of heartbeats; a follower may crash",
    first="led",
    terms=1,
    entries=1,
    may_campaign=(),
    slow_disks=(3,),
    crashes=1,
    may_crash=(3,),
)
MEMBERSHIP = Config(
    "membership",
    "a fourth replica is joined as a learner while leadership moves; disks are fast",
    newcomers=(4,),
    first="led",
    lost=HEARTBEATS,
    may_campaign=(2,),
    slow_disks=(),
    changes=(((1, 2, 3), (4,)), ((1, 2, 3, 4), ())),
    changes_max=1,
)
PROMOTION = Config(
    "promotion",
    "a fourth replica is joined and made a voter by one leader; disks are fast",
    newcomers=(4,),
    first="led",
    lost=HEARTBEATS,
    terms=1,
    may_campaign=(),
    slow_disks=(),
    changes=(((1, 2, 3), (4,)), ((1, 2, 3, 4), ())),
    changes_max=2,
)
REPLACEMENT = Config(
    "replacement",
    "a learner takes the place of the third voter, by a joint configuration; disks are fast",
    learners=(4,),
    first="led",
    lost=HEARTBEATS,
    terms=1,
    may_campaign=(),
    slow_disks=(),
    changes=(((1, 2, 4), ()),),
    changes_max=2,
)
REMOVALS = Config(
    "removals",
    "two leaders, each of which removes another one of four voters; disks are fast",
    voters=4,
    first="led",
    lost=HEARTBEATS,
    may_campaign=(4,),
    slow_disks=(),
    changes=(((1, 2, 3), ()), ((2, 3, 4), ())),
    changes_max=1,
)
SNAPSHOT = Config(
    "snapshot",
    "a new leader forgets its log; who lacks it gets the snapshot in two pieces, and may crash",
    first="led",
    entries_before=1,
    behind=(3,),
    lost=HEARTBEATS,
    may_campaign=(2,),
    may_compact=(2,),
    crashes=1,
    may_crash=(3,),
    slow_disks=(3,),
    pieces=2,
)

LARGE = (
    ELECTION, TERMS, PRE_VOTE, REPLICATION, HEARTBEAT, MEMBERSHIP, PROMOTION, REPLACEMENT, REMOVALS,
    SNAPSHOT,
)  # fmt: skip
"""What tools/explore goes through."""

SMALL = (
    replace(ELECTION, slow_disks=(2,), may_crash=(2,)),
    replace(REPLICATION, slow_disks=(2,)),
    PROMOTION,
    replace(SNAPSHOT, pieces=1),
)
"""What the test suite goes through: the same, with less of it."""
