"""Which units of a replica's segments are its log: found, linked, judged. Changes nothing.

Theory of operation
-------------------
Segment headers form a list from the newest back (`continues`); what it leaves out is dead. Along
it units are taken in order, each linked to the one before by number and checksum. Where the link
fails there is a *break*. M, the highest `synced_through` of any valid unit (and the highest
`number` of any segment header), says what it means:

    M above the last unit taken    what is missing was synced: *damage*. The next whole unit bounds
                                   it (term, vote, log end are known behind it): damaged, and the
                                   walk goes on from there. Nothing bounds it: amnesiac.
    M at or below it               nothing missing was ever synced: the log ends here, whatever
                                   follows. But with valid units behind the break that were written
                                   since the machine started, no power was lost in between, and a
                                   killed process tears only the end: amnesiac.

The rule that a walk must keep: what was synced is never cut silently, and a lawful crash is never
called damage. A newest file without a valid header is therefore not damage by itself: its first
unit and its header may be unsynced, and lost, while a unit behind them is not. What such units say
of M decides, as everywhere; units in it that repeat a number of the log contradict it.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from raftq.storage.horizon import Packed
from raftq.storage.index_file import SealedIndex
from raftq.storage.segment import (
    AMNESIAC,
    SEGMENT_HEADER_BYTES,
    Found,
    Readable,
    Scanner,
    SegmentHeader,
    read_segment_header,
)
from raftq.storage.unit import UNIT_HEADER_BYTES, UnitHeader, seed_of


class Condition(Enum):
    """What a replica may still be trusted with."""

    OK = "ok"
    AMNESIAC = "amnesiac"
    """It may have forgotten a promise: it never votes, and its answers are not counted."""
    DAMAGED = "damaged"
    """Parts of its log are gone, but it knows its term, its vote and where its log ends."""


class Stretch(NamedTuple):
    """The live part of one segment. `stop` None: up to the end of the file.

    `after`: the packed segments that lay before it, if any.
    """

    sequence: int
    readable: Readable
    header: SegmentHeader | None
    stop: int | None
    after: Packed | None = None


class Layout(NamedTuple):
    """The live list, oldest first, and `orphans`: newer files without a valid header."""

    stretches: tuple[Stretch, ...]
    orphans: tuple[Stretch, ...]
    newest: SegmentHeader | None
    problems: tuple[str, ...]
    incarnation: int


def lay_out(
    files: Mapping[int, Readable], incarnation: int | None, packed: Sequence[Packed] = ()
) -> Layout:
    """The live list of the segments given by sequence; None takes the newest's incarnation."""
    gone = {item.sequence: item for item in packed}

    def older(than: int) -> int:
        return max((s for s in (*files, *gone) if s < than), default=0)

    headers: dict[int, SegmentHeader] = {}
    for sequence in sorted(files, reverse=True):
        header = read_segment_header(files[sequence], sequence=sequence, incarnation=incarnation)
        if header is not None:
            headers[sequence] = header
            incarnation = header.incarnation
    newest = max(headers, default=0)
    problems: list[str] = []
    stretches: list[Stretch] = []
    sequence, stop = newest, None
    while sequence:
        if sequence in gone and stretches:
            item = gone[sequence]
            stretches[-1] = stretches[-1]._replace(after=item)
            sequence, stop = item.continues_segment, item.continues_position
            continue
        if sequence not in files:
            problems.append(f"segment {sequence} is missing")
            sequence, stop = older(sequence), None
            continue
        header = headers.get(sequence)
        stretches.append(Stretch(sequence, files[sequence], header, stop))
        if header is None:
            # Where it continues is not known: the next older one is tried, the links will tell.
            problems.append(f"the header of segment {sequence} is invalid")
            sequence, stop = older(sequence), None
            continue
        assert header.continues_segment < sequence, "a segment continues an older one"
        sequence, stop = header.continues_segment, header.continues_position
    return Layout(
        stretches=tuple(reversed(stretches)),
        orphans=tuple(Stretch(s, files[s], None, None) for s in sorted(files) if s > newest),
        newest=headers.get(newest),
        problems=tuple(problems),
        incarnation=incarnation or 0,
    )


class _Unit(NamedTuple):
    """A valid header behind a break."""

    stretch: Stretch
    header: UnitHeader
    whole: bool


