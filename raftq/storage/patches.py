"""The patches of one log: taken up at start, judged, written, and used.

Whether a patch may be used is asked here, and nowhere else, of the log as it is at that moment: a
hole may have been truncated away while its repair was on the way, and written anew.
"""

from collections.abc import Callable
from typing import Protocol

from raftq.env import Disk, File
from raftq.errors import Corrupted
from raftq.ids import Index
from raftq.raft.entry import Entry, is_whole, verify
from raftq.storage.append import State
from raftq.storage.faults import Faults
from raftq.storage.index import PATCH, Hole
from raftq.storage.patch import Patch, encode, patch_name, range_of, read
from raftq.storage.reading import LogFiles
from raftq.storage.replay import Contents
from raftq.storage.small_file import TEMPORARY


class End(Protocol):
    """What is newer than the files: queued writes, and the log's end."""

    state: State
    pending: dict[Index, Entry]


class Patches:
    """See the module."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        incarnation: int,
        contents: Contents,
        files: LogFiles,
        end: End,
        faults: Faults,
        lost: Callable[[str], None],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._incarnation = incarnation
        self._contents = contents
        self._files = files
        self._end = end
        self._faults = faults
        self._lost = lost
        self._numbers = PATCH
        self._serial = 0
        self.closed = False
        self.repaired_entries = 0
        """How many were filled in since the log was opened."""

    def load(self) -> list[str]:
        """Take up what is there and joins; sentences about what does not."""
        problems = []
        names = [name for name in self._disk.names(self._directory) if range_of(name)]
        # From behind: the later one may be what proves the earlier one.
        for name in sorted(names, key=lambda name: range_of(name) or (), reverse=True):
            try:
                patch = self._read(name)
            except (Corrupted, OSError) as error:
                problems.append(str(error))
                continue
            if self.joins(patch):
                self._use(patch, name)
        return problems

    def _read(self, name: str) -> Patch:
        file = self._disk.open(f"{self._directory}/{name}")
        try:
            return read(file, incarnation=self._incarnation)
        finally:
            file.close()

    # --- Judging ------------------------------------------------------------------------------

    def joins(self, patch: Patch) -> bool:
        """Whether the patch, which verifies in itself, is what the log held there.

        It may begin below the log's base, and counts from there.
        """
        base = self._contents.base
        first, previous = patch.first, patch.previous_chain
        if first <= base.index < patch.last:
            first, previous = Index(base.index + 1), patch.entries[base.index - first].chain
        return self.joins_behind(patch.last, patch.entries[-1].chain) and self.joins_before(
            first, previous
        )

    def joins_behind(self, last: Index, chain: bytes) -> bool:
        """Whether the log goes on behind `last` from this chain value."""
        if self._faults.patch_not_joined_behind:
            return True
        if last == self._end.state.last_index:
            return chain == self._end.state.last_chain
        try:
            entry = self._end.pending.get(Index(last + 1)) or self._files.entry(Index(last + 1))
        except Corrupted:
            return False
        return entry is not None and verify(entry, chain)

    def joins_before(self, first: Index, previous: bytes) -> bool:
        """Whether nothing that is held before contradicts this chain value."""
        entries = self._contents.entries
        if not entries.first_index <= first <= entries.last_index:
            return False
        own = self.chain_before(first)
        return own is None or own == previous

    def chain_before(self, first: Index) -> bytes | None:
        """The proved chain value right before an index; None where that is lost."""
        try:
            return self._files.chain(Index(first - 1))
        except Corrupted:
            return None

    # --- Writing ------------------------------------------------------------------------------

    def write(self, patch: Patch, done: Callable[[bool], None]) -> None:
        """Make it durable, then use it; `done` hears whether that came to be."""
        self._serial += 1
        name = patch_name(patch.first, patch.last)
        path = f"{self._directory}/{name}"
        temporary = f"{path}.{self._serial}{TEMPORARY}"
        try:
            file = self._disk.open(temporary, create=True)
        except OSError:
            done(False)
            return
        try:
            file.write(0, encode(patch, self._incarnation))
        except OSError:
            self._give_up(file, temporary)
            done(False)
            return

        def synced(error: OSError | None) -> None:
            if self.closed:
                return
            if error is not None or not self.joins(patch):
                self._give_up(file, temporary)
                done(False)
                return
            file.close()
            self._disk.rename(temporary, path)
            self._disk.sync_directory(self._directory)
            lost = self._lost_entries()
            self._use(patch, name)
            self.repaired_entries += lost - self._lost_entries()
            done(True)

        file.sync(synced)

    def _lost_entries(self) -> int:
        return sum(hole.last - hole.first + 1 for hole in self._contents.entries.holes)

    def _give_up(self, file: File, temporary: str) -> None:
        file.close()
        self._disk.remove(temporary)

    def _use(self, patch: Patch, name: str) -> None:
        number = self._numbers
        self._numbers += 1
        first = max(patch.first, self._contents.entries.first_index)
        run = patch.run(number).cut(first, patch.last)
        self._files.patch_names[number] = name
        contents = self._contents
        index_at = contents.entries.index_at
        older = contents.entries.patches_in(first, patch.last)
        contents.entries.patch(run)
        if older:
            contents.batches.forget_patched(
                lambda place: (
                    place.segment in older and index_at(place.segment, place.position) is None
                )
            )
        for entry, position in zip(
            patch.entries[first - patch.first :], run.positions, strict=True
        ):
            contents.batches.patch_entry(entry.vectors[0], number, position)
            if not is_whole(entry) and entry.index > contents.not_whole_through:
                contents.not_whole_through = entry.index

    def in_use(self) -> list[Hole]:
        """The ranges that are read from patches."""
        return self._contents.entries.patched()

    def check(self, part: Hole) -> int:
        """Read the file that holds a range; what does not verify is lost again. Its bytes."""
        place = self._contents.entries.place(part.first)
        if place is None or place.segment < PATCH:
            return 0
        name = self._files.patch_names[place.segment]
        try:
            return sum(entry.size for entry in self._read(name).entries)
        except (Corrupted, OSError):
            if part in self.in_use():
                self._contents.lose(*part)
                self._lost(name)
            return 0

    def names(self) -> dict[Hole, str]:
        """Which file each repaired range is read from."""
        entries = self._contents.entries
        found = {}
        for part in entries.patched():
            place = entries.place(part.first)
            assert place is not None
            found[part] = self._files.patch_names[place.segment]
        return found
