"""Machine snapshots of one replica: written beside the log, found, sent to peers, installed.

     0      4   5       8           16          24            32             48
     +------+---+-------+-----------+-----------+-------------+--------------+
     |"rqsn"|ver| zeros | index     | term      | log_time    | chain        |
     |      |u8 | 3 B   | u64       | u64       | i64 us      | 16 bytes     |
     +------+---+-------+-----------+-----------+-------------+--------------+
  48 | members_bytes u32 | zeros u32 | membership | checksum u64              |
     +------------------------------------------------------------------------+
     | body: slices, each u32 length | bytes; then u32 0xffffffff             |
     |       | u64 xxh3_64 of all body bytes before it                        |
     +------------------------------------------------------------------------+

The header's checksum is seeded with replica incarnation and index, like a segment's. The body is
the same on every replica and proves itself: it is what travels to a peer, in pieces of any size.

Written by: temporary name, sync, rename, sync of the directory. A file under its final name that
does not verify is therefore damage, and the older snapshot and the log behind it are used. The
newest two are kept, and any that a peer is being given (`keep`).
"""

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final

from xxhash import xxh3_64, xxh3_64_intdigest

from raftq.env import Disk, File
from raftq.errors import Corrupted
from raftq.ids import Index, Micros, Term
from raftq.limits import FORMAT_VERSION, KIB, SNAPSHOT_MAX_BYTES
from raftq.raft.entry import Buffer
from raftq.raft.membership import decode, encode
from raftq.raft.ready import SnapshotMeta
from raftq.storage.segment import ReadableFile
from raftq.storage.small_file import TEMPORARY
from raftq.storage.unit import CHECKSUM, seed_of

KEPT: Final = 2
"""A snapshot that rots is survived with the one before it."""

WRITE_BYTES: Final = 256 * KIB
"""Slices are gathered up to this much: one write for many small ones."""

_MAGIC: Final = b"rqsn"
_HEADER: Final = Struct("<4sB3xQQq16sII")
_LENGTH: Final = Struct("<I")
_END: Final = 0xFFFF_FFFF
_END_BYTES: Final = _LENGTH.size + CHECKSUM.size
_PREFIX: Final = "snapshot-"
assert _HEADER.size == 56


def snapshot_name(index: Index) -> str:
    return f"{_PREFIX}{index:020d}"


def index_of(name: str) -> Index | None:
    digits = name.removeprefix(_PREFIX)
    return Index(int(digits)) if name.startswith(_PREFIX) and digits.isdecimal() else None


def encode_header(meta: SnapshotMeta, incarnation: int) -> bytes:
    members = encode(meta.membership)
    head = _HEADER.pack(
        _MAGIC, FORMAT_VERSION, meta.index, meta.term, meta.log_time, meta.chain, len(members), 0
    )
    head += members
    return head + CHECKSUM.pack(xxh3_64_intdigest(head, seed_of(incarnation, meta.index)))


def read_header(file: ReadableFile, incarnation: int) -> tuple[SnapshotMeta, int]:
    """What the snapshot stands for, and where its body begins.

    Raises: Corrupted.
    """
    fixed = file.read(0, _HEADER.size)
    if len(fixed) < _HEADER.size:
        raise Corrupted(f"{file.path} has {len(fixed)} bytes")
    magic, version, index, term, log_time, link, members_bytes, _ = _HEADER.unpack(fixed)
    if magic != _MAGIC or version != FORMAT_VERSION or members_bytes > 64 * KIB:
        raise Corrupted(f"{file.path} begins with {magic!r} and version {version}")
    rest = file.read(_HEADER.size, members_bytes + CHECKSUM.size)
    members, checksum = rest[:members_bytes], rest[members_bytes:]
    expected = xxh3_64_intdigest(fixed + members, seed_of(incarnation, index))
    if checksum != CHECKSUM.pack(expected):
        raise Corrupted(f"the header of {file.path} fails its checksum")
    meta = SnapshotMeta(Index(index), Term(term), link, Micros(log_time), decode(members))
    return meta, _HEADER.size + len(rest)


def body_slices(file: ReadableFile, position: int) -> Iterator[bytes]:
    """The slices as they were written. Whoever draws all of them has verified the whole.

    Raises: Corrupted.
    """
    state = xxh3_64()
    size = file.size()
    while True:
        head = file.read(position, _LENGTH.size)
        length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else 0
        if length == _END or not 0 < length <= size - position:
            break
        piece = file.read(position + _LENGTH.size, length)
        if len(piece) != length:
            break
        state.update(head)
        state.update(piece)
        position += _LENGTH.size + length
        yield piece
    end = file.read(position, _END_BYTES + 1)
    if end != _LENGTH.pack(_END) + CHECKSUM.pack(state.intdigest()):
        raise Corrupted(f"the body of {file.path} fails its checksum at {position}")


