"""From the files of a directory to a log that may be trusted and goes on: the ten steps.

 1. List; what is temporary is not looked at. 2. Follow `continues`. 3. Walk the units, find M.
 4. Judge what is broken (`walk`). 5. Replay (`replay`). 6. Term, vote, log end, chain from the last
 kept header. 7. Choose the snapshot. 8. Rewrite what lies after M into a new segment under a
 temporary name, sync, rename, sync the directory; drop what is unfinished or unused. 9. The caller
 may vote, acknowledge and report only after that. 10. commit = max(snapshot, mark).

A crash anywhere in here leaves either the old files, untouched, or the new segment, durable. Only
what is provably nothing is removed: temporary names, spares of zeros, and segments of which every
unit has been rewritten. Damage removes nothing.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from raftq.env import Disk, File
from raftq.errors import Corrupted
from raftq.ids import NOBODY, Index, WriteSeq
from raftq.raft.entry import ENTRY_HEADER_BYTES, GENESIS, HEADER
from raftq.raft.membership import Membership
from raftq.raft.membership import decode as decode_membership
from raftq.raft.membership import encode as encode_membership
from raftq.raft.ready import HardState, SnapshotMeta
from raftq.storage import horizon, index_file, small_file
from raftq.storage.append import NOTHING, Appender, State, state_of
from raftq.storage.faults import NO_FAULTS, Faults
from raftq.storage.horizon import Horizon
from raftq.storage.index import Place
from raftq.storage.index_file import SealedIndex, Voided
from raftq.storage.replay import NO_BASE, Contents, Replay
from raftq.storage.segment import (
    AMNESIAC,
    Readable,
    index_name,
    is_blank,
    is_index,
    is_segment,
    is_spare,
    segment_name,
    sequence_of,
)
from raftq.storage.small_file import TEMPORARY
from raftq.storage.snapshots import SnapshotStore
from raftq.storage.unit import HEADER as UNIT_HEADER
from raftq.storage.unit import UnitHeader, encode_reset
from raftq.storage.walk import Condition, Stretch, Walk, lay_out

MEMBERS: Final = "members"
"""The first membership, as a small file."""


@dataclass(slots=True)
class Recovered:
    """A log that is durable up to its end, and where it goes on."""

    appender: Appender
    contents: Contents
    snapshots: SnapshotStore
    state: HardState
    commit: tuple[Index, bytes]
    condition: Condition
    damage: tuple[str, ...]
    contradictions: tuple[str, ...]
    """What is wrong and no peer can mend: units that verify and do not agree."""
    tail_cut: bool
    voided: Voided
    """By the units in the segment that is being written."""


def create(
    disk: Disk,
    directory: str,
    *,
    incarnation: int,
    boot: int,
    membership: Membership,
    segment_bytes: int,
) -> Recovered:
    """A new, empty replica; durable on return. A creation that was cut before is begun anew.

    Raises: FileExistsError when the directory holds a log already; OSError.
    """
    disk.make_directory(directory)
    names = disk.names(directory)
    if any(is_segment(name) for name in names):
        raise FileExistsError(f"{directory} holds a log already")
    appender = Appender(incarnation=incarnation, boot=boot)
    meta = NO_BASE._replace(membership=membership)
    # The only copy would otherwise lie in the first unit, where no peer could replace it.
    small_file.save(disk, f"{directory}/{MEMBERS}", encode_membership(membership))

    def write() -> None:
        _append_reset(appender, meta, NOTHING, synced_through=0)

    _new_segment(disk, directory, appender, segment_bytes, write, NO_FAULTS)
    _drop_temporaries(disk, directory, disk.names(directory))
    contents = Contents()
    contents.reset(meta)
    state = appender.state
    return Recovered(
        appender=appender,
        contents=contents,
        snapshots=SnapshotStore(disk, directory, incarnation),
        state=HardState(state.term, state.vote, Index(0), state.write_seq),
        commit=(Index(0), GENESIS),
        condition=Condition.OK,
        damage=(),
        contradictions=(),
        tail_cut=False,
        voided=Voided(reset=meta),
    )


class Recovery:
    """One run of the ten steps over one directory."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        incarnation: int,
        boot: int,
        segment_bytes: int,
        faults: Faults,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._incarnation = incarnation
        self._boot = boot
        self._segment_bytes = segment_bytes
        self._faults = faults
        self._files: dict[int, File] = {}
        self._names: dict[int, str] = {}
        self._all_names: list[str] = []
        self._snapshots = SnapshotStore(disk, directory, incarnation)
        self._missing: list[str] = []
        self._horizon = self._load_horizon()
        self._replay = Replay(self._horizon)

    def run(self) -> Recovered:
        """Durable on return.

        Raises: OSError when the disk refuses to be written.
        """
        names = self._all_names = self._disk.names(self._directory)
        try:
            self._open_files(names)
            packed = () if self._horizon is None else self._horizon.packed
            layout = lay_out(self._files, self._incarnation, packed)
            replay = self._replay
            walk = Walk(layout, replay, boot=self._boot, indexes=self)
            walk.run()
            self._look_for_newer(walk)
            self._restore_base()
            self._snapshots.scan()
            self._rename_used_spares(walk)
            appender = self._go_on(walk)
            condition = walk.condition
            if condition is Condition.OK and (replay.problems or self._missing):
                condition = Condition.DAMAGED
            commit = self._commit(appender)
            if condition is Condition.OK:
                self._drop_rewritten(walk)
            self._drop_blank_spares(walk)
            _drop_temporaries(self._disk, self._directory, names)
        finally:
            for file in self._files.values():
                file.close()
        state = appender.state
        damage = (*walk.amnesia, *walk.problems, *replay.problems, *self._missing)
        return Recovered(
            appender=appender,
            contents=replay.contents,
            snapshots=self._snapshots,
            state=HardState(state.term, state.vote, commit[0], state.write_seq),
            commit=commit,
            condition=condition,
            damage=(*damage, *self._snapshots.problems),
            contradictions=(*replay.problems, *self._unknown_membership()),
            tail_cut=walk.tail_cut,
            voided=replay.voided,
        )

    def _load_horizon(self) -> Horizon | None:
        try:
            return horizon.load(self._disk, self._directory)
        except (Corrupted, OSError) as error:
            self._missing.append(str(error))
            return None

    def _look_for_newer(self, walk: Walk) -> None:
        """An index is made when its segment is continued by another, which must be here."""
        sealed = [sequence_of(name) or 0 for name in self._all_names if is_index(name)]
        if sealed and max(sealed) >= max(self._names, default=0):
            walk.amnesia.append(f"the segment that continued segment {max(sealed)} is missing")

    def _restore_base(self) -> None:
        """If the first unit is lost, the first membership is still known."""
        contents = self._replay.contents
        if contents.base is not NO_BASE:
            return
        try:
            stored = small_file.load(self._disk, f"{self._directory}/{MEMBERS}")
        except (Corrupted, OSError) as error:
            self._missing.append(str(error))
            return
        if stored is not None:
            membership = decode_membership(memoryview(stored))
            contents.base = contents.base._replace(membership=membership)

    def _unknown_membership(self) -> tuple[str, ...]:
        # Known does not mean that there is anybody: who takes a lost one's place begins with nobody.
        known = self._replay.contents.base is not NO_BASE or self._snapshots.newest
        return () if known else ("the first membership is lost, and no snapshot has one",)

    def _open_files(self, names: list[str]) -> None:
        """Segments, and spares: one that was in use may have lost its renaming."""
        for name in names:
            sequence = sequence_of(name)
            if sequence is None or not (is_segment(name) or is_spare(name)):
                continue
            if sequence not in self._files:  # Sorted, segments come before spares.
                self._files[sequence] = self._disk.open(f"{self._directory}/{name}")
                self._names[sequence] = name

    def load(self, stretch: Stretch) -> SealedIndex | None:
        """The index of a sealed segment, if there is one that fits."""
        name = index_name(stretch.sequence)
        if stretch.stop is None or name not in self._all_names:
            return None
        try:
            with closing(self._disk.open(f"{self._directory}/{name}")) as file:
                data = file.read(0, file.size())
        except OSError:
            return None
        return index_file.load(
            data,
            stretch.readable,
            sequence=stretch.sequence,
            incarnation=self._incarnation,
            stop=stretch.stop,
        )

    def rebuild(self, stretch: Stretch, last: UnitHeader) -> None:
        """Make the index that a crash left out."""
        if not self._replay.problems:
            contents = self._replay.contents
            data = index_file.encode(
                sequence=stretch.sequence,
                incarnation=self._incarnation,
                last_header=UNIT_HEADER.pack(*last),
                voided=self._replay.voided,
                entries=contents.entries,
                batches=contents.batches,
            )
            index_file.save(self._disk, self._directory, stretch.sequence, data)

    def _rename_used_spares(self, walk: Walk) -> None:
        """A spare may have lost its renaming in a power loss. It need not be durable this time."""
        for stretch in walk.layout.stretches:
            name = self._names[stretch.sequence]
            if is_spare(name):
                used = self._names[stretch.sequence] = segment_name(stretch.sequence)
                self._disk.rename(f"{self._directory}/{name}", f"{self._directory}/{used}")

    def _go_on(self, walk: Walk) -> Appender:
        """Rewrite the tail, and begin anew from a snapshot that wins, in a new segment."""
        flags = AMNESIAC if walk.condition is Condition.AMNESIAC else 0
        appender = Appender(incarnation=self._incarnation, boot=self._boot, flags=flags)
        if walk.durable is not None:
            sequence, header = walk.durable
            appender.resume(sequence=sequence, header=header)
        # Where units up to M are gone, their numbers stay missing: the damage is found again.
        appender.number = synced_through = walk.marked

        def write() -> None:
            self._replay.begin_segment()
            if walk.tail:
                appender.number = walk.tail[0][1].number - 1
            for _, header, body in walk.tail:
                rewritten = appender.append(
                    (body,) if body else (),
                    len(body),
                    flags=header.flags,
                    records=header.records,
                    synced_through=synced_through,
                    commit_index=header.commit_index,
                    commit_chain=header.commit_chain,
                    state=state_of(header),
                )
                self._replay.accept(appender.sequence, rewritten, body)
            winner = self._winning_snapshot(appender)
            if winner is not None:
                state = appender.state
                _append_reset(
                    appender,
                    winner,
                    state._replace(
                        write_seq=WriteSeq(state.write_seq + 1),
                        term=max(state.term, winner.term),
                        vote=state.vote if state.term >= winner.term else NOBODY,
                    ),
                    synced_through=synced_through,
                )
                self._replay.contents.reset(winner)
                self._replay.voided.note_reset(winner)
            appender.write_header()

        _new_segment(
            self._disk, self._directory, appender, self._segment_bytes, write, self._faults
        )
        return appender

    def _winning_snapshot(self, appender: Appender) -> SnapshotMeta | None:
        """The snapshot from which the log must begin anew, if any."""
        contents, newest = self._replay.contents, self._snapshots.newest
        if newest is not None and newest.index >= contents.base.index:
            if newest.index > contents.entries.last_index:
                return newest
            if self._chain(appender, newest.index) not in {None, newest.chain}:
                return newest
        begins = max(contents.base.index, contents.reset_index)
        if begins and (newest is None or newest.index < begins):
            self._missing.append(f"the snapshot at {begins} is missing or damaged")
        return None

    def _commit(self, appender: Appender) -> tuple[Index, bytes]:
        """The snapshot's index or the mark, where the log agrees with the mark."""
        contents, newest = self._replay.contents, self._snapshots.newest
        best = (contents.base.index, contents.base.chain)
        if newest is not None and newest.index > best[0]:
            best = (newest.index, newest.chain)
        mark = (self._replay.commit_index, self._replay.commit_chain)
        if mark[0] > best[0] and self._chain(appender, mark[0]) == mark[1]:
            best = mark
        return best

    def _chain(self, appender: Appender, index: Index) -> bytes | None:
        contents = self._replay.contents
        if index == contents.base.index:
            return contents.base.chain
        place = contents.entries.place(index)
        if place is None:
            return None
        in_new = place.segment == appender.sequence
        file = appender.file if in_new else self._files[place.segment]
        assert file is not None
        return read_chain(file, place)

    def _drop_rewritten(self, walk: Walk) -> None:
        """Segments of which nothing lives any more because every unit was rewritten."""
        living = walk.durable[0] if walk.durable else 0
        for stretch, _, _ in walk.tail:
            name = self._names.get(stretch.sequence)
            if stretch.sequence > living and stretch.sequence in walk.clean and name:
                del self._names[stretch.sequence]
                self._disk.remove(f"{self._directory}/{name}")

    def _drop_blank_spares(self, walk: Walk) -> None:
        """Spares that hold nothing but zeros."""
        live = {stretch.sequence for stretch in walk.layout.stretches}
        for sequence, name in self._names.items():
            if is_spare(name) and sequence not in live and is_blank(self._files[sequence]):
                self._disk.remove(f"{self._directory}/{name}")


