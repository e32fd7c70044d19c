"""What one replica knows, and the few transitions that every role shares.

`Replica` is plain state; the roles are modules of functions over it, so that each can be read alone:

    election.py      time without a leader, campaigns, votes
    following.py     what a leader sends: entries, heartbeats, snapshot pieces
    replication.py   what a leader sends and hears: appends, heartbeats, answers
    snapshots.py     snapshots to followers that are far behind
    reads.py         linearizable reads
    changes.py       membership changes: what is admitted
    commit.py        the leader's own log: log time, new entries, commit
    handover.py      leaving office on purpose
    core.py          `Raft`, the face of it all: dispatch, time, `Ready`
    status.py        what people see of it

Imports go downwards only: core, election, changes, replication, snapshots, commit and reads,
handover, replica.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from raftq.ids import NOBODY, Index, Micros, ReplicaId, Term
from raftq.limits import (
    ELECTION_MICROS_MAX,
    ELECTION_MICROS_MIN,
    HEARTBEAT_MICROS,
)
from raftq.raft.clock import VoterClocks
from raftq.raft.entry import GENESIS
from raftq.raft.faults import NONE, Faults
from raftq.raft.log import RaftLog
from raftq.raft.membership import Membership
from raftq.raft.messages import Message, SnapshotChunk
from raftq.raft.persistence import Persistence
from raftq.raft.progress import Progress
from raftq.raft.ready import Allowance, HardState, LogReader, SnapshotMeta, SnapshotRequest

NEVER: Final = Micros(1 << 62)
LONG_AGO: Final = Micros(-(1 << 62))
NO_CHECKPOINT: Final = (Index(0), bytes(16))


class Role(Enum):
    """What a replica is to its group at the moment."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre_candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Departure(NamedTuple):
    """Of a replica that was a member."""

    index: Index  # type: ignore[assignment] # Hides a method of tuples that nobody needs.
    """Of the configuration that goes on without it."""
    until: Micros


