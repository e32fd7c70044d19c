"""What the project's checkers are told of stock pysyncobj nodes.

Theory of operation. The journal of a node is watched from inside (a subclass that tells what is
added and removed), elections and applied commands through callbacks of the node, promises through
its transport. Facts go to the very checkers that watch raftq itself. What each saw first is kept
by the checker's name and the run goes on, so that a test can say which one sees which bug.

Rules

1. A watch looks and never touches.
2. The library keeps no chain of its entries: it is computed here. A log that begins with an entry
   behind a snapshot goes on from the chain under which that (index, term) was seen first.
3. An entry counts as durable when the library says so, that is when it has written it: what it
   promised on that ground it must have after a restart.
"""

import struct

import xxhash
from pysyncobj.journal import FileJournal

from raftq.sim.checkers import (
    Durability,
    ElectionSafety,
    LeaderCompleteness,
    LogAgreement,
    ViolationError,
)
from raftq.sim.ledger import Ledger, Place

GROUP = 1
QUEUE = "stock"
PARTITION = 0
WRITTEN = 1
"""The number of all writes: each is taken for synced when it is made."""

DIGEST_EVERY = 16

_ENTRY = struct.Struct("<16sQQ")


class Watch:
    """The witness of all nodes of one run."""

    def __init__(self, loop):
        self.elections = ElectionSafety()
        self.agreement = LogAgreement()
        self.completeness = LeaderCompleteness()
        self.durability = Durability()
        self.ledger = Ledger()
        self.seen = {}
        """What each checker saw first, by the checker's name."""
        self.applied_count = 0
        self.chains = {}
        self._loop = loop

    def tell(self, fact, *args, **more):
        """Tell a checker (whose method `fact` is) and keep what it says."""
        try:
            fact(*args, **more)
        except ViolationError as violation:
            checker = type(fact.__self__).__name__
            if checker not in self.seen:
                self.seen[checker] = str(violation)
                self._loop.trace.event(self._loop.now, "", f"{checker}: {violation}")

    def appended(self, node, before, entry):
        """The node's log has a new entry behind one with the chain `before`; the entry's chain."""
        command, index, term = entry
        chain = self.chains.get((index, term)) if before is None else None
        if chain is None:
            chain = xxhash.xxh3_128(_ENTRY.pack(before or b"", index, term) + command).digest()
            self.chains.setdefault((index, term), chain)
        self.tell(self.agreement.appended, node, GROUP, index, term, chain)
        return chain

    def truncated(self, node, start):
        self.tell(self.durability.truncated, node, GROUP, start)

    def restored(self, node, applied, last_index):
        """The node has started, or taken a snapshot."""
        self.tell(self.agreement.restored, node, GROUP, applied)
        self.tell(self.durability.restored, node, GROUP, last_index, is_whole=True)

    def promised(self, node, index):
        """The node has let others count its log up to there."""
        self.tell(self.durability.acknowledged, node, GROUP, index, after=WRITTEN)
        self.tell(self.durability.synced, node, GROUP, WRITTEN)

    def elected(self, node, term, journal):
        self._loop.trace.event(self._loop.now, node, f"leads term {term}")
        self.tell(self.elections.leader_elected, node, GROUP, term)
        self.tell(
            self.completeness.leader_elected,
            node,
            GROUP,
            term,
            last_index=journal.last_index,
            chain_at=journal.chain_at,
        )

    def applied(self, node, index, journal, *, leader_term, digest):
        """The node has applied an entry; if it leads, it leads `leader_term`."""
        self.applied_count += 1
        chain = journal.chain_at(index)
        self.tell(self.agreement.applied, node, GROUP, index)
        self.tell(self.agreement.committed, node, GROUP, index, chain)
        if leader_term is not None:
            self.tell(self.completeness.committed, GROUP, index, chain, leader_term)
            self.promised(node, index)
        if index % DIGEST_EVERY == 0:
            self.tell(self.agreement.digest, node, GROUP, index, digest())

    def acknowledged(self, payload, offset):
        self.tell(self.ledger.acknowledged, Place(QUEUE, PARTITION, offset), payload)

    def log(self, node, payloads):
        """What a node's machine holds in the end."""
        self.tell(self.ledger.log, node, QUEUE, PARTITION, enumerate(payloads))


class WatchedJournal(FileJournal):
    """The library's journal, which tells of every change and knows the chain of each entry."""

    def __init__(self, path, watch, node):
        self._watch = watch
        self._node = node
        self._chains = []
        super().__init__(path)
        for entry in self[:]:
            self._appended(entry)

    @property
    def last_index(self):
        return self[-1][1]

    def chain_at(self, index):
        """None for what a snapshot covers, and for what is not there."""
        position = index - self[0][1]
        return self._chains[position] if 0 <= position < len(self) else None

    def chains_by_index(self):
        return dict(enumerate(self._chains, self[0][1]))

    def add(self, command, idx, term):
        super().add(command, idx, term)
        self._appended((command, idx, term))

    def clear(self):
        super().clear()
        self._chains.clear()

    def deleteEntriesFrom(self, entryFrom):  # noqa: N802, N803 - the library's names.
        self._watch.truncated(self._node, self[0][1] + entryFrom)
        super().deleteEntriesFrom(entryFrom)
        del self._chains[entryFrom:]

    def _appended(self, entry):
        before = self._chains[-1] if self._chains else None
        self._chains.append(self._watch.appended(self._node, before, entry))
