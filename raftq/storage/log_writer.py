"""The write path of one group's log: units, syncs, rolls, marks, and what waits for them.

    write -> [queue] -> unit in the page cache -> sync -> persisted(seq)

A write becomes one unit in the newest segment and a sync is asked for; while it is outstanding more
units may follow, and the next sync, asked for when the first returns, covers them. A write waits in
the queue while the outstanding sync is older than 20 ms (a stalled disk blocks writers too), and
while the log rolls.

Rules

1.  At most one sync is outstanding. Its completion speaks of its file and of what was written
    before it was asked for; of nothing else. So the first unit of a new segment follows the last
    sync of the old one.
2.  A sync or a write that fails is never repeated: `failed` once, then silence.
3.  A roll waits for the spare rather than make the loop wait for the disk; only where none could
    be prepared (a full disk) a growing file is made on the spot.
4.  What is queued belongs to the log already: `pending` holds its entries that are not voided.
"""

import errno
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from raftq.env import Clock, Disk
from raftq.ids import Index, Micros, WriteSeq
from raftq.limits import (
    DISK_PRESSED_BYTES,
    DISK_RESERVE_BYTES,
    IDLE_MARK_MICROS,
    MIB,
    SECOND,
    SEGMENT_BYTES_FIRST,
    SEGMENT_BYTES_MAX,
    STALLED_SYNC_MICROS,
)
from raftq.raft.entry import Buffer, Entry
from raftq.raft.ready import Write
from raftq.storage import index_file
from raftq.storage.append import State
from raftq.storage.faults import Faults
from raftq.storage.index_file import Voided
from raftq.storage.reading import LogFiles
from raftq.storage.recovery import Recovered
from raftq.storage.segment import segment_name
from raftq.storage.spare import Spare
from raftq.storage.unit import (
    MARK,
    SHUTDOWN,
    UNIT_HEADER_BYTES,
    encode_reset,
    encode_truncate,
)

SPACE_CHECK_MICROS = 100_000
"""How often free space is looked at: one cheap system call."""

FAST_BYTES_PER_SECOND = 16 * MIB
"""A log that fills its segment faster than this gets the next one reserved, not written."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What may be tuned per log; the defaults are the product's."""

    segment_bytes_first: int = SEGMENT_BYTES_FIRST
    segment_bytes_max: int = SEGMENT_BYTES_MAX
    reserve_bytes: int = DISK_RESERVE_BYTES
    pressed_bytes: int = DISK_PRESSED_BYTES


DEFAULT_SIZES = Sizes()


class _Queued(NamedTuple):
    """A write as it will go out."""

    write: Write
    control: int
    """Bytes of the truncate or reset record in front of the entries."""
    vectors: list[Buffer]
    size: int


