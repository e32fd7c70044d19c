"""Where entries lie: compact arrays in memory, filled as units are written or replayed.

8 bytes each (position and length in their segment); segments and terms are runs. A log is append-only and truncation takes from its end, so
entries in index order are in file order too: (segment, position) ascends with the index.

What is lost to damage keeps its place in that order, but has no length; it is a *hole*. A patch
(`patch.py`) fills holes without moving anything: its entries lie in an overlay that is asked first.

Nothing here reads a file, and nothing here decides what is valid.
"""

from array import array
from bisect import bisect_left, bisect_right
from operator import itemgetter
from typing import Final, NamedTuple, TypeVar

from raftq.ids import Index, Term

assert array("I").itemsize == 4

_Value = TypeVar("_Value")

_FIRST: Final = itemgetter(0)
_SECOND: Final = itemgetter(1)

PATCH: Final = 1 << 62
"""Places in patch files have numbers from here on in the place of a segment's sequence."""


NO_SEGMENT: Final = 0
"""Where entries count as lying that never lay here: sequences begin at 1."""


class Hole(NamedTuple):
    """Entries [first, last] that are lost here, and not repaired."""

    first: Index
    last: Index


class PatchRun(NamedTuple):
    """The entries of one patch file, or a part of them, in index order."""

    first_index: Index
    file: int
    terms: "array[int]"
    positions: "array[int]"
    lengths: "array[int]"

    @property
    def last_index(self) -> Index:
        return Index(self.first_index + len(self.positions) - 1)

    def cut(self, first: Index, last: Index) -> "PatchRun":
        """The part in [first, last]."""
        part = slice(max(first - self.first_index, 0), max(last + 1 - self.first_index, 0))
        return PatchRun(
            max(first, self.first_index),
            self.file,
            self.terms[part],
            self.positions[part],
            self.lengths[part],
        )


class Place(NamedTuple):
    """Where something lies."""

    segment: int
    position: int
    length: int


class EntryRun(NamedTuple):
    """The entries that lie in one segment, in index order."""

    first_index: Index
    terms: list[tuple[Index, Term]]
    """(first index, term) of each run of equal terms."""
    positions: "array[int]"
    lengths: "array[int]"

    def behind(self, count: int) -> "EntryRun":
        """Without the first `count`."""
        count = min(count, len(self.positions))
        first = Index(self.first_index + count)
        last = Index(self.first_index + len(self.positions) - 1)
        terms = _from(self.terms, first, last)
        return EntryRun(first, terms, self.positions[count:], self.lengths[count:])


