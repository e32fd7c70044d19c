"""Which part of the state is durable, told by completions of numbered writes.

Rules:

1. A completion is matched by write sequence. The write it names says where the log ended then; of
   that, what was truncated since is not part of the log any more.
2. `index` is the end of what is durable *of the log as it is now*. It falls with a truncation.
3. `term` and `vote` are durable only as they stood in a completed write.

It must not know what the entries are or who waits for them.
"""

from collections import deque

from raftq.ids import Index, ReplicaId, Term, WriteSeq
from raftq.raft.faults import Faults
from raftq.raft.log import RaftLog
from raftq.raft.ready import HardState, Write


class Persistence:
    """Write numbers out, completions in."""

    __slots__ = (
        "_faults",
        "_outstanding",
        "_written_term",
        "_written_vote",
        "index",
        "seq",
        "term",
        "vote",
    )

    def __init__(self, state: HardState, last_index: Index, faults: Faults) -> None:
        self._faults = faults
        self._outstanding: deque[tuple[WriteSeq, Index, Term, ReplicaId]] = deque()
        """Writes handed out: (seq, log end, term, vote), what is durable once they are."""
        self.seq = state.last_write
        """The newest write handed out."""
        self.index = last_index
        self.term = self._written_term = state.term
        self.vote = self._written_vote = state.vote

    @property
    def idle(self) -> bool:
        """Whether every write handed out is durable."""
        return not self._outstanding

    def void_from(self, index: Index) -> None:
        """The log was truncated here: no completion to come may count what it held."""
        self.index = min(self.index, Index(index - 1))
        if self._faults.completion_by_index:
            return
        end = Index(index - 1)
        self._outstanding = deque(
            (seq, min(last, end), term, vote) for seq, last, term, vote in self._outstanding
        )

    def take(
        self, log: RaftLog, term: Term, vote: ReplicaId, commit_index: Index, commit_chain: bytes
    ) -> Write | None:
        """Everything that changed since the last write, as the next one."""
        if (
            log.unwritten > log.last_index
            and term == self._written_term
            and vote == self._written_vote
            and not log.truncate_from
            and log.reset is None
        ):
            return None
        self.seq = seq = WriteSeq(self.seq + 1)
        last = log.last_index
        write = Write(
            seq,
            log.reset,
            log.truncate_from,
            log.unwritten_entries(),
            term,
            vote,
            last,
            log.last_term,
            log.last_chain,
            commit_index,
            commit_chain,
        )
        self._outstanding.append((seq, last, term, vote))
        self._written_term = term
        self._written_vote = vote
        log.written()
        return write

    def persisted(self, seq: WriteSeq) -> bool:
        """Every write up to `seq` is synced. False if that was known."""
        assert seq <= self.seq
        outstanding = self._outstanding
        done = None
        while outstanding and outstanding[0][0] <= seq:
            done = outstanding.popleft()
        if done is None:
            return False
        _, self.index, self.term, self.vote = done
        return True