class LogWriter:
    """The writing half of a `GroupLog`."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        directory: str,
        recovered: Recovered,
        files: LogFiles,
        *,
        sizes: Sizes,
        faults: Faults,
        persisted: Callable[[WriteSeq], None],
        failed: Callable[[OSError], None],
    ) -> None:
        appender = recovered.appender
        self.state: State = appender.state
        """After the newest write, queued ones included."""
        self.pending: dict[Index, Entry] = {}
        """Live entries of queued writes, ascending: they have no place yet."""
        self.is_full = self.is_pressed = False
        self.synced_segment = 0
        """The newest of which a unit was synced, since the log was opened."""
        self.syncs = 0
        self.bytes_written = 0
        self._disk = disk
        self._clock = clock
        self._directory = directory
        self._sizes = sizes
        self._faults = faults
        self._persisted = persisted
        self._failed_with = failed
        self._appender = appender
        self._contents = recovered.contents
        self._files = files
        self._voided = recovered.voided
        """By the units in the newest segment."""
        self._spare = Spare(
            disk, directory, last_sequence=appender.sequence, settled=self._spare_settled
        )
        self._commit = recovered.commit
        self._queue: deque[_Queued] = deque()
        self._queued_bytes = 0
        self._unsynced = 0
        """Bytes written and not yet covered by a sync that has returned."""
        self._synced_number = appender.number
        self._promised_number = appender.number
        """The newest unit that is more than a mark."""
        self._reported = recovered.state.last_write
        self._marked = (0, Index(0))
        """synced_through and commit index as the newest unit states them."""
        self._syncing: tuple[int, WriteSeq, int] | None = None
        """Unit, write and bytes up to which the outstanding sync will speak."""
        self._sync_asked = Micros(0)
        self._last_sync = self._segment_began = clock.monotonic()
        self._next_space_check = Micros(0)
        self._failed = False
        self._closed = False

    # --- Writing ------------------------------------------------------------------------------

    def write(self, write: Write) -> None:
        """Take the next write. It is synced some time later: `on_persisted` tells."""
        assert write.seq > self.state.write_seq, "writes come in order"
        assert not self._closed, "written after close"
        if self._failed:
            return
        queued = self._encode(write)
        self.state = _state_after(write)
        if write.commit_index > self._commit[0]:
            self._commit = (write.commit_index, write.commit_chain)
        if not self._queue and self._may_write(queued):
            self._put(queued, waited=False)
            self._sync()
            return
        self._queue.append(queued)
        self._queued_bytes += queued.size
        for entry in write.entries:
            self.pending[entry.index] = entry

    def _encode(self, write: Write) -> _Queued:
        """The unit's records; what the write voids cannot be read from here on."""
        vectors: list[Buffer] = []
        size = 0
        if write.reset is not None or write.truncate_from:
            control = self._void(write)
            vectors.append(control)
            size = len(control)
        control_bytes = size
        for entry in write.entries:
            vectors += entry.vectors
            size += entry.size
        return _Queued(write, control_bytes, vectors, size)

    def _void(self, write: Write) -> bytes:
        if write.reset is not None:
            assert not write.truncate_from, "a write resets or truncates"
            self.pending.clear()
            self._contents.reset(write.reset)
            return encode_reset(write.reset)
        start = write.truncate_from
        assert start > self._contents.base.index, "what a snapshot covers is not truncated"
        for index in range(start, self.state.last_index + 1):
            self.pending.pop(Index(index), None)
        if start <= self._contents.entries.last_index:
            self._contents.truncate(start)
        return encode_truncate(start)

    def _may_write(self, queued: _Queued) -> bool:
        if self._syncing is not None and (
            self._clock.monotonic() - self._sync_asked >= STALLED_SYNC_MICROS
        ):
            return False
        return self._appender.fits(queued.size) or self._roll(queued)

    def _put(self, queued: _Queued, *, waited: bool) -> None:
        """Write the unit into the page cache, and remember where its entries lie."""
        write, control_bytes, vectors, size = queued
        entries = write.entries
        position = self._append(
            vectors,
            size,
            flags=0,
            records=len(entries) + (1 if control_bytes else 0),
            state=_state_after(write),
            # The newest commit may be of entries that a write behind this one brings: here, others
            # may still stand at their indexes.
            commit=(write.commit_index, write.commit_chain) if waited else self._commit,
        )
        if position is None:
            return
        self._promised_number = self._appender.number
        if write.reset is not None:
            self._voided.note_reset(write.reset)
        elif write.truncate_from:
            self._voided.note_truncate(write.truncate_from)
        position += control_bytes
        contents, segment, pending = self._contents, self._appender.sequence, self.pending
        for entry in entries:
            # Of a write that waited, an entry may have been voided by one that still waits.
            if not waited or pending.get(entry.index) is entry:
                contents.entries.append(entry.term, segment, position, entry.size)
                contents.batches.add_entry(entry.vectors[0], segment, position)
                if waited:
                    del pending[entry.index]
            position += entry.size
        if self._appender.position * 2 > self._appender.segment_bytes and self._spare.is_wanted:
            self._prepare_spare()

    def _append(
        self,
        vectors: list[Buffer],
        size: int,
        *,
        flags: int,
        records: int,
        state: State,
        commit: tuple[Index, bytes],
    ) -> int | None:
        """The position of the unit's body, or None when the write failed."""
        commit_index, commit_chain = commit
        try:
            header = self._appender.append(
                vectors,
                size,
                flags=flags,
                records=records,
                synced_through=self._synced_number,
                commit_index=commit_index,
                commit_chain=commit_chain,
                state=state,
            )
        except OSError as error:
            self.fail(error)
            return None
        self._marked = (self._synced_number, commit_index)
        self._unsynced += UNIT_HEADER_BYTES + size
        self.bytes_written += UNIT_HEADER_BYTES + size
        return header.position + UNIT_HEADER_BYTES

    def _flush(self) -> None:
        """Write what waits, as far as it may be written, and have it synced."""
        while self._queue and not self._failed and self._may_write(self._queue[0]):
            queued = self._queue.popleft()
            self._queued_bytes -= queued.size
            self._put(queued, waited=True)
        self._sync()

    # --- Syncing ------------------------------------------------------------------------------

    def _sync(self) -> None:
        appender = self._appender
        if self._syncing is not None or self._failed or appender.number == self._synced_number:
            return
        assert appender.file is not None
        self._syncing = (appender.number, appender.state.write_seq, self._unsynced)
        self._sync_asked = self._clock.monotonic()
        appender.file.sync(self._synced)

    def _synced(self, error: OSError | None) -> None:
        if self._closed or self._failed:
            return
        assert self._syncing is not None, "a completion of no sync"
        number, seq, size = self._syncing
        self._syncing = None
        if error is not None:
            if self._faults.failed_sync_repeated:
                self._sync()
                return
            self.fail(error)
            return
        self.syncs += 1
        self._synced_number = number
        self.synced_segment = self._appender.sequence
        self._unsynced -= size
        self._last_sync = self._clock.monotonic()
        if seq > self._reported:
            self._reported = seq
            self._persisted(seq)
        if not self._closed:
            self._flush()

    def fail(self, error: OSError) -> None:
        """The disk cannot be trusted any more: nothing is written or reported after this."""
        if not self._failed:
            self._failed = True
            self._failed_with(error)

    # --- Rolling ------------------------------------------------------------------------------

    def _roll(self, first: _Queued) -> bool:
        """Go on in the next segment, with `first`; False when that has to wait for something."""
        appender = self._appender
        if appender.number > self._synced_number and not self._faults.completion_for_other_file:
            self._sync()
            return False
        try:
            prepared = self._spare.take()
            if prepared is None:
                if self._spare.is_wanted and not self._spare.has_failed:
                    self._prepare_spare()
                if not self._spare.has_failed:
                    return False
                prepared = self._spare.make_now(self._sizes.segment_bytes_first)
            path = f"{self._directory}/{segment_name(prepared.sequence)}"
            file = self._disk.open(path)
        except OSError as error:
            self.fail(error)
            return False
        if not first.control and not any(queued.control for queued in self._queue):
            # Otherwise entries are voided already that the segment still holds.
            self._save_index()
        self._voided = Voided()
        appender.begin(file, sequence=prepared.sequence, segment_bytes=prepared.segment_bytes)
        self._segment_began = self._clock.monotonic()
        self._files.current(appender)
        return True

    def _save_index(self) -> None:
        """The index of the segment that has just come to its end; without it, it would be read."""
        appender, contents = self._appender, self._contents
        if 0 in contents.entries.run_of(appender.sequence).lengths:
            return  # Damage is found by reading; an index would hide where the holes are.
        data = index_file.encode(
            sequence=appender.sequence,
            incarnation=appender.incarnation,
            last_header=appender.last_header,
            voided=self._voided,
            entries=contents.entries,
            batches=contents.batches,
        )
        index_file.save(self._disk, self._directory, appender.sequence, data)

    def _prepare_spare(self) -> None:
        wanted = min(2 * self._appender.segment_bytes, self._sizes.segment_bytes_max)
        if self._disk.free_bytes() - wanted < self._sizes.reserve_bytes:
            wanted = self._sizes.segment_bytes_first
        # Every byte of a written spare goes to the disk twice. A log that fills its segments fast
        # needs the disk more than cheap syncs; and it must not have to wait for its next segment.
        elapsed = max(self._clock.monotonic() - self._segment_began, 1)
        fast = self._appender.position * SECOND > elapsed * FAST_BYTES_PER_SECOND
        self._spare.prepare(wanted, written=not fast)

    def _spare_settled(self) -> None:
        if self._failed:
            return
        if self._spare.error is not None and self._spare.error.errno == errno.ENOSPC:
            self.is_full = True
        self._flush()

    # --- Time ---------------------------------------------------------------------------------

    def set_commit(self, index: Index, chain: bytes) -> None:
        """The newest commit: it goes into the next unit, or into an idle mark."""
        if index > self._commit[0]:
            self._commit = (index, chain)

    def tick(self, monotonic: Micros) -> None:
        if self._closed or self._failed:
            return
        if monotonic >= self._next_space_check:
            self._next_space_check = Micros(monotonic + SPACE_CHECK_MICROS)
            free = self._disk.free_bytes()
            self.is_full = free < self._sizes.reserve_bytes
            self.is_pressed = free < self._sizes.pressed_bytes
        is_long_ago = monotonic >= self._last_sync + IDLE_MARK_MICROS
        if is_long_ago and self.next_deadline() is not None:
            self._append(
                [], 0, flags=MARK, records=0, state=self._appender.state, commit=self._commit
            )
            self._sync()

    def next_deadline(self) -> Micros | None:
        """When an idle mark is due; None while the group is busy or everything is marked."""
        if self._queue or self._syncing is not None or self._failed or self._closed:
            return None
        synced_through, commit_index = self._marked
        if synced_through >= self._promised_number and commit_index >= self._commit[0]:
            return None
        return Micros(self._last_sync + IDLE_MARK_MICROS)

    @property
    def unsynced_bytes(self) -> int:
        """Written or queued, and not synced."""
        return self._unsynced + self._queued_bytes

    def sync_age(self, monotonic: Micros) -> Micros:
        """How long the outstanding sync has taken so far; 0 when there is none."""
        return Micros(0 if self._syncing is None else monotonic - self._sync_asked)

    def close(self) -> None:
        """Write and sync what waits and a last mark; blocks. Nothing is reported any more."""
        if self._closed:
            return
        self._closed = True
        self._spare.close()
        if not self._failed:
            self._write_end()

    def _write_end(self) -> None:
        appender = self._appender
        assert appender.file is not None
        while self._queue:
            # Beyond the segment's size if need be: rolling would have to wait.
            self._put(self._queue.popleft(), waited=True)
        if appender.number > self._synced_number:
            appender.file.sync_now()
            self._synced_number = appender.number
        self._append(
            [],
            0,
            flags=MARK | SHUTDOWN,
            records=0,
            state=appender.state,
            commit=self._commit,
        )
        appender.file.sync_now()


def _state_after(write: Write) -> State:
    return State(
        write.seq, write.term, write.vote, write.last_index, write.last_term, write.last_chain
    )
