"""What must never be seen of a replicated log, whatever fails.

Theory of operation. Checkers are pure observers: the simulation tells them plain facts as they
happen, each with the node that shows it, and they raise `ViolationError` at the first fact that does
not fit those before. Nothing is sampled: a violation is found in the very callback that causes it.

    ElectionSafety      at most one leader per term
    LogAgreement        equal (index, term) means an equal log up to there; what is committed never
                        changes and is the same everywhere; machines are equal at an equal index
    LeaderCompleteness  a new leader holds everything that was committed in earlier terms
    Durability          nothing that promises durable state leaves before that state is synced
    CommitQuorum        what a leader commits, a quorum has promised to hold, and holds
    MembershipRules     configurations follow one another so that their majorities meet

Logs are compared by their chain: equal chains at an index mean equal entries up to it.

Rules

1. A checker knows facts alone: no cluster, no loop, no randomness.
2. Groups never mix; a restarted node is the same node, and keeps what it promised.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from raftq.ids import GroupId, Index, ReplicaId, Term, WriteSeq
from raftq.raft import Membership

Chain = bytes
ChainAt = Callable[[Index], Chain | None]
"""A replica's chain at an index: None for what its snapshot covers."""


class ViolationError(AssertionError):
    """Something that must never happen was seen; the message names the facts."""


class ElectionSafety:
    """At most one leader is elected in a term of a group."""

    def __init__(self) -> None:
        self._leaders: dict[tuple[GroupId, Term], str] = {}

    def leader_elected(self, node: str, group: GroupId, term: Term) -> None:
        """`node` believes that it leads the group in `term`; telling it twice is fine."""
        first = self._leaders.setdefault((group, term), node)
        if first != node:
            raise ViolationError(f"two leaders in term {term} of group {group}: {first} and {node}")

    @property
    def elections(self) -> int:
        """How many elections were won: that the nemesis had something to do."""
        return len(self._leaders)


class LogAgreement:
    """Log matching, and one committed log."""

    def __init__(self) -> None:
        self._appended: dict[tuple[GroupId, Index, Term], tuple[Chain, str]] = {}
        self._committed: dict[tuple[GroupId, Index], tuple[Chain, str]] = {}
        self._applied: dict[tuple[GroupId, str], Index] = {}
        self._digests: dict[tuple[GroupId, Index], tuple[bytes, str]] = {}

    def appended(self, node: str, group: GroupId, index: Index, term: Term, chain: Chain) -> None:
        """The node's log holds, or held, this entry."""
        first, other = self._appended.setdefault((group, index, term), (chain, node))
        if first != chain:
            raise ViolationError(
                f"group {group}: the logs of {other} and {node} have an entry of term {term} at "
                f"index {index}, and differ at or before it"
            )

    def committed(self, node: str, group: GroupId, index: Index, chain: Chain) -> None:
        """The node knows that the log up to `index`, with this chain there, is committed."""
        first, other = self._committed.setdefault((group, index), (chain, node))
        if first != chain:
            raise ViolationError(
                f"group {group}: {node} committed another log up to index {index} than {other}"
            )

    def truncated(self, node: str, group: GroupId, start: Index, chain: Chain | None) -> None:
        """The node ends its log before `start`, where it had this chain."""
        if (known := self._committed.get((group, start))) is not None and known[0] == chain:
            raise ViolationError(
                f"group {group}: {node} truncates index {start}, which {known[1]} has committed"
            )

    def applied(self, node: str, group: GroupId, index: Index) -> None:
        """The node's machine has applied the entry at `index`."""
        before = self._applied.get((group, node))
        if before is not None and index != before + 1:
            raise ViolationError(
                f"group {group}: {node} applied index {index} after index {before}"
            )
        self._applied[group, node] = index

    def restored(self, node: str, group: GroupId, index: Index) -> None:
        """The node's machine was made anew (at a start) or from a snapshot, as of `index`."""
        self._applied[group, node] = index

    def digest(self, node: str, group: GroupId, index: Index, digest: bytes) -> None:
        """The digest of the node's machine after applying `index`."""
        first, other = self._digests.setdefault((group, index), (digest, node))
        if first != digest:
            raise ViolationError(
                f"group {group}: the machines of {other} and {node} differ at index {index}"
            )


class LeaderCompleteness:
    """What was committed in a term is in the log of every leader of a later term."""

    def __init__(self) -> None:
        self._committed: dict[GroupId, dict[Term, tuple[Index, Chain]]] = {}

    def committed(self, group: GroupId, index: Index, chain: Chain, leader_term: Term) -> None:
        """A leader of `leader_term` committed the log up to `index`."""
        terms = self._committed.setdefault(group, {})
        if index > terms.get(leader_term, (0, b""))[0]:
            terms[leader_term] = (index, chain)

    def leader_elected(
        self, node: str, group: GroupId, term: Term, *, last_index: Index, chain_at: ChainAt
    ) -> None:
        """`node` became leader of `term` with this log."""
        for leader_term, (index, chain) in self._committed.get(group, {}).items():
            # A winner of an older election may learn of its victory late; it will not commit.
            if leader_term >= term:
                continue
            if index > last_index:
                raise ViolationError(
                    f"group {group}: {node}, leader of term {term}, ends at index {last_index}; "
                    f"index {index} was committed in term {leader_term}"
                )
            own = chain_at(index)
            if own not in {None, chain}:
                raise ViolationError(
                    f"group {group}: {node}, leader of term {term}, has another log at index "
                    f"{index} than was committed in term {leader_term}"
                )


