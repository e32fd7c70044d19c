"""What the units of a log add up to: positions of entries and batches, base, commit mark.

Fed with units in order by recovery, and with what it has just written by the running log. It
compares what a unit's header says of the log's end with what its records make of it.
"""

from dataclasses import dataclass, field
from typing import Final

from raftq.errors import Corrupted
from raftq.ids import Index, Micros, Offset, Partition, QueueId, Term
from raftq.raft.entry import ENTRY_HEADER_BYTES, GENESIS, HEADER
from raftq.raft.membership import Membership
from raftq.raft.ready import SnapshotMeta
from raftq.storage.batch_index import BatchIndex
from raftq.storage.horizon import Horizon, Packed
from raftq.storage.index import NO_SEGMENT, EntryIndex
from raftq.storage.index_file import SealedIndex, Voided
from raftq.storage.segment import SegmentHeader
from raftq.storage.unit import (
    RESET,
    TRUNCATE,
    UNIT_HEADER_BYTES,
    Record,
    UnitHeader,
    decode_reset,
    decode_truncate,
    records,
)

_BEHIND_ALL: Final = (1 << 62, 0)
NO_BASE = SnapshotMeta(Index(0), Term(0), GENESIS, Micros(0), Membership(()))


@dataclass(slots=True)
class Contents:
    """The log as an index: where everything lies that is not truncated or compacted away."""

    entries: EntryIndex = field(default_factory=EntryIndex)
    batches: BatchIndex = field(default_factory=BatchIndex)
    base: SnapshotMeta = NO_BASE
    """What the first entry follows: the last Reset, or what was released since."""
    horizon: Horizon | None = None
    reset_index: Index = Index(0)  # noqa: RUF009 - a plain number.
    """Of the last Reset: the machine begins there, or later."""
    not_whole_through: Index = Index(0)  # noqa: RUF009
    """The last entry of which bodies are gone; the machine begins there, or later."""
    resets: int = 0
    """How often everything has changed."""
    gone: set[int] = field(default_factory=set)
    """Segments in which entries lay that are read from patches now, or not at all."""

    def let_go(self, horizon: Horizon) -> None:
        """The log begins with what a horizon says."""
        self.horizon = horizon
        self.base = horizon.base
        self.entries.reset(horizon.base.index, horizon.base.term)

    def reset(self, meta: SnapshotMeta) -> None:
        """The log begins anew; one before the horizon's base has been forgotten since."""
        horizon = self.horizon
        if horizon is not None and meta.index <= horizon.base.index:
            return
        self.base = meta
        self.entries.reset(meta.index, meta.term)
        self.batches.clear()
        self.reset_index = meta.index
        self.not_whole_through = Index(0)
        self.resets += 1
        if horizon is not None and meta.index == horizon.reset_index:
            self.begin_before(horizon.base)

    def begin_before(self, base: SnapshotMeta) -> None:
        """What lies between `base` and the last Reset is this log's too; here it is lost as yet."""
        self.entries.begin_before(base.index, base.term)
        self.base = base
        self.gone.add(NO_SEGMENT)

    def release(self, base: SnapshotMeta) -> None:
        """The log begins behind `base`."""
        first = Index(base.index + 1)
        last = self.entries.last_index
        self.batches.release(*(self.entries.order(first) if first <= last else _BEHIND_ALL))
        self.entries.release(base.index, base.term)
        self.base = base
        self._forget_patched()

    def pack(self, segment: int, first: Index, last: Index) -> None:
        """The entries [first, last], those of a segment, are read from patches."""
        self.batches.drop(segment)
        if first <= last:
            self.entries.forget_places(first, last)
        self.gone.add(segment)

    def truncate(self, start: Index) -> None:
        # What a segment truncated below the horizon's base, before that, is no matter any more.
        start = max(start, Index(self.base.index + 1))
        if start <= self.entries.last_index:
            self.batches.truncate(*self.entries.order(start))
        self.entries.truncate(start)
        self._forget_patched()

    def lose(self, first: Index, last: Index) -> None:
        """Entries [first, last] do not verify any more."""
        self.entries.lose(first, last)
        self._forget_patched()

    def _forget_patched(self) -> None:
        index_at = self.entries.index_at
        self.batches.forget_patched(lambda place: index_at(place.segment, place.position) is None)

    def is_lost(self, queue: QueueId, partition: Partition, offset: Offset) -> bool:
        """Whether a batch that is not held from `offset` on may lie in a hole."""
        holes = self.entries.holes
        if not holes:
            return False
        before, behind = self.batches.around(queue, partition, offset)
        index_at = self.entries.index_at
        low = index_at(before.segment, before.position) if before is not None else None
        high = index_at(behind.segment, behind.position) if behind is not None else None
        return any(
            (low is None or hole.last > low) and (high is None or hole.first < high)
            for hole in holes
        )

    def add_sealed(self, segment: int, sealed: SealedIndex) -> bool:
        """A whole segment from its index; False when that does not fit behind what is there."""
        voided = sealed.voided
        if voided.reset is None and voided.truncate_from:
            if voided.truncate_from <= self.base.index and self.horizon is None:
                return False
            self.truncate(voided.truncate_from)
        elif voided.reset is not None:
            self.reset(voided.reset)
        entries, released = sealed.entries, self.base.index + 1 - sealed.entries.first_index
        if released > 0 and self.horizon is not None:
            entries = entries.behind(released)
        begins_here = bool(entries.positions) or entries is sealed.entries
        if begins_here and entries.first_index != self.entries.last_index + 1:
            return False
        self.entries.extend(segment, entries)
        for run in sealed.batches:
            self.batches.extend(segment, run if entries is sealed.entries else run.behind(entries))
        return True


