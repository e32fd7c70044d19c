"""Letting go of what nobody needs: released entries, and bodies of settled messages.

Theory of operation. Two things make a log shorter. What was *released* by a command in the log goes
from its beginning, entries and all (`release`). Above that, a segment or patch of which more than
half are bodies that are settled and old enough is *packed* (`passes`): its entries are written anew,
to patches, with digests in the place of those bodies, so that every chain value still verifies; then
its file goes. So one old message that nobody acknowledges keeps its own bytes, and some 100 bytes a
batch of what came after it, not the segments it stands among.

Rules

1. Nothing above `bound`: an entry may have to be applied again from the older of the two snapshots
   that are kept, so that one that rots costs nothing, or sent behind one that is on its way to a peer.
2. First the patches are durable, then the horizon that names the segment, then its file is removed.
   A crash in between leaves a file too many; `sweep` finds it.
3. The segment being written and the one before it stay: units that are known to be synced say the
   replica's term and vote.
4. Where something is lost nothing is packed, and nothing removed that could fill it.
5. A pass is a generator: it yields the bytes it has read or judged since the last time, and 0 while
   it waits for the disk. It ends by itself when the log begins anew.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

from raftq.env import Disk
from raftq.errors import Corrupted
from raftq.ids import Index, Micros, Offset, Partition, QueueId
from raftq.limits import KIB, MIB
from raftq.raft.entry import Entry, without_bodies
from raftq.raft.ready import SnapshotMeta
from raftq.storage import horizon as horizons
from raftq.storage.append import Appender
from raftq.storage.batch_index import BatchPlace, stamped
from raftq.storage.damage import Damage
from raftq.storage.horizon import Horizon, Packed
from raftq.storage.index import PATCH, Hole
from raftq.storage.patch import Patch, range_of
from raftq.storage.patches import Patches
from raftq.storage.reading import LogFiles
from raftq.storage.replay import Contents
from raftq.storage.segment import (
    index_name,
    is_segment,
    read_segment_header,
    segment_name,
    sequence_of,
)
from raftq.storage.snapshots import SnapshotStore

READ_BYTES: Final = 512 * KIB
"""Entries that are read, judged and hashed in one step: a few milliseconds."""

REWRITE_BYTES: Final = 4 * MIB
"""Of one patch that is written: a short write, little memory."""

SURVEY_BATCHES: Final = 2_000
"""Batches that are judged in one step."""

SMALL_PATCH_BYTES: Final = 256 * KIB
MERGED_PATCHES_MIN: Final = 8
"""As many small patches side by side become one."""

_END: Final = Index(1 << 62)


class Judge(Protocol):
    """Whether the bodies of a batch are needed no more. Asked again for each file."""

    def __call__(
        self,
        queue: QueueId,
        partition: Partition,
        start: Offset,
        stop: Offset,
        published: Micros,
        /,
    ) -> bool: ...


class _File(NamedTuple):
    """A segment or a patch, and what of it is the log's."""

    number: int
    first: Index
    last: Index


class Writing(Protocol):
    """The end of the log, as far as it is asked here."""

    @property
    def synced_segment(self) -> int:
        """The newest segment of which a unit is synced; 0: not known yet."""
        ...


