"""The next segment, prepared in the background: written zeros, so that appends only fill blocks.

Its name is durable before it is used. That it is renamed when it becomes a segment need not be: a
spare with a valid header is a segment to recovery, whatever its name. Sequences are handed out here
and never twice, failed preparations included.
"""

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from raftq.env import Disk
from raftq.storage.segment import segment_name, spare_name


class _State(Enum):
    NONE = 0
    PREPARING = 1
    READY = 2
    FAILED = 3


class Prepared(NamedTuple):
    """A file that may become the next segment."""

    sequence: int
    segment_bytes: int


class Spare:
    """At most one prepared segment of one group. `settled` is called when a preparation ends."""

    def __init__(
        self, disk: Disk, directory: str, *, last_sequence: int, settled: Callable[[], None]
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._settled = settled
        self._state = _State.NONE
        self._sequence = last_sequence
        self._segment_bytes = 0
        self._closed = False
        self.error: OSError | None = None
        """Why the last preparation failed."""

    @property
    def is_wanted(self) -> bool:
        """Neither there nor on its way."""
        return self._state in {_State.NONE, _State.FAILED}

    @property
    def has_failed(self) -> bool:
        return self._state is _State.FAILED

    def prepare(self, segment_bytes: int, *, written: bool) -> None:
        """Begin; `written` as the disk's `prepare` has it."""
        assert self.is_wanted
        self._state = _State.PREPARING
        self._sequence += 1
        self._segment_bytes = segment_bytes
        path = f"{self._directory}/{spare_name(self._sequence)}"
        self._disk.prepare(path, segment_bytes, self._prepared, written=written)

    def _prepared(self, error: OSError | None) -> None:
        if self._closed:
            return
        if error is None:
            try:
                # What was just written and synced has taken the name along: this is short.
                self._disk.sync_directory(self._directory)
            except OSError as failure:
                error = failure
        self.error = error
        self._state = _State.READY if error is None else _State.FAILED
        self._settled()

    def take(self) -> Prepared | None:
        """The prepared file under its name as a segment, if there is one."""
        if self._state is not _State.READY:
            return None
        directory, sequence = self._directory, self._sequence
        self._disk.rename(
            f"{directory}/{spare_name(sequence)}", f"{directory}/{segment_name(sequence)}"
        )
        self._state = _State.NONE
        return Prepared(sequence, self._segment_bytes)

    def make_now(self, segment_bytes: int) -> Prepared:
        """An empty segment that grows, when none could be prepared. Blocks.

        Raises: OSError.
        """
        self._sequence += 1
        path = f"{self._directory}/{segment_name(self._sequence)}"
        self._disk.open(path, create=True).close()
        self._disk.sync_directory(self._directory)
        self._state = _State.NONE
        return Prepared(self._sequence, segment_bytes)

    def close(self) -> None:
        """What is still being prepared is not wanted any more; the next start removes it."""
        self._closed = True
