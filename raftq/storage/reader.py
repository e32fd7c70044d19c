"""Reading a replica's directory from outside: for audits, for `raftq log`, for one task of many.

First `read_replica` walks the unit headers of all segments, as recovery does, and changes nothing.
What it gives names the *live ranges*: between them lie entries that a later unit truncated, and
segments that a recovery superseded. A range can then be read alone, by anyone, in any process.

Rule 1. What is wrong with the files is a sentence in `problems`, never an exception.
Rule 2. Entries behind the commit mark are there, and say so (`marked` False): an acknowledged
        message may be found among them, because the mark of the newest write comes with the next.
Rule 3. What was repaired is read from the patches that join, as the replica itself does; the damage
        that they heal is told in `repaired`, not in `problems`.
Rule 4. No disk port here: a directory is a list of names and a function that opens one.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from raftq.errors import Corrupted
from raftq.ids import Index, ReplicaId, Term
from raftq.raft.entry import (
    ENTRY_HEADER_BYTES,
    GENESIS,
    HEADER,
    Entry,
    parse,
    verify,
)
from raftq.raft.entry import (
    commands as commands,  # noqa: PLC0414 - for readers, who know the log and not the core.
)
from raftq.raft.entry import (
    is_whole as is_whole,  # noqa: PLC0414
)
from raftq.raft.entry import (
    replaced as replaced,  # noqa: PLC0414
)
from raftq.raft.ready import SnapshotMeta
from raftq.storage import small_file
from raftq.storage.horizon import HORIZON, Horizon, Packed, decode
from raftq.storage.index import PATCH, PatchRun
from raftq.storage.offline import OfflineFile, OpenFile
from raftq.storage.patch import Patch, range_of
from raftq.storage.patch import read as read_patch
from raftq.storage.replay import Contents, Replay
from raftq.storage.segment import (
    SEGMENT_HEADER_BYTES,
    Found,
    Scanner,
    is_segment,
    is_spare,
    sequence_of,
)
from raftq.storage.snapshots import body_slices, index_of, read_header
from raftq.storage.unit import TRUNCATE, UNIT_HEADER_BYTES, UnitHeader, records, seed_of
from raftq.storage.walk import Condition, Layout, Walk, lay_out


class LiveRange(NamedTuple):
    """Bytes of one segment whose entries are the log's, from a unit's header to an entry's end.

    Or of a patch, from an entry to another's end; its `segment` is `PATCH` or higher. Every entry
    in it is live. `previous_chain` is the chain value that its first entry follows.
    """

    segment: int
    name: str
    start: int
    stop: int
    first_index: Index
    last_index: Index
    previous_chain: bytes | None
    incarnation: int
    not_whole: int = 0
    """Entries of which bodies are gone; only patches have such."""


class StoredSnapshot(NamedTuple):
    """A snapshot file; `problem` is empty when it verifies."""

    index: Index  # type: ignore[assignment] # A tuple's index() is not missed.
    meta: SnapshotMeta | None
    problem: str


@dataclass(frozen=True, slots=True)
class Replica:
    """What one directory holds."""

    incarnation: int
    condition: Condition
    problems: tuple[str, ...]
    repaired: tuple[str, ...]
    """What was wrong and is healed by patches."""
    tail_cut: bool
    term: Term
    vote: ReplicaId
    base: SnapshotMeta
    """What the first entry follows: the last one that is not held any more, or index 0."""
    released: Index
    """The last entry that was let go of, as the horizon says; a log may also begin with a snapshot."""
    first_index: Index
    last_index: Index
    last_chain: bytes
    commit_index: Index
    commit_chain: bytes
    """The commit mark: the highest that the units state and the log agrees with."""
    ranges: tuple[LiveRange, ...]
    segments: tuple[str, ...]
    """Names of all segments, dead ones included."""
    snapshots: tuple[StoredSnapshot, ...]
    packed: tuple[Packed, ...]
    """Segments that are gone; their entries are read from patches."""

    @property
    def replayed_from(self) -> Index:
        """A machine is made from a snapshot here or behind; 0: from nothing."""
        return max(self.base.index, self.not_whole_through)

    @property
    def not_whole_through(self) -> Index:
        """The last entry of which bodies may be gone: no machine can be made from before it."""
        return max((live.last_index for live in self.ranges if live.not_whole), default=Index(0))


class FoundEntry(NamedTuple):
    """An entry and where it lies."""

    entry: Entry
    segment: int
    position: int
    proved: bool
    """Its chain value follows from the entry before it. False: it, or that one, is damaged."""


class _Place(NamedTuple):
    segment: int
    start: int
    stop: int


class _Collector(Replay):
    """Replays, and remembers the units, to cut them down to what is live at the end."""

    def __init__(self, horizon: Horizon | None) -> None:
        super().__init__(horizon)
        self._units: list[_Place] = []

    def accept(self, segment: int, header: UnitHeader, body: bytes) -> None:
        super().accept(segment, header, body)
        self._units.append(_Place(segment, header.position, header.end))

    def live(self) -> list[_Place]:
        """The live parts of the units, neighbours joined."""
        merged: list[_Place] = []
        for unit in self._units:
            stop = _live_stop(unit, self.contents)
            if stop == unit.start:
                continue
            if merged and merged[-1].segment == unit.segment and merged[-1].stop == unit.start:
                merged[-1] = merged[-1]._replace(stop=stop)
            else:
                merged.append(unit._replace(stop=stop))
        return merged


def _live_stop(unit: _Place, contents: Contents) -> int:
    """End of the last live entry of a unit; its start when there is none."""
    index = contents.entries.index_at(unit.segment, unit.stop - 1)
    place = None if index is None else contents.entries.place(index)
    if place is None or place.position < unit.start:
        return unit.start
    return place.position + place.length


def read_replica(names: Sequence[str], open_file: OpenFile) -> Replica:
    """Walk everything in a replica's directory."""
    files: dict[int, OfflineFile] = {}
    by_sequence: dict[int, str] = {}
    patches: dict[str, OfflineFile] = {}
    problems: list[str] = []
    horizon = _horizon(names, open_file, problems)
    try:
        for name in sorted(names):
            if range_of(name) is not None:
                patches[name] = open_file(name)
            sequence = sequence_of(name)
            wanted = is_segment(name) or is_spare(name)
            if sequence is None or not wanted or sequence in files:
                continue
            try:
                files[sequence] = open_file(name)
                by_sequence[sequence] = name
            except OSError as error:
                problems.append(f"{name} cannot be opened: {error}")
        layout = lay_out(files, None, () if horizon is None else horizon.packed)
        snapshots = _snapshots(names, open_file, layout.incarnation)
        replay = _Collector(horizon)
        return _read_open(files, by_sequence, layout, problems, snapshots, patches, replay)
    finally:
        for file in (*files.values(), *patches.values()):
            file.close()