class Replica:
    """State of one replica. Every attribute belongs to the modules named above it."""

    def __init__(
        self,
        *,
        replica: ReplicaId,
        state: HardState,
        log: LogReader,
        draw: Callable[[int], int],
        monotonic: Micros,
        wall: Micros,
        may_vote: bool,
        faults: Faults,
        allowance: Allowance,
    ) -> None:
        assert replica != NOBODY
        self.replica = replica
        self.faults = faults
        self.allowance = allowance
        self.draw = draw
        self.now = monotonic
        self.wall = wall

        # Everybody: the Raft state.
        self.role = Role.FOLLOWER
        self.term = state.term
        self.vote = state.vote
        self.leader = NOBODY
        """Leader of `term` as far as known; nobody while this replica looks for another."""
        self.log = RaftLog(log)
        self.persistence = Persistence(state, self.log.last_index, faults)
        # A commit index on disk that exceeds the log must not commit what is yet to come.
        self.commit_index = max(self.log.floor, min(state.commit_index, self.log.last_index))
        self.commit_chain = self.log.chain(self.commit_index) or GENESIS
        self.applied_index = self.log.floor
        self.apply_next = Index(self.log.floor + 1)
        """The next entry to hand out for applying."""
        self.unreadable = Index(0)
        """Where applying waits for the log to be repaired; 0 = nowhere."""

        # Everybody: whether this replica may be trusted.
        self.may_vote = may_vote
        """False for ever once this replica has lost what it had acknowledged."""
        self.diverged: str | None = None
        self.corrupt_messages = 0
        self.checkpoints: dict[Index, bytes] = {}
        """Own machine digests, the newest few."""
        self.checkpoint_claim = NO_CHECKPOINT
        """The newest machine digest of the leader."""

        # Everybody: what the next Ready carries.
        self.send_now: list[Message] = []
        self.send_after: list[Message] = []
        self.confirmed_reads: list[tuple[object, Index]] = []
        self.installed: SnapshotMeta | None = None
        self.snapshot_requests: list[SnapshotRequest] = []
        self.snapshot_chunks: list[SnapshotChunk] = []

        self._prepare_roles()

    def _prepare_roles(self) -> None:
        """What belongs to one role each."""
        # Followers (following.py): the snapshot that is coming in.
        self.incoming: SnapshotChunk | None = None
        """The newest piece of it: what the others are compared with, and who hears of it."""
        self.incoming_bytes = 0
        self.incoming_complete = False

        # Without a leader (election.py).
        self.contact = self.now
        """When the present leader was last heard; a restarted voter counts from its start."""
        self.link_carried = False
        """Whether the leader was heard since its link was last lost."""
        self.election_timeout = ELECTION_MICROS_MAX
        self.election_deadline = NEVER
        self.fast_deadline = NEVER
        self.fast_until = LONG_AGO
        """Fast failover, after the loss of the leader's link, is tried until then."""
        self.lost_leader = NOBODY
        """Whose link was lost; in fast failover its vote is not waited for."""
        self.votes: dict[ReplicaId, bool] = {}

        # Leaders (replication.py, snapshots.py, reads.py, commit.py, handover.py).
        self.clocks = VoterClocks()
        self.progress: dict[ReplicaId, Progress] = {}
        """Of the other members, and of the departing."""
        self.departing: dict[ReplicaId, Departure] = {}
        """Members no more, which are still to hear it."""
        self.recent_ends: deque[Index] = deque(maxlen=ELECTION_MICROS_MIN // HEARTBEAT_MICROS)
        """Where the log ended at the last few heartbeats: what a learner must have to vote."""
        self.matches: dict[ReplicaId, int] = {}
        """Durable log end of everybody who counts, the leader included."""
        self.term_start = Index(0)
        """Index of the no-op that began this term."""
        self.round = 0
        """Number of the newest heartbeat round; never reset, so a late reply fits no later term."""
        self.heartbeat_at = NEVER
        self.reads_asked: list[object] = []
        self.reads_waiting: deque[tuple[int, Index, object]] = deque()
        self.transfer_to = NOBODY
        self.transfer_goal = Index(0)
        """What the chosen successor must have before nothing new is taken."""
        self.transfer_deadline = NEVER
        self.heir = NOBODY
        """Whom this replica, leading, told to campaign."""
        self.heir_term = Term(0)

    @property
    def expected_leader(self) -> ReplicaId:
        """The leader, or who will be if the hand-over succeeds that this replica began."""
        if self.leader == NOBODY and self.term == self.heir_term + 1:
            return self.heir
        return self.leader

    @property
    def electorate(self) -> Membership:
        """Whose answers count: the last configuration in the log, committed or not."""
        return self.log.membership if self.faults is NONE else self._mistaken_electorate()

    def _mistaken_electorate(self) -> Membership:
        faults, log = self.faults, self.log
        membership = log.membership
        if faults.membership_when_committed:
            membership = log.membership_at(self.commit_index)
        if faults.new_half_counted:
            membership = membership._replace(outgoing=())
        if faults.learners_counted:
            everybody = tuple(sorted((*membership.voters, *membership.learners)))
            membership = membership._replace(voters=everybody)
        return membership

    @property
    def membership_others(self) -> list[ReplicaId]:
        """Everybody but this replica, sorted."""
        return [member for member in self.log.membership.members() if member != self.replica]

    @property
    def may_campaign(self) -> bool:
        return (
            self.may_vote
            and self.diverged is None
            and not self.log.damaged
            and (self.electorate.is_voter(self.replica) or self._leaves_uncommitted())
        )

    def _leaves_uncommitted(self) -> bool:
        """Whether this voter is removed by a change that is not committed.

        Until it is, nobody else may have the change, and then nobody else can win.
        """
        log = self.log
        return log.membership_index > self.commit_index and log.membership_at(
            self.commit_index
        ).is_voter(self.replica)

    @property
    def removed(self) -> bool:
        """Whether this replica knows that it is a member no more. Its node may drop it then."""
        return self.log.membership_at(self.commit_index).has_removed(self.replica)

    def draw_election_timeout(self) -> None:
        self.election_timeout = ELECTION_MICROS_MIN + self.draw(
            ELECTION_MICROS_MAX - ELECTION_MICROS_MIN
        )
        self.election_deadline = Micros(self.now + self.election_timeout)

    def become_follower(self, term: Term, leader: ReplicaId) -> None:
        """Follow `leader`, perhaps nobody yet, in `term`."""
        assert term >= self.term
        if term > self.term:
            self.term = term
            self.vote = NOBODY
            # Contact is contact to the leader of the present term.
            self.contact = LONG_AGO
            self.link_carried = False
        if self.role is not Role.FOLLOWER:
            self.role = Role.FOLLOWER
            self.votes = {}
            self.stop_leading()
            self.draw_election_timeout()
        self.leader = leader

    def stop_leading(self) -> None:
        """Everything that only a leader has is void."""
        self.progress = {}
        self.departing = {}
        self.matches = {}
        self.heartbeat_at = NEVER
        self.reads_asked = []
        self.reads_waiting.clear()
        self.snapshot_requests = []
        self.transfer_to = NOBODY
        self.transfer_deadline = NEVER

    def commit_to(self, index: Index) -> None:
        """Everything up to `index` is committed."""
        assert self.commit_index <= index <= self.log.last_index
        link = self.log.chain(index)
        assert link is not None
        self.commit_index = index
        self.commit_chain = link

    def diverge(self, reason: str) -> None:
        """A promise was broken, here or elsewhere: do nothing more, harm nobody."""
        if self.diverged is None:
            self.become_follower(self.term, NOBODY)
            self.diverged = reason

    def compare_checkpoints(self) -> None:
        """The own machine digest against the leader's, where both are known."""
        index, digest = self.checkpoint_claim
        own = self.checkpoints.get(index)
        if own is not None and own != digest and index:
            self.diverge(f"the machine at index {index} differs from the leader's")