class Replay:
    """Applies whole units to `contents`; problems are sentences, not exceptions."""

    def __init__(self, horizon: Horizon | None = None) -> None:
        self.contents = Contents()
        if horizon is not None:
            self.contents.let_go(horizon)
        self.problems: list[str] = []
        self.commit_index = Index(0)
        self.commit_chain = GENESIS
        self.voided = Voided()
        """By the units since `begin_segment`."""
        self._last_chain: bytes | None = GENESIS
        self._after_gap = False

    def begin_segment(self) -> None:
        self.voided = Voided()

    def accept_sealed(self, segment: int, sealed: SealedIndex) -> None:
        """A sealed segment, all of it. The index has verified and joins what was accepted."""
        truncate_from = sealed.voided.truncate_from
        if truncate_from and truncate_from <= self.commit_index:
            self.problems.append(
                f"segment {segment} truncates from {truncate_from}, committed before"
            )
        elif not self.contents.add_sealed(segment, sealed):
            self.problems.append(f"segment {segment} does not follow entry {self._last_index}")
            self._after_gap = True
        header = sealed.last
        self._last_chain = header.last_chain
        self._compare(segment, header)
        self._note_mark(header)

    @property
    def _last_index(self) -> Index:
        return self.contents.entries.last_index

    def pass_over(self, packed: Packed, behind: SegmentHeader) -> None:
        """The next segments are packed; what follows them says where the log stood."""
        contents = self.contents
        if not packed.is_empty:
            contents.truncate(packed.first)
        contents.truncate(Index(behind.last_index + 1))
        if behind.last_index > self._last_index:
            contents.entries.skip_to(behind.last_index, packed.sequence, 0)
        contents.gone.add(packed.sequence)
        self._last_chain = behind.last_chain
        self._after_gap = False

    def gap(self) -> None:
        """Units are missing here. What was not committed may have been truncated in them."""
        certain = max(self.commit_index, self.contents.base.index)
        self.contents.truncate(Index(certain + 1))
        self._after_gap = True

    def accept(self, segment: int, header: UnitHeader, body: bytes) -> None:
        position = header.position + UNIT_HEADER_BYTES
        try:
            for record in records(memoryview(body)):
                if record.kind == TRUNCATE:
                    self._truncate(decode_truncate(record.data), header.number)
                elif record.kind == RESET:
                    meta = decode_reset(record.data)
                    self.contents.reset(meta)
                    self.voided.note_reset(meta)
                    self._last_chain = meta.chain
                    self._after_gap = False
                elif record.kind < TRUNCATE:
                    self._entry(record, segment, position + record.offset, header)
                else:
                    raise Corrupted(f"a record has the unknown kind {record.kind}")
        except Corrupted as error:
            self.problems.append(f"unit {header.number} is not understood: {error}")
            self._after_gap = True
        self._compare(segment, header)
        self._note_mark(header)

    def _note_mark(self, header: UnitHeader) -> None:
        if header.commit_index > self.commit_index:
            self.commit_index = header.commit_index
            self.commit_chain = header.commit_chain

    def _truncate(self, start: Index, number: int) -> None:
        contents = self.contents
        if start <= (contents.base.index if contents.horizon is None else 0) or (
            start <= self.commit_index
        ):
            self.problems.append(
                f"unit {number} truncates from {start}, but {self.commit_index} is committed"
            )
            return
        self.voided.note_truncate(start)
        if start <= contents.entries.last_index:
            contents.truncate(start)
            # The chain of the entry before is not at hand; the header states it.
            self._last_chain = None

    def _entry(self, record: Record, segment: int, position: int, header: UnitHeader) -> None:
        if len(record.data) < ENTRY_HEADER_BYTES:
            raise Corrupted(f"an entry has {len(record.data)} bytes")
        fields = HEADER.unpack_from(record.data)
        index, term = Index(fields[5]), Term(fields[6])
        entries = self.contents.entries
        if index <= self.contents.base.index and self.contents.horizon is not None:
            self._last_chain = fields[10]
            self._after_gap = False
            return
        if index != entries.last_index + 1:
            if not self._after_gap:
                self.problems.append(
                    f"unit {header.number} holds entry {index}, expected {entries.last_index + 1}"
                )
            if index <= entries.last_index:
                self.contents.truncate(max(index, entries.first_index))
            entries.skip_to(Index(index - 1), segment, header.position)
        self._after_gap = False
        entries.append(term, segment, position, len(record.data))
        self.contents.batches.add_entry(record.data, segment, position)
        self._last_chain = fields[10]

    def _compare(self, segment: int, header: UnitHeader) -> None:
        """The header's end of the log against the recomputed one; behind a gap the header is right."""
        entries = self.contents.entries
        last = entries.last_index
        if self.contents.horizon is not None and header.last_index <= self.contents.base.index:
            self._last_chain = header.last_chain
            return
        chain = header.last_chain if self._last_chain is None else self._last_chain
        self._last_chain = header.last_chain
        # Of an entry that is packed, or lost, the term is not at hand.
        term = entries.term(last) or header.last_term
        recomputed = (last, term, chain)
        if recomputed == (header.last_index, header.last_term, header.last_chain):
            return
        if not self._after_gap:
            self.problems.append(
                f"unit {header.number} says the log ends at {header.last_index}, term "
                f"{header.last_term}; its records say {last}, term {recomputed[1]}"
            )
        if header.last_index < last:
            self.contents.truncate(Index(max(header.last_index, self.contents.base.index) + 1))
        entries.skip_to(header.last_index, segment, header.position)
        self._after_gap = True
