"""The simulated disk: a data directory in memory that loses exactly what a real one may lose.

Theory of operation
-------------------
A byte has three places: the process's buffer (whatever was not yet given to `write`), the page
cache (what `read` shows), and the platter (`platter` keeps the last two).

    kill()         the process dies. The page cache survives; handles are dead, completions never
                   come. A `write` cut by the kill has written a prefix.
    power_loss()   the machine dies. Of each unsynced write any subset of its 512-byte sectors
                   survives; so does any subset of unsynced creates, renames and removes; a file
                   whose size was not synced has any of the sizes it had meanwhile.

Rules

1.  What may survive is drawn from the given entropy, in four moods: nothing, everything, whole
    writes at random, sectors at random. Of a sector written more than once an older state may
    survive.
2.  A failed sync marks its pages clean: a later sync does not cover them, and a power loss loses
    them for certain.
3.  Every operation that changes anything is counted. `crash_at` cuts at one of them with
    `SimulatedCrash`; the one who drives decides then between `kill` and `power_loss`.
4.  Completions come through `call_later`, which the simulator's loop or a test provides.
"""

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raftq.env import Buffer, Entropy
from raftq.errors import InvalidArgument
from raftq.ids import Micros
from raftq.sim.platter import SECTOR_BYTES, Inode, finish_sync

UNLIMITED_BYTES = 1 << 50
SYNC_MICROS = Micros(500)
PREPARE_MICROS = Micros(2_000)

Done = Callable[[OSError | None], None]
CallLater = Callable[[Micros, Callable[[], None]], object]


class SimulatedCrash(BaseException):
    """The cut asked for by `crash_at`: an event, which no code may catch as an error."""


class SimFile:
    """A handle; dead once its process is."""

    __slots__ = ("_closed", "_disk", "_epoch", "_inode", "_path", "_syncing")

    def __init__(self, disk: "SimDisk", path: str, inode: Inode, epoch: int) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._epoch = epoch
        self._syncing = False
        self._closed = False

    @property
    def path(self) -> str:
        return self._path

    def _check(self) -> None:
        assert not self._closed, f"{self._path} is used after close"
        assert self._epoch == self._disk.epoch, f"{self._path} was opened before the crash"

    def write(self, position: int, vectors: Sequence[Buffer]) -> None:
        self._check()
        length = sum(map(len, vectors))
        disk, inode = self._disk, self._inode
        if disk.step("write", self._path):
            self._write_part(position, vectors, disk.entropy.below(length + 1) if length else 0)
            raise SimulatedCrash
        growth = position + length - inode.size
        if growth > 0:
            room = disk.free_bytes()
            if growth > room:
                self._write_part(position, vectors, max(0, length - growth + room))
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
            disk.used_bytes += growth
        if length:
            inode.put(position, vectors, length)

    def _write_part(self, position: int, vectors: Sequence[Buffer], length: int) -> None:
        if length:
            growth = position + length - self._inode.size
            self._disk.used_bytes += max(0, growth)
            self._inode.put(position, [b"".join(vectors)[:length]], length)

    def sync(self, done: Done) -> None:
        self._check()
        assert not self._syncing, "at most one sync may be outstanding per file"
        disk, inode = self._disk, self._inode
        disk.cut("sync", self._path)
        self._syncing = True
        covered = list(inode.writes)
        error = disk.sync_error(self._path)

        def complete() -> None:
            if self._epoch != disk.epoch:
                return
            disk.cut("synced", self._path)
            self._syncing = False
            disk.syncs += 1
            finish_sync(inode, covered, error)
            done(error)

        disk.call_later(disk.sync_delay_of(self._path), complete)

    def sync_now(self) -> None:
        self._check()
        disk = self._disk
        disk.cut("sync_now", self._path)
        disk.syncs += 1
        error = disk.sync_error(self._path)
        finish_sync(self._inode, list(self._inode.writes), error)
        if error is not None:
            raise error

    def read(self, position: int, length: int) -> bytes:
        self._check()
        inode = self._inode
        if self._disk.unreadable and any(part in self._path for part in self._disk.unreadable):
            raise OSError(errno.EIO, os.strerror(errno.EIO), self._path)
        stop = min(position + length, inode.size)
        if stop <= position:
            return b""
        data = bytes(inode.data[position:stop])
        missing = stop - position - len(data)
        return data + bytes(missing) if missing else data

    def size(self) -> int:
        self._check()
        return self._inode.size

    def close(self) -> None:
        self._closed = True


@dataclass(slots=True)
class _Stall:
    """The next `times` syncs of matching paths take `delay` longer."""

    path_contains: str
    times: int
    delay: Micros


