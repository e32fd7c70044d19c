"""The durable log of one group: takes writes in order, reports what is synced, finds what it holds.

The parts: `recovery` makes it from a directory, `log_writer` writes, `reading` reads, `snapshots`
keeps the machine's snapshots. This class joins them; it implements the core's `LogReader`.

Rule 1. `on_persisted(seq)` is called when a sync has returned that was asked for after the unit of
        write `seq` was written, to the same file; ascending, on the loop.
Rule 2. Readers see what was handed to `write`, without what was truncated, synced or not.
Rule 3. Nothing waits for the disk except `create`, `open`, `close`, and the naming of a finished
        snapshot or spare.
Rule 4. After `on_failure` nothing more is written or reported; the node stops.
"""

from collections.abc import Callable, Iterator

from raftq.env import Clock, Disk
from raftq.errors import Corrupted
from raftq.ids import Index, Micros, Offset, Partition, QueueId, Term, WriteSeq
from raftq.limits import UNSYNCED_BYTES_MAX
from raftq.raft.entry import Entry
from raftq.raft.membership import Membership
from raftq.raft.ready import HardState, SnapshotMeta, Write
from raftq.storage import recovery
from raftq.storage.batch_index import BatchPlace, up_to_gap
from raftq.storage.compaction import Compaction
from raftq.storage.damage import Damage
from raftq.storage.extent import Extent
from raftq.storage.faults import NO_FAULTS, Faults
from raftq.storage.index import Hole
from raftq.storage.log_writer import DEFAULT_SIZES, LogWriter, Sizes
from raftq.storage.patches import Patches
from raftq.storage.reading import LogFiles, StoredBatch, batches_in
from raftq.storage.recovery import Recovered
from raftq.storage.scrub import scrub
from raftq.storage.segment import is_segment
from raftq.storage.snapshots import SnapshotStore, SnapshotWriter
from raftq.storage.walk import Condition

__all__ = ["Condition", "GroupLog", "Sizes", "StoredBatch"]


def _ignore_persisted(_: WriteSeq) -> None:
    """Nobody listens yet."""


def _raise_failure(error: OSError) -> None:
    raise error


