"""The real disk: one data directory, files by positional reads and writes, syncs in the background.

Rules

1. Writes and reads go through the page cache on the loop's thread; syncs and the writing of zeros
   never do. Syncs are awaited through Linux AIO where it works, through threads elsewhere:
   `sync_method` says which.
2. At most one sync is outstanding per file. A file closed meanwhile is closed once it has returned,
   and its completion is still delivered.
3. `unlock` ends the background work after waiting for it; a disk is not used after that.
"""

import contextlib
import errno
import fcntl
import os
import pathlib
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from raftq.env import Buffer, File
from raftq.env.aio import AioSync, AioUnavailableError
from raftq.env.disk_threads import DiskThreads, Done
from raftq.errors import InvalidArgument
from raftq.limits import IOV_MAX, MIB

SyncMethod = Literal["aio", "threads"]

SYNC_THREADS_MAX = 4
"""Groups whose syncs are awaited at once without AIO; on one disk they share its journal anyway."""

ZEROS_STEP_BYTES = 1 * MIB
ZEROS_SYNC_BYTES = 8 * MIB
"""Zeros are synced in portions: one long sync would make those of the logs wait behind it."""

_ZEROS = bytes(ZEROS_STEP_BYTES)

sync_data = getattr(os, "fdatasync", os.fsync)


class RealFile:
    """One descriptor. `sync_with` asks for a sync of it and reports the result."""

    __slots__ = ("_closing", "_fd", "_path", "_sync_with", "_syncing")

    def __init__(self, path: str, fd: int, sync_with: Callable[[int, Done], None]) -> None:
        self._path = path
        self._fd = fd
        self._sync_with = sync_with
        self._syncing: Done | None = None
        self._closing = False

    @property
    def path(self) -> str:
        return self._path

    def write(self, position: int, vectors: Sequence[Buffer]) -> None:
        assert not self._closing, "written after close"
        if len(vectors) <= IOV_MAX:
            length = sum(map(len, vectors))
            written = os.pwritev(self._fd, vectors, position) if length else 0
            if written != length:
                self._write_rest(position, vectors, written)
            return
        for first in range(0, len(vectors), IOV_MAX):
            part = vectors[first : first + IOV_MAX]
            self.write(position, part)
            position += sum(map(len, part))

    def _write_rest(self, position: int, vectors: Sequence[Buffer], written: int) -> None:
        """The kernel took only a part: the disk is nearly full, or the vectors are over 2 GiB."""
        rest = memoryview(b"".join(vectors))
        while written < len(rest):
            count = os.pwrite(self._fd, rest[written:], position + written)
            if count == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
            written += count

    def sync(self, done: Done) -> None:
        assert not self._closing, "synced after close"
        assert self._syncing is None, "at most one sync may be outstanding per file"
        self._syncing = done
        self._sync_with(self._fd, self._synced)

    def _synced(self, error: OSError | None) -> None:
        done = self._syncing
        assert done is not None, "a completion of no sync"
        self._syncing = None
        if self._closing:
            os.close(self._fd)
        done(error)

    def sync_now(self) -> None:
        assert not self._closing, "synced after close"
        sync_data(self._fd)

    def read(self, position: int, length: int) -> bytes:
        assert not self._closing, "read after close"
        data = os.pread(self._fd, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]
        count = len(data)
        while count < length and (data := os.pread(self._fd, length - count, position + count)):
            parts.append(data)
            count += len(data)
        return b"".join(parts)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """Close it; twice is fine. With a sync outstanding, once that has returned."""
        if self._closing:
            return
        self._closing = True
        if self._syncing is None:
            os.close(self._fd)