def read_chain(file: Readable, place: Place) -> bytes | None:
    """The chain value in the header of the entry at `place`."""
    data = file.read(place.position, ENTRY_HEADER_BYTES)
    return bytes(HEADER.unpack(data)[10]) if len(data) == ENTRY_HEADER_BYTES else None


def _append_reset(
    appender: Appender, meta: SnapshotMeta, state: State, *, synced_through: int
) -> None:
    """The log begins anew behind a snapshot, or for the first time."""
    record = encode_reset(meta)
    after = state._replace(last_index=meta.index, last_term=meta.term, last_chain=meta.chain)
    appender.append(
        (record,),
        len(record),
        flags=0,
        records=1,
        synced_through=synced_through,
        commit_index=meta.index,
        commit_chain=meta.chain,
        state=after,
    )


def _new_segment(
    disk: Disk,
    directory: str,
    appender: Appender,
    segment_bytes: int,
    write: Callable[[], None],
    faults: Faults,
) -> None:
    """A segment that exists under its name only when it is durable with all that `write` gives."""
    # Temporary and spare files count: a sequence, once seen, is never given to other bytes.
    known = [sequence_of(name) for name in disk.names(directory)]
    sequence = max((number for number in known if number is not None), default=0) + 1
    path = f"{directory}/{segment_name(sequence)}"
    file = disk.open(path + TEMPORARY, create=True)
    appender.begin(file, sequence=sequence, segment_bytes=segment_bytes)
    write()
    # Written zeros behind the end: the syncs of appends then have no size to change.
    missing = max(0, segment_bytes - appender.position)
    file.write(appender.position, [bytes(missing)] if missing else [])
    if not faults.recovered_tail_unsynced:
        file.sync_now()
    file.close()
    disk.rename(path + TEMPORARY, path)
    disk.sync_directory(directory)
    appender.file = disk.open(path)


def _drop_temporaries(disk: Disk, directory: str, names: list[str]) -> None:
    for name in names:
        if name.endswith(TEMPORARY):
            disk.remove(f"{directory}/{name}")
