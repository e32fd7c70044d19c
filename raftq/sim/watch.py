"""What the checkers are told of every replica: the witness of a simulated cluster.

Theory of operation. All groups of all nodes report to one `Watch`. It turns what the core decided
into facts for the checkers, in the very callback in which it was decided, so that a violation is
found where it is caused. A violation raises; should something on the way swallow it, it is kept.

Rules

1. A watch looks and never touches.
2. Machine digests are compared at every index whose digest two nodes have taken; they are taken at
   multiples of `digest_every`.
"""

from types import TracebackType

from raftq.host import Group
from raftq.ids import GroupId, Index, ReplicaId, Term
from raftq.raft import Entry, Message, Ready, Role, Write
from raftq.raft.entry import MEMBERSHIP
from raftq.raft.messages import AppendReply, SnapshotReply, VoteReply, VoteRequest
from raftq.sim.checkers import (
    CommitQuorum,
    Durability,
    ElectionSafety,
    LeaderCompleteness,
    LogAgreement,
    MembershipRules,
    ViolationError,
)
from raftq.sim.loop import SimLoop
from raftq.storage.group_log import Condition

DIGEST_EVERY = 64


class Watch:
    """The witness of all groups of one simulated cluster."""

    def __init__(self, loop: SimLoop, *, digest_every: int = DIGEST_EVERY) -> None:
        self.elections = ElectionSafety()
        self.agreement = LogAgreement()
        self.completeness = LeaderCompleteness()
        self.durability = Durability()
        self.quorum = CommitQuorum()
        self.members = MembershipRules()
        self.violations: list[str] = []
        self.entries_applied = 0
        self.highest_term: dict[GroupId, Term] = {}
        self._loop = loop
        self._digest_every = digest_every
        self._kept = _Kept(self)
        self._led: dict[tuple[str, GroupId], Term] = {}
        self._replicas: dict[GroupId, dict[ReplicaId, Group]] = {}
        """The newest process' replica of each id, running or not."""

    # --- host.Witness --------------------------------------------------------------------------

    def restored(self, group: Group) -> None:
        node = _speaker(group)
        self._replicas.setdefault(group.group, {})[group.replica] = group
        self.agreement.restored(node, group.group, group.applied_index)
        is_whole = group.log.condition is Condition.OK
        with self.kept():
            self.durability.restored(node, group.group, group.log.last_index, is_whole=is_whole)

    def ready(self, group: Group, ready: Ready) -> None:
        with self.kept():
            node, raft = _speaker(group), group.raft
            if ready.write is not None:
                self._wrote(node, group, ready.write)
            self._promised(node, group, ready)
            if ready.apply and raft.role is Role.LEADER:
                self._committed(node, group, ready.apply[-1].index)
            if raft.term > self.highest_term.get(group.group, 0):
                self.highest_term[group.group] = raft.term
            if raft.role is Role.LEADER and self._led.get((node, group.group)) != raft.term:
                self._led[node, group.group] = raft.term
                self._elected(node, group)

    def applied(self, group: Group, entry: Entry) -> None:
        with self.kept():
            node, number = _speaker(group), group.group
            self.entries_applied += 1
            self.agreement.applied(node, number, entry.index)
            self.agreement.committed(node, number, entry.index, entry.chain)
            if group.raft.role is Role.LEADER:
                self.completeness.committed(number, entry.index, entry.chain, group.raft.term)
            if entry.index % self._digest_every == 0:
                self.agreement.digest(node, number, entry.index, group.machine.digest())

    def _wrote(self, node: str, group: Group, write: Write) -> None:
        number = group.group
        if write.truncate_from:
            chain = group.log.chain(write.truncate_from)
            self.agreement.truncated(node, number, write.truncate_from, chain)
            self.durability.truncated(node, number, write.truncate_from)
        for entry in write.entries:
            self.agreement.appended(node, number, entry.index, entry.term, entry.chain)
            if entry.kind == MEMBERSHIP and self._is_own(group, entry):
                self._changed(node, group, entry.index)
        if write.entries:
            first = write.entries[0].index
            self.durability.wrote(node, number, write.seq, first=first, last=write.last_index)
        self.durability.wrote_vote(node, number, write.seq, write.term, write.vote)

    @staticmethod
    def _is_own(group: Group, entry: Entry) -> bool:
        return group.raft.role is Role.LEADER and entry.term == group.raft.term

    def _changed(self, node: str, group: Group, index: Index) -> None:
        raft, before_index = group.raft, Index(index - 1)
        before = raft.log.membership_at(before_index)
        while before_index > raft.log.floor and (
            raft.log.membership_at(Index(before_index - 1)) is before
        ):
            before_index = Index(before_index - 1)
        self.members.changed(
            node,
            group.group,
            before,
            raft.log.membership_at(index),
            before_index=before_index,
            commit_index=raft.commit_index,
            term_start=raft.term_start,
        )

    def _committed(self, node: str, group: Group, index: Index) -> None:
        raft, number = group.raft, group.group
        promised = {
            replica: self.durability.promised(_speaker(other), number, synced=other.persisted)
            for replica, other in self._replicas[number].items()
        }
        # It was counted under the present configuration, or the one before.
        memberships = (raft.membership, raft.membership_at(index))
        self.quorum.committed(node, number, index, promised=promised, memberships=memberships)

    def _promised(self, node: str, group: Group, ready: Ready) -> None:
        """Whatever leaves now rests on what is synced now; what waits, on what it waits for."""
        durability, number, now = self.durability, group.group, group.persisted
        durability.synced(node, number, now)
        later = max(now, ready.after_seq)
        for after, messages in ((now, ready.send_now), (later, ready.send_after)):
            for message in messages:
                if isinstance(message, AppendReply):
                    if message.success:
                        durability.acknowledged(node, number, message.match_index, after=after)
                elif isinstance(message, SnapshotReply):
                    if message.installed:
                        durability.acknowledged(node, number, message.index, after=after)
                elif _is_vote(message):
                    durability.voted(node, number, message.term, after=after)
        counted = group.raft.matches.get(group.replica)
        if counted is not None:
            durability.acknowledged(node, number, Index(counted), after=now)

    def _elected(self, node: str, group: Group) -> None:
        raft = group.raft
        name = group.nodes[group.replica]
        self._loop.trace.event(self._loop.now, name, f"leads {group.group} term {raft.term}")
        self.elections.leader_elected(node, group.group, raft.term)
        self.completeness.leader_elected(
            node, group.group, raft.term, last_index=raft.last_index, chain_at=raft.log.chain
        )

    def kept(self) -> "_Kept":
        """A block whose violations are kept, and end the run at once, whoever catches them."""
        return self._kept

    def keep(self, violation: ViolationError) -> None:
        self.violations.append(str(violation))
        facts = {"message": "a checker saw a violation", "exception": violation}
        self._loop.call_exception_handler(facts)


class _Kept:
    """One for all blocks of a watch: it is entered too often to be made anew each time."""

    __slots__ = ("_watch",)

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, ViolationError):
            self._watch.keep(error)


def _is_vote(message: Message) -> bool:
    """Given, or asked for after one's own."""
    if isinstance(message, VoteReply):
        return message.granted and not message.pre
    return isinstance(message, VoteRequest) and not message.pre


def _speaker(group: Group) -> str:
    """Whose promises these are: a replica that takes another's place on a node keeps its own alone."""
    return f"{group.nodes[group.replica]} as replica {group.replica}"