class Compaction:
    """One log's."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        appender: Appender,
        contents: Contents,
        files: LogFiles,
        patches: Patches,
        snapshots: SnapshotStore,
        damage: Damage,
        writing: Writing,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._appender = appender
        self._contents = contents
        self._files = files
        self._patches = patches
        self._snapshots = snapshots
        self._damage = damage
        self._writing = writing
        self._waits = False
        self.closed = False
        self.packed_bytes = 0
        """Bytes of the files that were packed since the log was opened."""
        self.released_segments = 0

    @property
    def bound(self) -> Index:
        """The last entry that need not be whole any more; see rule 1.

        What lies before a snapshot that was installed is never applied here.
        """
        return max(self._snapshots.bound, self._contents.reset_index)

    @property
    def base(self) -> SnapshotMeta:
        """What the log begins behind."""
        return self._contents.base

    # --- Released entries ---------------------------------------------------------------------

    def begin_before(self, base: SnapshotMeta) -> None:
        """The log of a replica that began with a snapshot reaches back to `base`."""
        contents = self._contents
        is_new = contents.reset_index == contents.base.index > base.index
        if is_new and not self._waits:
            contents.begin_before(base)
            self._save(self._horizon(), lambda: None)
            self._patches.load()

    def _horizon(self) -> Horizon:
        """What the log is now."""
        contents = self._contents
        is_fetching = contents.reset_index > contents.base.index
        return Horizon(
            contents.base,
            contents.reset_index if is_fetching else Index(0),
            () if contents.horizon is None else contents.horizon.packed,
        )

    def release(self, through: Index, chain: bytes) -> bool:
        """Let go of all entries up to `through`, which were released; False: not now."""
        contents = self._contents
        through = min(through, contents.entries.last_index)
        if self._waits or through > self.bound or through <= contents.base.index:
            return False
        base = self._base_at(through, chain)
        first_kept = self._first_kept_segment(Index(through + 1))
        horizon = self._horizon().with_base(base)
        if first_kept:
            before = max((s for s in self._sequences() if s < first_kept), default=0)
            end = Packed(before, 0, 0, Index(1), Index(0))
            kept = [item for item in horizon.packed if item.sequence >= first_kept]
            packed = (end, *kept) if before else tuple(kept)
            horizon = Horizon(horizon.base, horizon.reset_index, packed)

        def saved() -> None:
            if through > contents.base.index:
                contents.release(base)
            self.sweep()

        self._save(horizon, saved)
        return True

    def _base_at(self, through: Index, chain: bytes) -> SnapshotMeta:
        contents = self._contents
        try:
            log_time = self._files.log_time(through)
        except Corrupted:
            log_time = None
        term = contents.entries.term(through)
        return SnapshotMeta(
            through,
            contents.base.term if term is None else term,
            chain,
            contents.base.log_time if log_time is None else log_time,
            contents.base.membership,
        )

    def _first_kept_segment(self, first: Index) -> int:
        """The segments before this one hold nothing from `first` on, and may go; 0: none may."""
        entries, sealed = self._contents.entries, self._sealed()
        if first > entries.last_index or not sealed:
            return 0
        segment = min(entries.order(first)[0], sealed[-1])
        return segment if segment not in self._contents.gone else 0

    def _sealed(self) -> list[int]:
        """Segments that hold entries, older than the one of which a unit is synced."""
        newest, gone = self._writing.synced_segment, self._contents.gone
        runs = self._contents.entries.runs()
        return [segment for _, segment in runs if segment < newest and segment not in gone]

    def _sequences(self) -> list[int]:
        """Of the segments that are there or packed, ascending."""
        horizon = self._contents.horizon
        packed = [] if horizon is None else [item.sequence for item in horizon.packed]
        return sorted({*packed, *self._segments_there()})

    def _segments_there(self) -> list[int]:
        names = self._disk.names(self._directory)
        return [sequence_of(name) or 0 for name in names if is_segment(name)]

    # --- Packing ------------------------------------------------------------------------------

    def passes(self, judge: Judge) -> Iterator[int]:
        """One pass over all files, the oldest first."""
        contents = self._contents
        resets = contents.resets
        in_patches = self._by_patch()
        for file in self._candidates():
            for step in self._look_at(file, in_patches.get(file.number, []), judge):
                yield step
                if contents.resets != resets or self.closed:
                    return
        for first, last in list(self._small_neighbours()):
            yield from self._rewrite(_File(PATCH, first, last), judge)
            if contents.resets != resets or self.closed:
                return
        self.sweep()

    def _candidates(self) -> list[_File]:
        """Files whose entries all lie at or below the bound."""
        contents, bound = self._contents, self.bound
        found = []
        for segment in self._sealed()[:-1]:
            indexes = contents.entries.indexes_of(segment)
            if indexes is not None and indexes[1] <= bound:
                found.append(_File(segment, *indexes))
        for part in self._patches.in_use():
            place = contents.entries.place(part.first)
            if place is not None and part.last <= bound:
                found.append(_File(place.segment, part.first, part.last))
        return sorted(found, key=lambda file: file.first)

    def _by_patch(self) -> dict[int, list[tuple[QueueId, Partition, BatchPlace]]]:
        found: dict[int, list[tuple[QueueId, Partition, BatchPlace]]] = {}
        for row in self._contents.batches.in_patches():
            found.setdefault(row[2].place.segment, []).append(row)
        return found

    def _look_at(
        self,
        file: _File,
        in_patch: list[tuple[QueueId, Partition, BatchPlace]],
        judge: Judge,
    ) -> Iterator[int]:
        """Judge the batches of one file, and rewrite it if more than half of it is dead."""
        contents = self._contents
        if self._has_hole(file) or file.first <= contents.base.index:
            return
        published = self._log_time(file.last)
        batches = contents.batches.in_segment(file.number) if file.number < PATCH else in_patch
        dead = 0
        for count, (queue, partition, batch) in enumerate(batches):
            stop = Offset(batch.base_offset + batch.count)
            if published is not None and judge(
                queue, partition, batch.base_offset, stop, published
            ):
                dead += batch.place.length
            if count % SURVEY_BATCHES == SURVEY_BATCHES - 1:
                yield READ_BYTES // 4
        if dead and 2 * dead >= contents.entries.bytes_in(file.first, file.last):
            yield from self._rewrite(file, judge)
        else:
            yield 1

    def _has_hole(self, file: _File) -> bool:
        return any(
            hole.first <= file.last and file.first <= hole.last
            for hole in self._contents.entries.holes
        )

    def _log_time(self, index: Index) -> Micros | None:
        try:
            return self._files.log_time(index)
        except Corrupted as error:
            self._damage.suspect(index, Index(index + 1), str(error))
            return None

    def _rewrite(self, file: _File, judge: Judge) -> Iterator[int]:
        """Make patches of the entries of a file; then let the file go, if it is a segment."""
        published = self._log_time(file.last)
        index = file.first
        previous = self._patches.chain_before(index)
        gathered: list[Entry] = []
        while index <= file.last:
            try:
                found = self._files.entries(index, Index(file.last + 1), READ_BYTES)
            except Corrupted as error:
                self._damage.suspect(index, Index(file.last + 1), str(error))
                return
            if published is None or previous is None or not found:
                return
            read = sum(entry.size for entry in found)
            gathered += [without_bodies(entry, _dead_in(judge, published)) for entry in found]
            index = Index(found[-1].index + 1)
            yield read
            if index > file.last or sum(entry.size for entry in gathered) >= REWRITE_BYTES:
                if index <= self._contents.base.index + 1:
                    return  # It was released meanwhile.
                yield from self._write(Patch(previous, tuple(gathered)))
                if not self._is_read_from_patch(gathered[0].index):
                    return
                previous = gathered[-1].chain
                gathered = []
        if file.number < PATCH:
            yield from self._pack(file)

    def _is_read_from_patch(self, index: Index) -> bool:
        place = self._contents.entries.place(index)
        return place is not None and place.segment >= PATCH

    def _write(self, patch: Patch) -> Iterator[int]:
        self._waits = True

        def over(_is_used: bool) -> None:
            self._waits = False

        self._patches.write(patch, over)
        while self._waits and not self.closed:
            yield 0

    def _pack(self, file: _File) -> Iterator[int]:
        contents = self._contents
        if contents.base.index >= file.last or contents.entries.indexes_of(file.number) is None:
            return  # It was released meanwhile.
        header = self._header_of(file.number)
        if header is None:
            return
        added = Packed(file.number, *header, file.first, file.last)

        def saved() -> None:
            contents.pack(file.number, file.first, file.last)
            self.sweep()

        self._save(self._horizon().with_packed(added), saved)
        while self._waits and not self.closed:
            yield 0

    def _header_of(self, segment: int) -> tuple[int, int] | None:
        """Where a segment continues another."""
        file = self._damage.segment_file(segment)
        if file is None:
            return None
        header = read_segment_header(file, sequence=segment, incarnation=self._appender.incarnation)
        file.close()
        return None if header is None else (header.continues_segment, header.continues_position)

    def _small_neighbours(self) -> Iterator[tuple[Index, Index]]:
        """Ranges that lie in many small patches."""
        run: list[Hole] = []
        size = 0
        for part in [*self._patches.in_use(), Hole(_END, _END)]:
            length = self._contents.entries.bytes_in(*part) if part.first < _END else _END
            is_next = not run or part.first == run[-1].last + 1
            fits = length <= SMALL_PATCH_BYTES and size + length <= REWRITE_BYTES
            if run and not (is_next and fits):
                if len(run) >= MERGED_PATCHES_MIN and run[-1].last <= self.bound:
                    yield run[0].first, run[-1].last
                run, size = [], 0
            if length <= SMALL_PATCH_BYTES:
                run.append(part)
                size += length

    # --- Files --------------------------------------------------------------------------------

    def _save(self, horizon: Horizon, then: Callable[[], None]) -> None:
        self._waits = True

        def saved(error: OSError | None) -> None:
            self._waits = False
            if self.closed:
                return
            if error is not None:
                self._damage.note_harmless(f"the horizon was not saved: {error}")
                return
            self._contents.horizon = horizon
            then()

        horizons.save(self._disk, self._directory, horizon, saved)

    def sweep(self) -> None:
        """Remove files that hold nothing any more that is read."""
        contents = self._contents
        if contents.horizon is None or self.closed:
            return
        for segment in self._segments_there():
            if (
                any(
                    item.continues_segment < segment <= item.sequence
                    for item in contents.horizon.packed
                )
                and not contents.entries.holes
            ):
                self._files.let_go(segment)
                self._remove(segment_name(segment))
                self._remove(index_name(segment))
                self.released_segments += 1
        used = set(self._patches.names().values())
        for name in self._disk.names(self._directory):
            indexes = range_of(name)
            if indexes is None or name in used or indexes[1] > contents.entries.last_index:
                continue
            if not self._has_hole(_File(PATCH, *indexes)):
                self._remove(name)

    def _remove(self, name: str) -> None:
        if name in self._disk.names(self._directory):
            try:
                self._disk.remove(f"{self._directory}/{name}")
            except OSError as error:
                self._damage.note_harmless(f"{name} cannot be removed: {error}")


def _dead_in(judge: Judge, published: Micros) -> Callable[[bytes], bool]:
    def is_dead(header: bytes) -> bool:
        stamp = stamped(header)
        return stamp is not None and judge(*stamp, published)

    return is_dead
