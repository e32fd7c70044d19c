"""An amnesiac log, copied into a directory that has forgotten nothing: what `recover` needs of it.

That a log is amnesiac stands in its segments for ever. So the entries that verify go, proved once more
by their chain, into a new log under an incarnation of its own; the old directory is only read. A log
that begins behind a snapshot takes that along, and so does one of which something was let go: then
the machine begins there, and what is still held before it goes along in patches, whole or not.

Rule: a copy that was cut is begun anew; only its whole directory ever gets the group's name.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import Final

from raftq.env import Disk, Environment, File
from raftq.errors import Corrupted
from raftq.ids import NOBODY, Index, WriteSeq
from raftq.limits import MIB
from raftq.raft.entry import Entry
from raftq.raft.ready import SnapshotMeta, Write
from raftq.server.made import clear
from raftq.server.survey import first_membership, newest_snapshot
from raftq.storage import small_file
from raftq.storage.compaction import REWRITE_BYTES
from raftq.storage.group_log import GroupLog
from raftq.storage.horizon import HORIZON, Horizon
from raftq.storage.horizon import encode as encode_horizon
from raftq.storage.offline import OfflineFile
from raftq.storage.patch import Patch, patch_name
from raftq.storage.patch import encode as encode_patch
from raftq.storage.reader import Replica, entries_in, read_replica
from raftq.storage.snapshots import encode_header, read_header, snapshot_name

PORTION_BYTES: Final = 8 * MIB
"""Written and synced at once; each portion begins a segment."""


def copy_log(environment: Environment, source: str, target: str, *, incarnation: int) -> None:
    """Durable on return.

    Raises: Corrupted when something between its ends does not verify; OSError.
    """
    disk = environment.disk
    clear(disk, target)

    def open_file(name: str) -> OfflineFile:
        return disk.open(f"{source}/{name}")

    stored = read_replica(disk.names(source), open_file)
    log = GroupLog.create(
        disk,
        environment.clock,
        target,
        incarnation=incarnation,
        boot=environment.boot,
        membership=first_membership(disk, source),
    )
    log.close()
    base: SnapshotMeta | None = None
    first = Index(1)
    if stored.replayed_from:
        base = _copy_snapshot(disk, stored, source, target, incarnation)
        first = Index(base.index + 1)
    portion: list[Entry] = []
    size = 0
    for entry in _entries(disk, stored, source, first):
        portion.append(entry)
        size += entry.size
        if size >= PORTION_BYTES:
            _append(environment, target, incarnation, stored, portion)
            portion, size = [], 0
    # Also without entries: the term, and the mark, are known afterwards.
    _append(environment, target, incarnation, stored, portion)
    if base is not None:
        _copy_older(disk, stored, source, target, base=base, incarnation=incarnation)


def _copy_older(
    disk: Disk, stored: Replica, source: str, target: str, *, base: SnapshotMeta, incarnation: int
) -> None:
    """What lies before the snapshot: the machine needs it no more, but readers and consumers do."""
    previous = stored.base.chain
    portion: list[Entry] = []
    size = 0

    def write() -> None:
        patch = Patch(previous, tuple(portion))
        path = f"{target}/{patch_name(patch.first, patch.last)}"
        with closing(disk.open(path, create=True)) as file:
            file.write(0, encode_patch(patch, incarnation))
            file.sync_now()

    for entry in _entries(disk, stored, source, stored.first_index):
        if entry.index > base.index:
            break
        portion.append(entry)
        size += entry.size
        if size >= REWRITE_BYTES:
            write()
            previous, portion, size = entry.chain, [], 0
    if portion:
        write()
        previous = portion[-1].chain
    if previous != base.chain:
        raise Corrupted(f"the log in {source} does not lead to its snapshot at {base.index}")
    if stored.base.index < base.index:
        horizon = Horizon(stored.base, base.index, ())
        small_file.save(disk, f"{target}/{HORIZON}", encode_horizon(horizon))


def _entries(disk: Disk, stored: Replica, source: str, first: Index) -> Iterator[Entry]:
    expected = int(stored.first_index)
    for live in stored.ranges:
        with closing(disk.open(f"{source}/{live.name}")) as file:
            for entry, _, _, proved in entries_in(file, live):
                if entry.index != expected or not proved:
                    raise Corrupted(f"entry {expected} of {source} is lost")
                expected += 1
                if entry.index >= first:
                    yield entry


def _copy_snapshot(
    disk: Disk, stored: Replica, source: str, target: str, incarnation: int
) -> SnapshotMeta:
    """The newest sound snapshot that the log follows; its body proves itself."""
    meta = newest_snapshot(stored)
    if meta is None or meta.index < stored.replayed_from:
        raise Corrupted(f"the snapshot that the log in {source} begins behind is lost")
    name = snapshot_name(meta.index)
    with (
        closing(disk.open(f"{source}/{name}")) as old,
        closing(disk.open(f"{target}/{name}{small_file.TEMPORARY}", create=True)) as new,
    ):
        head = encode_header(meta, incarnation)
        new.write(0, (head,))
        _copy_body(old, read_header(old, stored.incarnation)[1], new, len(head))
        new.sync_now()
    disk.rename(f"{target}/{name}{small_file.TEMPORARY}", f"{target}/{name}")
    disk.sync_directory(target)
    return meta


def _copy_body(old: File, position: int, new: File, at: int) -> None:
    while data := old.read(position, MIB):
        new.write(at, (data,))
        position += len(data)
        at += len(data)


def _append(
    environment: Environment, target: str, incarnation: int, stored: Replica, portion: list[Entry]
) -> None:
    """Opening it anew each time costs a segment, and waits for no spare."""
    log = GroupLog.open(
        environment.disk,
        environment.clock,
        target,
        incarnation=incarnation,
        boot=environment.boot,
    )
    with closing(log):
        last_term = portion[-1].term if portion else log.term(log.last_index)
        last_chain = portion[-1].chain if portion else log.chain(log.last_index)
        last_index = portion[-1].index if portion else log.last_index
        assert last_term is not None
        assert last_chain is not None
        is_known = stored.commit_index <= last_index
        log.write(
            Write(
                seq=WriteSeq(log.state.last_write + 1),
                reset=None,
                truncate_from=Index(0),
                entries=tuple(portion),
                term=stored.term,
                vote=NOBODY,
                last_index=last_index,
                last_term=last_term,
                last_chain=last_chain,
                commit_index=stored.commit_index if is_known else log.state.commit_index,
                commit_chain=stored.commit_chain
                if is_known
                else log.chain(log.state.commit_index) or bytes(16),
            )
        )
