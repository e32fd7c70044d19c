"""The outside world, as four ports: clock, disk, network, entropy.

Everything above this package reaches time, bytes on disk, other machines and randomness through
these protocols alone, so that the very same code runs on real hardware (the modules beside this
one) and in the deterministic simulator (`raftq.sim`). The only threads of raftq live here.

Rules

1. All calls are made from one event-loop thread, and all callbacks come back on it. The loop itself
   is asyncio's interface: `call_soon`, `call_later`, `create_future`, `create_task`,
   `asyncio.timeout`. Nothing else of asyncio's I/O is used above this package.
2. Paths are relative to the data directory and use "/".
3. A file's `write` is buffered (page cache) and done when it returns; it is durable only when a
   `sync` of *the same file*, asked for after it, has completed. A new name is durable only after
   `sync_directory`. Completions are per file and never speak of another file.
4. A failed sync is never retried: what it should have covered may be lost although later syncs
   succeed. The caller must stop using the replica.
5. Connections deliver bytes to an `asyncio.BufferedProtocol`; what is written to a transport after
   its connection broke is dropped silently.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from raftq.ids import Micros

Buffer = bytes | bytearray | memoryview


class Clock(Protocol):
    """Two clocks in microseconds: one that never goes back, and the wall's, which may."""

    def monotonic(self) -> Micros: ...

    def wall(self) -> Micros: ...


class Entropy(Protocol):
    """Randomness: for identities, jitter, and nothing secret."""

    def below(self, bound: int) -> int:
        """A uniform integer in [0, bound)."""
        ...

    def bits(self, count: int) -> int:
        """A uniform integer of `count` bits, never 0 (identities use 0 for nobody)."""
        ...


class File(Protocol):
    """One open file."""

    @property
    def path(self) -> str: ...

    def write(self, position: int, vectors: Sequence[Buffer]) -> None:
        """Write the vectors at `position`, all of them, into the page cache.

        Raises: OSError (ENOSPC when the disk is full; a part may have been written).
        """
        ...

    def sync(self, done: Callable[[OSError | None], None]) -> None:
        """Make what was written to this file durable; `done` is called later, on the loop.

        At most one sync may be outstanding per file.
        """
        ...

    def sync_now(self) -> None:
        """The same, blocking; for recovery, before a node serves anything."""
        ...

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes; fewer at the end of the file.

        Raises: OSError.
        """
        ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """One data directory."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; with `create` the file must not exist yet.

        Raises: FileNotFoundError, FileExistsError, OSError.
        """
        ...

    def prepare(
        self, path: str, size: int, done: Callable[[OSError | None], None], *, written: bool
    ) -> None:
        """Make a file of `size` zeros in the background, synced; then call `done`.

        With `written` its blocks are really written, which makes the later fdatasyncs of an append
        cheap (no extent to convert) and costs the disk the size once more; else they are reserved.
        """
        ...

    def names(self, directory: str) -> list[str]:
        """Sorted names of what a directory holds; empty if there is no such directory."""
        ...

    def make_directory(self, path: str) -> None:
        """Make it and its parents, and make the new names durable. Existing ones are fine."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Atomic; durable after `sync_directory`.

        Also of a directory, whose own names must be durable; `new` does not exist then.
        """
        ...

    def remove(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def free_bytes(self) -> int: ...

    def lock(self) -> None:
        """Take the data directory for this process.

        Raises: InvalidArgument when another process holds it, naming it.
        """
        ...

    def unlock(self) -> None: ...


class Transport(Protocol):
    """The sending half of a connection (asyncio's transports fit)."""

    def write(self, data: Buffer) -> None: ...

    def writelines(self, list_of_data: Sequence[Buffer]) -> None: ...

    def get_write_buffer_size(self) -> int: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...

    def is_closing(self) -> bool: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_extra_info(self, name: str, default: object = None) -> object: ...


class Listener(Protocol):
    """A listening port."""

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens; the port is the real one if 0 was asked for."""
        ...

    def close(self) -> None: ...


ProtocolFactory = Callable[[], asyncio.BufferedProtocol]


class Network(Protocol):
    """Streams of bytes between addresses."""

    async def connect(self, host: str, port: int, factory: ProtocolFactory) -> None:
        """Connect; `factory()` makes the protocol, whose connection_made has run on return.

        Raises: OSError.
        """
        ...

    async def listen(self, host: str, port: int, factory: ProtocolFactory) -> Listener:
        """Accept connections from now on.

        Raises: OSError (the address is taken, or not ours).
        """
        ...


@dataclass(frozen=True, slots=True)
class Environment:
    """The four ports together, and which run of the machine this is: what a node is built from."""

    clock: Clock
    disk: Disk
    network: Network
    entropy: Entropy
    boot: int
    """Names the run of the machine, not of the process: while it is the same, what was written to
    the page cache has survived."""