class GroupLog:
    """One replica's log."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        directory: str,
        recovered: Recovered,
        *,
        sizes: Sizes,
        faults: Faults,
    ) -> None:
        self.state: HardState = recovered.state
        """As recovered; what the core starts from."""
        self.is_amnesiac: bool = recovered.condition is Condition.AMNESIAC
        self.contradictions: tuple[str, ...] = recovered.contradictions
        """What is wrong and no peer can mend."""
        self.tail_cut: bool = recovered.tail_cut
        self.on_persisted: Callable[[WriteSeq], None] = _ignore_persisted
        self.on_failure: Callable[[OSError], None] = _raise_failure
        self._contents = recovered.contents
        self._snapshots = recovered.snapshots
        self._files = LogFiles(disk, directory, recovered.contents)
        self._files.current(recovered.appender)
        self._damage = Damage(disk, directory, recovered, self._files)
        self._writer = LogWriter(
            disk,
            clock,
            directory,
            recovered,
            self._files,
            sizes=sizes,
            faults=faults,
            persisted=lambda seq: self.on_persisted(seq),  # noqa: PLW0108 - it is set later.
            failed=lambda error: self.on_failure(error),  # noqa: PLW0108 - as above.
        )
        self._patches = Patches(
            disk,
            directory,
            incarnation=recovered.appender.incarnation,
            contents=recovered.contents,
            files=self._files,
            end=self._writer,
            faults=faults,
            lost=lambda name: self._damage.note(f"{name} does not verify"),
        )
        for problem in self._patches.load():
            self._damage.note_harmless(problem)
        self.extent = Extent(recovered.contents, self._files)
        self.compaction = Compaction(
            disk,
            directory,
            appender=recovered.appender,
            contents=recovered.contents,
            files=self._files,
            patches=self._patches,
            snapshots=recovered.snapshots,
            damage=self._damage,
            writing=self._writer,
        )

    @classmethod
    def create(
        cls,
        disk: Disk,
        clock: Clock,
        directory: str,
        *,
        incarnation: int,
        boot: int,
        membership: Membership,
        sizes: Sizes = DEFAULT_SIZES,
        faults: Faults = NO_FAULTS,
    ) -> "GroupLog":
        """A new, empty replica; durable when it returns.

        Raises: FileExistsError when there is one already; OSError.
        """
        made = recovery.create(
            disk,
            directory,
            incarnation=incarnation,
            boot=boot,
            membership=membership,
            segment_bytes=sizes.segment_bytes_first,
        )
        return cls(disk, clock, directory, made, sizes=sizes, faults=faults)

    @classmethod
    def open(
        cls,
        disk: Disk,
        clock: Clock,
        directory: str,
        *,
        incarnation: int,
        boot: int,
        sizes: Sizes = DEFAULT_SIZES,
        faults: Faults = NO_FAULTS,
    ) -> "GroupLog":
        """Recover what the directory holds; all of it is durable when it returns.

        `boot` names the run of the machine (not of the process): as long as it is the same, the
        page cache has survived. `condition` says what the replica may be trusted with.

        Raises: OSError when the disk refuses to be written.
        """
        recovered = recovery.Recovery(
            disk,
            directory,
            incarnation=incarnation,
            boot=boot,
            segment_bytes=sizes.segment_bytes_first,
            faults=faults,
        ).run()
        return cls(disk, clock, directory, recovered, sizes=sizes, faults=faults)

    @staticmethod
    def exists(disk: Disk, directory: str) -> bool:
        """Whether a log was created here; one whose creation was cut does not count."""
        return any(is_segment(name) for name in disk.names(directory))

    # --- Writing ------------------------------------------------------------------------------

    def write(self, write: Write) -> None:
        """Take the next write. It is synced some time later: `on_persisted` tells."""
        self._writer.write(write)

    def set_commit(self, index: Index, chain: bytes) -> None:
        """The newest commit: it goes into the next unit, or into an idle mark."""
        self._writer.set_commit(index, chain)

    def tick(self, monotonic: Micros) -> None:
        """Time passes: idle marks, free space."""
        self._writer.tick(monotonic)

    def next_deadline(self) -> Micros | None:
        """When `tick` has something to do; None while nothing waits for time."""
        return self._writer.next_deadline()

    @property
    def unsynced_bytes(self) -> int:
        """Written or queued, and not synced."""
        return self._writer.unsynced_bytes

    @property
    def is_busy(self) -> bool:
        return self._writer.unsynced_bytes > UNSYNCED_BYTES_MAX

    @property
    def is_full(self) -> bool:
        """Too little room for more messages; what frees space may still be written."""
        return self._writer.is_full

    @property
    def is_pressed(self) -> bool:
        """So little room that history must go, whatever its age."""
        return self._writer.is_pressed

    @property
    def syncs(self) -> int:
        return self._writer.syncs

    @property
    def bytes_written(self) -> int:
        return self._writer.bytes_written

    def sync_age(self, monotonic: Micros) -> Micros:
        """How long the outstanding sync has taken so far; 0 when there is none."""
        return self._writer.sync_age(monotonic)

    def close(self) -> None:
        """Write and sync what waits and a last mark; blocks. Nothing is reported any more.

        Raises: OSError when that failed; what was reported before is safe all the same.
        """
        try:
            self._writer.close()
        finally:
            self._patches.closed = self.compaction.closed = True
            self._files.close()
            self._snapshots.close()

    # --- Damage -------------------------------------------------------------------------------

    @property
    def condition(self) -> Condition:
        """What the replica may be trusted with; a log whose holes are repaired is sound again."""
        if self.is_amnesiac:
            return Condition.AMNESIAC
        if self.holes or self.contradictions or self.needs_snapshot:
            return Condition.DAMAGED
        return Condition.OK

    def listen_to_damage(self, listener: Callable[[], None]) -> None:
        """`listener` is called when something that was held turns out not to verify."""
        self._damage.listener = listener

    @property
    def holes(self) -> list[Hole]:
        """Ranges of entries that are lost here, ascending."""
        return self._contents.entries.holes

    def length(self, index: Index) -> int:
        """Bytes of an entry; 0 where it is not held, or lost."""
        pending = self._writer.pending.get(index)
        place = self._contents.entries.place(index) if pending is None else None
        return pending.size if pending is not None else 0 if place is None else place.length

    @property
    def patches(self) -> Patches:
        return self._patches

    @property
    def needs_snapshot(self) -> bool:
        """What the log holds begins, or is not whole up to, behind a snapshot that is lost."""
        newest, contents = self._snapshots.newest, self._contents
        needed = max(contents.base.index, contents.reset_index, contents.not_whole_through)
        return needed > (0 if newest is None else newest.index)

    def scrub(self) -> Iterator[int]:
        """One pass over the sealed files: yields the bytes looked at, slice by slice."""
        return scrub(self._damage, self._patches)

    @property
    def damage(self) -> tuple[str, ...]:
        """Everything that was found wrong, repaired or not."""
        return self._damage.reasons

    @property
    def lost_snapshot(self) -> bool:
        """Whether a snapshot is damaged that is newer than the good ones."""
        return self._snapshots.has_lost_newest

    # --- Reading (the core's LogReader) -------------------------------------------------------

    @property
    def snapshot(self) -> SnapshotMeta:
        """The newest durable snapshot; index 0 with the first membership when there is none."""
        return self._snapshots.newest or self._contents.base

    @property
    def first_index(self) -> Index:
        """The lowest index from which on all entries are whole; older ones are for `held`."""
        contents = self._contents
        behind = max(contents.reset_index, contents.not_whole_through)
        return max(contents.entries.first_index, Index(behind + 1))

    @property
    def last_index(self) -> Index:
        return self._writer.state.last_index

    def term(self, index: Index) -> Term | None:
        if index == self._writer.state.last_index:
            return self._writer.state.last_term
        pending = self._writer.pending.get(index)
        if pending is not None:
            return pending.term
        known = self._contents.entries.term(index)
        return self.snapshot.term if known is None and index == self.snapshot.index else known

    def chain(self, index: Index) -> bytes | None:
        if index == self._writer.state.last_index:
            return self._writer.state.last_chain
        pending = self._writer.pending.get(index)
        if pending is not None:
            return pending.chain
        if index == self.snapshot.index:
            return self.snapshot.chain
        try:
            return self._files.chain(index)
        except Corrupted as error:
            self._damage.suspect(index, Index(index + 1), str(error))
            return None

    def log_time(self, index: Index) -> Micros | None:
        pending = self._writer.pending.get(index)
        if pending is not None:
            return pending.log_time
        if index == self.snapshot.index:
            return self.snapshot.log_time
        if index == self.last_index:
            return self._last_known_log_time(index)
        return self._files.log_time(index)

    def _last_known_log_time(self, index: Index) -> Micros | None:
        """Of the log's end, which always has one: where the entry is lost, of one before it."""
        while index > self._contents.entries.first_index:
            try:
                found = self._files.log_time(index)
            except Corrupted:
                found = None
            if found is not None:
                return found
            index = Index(index - 1)
        return self._files.log_time(index) or self._contents.base.log_time

    def entries(self, start: Index, stop: Index, max_bytes: int) -> list[Entry]:
        """Entries [start, stop), cut at `max_bytes` but at least one, each proved by its chain.

        Raises: Corrupted when damaged; LookupError when not held.
        """
        if start < self.first_index:
            raise LookupError(f"entry {start} is not whole, only {self.first_index} and later")
        return self.held(start, stop, max_bytes)

    def held(self, start: Index, stop: Index, max_bytes: int) -> list[Entry]:
        """The same, also of entries of which some bodies are gone, or that are older than the base
        of the machine: what repair and audits ask for.
        """
        if not self._contents.entries.first_index <= start <= self.last_index:
            raise LookupError(f"entry {start} is not held")
        written = self._contents.entries.last_index
        found: list[Entry] = []
        if start <= written:
            try:
                found = self._files.entries(start, min(stop, Index(written + 1)), max_bytes)
            except Corrupted as error:
                self._damage.suspect(start, min(stop, Index(written + 1)), str(error))
                raise
        size = sum([entry.size for entry in found])
        for index in range(start + len(found), min(stop, self.last_index + 1)):
            entry = self._writer.pending.get(Index(index))
            if entry is None or (found and size + entry.size > max_bytes):
                break
            size += entry.size
            found.append(entry)
        return found

    # --- Reading stored batches ---------------------------------------------------------------

    def batches(
        self, queue: QueueId, partition: Partition, start: Offset, stop: Offset, max_bytes: int
    ) -> list[StoredBatch]:
        """Stored batches that overlap [start, stop), in order, cut at `max_bytes`, at least one.

        Raises: Corrupted; what fails its checksum is never given out, and nothing is left out.
        """
        if start >= stop:
            return []
        contents = self._contents
        places = contents.batches.find(queue, partition, start, stop, max_bytes)
        has_holes = bool(contents.entries.holes)
        if has_holes:
            is_gap = not places or places[0].base_offset > start
            if is_gap and contents.is_lost(queue, partition, start):
                raise Corrupted(f"offset {start} may lie in entries that are lost here")
            places = up_to_gap(places)
        try:
            found = self._files.batches(places)
        except Corrupted as error:
            self._suspect_batches(places, str(error))
            raise
        if self._writer.pending:
            size = sum([len(batch.data) for batch in found])
            behind = found[-1].base_offset + found[-1].count if found else start
            waiting = list(self._writer.pending.values())
            for batch in batches_in(waiting, queue, partition, Offset(behind), stop):
                if (found and size + len(batch.data) > max_bytes) or (
                    has_holes and batch.base_offset > behind
                ):
                    break
                size += len(batch.data)
                behind = batch.base_offset + batch.count
                found.append(batch)
        return found

    def _suspect_batches(self, places: list[BatchPlace], reason: str) -> None:
        for batch in places:
            index = self._contents.entries.index_at(batch.place.segment, batch.place.position)
            if index is not None and self._contents.entries.place(index) is not None:
                self._damage.suspect(index, Index(index + 1), reason)

    def offsets(self, queue: QueueId, partition: Partition) -> tuple[Offset, Offset] | None:
        """First offset whose batch is held, and the one behind the last that was written."""
        return self._contents.batches.bounds(queue, partition)

    # --- Snapshots ----------------------------------------------------------------------------

    @property
    def snapshots(self) -> SnapshotStore:
        return self._snapshots

    def begin_snapshot(self, meta: SnapshotMeta, done: Callable[[], None]) -> SnapshotWriter:
        """Write a snapshot of the machine; `done` is called once when that is over.

        Whether it came to be is told by `snapshot`, and why not by the writer's `problem`: a full
        disk gives none. If a sync fails `on_failure` is called, and `done` is not.
        """
        return SnapshotWriter(self._snapshots, meta, done, self._writer.fail)

    def read_snapshot(self) -> tuple[SnapshotMeta, Iterator[bytes]] | None:
        """The newest snapshot and its slices, which raise Corrupted where they fail; or None."""
        return self._snapshots.read()