class SnapshotWriter:
    """One snapshot on its way to the disk; `done` is called once, when it is over.

    A failure to write or to rename (a full disk) is not the node's end: nothing promised depends on
    it. The temporary file goes, and `problem` says why. A failed sync is the node's end, as
    everywhere: what else the disk has lost is not known. Then `failed` is called instead.
    """

    def __init__(
        self,
        store: "SnapshotStore",
        meta: SnapshotMeta,
        done: Callable[[], None],
        failed: Callable[[OSError], None],
    ) -> None:
        self.problem: str | None = None
        """Why the snapshot came to nothing; None while it may still come to be, and when it has."""
        self._store = store
        self._meta = meta
        self._done = done
        self._failed = failed
        self._file: File | None = None
        self._name = store.temporary_name(meta.index)
        self._position = 0
        self._pending: list[Buffer] = []
        self._pending_bytes = 0
        self._state = xxh3_64()
        self._verify = False
        self._finished = False
        try:
            self._file = store.create_temporary(self._name)
            self._put((encode_header(meta, store.incarnation),))
        except OSError as error:
            self._give_up(str(error))

    def write(self, piece: Buffer) -> None:
        """One slice of the own machine; its borders are kept."""
        if len(piece):
            head = _LENGTH.pack(len(piece))
            self._add((head, piece))

    def write_raw(self, data: Buffer) -> None:
        """A piece of another replica's snapshot body, in order, of any size."""
        self._verify = True
        self._add((data,))

    def _add(self, vectors: tuple[Buffer, ...]) -> None:
        assert not self._finished, "written after the end"
        for vector in vectors:
            if not self._verify:
                self._state.update(vector)
            self._pending.append(vector)
            self._pending_bytes += len(vector)
        if self._pending_bytes >= WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        try:
            self._put(tuple(pending))
        except OSError as error:
            self._give_up(str(error))

    def _put(self, vectors: tuple[Buffer, ...]) -> None:
        if self._file is not None and vectors:
            size = sum(map(len, vectors))
            if self._position + size > SNAPSHOT_MAX_BYTES:
                self._give_up(f"it is longer than {SNAPSHOT_MAX_BYTES} bytes")
                return
            self._file.write(self._position, vectors)
            self._position += size

    def finish(self) -> None:
        """That was all: sync it, give it its name, then call `done`."""
        assert not self._finished, "finished twice"
        if not self._verify:
            self._add((_LENGTH.pack(_END) + CHECKSUM.pack(self._state.intdigest()),))
        self._finished = True
        self._flush()
        if self._file is None:
            self._done()
            return
        if self._verify and (problem := self._damage(self._file)) is not None:
            self._give_up(problem)
            self._done()
            return
        self._file.sync(self._synced)

    def _damage(self, file: File) -> str | None:
        try:
            _, position = read_header(file, self._store.incarnation)
            for _ in body_slices(file, position):
                pass
        except (Corrupted, OSError) as error:
            return str(error)
        return None

    def _synced(self, error: OSError | None) -> None:
        if self._file is None or self._store.closed:
            self._give_up("the log was closed")
            return
        if error is not None:
            self._give_up(str(error))
            self._failed(error)
            return
        try:
            self._store.give_name(self._meta, self._name)
        except OSError as problem:
            self._give_up(str(problem))
            self._done()
            return
        self._file.close()
        self._file = None
        try:
            self._store.adopt(self._meta)
        except OSError as problem:
            self.problem = str(problem)
            self._failed(problem)
            return
        self._done()

    def abandon(self) -> None:
        """Not wanted any more; `done` is not called."""
        self._finished = True
        self._give_up("it was abandoned")

    def _give_up(self, problem: str) -> None:
        self.problem = self.problem or problem
        if self._file is not None:
            self._file.close()
            self._file = None
            self._store.drop_temporary(self._name)


