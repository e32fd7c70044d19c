"""What was found wrong with a log since it was opened, and what the scrub needs to look for more.

Rule 1. Only what is not sound in itself becomes a hole: an entry whose bytes follow from the entry
        before it is kept, however damaged the unit around it is.
Rule 2. A reason is noted once, and stays when the damage is repaired.
"""

from collections.abc import Callable, Iterator
from contextlib import closing

from raftq.env import Disk, File
from raftq.ids import Index
from raftq.storage.reading import LogFiles
from raftq.storage.recovery import Recovered
from raftq.storage.segment import segment_name


def _nobody() -> None:
    """Nobody listens yet."""


class Damage:
    """See the module."""

    def __init__(self, disk: Disk, directory: str, recovered: Recovered, files: LogFiles) -> None:
        self.reasons: tuple[str, ...] = recovered.damage
        self.listener: Callable[[], None] = _nobody
        self.incarnation = recovered.appender.incarnation
        self._disk = disk
        self._directory = directory
        self._contents = recovered.contents
        self._snapshots = recovered.snapshots
        self._files = files

    def suspect(self, start: Index, stop: Index, reason: str) -> bool:
        """Something in [start, stop) did not verify: what is not sound is a hole from now on."""
        found = self._files.unsound_around(start, stop)
        if found is None:
            return False
        self._contents.lose(*found)
        self.note(f"entries {found[0]} to {found[1]}: {reason}")
        return True

    def suspect_bytes(self, segment: int, start: int, stop: int, reason: str) -> None:
        """Bytes of a segment do not verify; what entries lie there and are not sound is lost."""
        found = self._contents.entries.indexes_in(segment, start, stop)
        if found is None:
            return
        if not self.suspect(found[0], Index(found[1] + 1), reason):
            self.note_harmless(f"segment {segment} at {start}: {reason}; no entry is lost")
        # Between sound entries there may be more that are not.
        while self.suspect(found[0], Index(found[1] + 1), reason):
            continue

    def note_harmless(self, reason: str) -> None:
        """Something is wrong with a file, and nothing is lost by it."""
        if reason not in self.reasons:
            self.reasons = (*self.reasons, reason)

    def segments(self) -> list[tuple[int, int]]:
        """Those that hold entries, and up to where; behind that lie zeros, or nothing that counts."""
        entries, gone = self._contents.entries, self._contents.gone
        there = [segment for _, segment in entries.runs() if segment not in gone]
        return [(segment, entries.end_in(segment)) for segment in there]

    def segment_file(self, segment: int) -> File | None:
        """A segment, opened for whoever closes it; None if that fails."""
        try:
            return self._disk.open(f"{self._directory}/{segment_name(segment)}")
        except OSError:
            return None

    def read_file(self, name: str) -> bytes | None:
        """All of a small file; None if there is none, or it cannot be read."""
        try:
            with closing(self._disk.open(f"{self._directory}/{name}")) as file:
                return file.read(0, file.size())
        except OSError:
            return None

    def check_snapshots(self) -> Iterator[int]:
        """Read the snapshots a slice at a time; those that fail are given out no more."""
        yield from self._snapshots.check()
        for problem in self._snapshots.problems:
            self.note_harmless(problem)

    def note(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons = (*self.reasons, reason)
        self.listener()