def _horizon(names: Sequence[str], open_file: OpenFile, problems: list[str]) -> Horizon | None:
    if HORIZON not in names:
        return None
    try:
        with closing(open_file(HORIZON)) as file:
            return decode(small_file.decode(file.read(0, file.size()), HORIZON))
    except (Corrupted, OSError) as error:
        problems.append(str(error))
        return None


def _read_open(
    files: dict[int, OfflineFile],
    names: dict[int, str],
    layout: Layout,
    problems: list[str],
    snapshots: tuple[StoredSnapshot, ...],
    patches: dict[str, OfflineFile],
    replay: _Collector,
) -> Replica:
    walk = Walk(layout, replay, boot=None)
    walk.run()
    for stretch, header, body in walk.tail:
        replay.accept(stretch.sequence, header, body)
    contents = replay.contents
    entries = contents.entries
    lying = dict(files)

    def chain(index: Index) -> bytes | None:
        if index == contents.base.index:
            return contents.base.chain
        place = entries.place(index)
        if place is None:
            return None
        data = lying[place.segment].read(place.position, ENTRY_HEADER_BYTES)
        return bytes(HEADER.unpack(data)[10]) if len(data) == ENTRY_HEADER_BYTES else None

    newest = walk.last
    # Patches change what is held, not what is live in the segments: that comes first.
    places = [(*place, *_bounds(contents, *place)) for place in replay.live()]
    patched, unused = _patched(lying, contents, newest, layout.incarnation, patches)
    live = [
        LiveRange(
            segment,
            names[segment],
            start,
            stop,
            first,
            last,
            chain(Index(first - 1)),
            layout.incarnation,
        )
        for segment, start, stop, first, last in places
    ]
    live = sorted([*live, *patched], key=lambda found: found.first_index)
    commit = (contents.base.index, contents.base.chain)
    if chain(replay.commit_index) == replay.commit_chain:
        commit = max(commit, (replay.commit_index, replay.commit_chain))
    found = (*problems, *walk.amnesia, *walk.problems, *replay.problems, *unused)
    # What is wrong with files costs nothing where no entry is lost by it.
    is_complete = not (problems or walk.amnesia or replay.problems or entries.holes)
    condition = walk.condition
    if condition is not Condition.AMNESIAC:
        condition = Condition.OK if is_complete else Condition.DAMAGED
    horizon = contents.horizon
    return Replica(
        incarnation=layout.incarnation,
        condition=condition,
        problems=() if is_complete else found,
        repaired=found if is_complete else (),
        tail_cut=walk.tail_cut,
        term=newest.term if newest else Term(0),
        vote=newest.vote if newest else ReplicaId(0),
        base=contents.base,
        released=_released(contents),
        first_index=entries.first_index,
        last_index=entries.last_index,
        last_chain=newest.last_chain if newest else GENESIS,
        commit_index=commit[0],
        commit_chain=commit[1],
        ranges=tuple(live),
        segments=tuple(name for _, name in sorted(names.items()) if is_segment(name)),
        snapshots=snapshots,
        packed=() if horizon is None else horizon.packed,
    )


def _released(contents: Contents) -> Index:
    horizon = contents.horizon
    is_of_horizon = horizon is not None and horizon.base.index == contents.base.index
    return contents.base.index if is_of_horizon else Index(0)