class Durability:
    """An entry is acknowledged, and counted by its leader, when it is synced; so is a vote.

    Writes are numbered. A promise leaves after a write, itself or one before it, is known to be synced;
    it may speak of what is in that write or before it. An index that was truncated and written again is as durable as its newest write. What a
    node acknowledged it has again after a restart, or it says that it lost something.
    """

    def __init__(self) -> None:
        self._written: dict[tuple[GroupId, str], dict[Index, WriteSeq]] = {}
        self._votes: dict[tuple[GroupId, str], tuple[Term, ReplicaId, WriteSeq]] = {}
        self._waiting: dict[tuple[GroupId, str], deque[tuple[WriteSeq, Index]]] = {}
        self._promised: dict[tuple[GroupId, str], Index] = {}

    def restored(self, node: str, group: GroupId, last_index: Index, *, is_whole: bool) -> None:
        """The node's log was recovered, or begins anew from a snapshot: what it holds is durable.

        Not whole: it says that something is missing.
        """
        promised = self._promised.get((group, node), 0)
        if is_whole and last_index < promised:
            raise ViolationError(
                f"group {group}: {node} acknowledged index {promised}; after a restart it ends at "
                f"{last_index} and does not know that anything is missing"
            )
        self._written[group, node] = {}
        self._waiting.pop((group, node), None)
        self._votes.pop((group, node), None)

    def wrote(self, node: str, group: GroupId, seq: WriteSeq, *, first: Index, last: Index) -> None:
        """The entries from `first` to `last` are in the write `seq`."""
        written = self._written.setdefault((group, node), {})
        for index in range(first, last + 1):
            written[Index(index)] = seq

    def truncated(self, node: str, group: GroupId, start: Index) -> None:
        """The entries from `start` on are void; promises about them have been taken back."""
        end = Index(start - 1)
        if self._promised.get((group, node), 0) > end:
            self._promised[group, node] = end
        waiting = self._waiting.get((group, node), ())
        self._waiting[group, node] = deque((after, min(index, end)) for after, index in waiting)

    def wrote_vote(
        self, node: str, group: GroupId, seq: WriteSeq, term: Term, vote: ReplicaId
    ) -> None:
        """The write `seq` states this term and vote."""
        if self._votes.get((group, node), (0, 0, 0))[:2] != (term, vote):
            self._votes[group, node] = (term, vote, seq)

    def acknowledged(self, node: str, group: GroupId, index: Index, *, after: WriteSeq) -> None:
        """The node lets others, or itself, count all up to `index`, as soon as `after` is synced."""
        seq = self._written.get((group, node), {}).get(index, 0)
        if seq > after:
            raise ViolationError(
                f"group {group}: {node} acknowledges index {index}, which is in write {seq}, when "
                f"writes up to {after} are synced"
            )
        self._waiting.setdefault((group, node), deque()).append((after, index))

    def synced(self, node: str, group: GroupId, seq: WriteSeq) -> None:
        """The node knows that its writes up to `seq` are synced: what waited for that has left."""
        waiting = self._waiting.get((group, node))
        while waiting and waiting[0][0] <= seq:
            index = waiting.popleft()[1]
            if index > self._promised.get((group, node), 0):
                self._promised[group, node] = index

    def promised(self, node: str, group: GroupId, *, synced: WriteSeq) -> Index:
        """What the node has let others count, and has not taken back, when `synced` is synced."""
        self.synced(node, group, synced)
        return self._promised.get((group, node), Index(0))

    def voted(self, node: str, group: GroupId, term: Term, *, after: WriteSeq) -> None:
        """The node votes in `term`, or asks for votes, as soon as `after` is synced."""
        known, _, seq = self._votes.get((group, node), (term, 0, 0))
        if known == term and seq > after:
            raise ViolationError(
                f"group {group}: {node} votes in term {term} by write {seq}, when writes up to "
                f"{after} are synced"
            )


class CommitQuorum:
    """What is committed is held by a quorum: no leader counts what was never, or is no more, there."""

    @staticmethod
    def committed(
        node: str,
        group: GroupId,
        index: Index,
        *,
        promised: Mapping[ReplicaId, Index],
        memberships: Iterable[Membership],
    ) -> None:
        """The leader `node` committed up to `index`, under one of these configurations."""
        if not any(membership.committed(promised) >= index for membership in memberships):
            raise ViolationError(
                f"group {group}: {node} committed index {index}; promised is only {dict(promised)}"
            )


class MembershipRules:
    """One change at a time, none before the leader's term has begun, and majorities that meet."""

    @staticmethod
    def changed(
        node: str,
        group: GroupId,
        before: Membership,
        following: Membership,
        *,
        before_index: Index,
        commit_index: Index,
        term_start: Index,
    ) -> None:
        """The leader `node` appended `following` to a log in which `before` was in force."""
        if commit_index < term_start:
            raise ViolationError(
                f"group {group}: {node} changes the membership before anything of its own term is "
                f"committed: {commit_index} is, and its term begins at {term_start}"
            )
        if before_index > commit_index:
            raise ViolationError(
                f"group {group}: {node} changes the membership while the change at {before_index} "
                f"is not committed; {commit_index} is"
            )
        is_joint = before.outgoing or following.outgoing == before.voters
        if not is_joint and len(set(before.voters) ^ set(following.voters)) > 1:
            raise ViolationError(
                f"group {group}: {node} changes the voters {before.voters} to {following.voters} in "
                "one step: their majorities need not meet"
            )