class EntryIndex:
    """Places and terms of the entries (base, last_index]; `base` is what a snapshot covers."""

    __slots__ = (
        "_base",
        "_by_file",
        "_lengths",
        "_patches",
        "_positions",
        "_segments",
        "_terms",
        "holes",
        "last_index",
    )

    def __init__(self) -> None:
        self.reset(Index(0), Term(0))

    def reset(self, base: Index, term: Term) -> None:
        """Begin anew behind `base`, whose term is `term`."""
        self._base = base
        self.last_index: Index = base
        self._positions = array("I")
        self._lengths = array("I")
        self._segments: list[tuple[Index, int]] = []
        self._terms: list[tuple[Index, Term]] = [(base, term)]
        self._patches: list[PatchRun] = []
        self._by_file: dict[int, list[PatchRun]] | None = None
        """The same, made when it is asked for."""
        self.holes: list[Hole] = []
        """What is lost and not patched, ascending, not adjacent."""

    @property
    def first_index(self) -> Index:
        return Index(self._base + 1)

    def begin_before(self, base: Index, term: Term) -> None:
        """The log begins earlier than was known: the entries behind `base` are lost here as yet."""
        known = self._base
        assert base < known
        count = known - base
        self._positions = array("I", bytes(4 * count)) + self._positions
        self._lengths = array("I", bytes(4 * count)) + self._lengths
        self._segments.insert(0, (Index(base + 1), NO_SEGMENT))
        unknown = [(Index(base + 1), Term(0))] if count > 1 else []
        self._terms[:0] = [(base, term), *unknown]
        self._base = base
        self._add_hole(Hole(Index(base + 1), known))

    def release(self, base: Index, term: Term) -> None:
        """The log begins behind `base` from now on."""
        assert self._base <= base <= self.last_index
        del self._positions[: base - self._base]
        del self._lengths[: base - self._base]
        self._segments = _from(self._segments, Index(base + 1), self.last_index)
        self._terms = [(base, term), *_from(self._terms, Index(base + 1), self.last_index)]
        self._carve_patches(Index(self._base + 1), base)
        self._base = base
        self.holes = [
            Hole(max(hole.first, Index(base + 1)), hole.last)
            for hole in self.holes
            if hole.last > base
        ]

    def indexes_of(self, segment: int) -> tuple[Index, Index] | None:
        """First and last of the entries that lie, or lay, in a segment."""
        run = bisect_left(self._segments, segment, key=_SECOND)
        if run == len(self._segments) or self._segments[run][1] != segment:
            return None
        behind = run + 1
        end = self._segments[behind][0] if behind < len(self._segments) else self.last_index + 1
        return self._segments[run][0], Index(end - 1)

    def bytes_in(self, first: Index, last: Index) -> int:
        """Of the entries [first, last], which all lie in one segment, or in one patch."""
        patched = self._patched(first)
        lengths, at = (self._lengths, first - self._base - 1)
        if patched is not None:
            lengths, at = patched[0].lengths, patched[1]
        return sum(lengths[at : at + last - first + 1])

    def forget_places(self, first: Index, last: Index) -> None:
        """The entries [first, last] are in patches, all of them; where they lay is void."""
        at, stop = first - self._base - 1, last - self._base
        self._lengths[at:stop] = array("I", bytes(4 * (stop - at)))

    def append(self, term: Term, segment: int, position: int, length: int) -> None:
        """The entry last_index + 1."""
        index = Index(self.last_index + 1)
        self.last_index = index
        self._positions.append(position)
        self._lengths.append(length)
        if term != self._terms[-1][1]:
            self._terms.append((index, term))
        if not self._segments or self._segments[-1][1] != segment:
            self._segments.append((index, segment))

    def skip_to(self, last: Index, segment: int, position: int) -> None:
        """The entries up to `last` are lost: no length, no known term; `position` keeps the order."""
        first = Index(self.last_index + 1)
        while self.last_index < last:
            self.append(Term(0), segment, position, 0)
        if first <= last:
            self._add_hole(Hole(first, last))

    def lose(self, first: Index, last: Index) -> None:
        """Entries [first, last], which are held, do not verify any more."""
        assert self._base < first <= last <= self.last_index
        for ordinal in range(first - self._base - 1, last - self._base):
            self._lengths[ordinal] = 0
        self._carve_patches(first, last)
        self._add_hole(Hole(first, last))

    def patch(self, run: PatchRun) -> None:
        """Entries that were proved to be the lost ones."""
        first, last = run.first_index, run.last_index
        assert self._base < first <= last <= self.last_index
        self._carve_patches(first, last)
        self._patches.append(run)
        self._patches.sort(key=_FIRST)
        self._by_file = None
        self.holes = [
            part
            for hole in self.holes
            for part in (
                Hole(hole.first, min(hole.last, Index(first - 1))),
                Hole(max(hole.first, Index(last + 1)), hole.last),
            )
            if part.first <= part.last
        ]

    def _add_hole(self, added: Hole) -> None:
        kept = []
        for hole in self.holes:
            if hole.last + 1 < added.first or added.last + 1 < hole.first:
                kept.append(hole)
            else:
                added = Hole(min(hole.first, added.first), max(hole.last, added.last))
        self.holes = sorted([*kept, added])

    def _carve_patches(self, first: Index, last: Index) -> None:
        """Nothing in [first, last] is taken from the patches there are."""
        self._by_file = None
        self._patches = [
            part
            for run in self._patches
            for part in (
                run.cut(run.first_index, Index(first - 1)),
                run.cut(Index(last + 1), run.last_index),
            )
            if part.positions
        ]

    def _patched(self, index: Index) -> tuple[PatchRun, int] | None:
        """The patch that holds an entry, and its ordinal there."""
        at = bisect_right(self._patches, index, key=_FIRST) - 1
        if at < 0 or index > self._patches[at].last_index:
            return None
        return self._patches[at], index - self._patches[at].first_index

    def patched(self) -> list[Hole]:
        """What is read from patches, ascending."""
        return [Hole(run.first_index, run.last_index) for run in self._patches]

    def truncate(self, start: Index) -> None:
        """Entries from `start` on are void."""
        assert start > self._base, "what a snapshot covers is never truncated"
        keep = start - 1 - self._base
        if start > self.last_index:
            return
        del self._positions[keep:]
        del self._lengths[keep:]
        while self._segments and self._segments[-1][0] >= start:
            self._segments.pop()
        while self._terms[-1][0] >= start:
            self._terms.pop()
        self._carve_patches(start, self.last_index)
        self.holes = [
            Hole(hole.first, min(hole.last, Index(start - 1)))
            for hole in self.holes
            if hole.first < start
        ]
        self.last_index = Index(start - 1)

    def term(self, index: Index) -> Term | None:
        """Also known at the base; None if not held."""
        if not self._base <= index <= self.last_index:
            return None
        if index >= self._terms[-1][0]:
            return self._terms[-1][1] or self._zero(index)
        return self._terms[bisect_right(self._terms, index, key=_FIRST) - 1][1] or self._zero(index)

    def _zero(self, index: Index) -> Term | None:
        """Term 0 is that of a lost entry, except before the log."""
        if index == self._base:
            return Term(0)
        patched = self._patched(index)
        return None if patched is None else Term(patched[0].terms[patched[1]])

    def place(self, index: Index) -> Place | None:
        """None if not held or lost."""
        ordinal = index - self._base - 1
        if not 0 <= ordinal < len(self._positions):
            return None
        patched = self._patched(index) if self._patches else None
        if patched is not None:
            run, at = patched
            return Place(run.file, run.positions[at], run.lengths[at])
        if not self._lengths[ordinal]:
            return None
        segment, position = self.order(index)
        return Place(segment, position, self._lengths[ordinal])

    def order(self, index: Index) -> tuple[int, int]:
        """(segment, position) of an entry that is or was held; those of holes keep the order."""
        run = bisect_right(self._segments, index, key=_FIRST) - 1
        return self._segments[run][1], self._positions[index - self._base - 1]

    def index_at(self, segment: int, position: int) -> Index | None:
        """The entry in which `position` of `segment` lies."""
        if segment >= PATCH:
            return self._index_in_patch(segment, position)
        run = bisect_left(self._segments, segment, key=_SECOND)
        if run == len(self._segments) or self._segments[run][1] != segment:
            return None
        first = self._segments[run][0]
        behind = run + 1
        stop = self._segments[behind][0] if behind < len(self._segments) else self.last_index + 1
        low, high = first - self._base - 1, stop - self._base - 1
        ordinal = bisect_right(self._positions, position, low, high) - 1
        return Index(self._base + 1 + ordinal) if ordinal >= low else None

    def indexes_in(self, segment: int, start: int, stop: int) -> tuple[Index, Index] | None:
        """First and last of the entries of a segment that touch [start, stop); None: no entry."""
        run = bisect_left(self._segments, segment, key=_SECOND)
        if run == len(self._segments) or self._segments[run][1] != segment:
            return None
        first = self._segments[run][0]
        behind = run + 1
        end = self._segments[behind][0] if behind < len(self._segments) else self.last_index + 1
        low, high = first - self._base - 1, end - self._base - 1
        begin = max(low, bisect_right(self._positions, start, low, high) - 1)
        if self._positions[begin] + self._lengths[begin] <= start:
            begin += 1
        over = bisect_left(self._positions, stop, low, high)
        return (Index(self._base + 1 + begin), Index(self._base + over)) if begin < over else None

    def end_in(self, segment: int) -> int:
        """Position behind the last entry of a segment that holds some."""
        run = bisect_left(self._segments, segment, key=_SECOND)
        behind = run + 1
        end = self._segments[behind][0] if behind < len(self._segments) else self.last_index + 1
        ordinal = end - self._base - 2
        return self._positions[ordinal] + self._lengths[ordinal]

    def _index_in_patch(self, file: int, position: int) -> Index | None:
        if self._by_file is None:
            self._by_file = {}
            for run in self._patches:
                self._by_file.setdefault(run.file, []).append(run)
        for run in self._by_file.get(file, ()):
            if run.positions[0] <= position < run.positions[-1] + run.lengths[-1]:
                return Index(run.first_index + bisect_right(run.positions, position) - 1)
        return None

    def patches_in(self, first: Index, last: Index) -> set[int]:
        """The files of which something in [first, last] is read."""
        return {
            run.file for run in self._patches if run.first_index <= last and first <= run.last_index
        }

    def run_of(self, segment: int) -> EntryRun:
        """What lies in the newest segment that holds entries, if it is this one; else nothing."""
        if not self._segments or self._segments[-1][1] != segment:
            return EntryRun(Index(self.last_index + 1), [], array("I"), array("I"))
        first = self._segments[-1][0]
        low = first - self._base - 1
        at = bisect_right(self._terms, first, key=_FIRST) - 1
        terms = [(max(start, first), term) for start, term in self._terms[at:]]
        return EntryRun(first, terms, self._positions[low:], self._lengths[low:])

    def extend(self, segment: int, run: EntryRun) -> None:
        """Add a whole run behind the last entry."""
        if not run.positions:
            return
        assert run.first_index == self.last_index + 1, "entries have no gap"
        self._segments.append((run.first_index, segment))
        self._terms += run.terms if run.terms[0][1] != self._terms[-1][1] else run.terms[1:]
        self._positions += run.positions
        self._lengths += run.lengths
        self.last_index = Index(self.last_index + len(run.positions))

    def runs(self) -> list[tuple[Index, int]]:
        """(first index, segment) of each segment that holds entries."""
        return list(self._segments)


def _from(
    runs: list[tuple[Index, _Value]], first: Index, last: Index
) -> list[tuple[Index, _Value]]:
    """The runs of the indexes [first, last] of those that begin earlier, perhaps."""
    if first > last:
        return []
    at = bisect_right(runs, first, key=_FIRST) - 1
    return [(max(start, first), value) for start, value in runs[at:]]