def _patched(
    lying: dict[int, OfflineFile],
    contents: Contents,
    newest: UnitHeader | None,
    incarnation: int,
    patches: Mapping[str, OfflineFile],
) -> tuple[list[LiveRange], list[str]]:
    """The parts of patches that fill holes and join, and sentences about patches that fail.

    Their files are added to `lying`, the files by number.
    """
    entries = contents.entries

    def entry(index: Index) -> Entry | None:
        place = entries.place(index)
        if place is None:
            return None
        try:
            return parse(memoryview(lying[place.segment].read(place.position, place.length)))
        except (Corrupted, OSError):
            return None

    def joins(patch: Patch) -> bool:
        base = contents.base
        if not base.index < patch.last <= entries.last_index:
            return False
        before, behind = entry(Index(patch.first - 1)), entry(Index(patch.last + 1))
        chain = patch.entries[-1].chain
        if before is not None and before.chain != patch.previous_chain:
            return False
        if (
            patch.first <= base.index
            and patch.entries[base.index - patch.first].chain != base.chain
        ):
            return False
        if behind is None:
            is_end = newest is not None and patch.last == newest.last_index
            return newest is not None and is_end and chain == newest.last_chain
        return verify(behind, chain)

    found, problems = [], []
    for number, name in enumerate(sorted(patches, reverse=True), PATCH):
        try:
            patch = read_patch(patches[name], incarnation=incarnation)
        except Corrupted as error:
            problems.append(str(error))
            continue
        if not joins(patch):
            continue
        lying[number] = patches[name]
        run = patch.run(number)
        for hole in entries.holes:
            part = run.cut(hole.first, hole.last)
            if part.positions:
                entries.patch(part)
                found.append(_range_of(part, patch, name, incarnation))
    return found, problems


def _range_of(part: PatchRun, patch: Patch, name: str, incarnation: int) -> LiveRange:
    before = part.first_index - patch.first
    entries = patch.entries[before : part.last_index - patch.first + 1]
    return LiveRange(
        part.file,
        name,
        part.positions[0],
        part.positions[-1] + part.lengths[-1],
        part.first_index,
        part.last_index,
        patch.entries[before - 1].chain if before else patch.previous_chain,
        incarnation,
        sum(not is_whole(entry) for entry in entries),
    )


def _bounds(contents: Contents, segment: int, start: int, stop: int) -> tuple[Index, Index]:
    """First and last index of a live range."""
    entries = contents.entries
    last = entries.index_at(segment, stop - 1)
    assert last is not None, "a live range holds an entry"
    before = entries.index_at(segment, start)
    if before is not None:
        return Index(before + 1), last
    return next(index for index, run in entries.runs() if run == segment), last


def _snapshots(
    names: Sequence[str], open_file: OpenFile, incarnation: int
) -> tuple[StoredSnapshot, ...]:
    found = []
    for name in sorted(names):
        index = index_of(name)
        if index is None:
            continue
        try:
            with closing(open_file(name)) as file:
                meta, position = read_header(file, incarnation)
                for _ in body_slices(file, position):
                    pass
            found.append(StoredSnapshot(index, meta, ""))
        except (Corrupted, OSError) as error:
            found.append(StoredSnapshot(index, None, str(error)))
    return tuple(found)


def entries_in(file: OfflineFile, live: LiveRange) -> Iterator[FoundEntry]:
    """The entries of a live range, in order, each with whether its chain proves it.

    A unit that no longer verifies is left out; the entry behind it is then not proved.
    """
    if live.segment >= PATCH:
        yield from _entries_of_patch(file, live)
        return
    seed = seed_of(live.incarnation, live.segment)
    previous = live.previous_chain
    for header, body in Scanner(file, seed, start=live.start, stop=live.stop, partial=True):
        if body is None:
            previous = None
            continue
        view = memoryview(body)
        for record in records(view):
            position = header.position + UNIT_HEADER_BYTES + record.offset
            if record.kind >= TRUNCATE or position >= live.stop:
                continue
            entry = parse(record.data)
            proved = previous is not None and verify(entry, previous)
            previous = entry.chain
            if entry.index >= live.first_index:
                yield FoundEntry(entry, live.segment, position, proved)


def _entries_of_patch(file: OfflineFile, live: LiveRange) -> Iterator[FoundEntry]:
    try:
        patch = read_patch(file, incarnation=live.incarnation)
    except Corrupted:
        return
    run = patch.run(live.segment)
    for entry, position in zip(patch.entries, run.positions, strict=True):
        if live.first_index <= entry.index <= live.last_index:
            yield FoundEntry(entry, live.segment, position, proved=True)


def units_in(file: OfflineFile, *, incarnation: int, segment: int) -> Iterator[Found]:
    """Every unit with a valid header in a segment, dead ones included; for inspection."""
    seed = seed_of(incarnation, segment)
    yield from Scanner(file, seed, start=SEGMENT_HEADER_BYTES, stop=None)