class SnapshotStore:
    """The snapshots in one replica's directory."""

    def __init__(self, disk: Disk, directory: str, incarnation: int) -> None:
        self._disk = disk
        self._directory = directory
        self.incarnation = incarnation
        self.good: list[SnapshotMeta] = []
        """Ascending by index."""
        self.spoiled: set[Index] = set()
        """Files that do not verify; they stay until newer ones are durable."""
        self.problems: list[str] = []
        self.closed = False
        self._kept: set[Index] = set()
        self._open: tuple[Index, File, int] | None = None
        self._serial = 0

    def scan(self) -> None:
        """Find and verify what there is."""
        for name in self._disk.names(self._directory):
            index = index_of(name)
            if index is None:
                continue
            try:
                file = self._disk.open(self._path(name))
            except OSError as error:
                self.problems.append(str(error))
                self.spoiled.add(index)
                continue
            try:
                meta, position = read_header(file, self.incarnation)
                if meta.index != index:
                    raise Corrupted(f"{file.path} is of index {meta.index}")
                for _ in body_slices(file, position):
                    pass
                self.good.append(meta)
            except (Corrupted, OSError) as error:
                self.problems.append(str(error))
                self.spoiled.add(index)
            finally:
                file.close()

    @property
    def bound(self) -> Index:
        """Nothing up to here will be needed to make a machine: not from the older of the newest two,
        not from one that is on its way to another replica.
        """
        kept = [meta.index for meta in self.good if meta.index in self._kept]
        return min([*kept, self.good[-KEPT].index]) if len(self.good) >= KEPT else Index(0)

    @property
    def newest(self) -> SnapshotMeta | None:
        return self.good[-1] if self.good else None

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def temporary_name(self, index: Index) -> str:
        """A name of its own: the own snapshot and a peer's may be of one index."""
        self._serial += 1
        return f"{snapshot_name(index)}.{self._serial}{TEMPORARY}"

    def create_temporary(self, name: str) -> File:
        return self._disk.open(self._path(name), create=True)

    def drop_temporary(self, name: str) -> None:
        if not self.closed:
            self._remove(name)

    def _remove(self, name: str) -> None:
        """A disk that does not even let go of a file: the next start tries again."""
        try:
            self._disk.remove(self._path(name))
        except OSError as error:
            self.problems.append(f"{name} cannot be removed: {error}")

    def give_name(self, meta: SnapshotMeta, temporary: str) -> None:
        """The synced temporary file gets the name of a snapshot.

        Raises: OSError when it did not.
        """
        self._disk.rename(self._path(temporary), self._path(snapshot_name(meta.index)))

    def adopt(self, meta: SnapshotMeta) -> None:
        """What has its name counts, once that is durable; old ones go.

        Raises: OSError when the name was not synced.
        """
        self._disk.sync_directory(self._directory)
        self._forget_open()
        self.good = sorted([*(old for old in self.good if old.index != meta.index), meta])
        self.spoiled.discard(meta.index)
        self._remove_old()
        # What was damaged is superseded like any other, once there are enough good ones.
        for index in sorted(self.spoiled):
            if len(self.good) >= KEPT and index < self.good[-KEPT].index:
                self.spoiled.discard(index)
                self._remove(snapshot_name(index))

    def _remove_old(self) -> None:
        for meta in self.good[:-KEPT]:
            if meta.index not in self._kept:
                self.good.remove(meta)
                self._remove(snapshot_name(meta.index))

    def keep(self, index: Index) -> None:
        """Do not remove that one, if it is held, however old it gets."""
        self._kept.add(index)

    def let_go(self, index: Index) -> None:
        """The opposite of `keep`."""
        self._kept.discard(index)
        if not self.closed:
            self._forget_open()
            self._remove_old()

    def meta(self, index: Index) -> SnapshotMeta:
        """What the snapshot at `index` stands for.

        Raises: LookupError when it is not held.
        """
        for meta in self.good:
            if meta.index == index:
                return meta
        raise LookupError(f"no snapshot at {index}")

    @property
    def has_lost_newest(self) -> bool:
        """Whether a file that does not verify is newer than all that do."""
        newest = self.newest
        return any(newest is None or index > newest.index for index in self.spoiled)

    def check(self) -> Iterator[int]:
        """Read all that are good, a slice at a time; those that fail are given out no more."""
        for meta in list(self.good):
            try:
                for piece in self._slices(meta.index):
                    yield len(piece)
            except (Corrupted, OSError) as error:
                if meta in self.good:
                    self.good.remove(meta)
                    self.spoiled.add(meta.index)
                    self._forget_open()
                    self.problems.append(str(error))
            yield 0

    def read(self) -> tuple[SnapshotMeta, Iterator[bytes]] | None:
        """The newest and its slices, verified as they are drawn."""
        meta = self.newest
        return None if meta is None else (meta, self._slices(meta.index))

    def _slices(self, index: Index) -> Iterator[bytes]:
        file = self._disk.open(self._path(snapshot_name(index)))
        try:
            _, position = read_header(file, self.incarnation)
            yield from body_slices(file, position)
        finally:
            file.close()

    def read_bytes(self, index: Index, position: int, length: int) -> tuple[bytes, bool]:
        """A piece of the body for a peer, and whether it is the last.

        Raises: LookupError when that snapshot is not held any more; Corrupted, OSError.
        """
        self.meta(index)
        if self._open is None or self._open[0] != index:
            self._forget_open()
            file = self._disk.open(self._path(snapshot_name(index)))
            self._open = (index, file, read_header(file, self.incarnation)[1])
        _, file, body_at = self._open
        data = file.read(body_at + position, length)
        done = body_at + position + len(data) >= file.size()
        if done:
            self._forget_open()
        return data, done

    def _forget_open(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def close(self) -> None:
        self.closed = True
        self._forget_open()
