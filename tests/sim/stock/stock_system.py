"""What stock pysyncobj finds in place of its operating system: simulated time, chance and files.

Theory of operation. pysyncobj takes the world from names in its modules: `open`, `os`, `mmap`,
`random`, a clock. `simulated_system` puts others there for a while; the code itself stays as it was
installed. All nodes share those modules, so each of the substitutes asks a context variable whose
code is running.

Rules

1. A file is written into the page cache, as the library does it: it never asks for a sync. The
   kernel writes everything back now and then (`write_back`), and what it has not yet written may be
   lost with the power. Where `is_durable` is set, every write is durable at once.
2. Work takes no virtual time. But the library has loops that end when the clock says so: whoever
   looks at the clock very often within one instant sees it move.
"""

import contextlib
import contextvars
import gzip
import io
import logging
import types
from unittest import mock

import pysyncobj.journal
import pysyncobj.serializer
import pysyncobj.syncobj

LOOKS_FREE = 100
LOOK_MICROS = 1_000
SECOND = 1_000_000
CHANCES = 1 << 53

SYSTEM = contextvars.ContextVar("SYSTEM")
"""The system of the process whose code is running."""


class System:
    """One process' view of its machine."""

    def __init__(self, name, environment, *, is_durable):
        self.name = name
        self.disk = environment.disk
        self.is_durable = is_durable
        self._clock = environment.clock
        self._entropy = environment.entropy
        self._instant = 0
        self._looks = 0
        self._reading = 0

    def monotonic(self):
        now = self._clock.monotonic()
        self._looks = self._looks + 1 if now == self._instant else 0
        self._instant = now
        spent = max(0, self._looks - LOOKS_FREE) * LOOK_MICROS
        self._reading = max(self._reading, now + spent)
        return self._reading / SECOND

    def random(self):
        return self._entropy.below(CHANCES) / CHANCES

    def open(self, path, mode):
        disk = self.disk
        if mode == "wb":
            if self.exists(path):
                disk.remove(path)
            file = disk.open(path, create=True)
            self.names_changed()
        else:
            file = disk.open(path)
        return StockFile(self, file, file.size() if mode == "ab" else 0)

    def exists(self, path):
        return path in self.disk.paths()

    def rename(self, old, new):
        self.disk.rename(old, new)
        self.names_changed()

    def names_changed(self):
        if self.is_durable:
            self.disk.sync_directory("")

    def write(self, file, position, data):
        file.write(position, [data])
        if self.is_durable:
            file.sync_now()


def write_back(disk):
    """The kernel writes all that is dirty, and the names."""
    for path in disk.paths():
        disk.open(path).sync_now()
    disk.sync_directory("")


class StockFile(io.RawIOBase):
    """An open file, as the built-in `open` would give it without a buffer of its own."""

    def __init__(self, system, file, position):
        super().__init__()
        self.system = system
        self.file = file
        self.position = position

    def readable(self):
        return True

    def writable(self):
        return True

    def seekable(self):
        return True

    def readinto(self, buffer):
        data = self.file.read(self.position, len(buffer))
        buffer[: len(data)] = data
        self.position += len(data)
        return len(data)

    def write(self, data):
        self.system.write(self.file, self.position, bytes(data))
        self.position += len(data)
        return len(data)

    def seek(self, offset, whence=io.SEEK_SET):
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.file.size()}
        self.position = start[whence] + offset
        return self.position

    def fileno(self):
        return self  # Only the mapping below asks for it.


class StockMap:
    """A file mapped into memory: what is stored there is in the page cache, as by a write."""

    def __init__(self, opened, length):
        self._system = opened.system
        self._file = opened.file

    def size(self):
        return self._file.size()

    def resize(self, size):
        before = self._file.size()
        self._system.write(self._file, before, bytes(size - before))

    def __getitem__(self, place):
        return self._file.read(place.start, place.stop - place.start)

    def __setitem__(self, place, data):
        self._system.write(self._file, place.start, data)

    def flush(self):
        self._file.sync_now()

    def close(self):
        """The file may be closed before its mapping or after."""


@contextlib.contextmanager
def simulated_system(create_journal):
    """While this lasts, the modules of pysyncobj see the simulated system of whoever runs."""
    files = {
        "open": lambda path, mode: SYSTEM.get().open(path, mode),
        "os": types.SimpleNamespace(
            path=types.SimpleNamespace(
                exists=lambda path: SYSTEM.get().exists(path),
                isfile=lambda path: SYSTEM.get().exists(path),
            )
        ),
    }

    def rename(old, new):
        SYSTEM.get().rename(old, new)

    substitutes = {
        pysyncobj.syncobj: {
            "monotonicTime": lambda: SYSTEM.get().monotonic(),
            "random": types.SimpleNamespace(random=lambda: SYSTEM.get().random()),
            "os": files["os"],
            "createJournal": create_journal,
            "PIPE_NOTIFIER_ENABLED": False,  # It wakes a thread, which there is not.
        },
        pysyncobj.journal: {
            **files,
            "mmap": types.SimpleNamespace(mmap=StockMap),
            "shutil": types.SimpleNamespace(move=rename),
        },
        pysyncobj.serializer: {
            **files,
            "atomicReplace": rename,
            # The header of a gzip file holds the time, which would come from outside.
            "gzip": types.SimpleNamespace(
                GzipFile=lambda **options: gzip.GzipFile(mtime=0, **options)
            ),
        },
    }
    log = logging.getLogger("pysyncobj")
    level = log.level
    with contextlib.ExitStack() as stack:
        for module, names in substitutes.items():
            stack.enter_context(mock.patch.multiple(module, create=True, **names))
        log.setLevel(logging.CRITICAL + 1)
        stack.callback(log.setLevel, level)
        yield