class Log(Protocol):
    """Who is told what the log is made of, in order."""

    def begin_segment(self) -> None: ...

    def accept(self, segment: int, header: UnitHeader, body: bytes) -> None:
        """The next unit that is known to be synced."""
        ...

    def accept_sealed(self, segment: int, sealed: SealedIndex) -> None:
        """The next segment as a whole, by its index."""
        ...

    def gap(self) -> None:
        """Units are missing here that were synced; the next accepted unit bounds them."""
        ...

    def pass_over(self, packed: Packed, behind: SegmentHeader) -> None:
        """Segments come next that are packed; `behind` is the header of the one after them."""
        ...


class Indexes(Protocol):
    """The index files beside the segments."""

    def load(self, stretch: Stretch) -> SealedIndex | None: ...

    def rebuild(self, stretch: Stretch, last: UnitHeader) -> None:
        """The segment has been read as a whole, up to where the next one continues it."""
        ...


class Walk:
    """One walk over a layout. The log gets, in order, what is known to be synced; the units behind
    that, of which nothing proves it, are left in `tail`.
    """

    def __init__(
        self, layout: Layout, log: Log, *, boot: int | None, indexes: Indexes | None = None
    ) -> None:
        self.layout = layout
        self.marked = 0
        """M: everything up to this unit is known to be synced."""
        self.last: UnitHeader | None = None
        self.durable: tuple[int, UnitHeader] | None = None
        """The last unit that is known to be synced, and its segment."""
        self.tail: list[tuple[Stretch, UnitHeader, bytes]] = []
        """The units taken after it, with their bodies: at most what may be unsynced at once."""
        self.tail_cut = False
        self.problems = list(layout.problems)
        self.amnesia: list[str] = []
        self.clean: set[int] = set()
        """Segments in which everything is a whole unit of the log."""
        self._is_past_packed = False
        """No synced unit was taken since segments were passed over: term and vote are not known."""
        self._log = log
        self._boot = boot
        self._indexes = indexes
        self._behind: list[_Unit] | None = None
        self._break_at = (0, 0)
        self._position = (0, 0)

    @property
    def condition(self) -> Condition:
        if self.amnesia:
            return Condition.AMNESIAC
        return Condition.DAMAGED if self.problems else Condition.OK

    def run(self) -> None:
        newest = self.layout.newest
        if newest is None:
            self.amnesia.append("no segment has a valid header")
        elif newest.flags & AMNESIAC:
            self.amnesia.append("this replica has forgotten something before")
        for stretch in self.layout.stretches:
            if stretch.header is not None:
                self._mark(stretch.header.number)
                if stretch.after is not None:
                    self._pass_over(stretch.after, stretch.header)
            self._log.begin_segment()
            if self._take_sealed(stretch):
                continue
            garbage = self._scan(stretch)
            is_clean = not garbage and stretch.header is not None and self._behind is None
            if is_clean:
                self.clean.add(stretch.sequence)
            self.tail_cut = garbage and stretch is self.layout.stretches[-1]
            if stretch.stop is not None and is_clean:
                self._rebuild(stretch)
        for stretch in self.layout.orphans:
            before = self._last_number
            garbage = self._scan(stretch)
            self.tail_cut = self.tail_cut or garbage
            if self._last_number > before:
                self.problems.append(f"the header of segment {stretch.sequence} is invalid")
        self._finish()

    def _pass_over(self, packed: Packed, behind: SegmentHeader) -> None:
        """That the next segment exists proves all before it; its header says where it goes on."""
        if self._behind is not None:
            self._note_damage(behind.number)
            self._behind = None
            self._log.gap()
        assert not self.tail, "everything up to a segment's header is synced"
        self._log.pass_over(packed, behind)
        self.last = _stand_in(behind)
        self.durable = (packed.sequence, self.last)
        self._is_past_packed = True

    def _note_damage(self, last: int) -> None:
        sequence, position = self._break_at
        self.problems.append(
            f"units {self._last_number + 1} to {last} are damaged or missing, "
            f"from segment {sequence}, position {position}"
        )

    def _take_sealed(self, stretch: Stretch) -> bool:
        """Take the segment by its index, if it has one that joins what was taken before."""
        header = stretch.header
        if self._indexes is None or header is None or stretch.stop is None:
            return False
        previous = 0 if self.last is None else self.last.checksum
        joins = self._behind is None and not self.tail
        if not joins or (header.number, header.previous) != (self._last_number, previous):
            return False
        sealed = self._indexes.load(stretch)
        if sealed is None:
            return False
        self._log.accept_sealed(stretch.sequence, sealed)
        self.last = sealed.last
        self._is_past_packed = False
        self.durable = (stretch.sequence, sealed.last)
        self.marked = max(self.marked, sealed.last.number)
        self._position = (stretch.sequence, sealed.last.end)
        return True

    def _rebuild(self, stretch: Stretch) -> None:
        """The segment has no index, was read, and ends where the next one continues it."""
        last = self.last
        ended = (stretch.sequence, stretch.stop) == self._position
        sound = not self.problems and not self.amnesia
        if self._indexes is not None and last is not None and ended and sound:
            # That the next segment exists proves that all of this one was synced.
            self._mark(last.number)
            self._indexes.rebuild(stretch, last)

    def _scan(self, stretch: Stretch) -> bool:
        seed = seed_of(self.layout.incarnation, stretch.sequence)
        self._position = (stretch.sequence, SEGMENT_HEADER_BYTES)
        scanner = Scanner(stretch.readable, seed, start=SEGMENT_HEADER_BYTES, stop=stretch.stop)
        for found in scanner:
            self._found(stretch, found)
        return scanner.garbage

    def _found(self, stretch: Stretch, found: Found) -> None:
        header = found.header
        self._mark(header.synced_through)
        if self._behind is None and found.body is not None and self._links(header):
            self._take(stretch, header, found.body)
            return
        if self._behind is None:
            self._behind = []
            self._break_at = self._position
        self._behind.append(_Unit(stretch, header, found.body is not None))
        self._resolve()

    def _links(self, header: UnitHeader) -> bool:
        if self.last is None:
            return header.number == 1 and header.previous == 0
        return header.number == self.last.number + 1 and header.previous == self.last.checksum

    def _take(self, stretch: Stretch, header: UnitHeader, body: bytes) -> None:
        self.last = header
        self._position = (stretch.sequence, header.end)
        if header.number <= self.marked:
            assert not self.tail, "units are taken in order"
            self._accept(stretch, header, body)
        else:
            self.tail.append((stretch, header, body))

    def _accept(self, stretch: Stretch, header: UnitHeader, body: bytes) -> None:
        self.durable = (stretch.sequence, header)
        self._is_past_packed = False
        self._log.accept(stretch.sequence, header, body)

    def _mark(self, number: int) -> None:
        if number <= self.marked:
            return
        self.marked = number
        tail = self.tail
        synced = next((n for n, unit in enumerate(tail) if unit[1].number > number), len(tail))
        self.tail = tail[synced:]
        for unit in tail[:synced]:
            self._accept(*unit)
        self._resolve()

    def _resolve(self) -> None:
        """If the break is damage and a whole unit bounds it, go on from there."""
        if self._behind is None or self.marked <= self._last_number:
            return
        behind = self._behind
        place = next(
            (
                n
                for n, unit in enumerate(behind)
                if unit.whole and unit.header.number > self._last_number
            ),
            None,
        )
        if place is None:
            return
        bound = behind[place]
        self._note_damage(bound.header.number - 1)
        self._behind = None
        self._log.gap()
        self._take(bound.stretch, bound.header, body_of(bound.stretch, bound.header))
        for unit in behind[place + 1 :]:
            body = body_of(unit.stretch, unit.header) if unit.whole else None
            self._found(unit.stretch, Found(unit.header, body))

    @property
    def _last_number(self) -> int:
        return 0 if self.last is None else self.last.number

    def _finish(self) -> None:
        if self._is_past_packed:
            self.amnesia.append("no synced unit is left behind the packed segments")
        if self.marked > self._last_number:
            self.amnesia.append(
                f"units {self._last_number + 1} to {self.marked} were synced and are gone"
            )
            return
        if self._behind is None:
            return
        self.tail_cut = True
        if any(unit.header.number <= self._last_number for unit in self._behind):
            self.amnesia.append("units of a segment whose header is invalid contradict the log")
        behind = self._behind
        first = behind[0]
        if not first.whole and (first.stretch.sequence, first.header.position) == self._break_at:
            behind = behind[1:]
        if any(unit.header.boot == self._boot for unit in behind):
            self.amnesia.append(
                f"unit {self._last_number + 1} is invalid, valid ones follow, and the machine has "
                "not stopped since they were written"
            )


def _stand_in(header: SegmentHeader) -> UnitHeader:
    """For the last unit before a segment, as far as units are linked to it."""
    nothing = UnitHeader._make([0] * len(UnitHeader._fields))
    return nothing._replace(
        number=header.number,
        checksum=header.previous,
        write_seq=header.write_seq,
        last_index=header.last_index,
        last_term=header.last_term,
        last_chain=header.last_chain,
    )


def body_of(stretch: Stretch, header: UnitHeader) -> bytes:
    """The body of a unit that has verified."""
    return stretch.readable.read(header.position + UNIT_HEADER_BYTES, header.body_bytes)