class SimDisk:
    """One data directory. It outlives its processes: `kill` and `power_loss` end one."""

    def __init__(
        self,
        call_later: CallLater,
        entropy: Entropy,
        *,
        capacity_bytes: int = UNLIMITED_BYTES,
        sync_delay: Micros = SYNC_MICROS,
        prepare_delay: Micros = PREPARE_MICROS,
    ) -> None:
        self.call_later = call_later
        self.entropy = entropy
        self.capacity_bytes = capacity_bytes
        self.sync_delay = sync_delay
        self.prepare_delay = prepare_delay
        self.used_bytes = 0
        self.syncs = 0
        self.epoch = 0
        self.operations = 0
        self.crash_at = 0
        """Number of the operation at which the crash comes; 0: none."""
        self.on_operation: Callable[[int, str, str], None] | None = None
        self.unreadable: set[str] = set()
        """Reads of paths that contain one of these fail with EIO."""
        self._names: dict[str, Inode] = {}
        self._durable_names: dict[str, Inode] = {}
        self._changes: list[tuple[str, str, str, Inode]] = []
        self._directories = {""}
        self._stalls: list[_Stall] = []
        self._failing_syncs: dict[str, int] = {}
        self._locked = False

    # --- Counting and cutting -----------------------------------------------------------------

    def step(self, kind: str, path: str) -> bool:
        """Count one operation; whether it is the one to be cut."""
        self.operations += 1
        if self.on_operation is not None:
            self.on_operation(self.operations, kind, path)
        return self.operations == self.crash_at

    def cut(self, kind: str, path: str) -> None:
        if self.step(kind, path):
            raise SimulatedCrash

    # --- The port -----------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> SimFile:
        if create:
            if path in self._names:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            self._check_parent(path)
            self.cut("create", path)
            self._create(path)
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return SimFile(self, path, inode, self.epoch)

    def prepare(self, path: str, size: int, done: Done, *, written: bool) -> None:
        """Written or reserved: it reads as zeros either way, and nothing here costs time by size."""
        del written
        assert path not in self._names, f"{path} exists"
        self._check_parent(path)
        self.cut("prepare", path)
        inode = self._create(path)
        inode.preparing = size
        epoch = self.epoch

        def complete() -> None:
            if epoch != self.epoch:
                return
            self.cut("prepared", path)
            inode.preparing = 0
            if size > self.free_bytes():
                del self._names[path]
                self._changes.append(("remove", path, "", inode))
                done(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path))
                return
            self.used_bytes += size
            inode.size = inode.durable_size = size
            done(None)

        self.call_later(self.prepare_delay, complete)

    def names(self, directory: str) -> list[str]:
        prefix = f"{directory}/" if directory else ""
        paths = [*self._names, *self._directories]
        below = {path[len(prefix) :].partition("/")[0] for path in paths if path.startswith(prefix)}
        return sorted(name for name in below if name)

    def make_directory(self, path: str) -> None:
        self.cut("make_directory", path)
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            self._directories.add("/".join(parts[:count]))

    def rename(self, old: str, new: str) -> None:
        if old in self._directories:
            self._move(old, new)
            return
        inode = self._inode(old)
        self.cut("rename", new)
        replaced = self._names.get(new)
        if replaced is not None:
            self.used_bytes -= replaced.size
        del self._names[old]
        self._names[new] = inode
        self._changes.append(("rename", old, new, inode))

    def _move(self, old: str, new: str) -> None:
        """A directory, whole; durable at once, which asks less of the caller than a real disk."""
        unsynced = [path for _, path, _, _ in self._changes if path.startswith(f"{old}/")]
        assert not unsynced, f"{unsynced} must be durable before {old} is moved"
        assert not self.names(new), f"{new} is there"
        self.cut("rename", new)
        for names in (self._names, self._durable_names):
            for path in [path for path in names if path.startswith(f"{old}/")]:
                names[f"{new}{path[len(old) :]}"] = names.pop(path)
        self._directories.discard(old)
        self._directories.add(new)

    def remove(self, path: str) -> None:
        if path in self._directories:
            self.cut("remove", path)
            assert not self.names(path), f"directory {path} is not empty"
            self._directories.discard(path)
            return
        inode = self._inode(path)
        self.cut("remove", path)
        del self._names[path]
        self.used_bytes -= inode.size
        self._changes.append(("remove", path, "", inode))

    def sync_directory(self, path: str) -> None:
        self.cut("sync_directory", path)
        left = []
        for change in self._changes:
            if change[1].rpartition("/")[0] == path:
                self._make_durable(change)
            else:
                left.append(change)
        self._changes = left

    def free_bytes(self) -> int:
        return max(0, self.capacity_bytes - self.used_bytes)

    def lock(self) -> None:
        if self._locked:
            raise InvalidArgument("the data directory is in use by another simulated process")
        self._locked = True

    def unlock(self) -> None:
        self._locked = False

    def _inode(self, path: str) -> Inode:
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return inode

    def _check_parent(self, path: str) -> None:
        if path.rpartition("/")[0] not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def _create(self, path: str) -> Inode:
        inode = Inode()
        self._names[path] = inode
        self._changes.append(("create", path, "", inode))
        return inode

    def _make_durable(self, change: tuple[str, str, str, Inode]) -> None:
        kind, path, new, inode = change
        durable = self._durable_names
        if kind == "create":
            durable[path] = inode
        elif durable.get(path) is inode:
            del durable[path]
        if kind == "rename":
            durable[new] = inode

    # --- Crashes ------------------------------------------------------------------------------

    def kill(self) -> None:
        """The process dies, the machine goes on."""
        self._end_process()
        for inode in self._names.values():
            if inode.preparing:
                inode.size = self.entropy.below(inode.preparing + 1)
                inode.preparing = 0
                self.used_bytes += inode.size

    def power_loss(self) -> None:
        """The machine dies; what was not synced may be lost, in any part."""
        self._end_process()
        entropy = self.entropy
        mood = entropy.below(3)
        for change in self._changes:
            if mood == 1 or (mood == 2 and entropy.below(2)):
                self._make_durable(change)
        self._changes.clear()
        self._names = dict(sorted(self._durable_names.items()))
        for inode in self._names.values():
            inode.lose(entropy)
        self.used_bytes = sum(inode.size for inode in self._names.values())

    def _end_process(self) -> None:
        self.epoch += 1
        self.crash_at = 0
        self._locked = False

    # --- Faults -------------------------------------------------------------------------------

    def fail_syncs(self, times: int, *, path_contains: str = "") -> None:
        """The next `times` syncs of matching paths fail with EIO; -1: all of them."""
        self._failing_syncs[path_contains] = times

    def stall(self, delay: Micros, *, times: int = 1, path_contains: str = "") -> None:
        """The next `times` syncs of matching paths take `delay` longer."""
        self._stalls.append(_Stall(path_contains, times, delay))

    def end_stalls(self) -> None:
        """Syncs that begin from now on take their usual time."""
        self._stalls.clear()

    def sync_error(self, path: str) -> OSError | None:
        for part, times in self._failing_syncs.items():
            if times and part in path:
                self._failing_syncs[part] = times - 1 if times > 0 else times
                return OSError(errno.EIO, os.strerror(errno.EIO), path)
        return None

    def sync_delay_of(self, path: str) -> Micros:
        for stall in self._stalls:
            if stall.path_contains in path:
                stall.times -= 1
                if not stall.times:
                    self._stalls.remove(stall)
                return Micros(self.sync_delay + stall.delay)
        return self.sync_delay

    # --- Damage, on the platter and in the page cache -----------------------------------------

    def contents(self, path: str) -> bytes:
        """All bytes of a file, as a reader would see them."""
        inode = self._inode(path)
        return bytes(inode.data) + bytes(inode.size - len(inode.data))

    def paths(self) -> list[str]:
        return sorted(self._names)

    def overwrite(self, path: str, position: int, data: bytes) -> None:
        """Bytes change under the file system: rot, a misdirected write."""
        inode = self._inode(path)
        assert position + len(data) <= inode.size, "damage does not lengthen a file"
        missing = position + len(data) - len(inode.data)
        if missing > 0:
            inode.data.extend(bytes(missing))
        inode.data[position : position + len(data)] = data

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        byte = self.contents(path)[position]
        self.overwrite(path, position, bytes([byte ^ 1 << bit]))

    def zero(self, path: str, start: int, stop: int) -> None:
        self.overwrite(path, start, bytes(stop - start))

    def lose_sector(self, path: str, sector: int, *, keep_bytes: int = 0) -> None:
        """A lost write: the sector holds what it held before its last `512 - keep_bytes` bytes."""
        start = sector * SECTOR_BYTES
        stop = min(start + SECTOR_BYTES, self._inode(path).size)
        self.zero(path, start + keep_bytes, stop)

    def misdirect_sector(self, path: str, source: int, target: int) -> None:
        """A misdirected write: one sector's content lies in another's place too."""
        data = self.contents(path)[source * SECTOR_BYTES : (source + 1) * SECTOR_BYTES]
        self.overwrite(path, target * SECTOR_BYTES, data)

    def truncate(self, path: str, size: int) -> None:
        inode = self._inode(path)
        self.used_bytes -= inode.size - size
        inode.size = inode.durable_size = size
        del inode.data[size:]

    def lose_all(self) -> None:
        """The disk is replaced by an empty one."""
        for path in self.paths():
            self.lose_file(path)
        self._directories &= {""}

    def lose_file(self, path: str) -> None:
        """A file vanishes, durably."""
        inode = self._names.pop(path)
        self.used_bytes -= inode.size
        self._changes = [change for change in self._changes if change[3] is not inode]
        for name in [name for name, other in self._durable_names.items() if other is inode]:
            del self._durable_names[name]