class RealDisk:
    """The data directory `root`, made if it does not exist. `sync_method` forces one, for tests."""

    def __init__(self, root: str, *, sync_method: SyncMethod | None = None) -> None:
        self._root = pathlib.Path(root).resolve()
        self._lock_fd: int | None = None
        self._ending = threading.Event()
        self.make_directory("")
        self._preparers = DiskThreads(name="raftq-prepare", threads_max=1)
        self._threads = DiskThreads(name="raftq-sync", threads_max=SYNC_THREADS_MAX)
        self._aio = None if sync_method == "threads" else _probed_aio(self._root)
        assert self._aio is not None or sync_method != "aio", "Linux AIO does not work here"
        self._sync_with = self._sync_by_thread if self._aio is None else self._aio.sync

    @property
    def sync_method(self) -> SyncMethod:
        """How syncs are awaited."""
        return "threads" if self._aio is None else "aio"

    def open(self, path: str, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        return RealFile(path, os.open(self._full(path), flags, 0o600), self._sync_with)

    def prepare(self, path: str, size: int, done: Done, *, written: bool) -> None:
        assert size > 0, "an empty file needs no preparing"
        # Where extents cannot be reserved, writing them is the only way.
        written = written or not hasattr(os, "posix_fallocate")
        self._preparers.submit(partial(self._make, self._full(path), size, written), done)

    def names(self, directory: str) -> list[str]:
        try:
            return sorted(entry.name for entry in self._full(directory).iterdir())
        except FileNotFoundError:
            return []

    def make_directory(self, path: str) -> None:
        missing = []
        full = self._full(path)
        while not full.is_dir():
            missing.append(full)
            full = full.parent
        for full in reversed(missing):
            # Another process may make the same one; the lock decides later whose it is.
            with contextlib.suppress(FileExistsError):
                full.mkdir(mode=0o700)
            _sync_directory(full.parent)

    def rename(self, old: str, new: str) -> None:
        self._full(old).rename(self._full(new))

    def remove(self, path: str) -> None:
        """Remove a file, or an empty directory."""
        full = self._full(path)
        if full.is_dir():
            full.rmdir()
        else:
            full.unlink()

    def sync_directory(self, path: str) -> None:
        _sync_directory(self._full(path))

    def free_bytes(self) -> int:
        facts = os.statvfs(self._root)
        return facts.f_bavail * facts.f_frsize

    def lock(self) -> None:
        assert self._lock_fd is None, "this disk is locked by itself"
        fd = os.open(self._full("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            if error.errno not in {errno.EWOULDBLOCK, errno.EACCES}:
                raise
            raise InvalidArgument(
                f"data directory {self._root} is in use by process {holder}; "
                "stop that process, or choose another data directory"
            ) from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode("ascii"), 0)
        self._lock_fd = fd

    def unlock(self) -> None:
        """End the background work and give the directory back; twice is fine."""
        self._ending.set()
        self._preparers.close()
        self._threads.close()
        if self._aio is not None:
            self._aio.close()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _full(self, path: str) -> pathlib.Path:
        assert not path.startswith("/"), "paths are relative to the data directory"
        assert ".." not in path.split("/"), "paths stay inside the data directory"
        return self._root / path

    def _sync_by_thread(self, fd: int, done: Done) -> None:
        self._threads.submit(partial(sync_data, fd), done)

    def _make(self, full: pathlib.Path, size: int, written: bool) -> None:
        """Runs on the preparing thread. What is unfinished is removed again."""
        fd = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if hasattr(os, "posix_fallocate"):
                # Extents in one piece, and a full disk is noticed before the time is spent.
                os.posix_fallocate(fd, 0, size)
            if written:
                self._fill(fd, size)
            else:
                sync_data(fd)
        except OSError:
            full.unlink()
            raise
        finally:
            os.close(fd)

    def _fill(self, fd: int, size: int) -> None:
        position = 0
        while position < size:
            if self._ending.is_set():
                raise OSError(errno.ECANCELED, "the data directory is being closed")
            step = min(ZEROS_STEP_BYTES, size - position)
            position += os.pwrite(fd, memoryview(_ZEROS)[:step], position)
            if position % ZEROS_SYNC_BYTES == 0 or position == size:
                begun = time.monotonic()
                sync_data(fd)
                # As long as the disk was ours, it is left to the logs.
                if position < size:
                    self._ending.wait(time.monotonic() - begun)


def _sync_directory(full: pathlib.Path) -> None:
    fd = os.open(full, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _probed_aio(root: pathlib.Path) -> AioSync | None:
    try:
        aio = AioSync()
    except AioUnavailableError:
        return None
    try:
        aio.probe(str(root))
    except AioUnavailableError:
        aio.close()
        return None
    return aio
