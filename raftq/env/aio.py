"""fdatasync without a thread: Linux AIO's IOCB_CMD_FDSYNC, completed through an eventfd.

Theory of operation. `io_submit` queues the sync on a kernel worker and returns; when it is done
the kernel counts up an eventfd that the event loop polls beside its sockets. No thread of ours, no
interpreter lock and no wake-up between threads is on the way, which halves a follower's CPU.

    struct iocb, 64 bytes, little endian, as on every 64-bit Linux that `SYSTEM_CALLS` knows
    | data u64 | key u32 | rw_flags u32 | opcode u16 | priority s16 | fd u32 |
    | buffer u64 | length u64 | offset s64 | reserved u64 | flags u32 | eventfd u32 |

Rules

1. `done` is called exactly once for each submit, on the loop's thread.
2. The completion's own result decides: below zero is a failed sync.
3. Unusable here (another system, an old or locked kernel, a file system without it) is
   `AioUnavailableError`, raised by the constructor or the probe, never later.
4. `close` waits for what was submitted and delivers it before it returns.
"""

import asyncio
import collections
import ctypes
import errno
import os
import platform
import struct
import sys
import tempfile
from typing import NamedTuple

from raftq.env.disk_threads import Done, deliver

OPCODE_FDSYNC = 3
FLAG_EVENTFD = 1

IOCB = struct.Struct("<QIIHhIQQqQII")
EVENT = struct.Struct("<QQqq")
assert IOCB.size == 64
assert EVENT.size == 32

REQUESTS_MAX = 1_024
"""Outstanding in the kernel: one per group of a large node. More wait here for their turn."""

PROBE_SECONDS = 5
"""A disk that takes longer for its first sync is judged by the threads, not waited for here."""


class SystemCalls(NamedTuple):
    """The numbers of the four calls; libc has no functions for them."""

    setup: int
    destroy: int
    getevents: int
    submit: int


SYSTEM_CALLS = {
    "x86_64": SystemCalls(setup=206, destroy=207, getevents=208, submit=209),
    "aarch64": SystemCalls(setup=0, destroy=1, getevents=4, submit=2),
}


class AioUnavailableError(Exception):
    """Linux AIO cannot be used here; the message says why."""


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


class AioSync:
    """One AIO context, for the loop that first submits."""

    def __init__(self) -> None:
        calls = SYSTEM_CALLS.get(platform.machine())
        if sys.platform != "linux" or calls is None:
            raise AioUnavailableError(f"not known on {sys.platform} {platform.machine()}")
        library = ctypes.CDLL(None, use_errno=True)
        self._system_call = library.syscall
        self._system_call.restype = ctypes.c_long
        self._calls = calls
        self._context = ctypes.c_uint64(0)
        # Everything that the kernel reads or fills is allocated once: a sync costs two calls.
        self._request = ctypes.create_string_buffer(IOCB.size)
        self._request_list = (ctypes.c_void_p * 1)(ctypes.addressof(self._request))
        self._events = ctypes.create_string_buffer(EVENT.size * REQUESTS_MAX)
        self._at_once = _Timespec(0, 0)
        try:
            self._call(calls.setup, ctypes.c_long(REQUESTS_MAX), ctypes.byref(self._context))
        except OSError as error:
            raise AioUnavailableError(f"io_setup: {error.strerror}") from error
        self._eventfd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ticket_next = 1
        self._in_kernel: dict[int, Done] = {}
        self._finished: collections.deque[tuple[Done, OSError | None]] = collections.deque()
        self._waiting: collections.deque[tuple[int, Done]] = collections.deque()
        self._closed = False

    def probe(self, directory: str) -> None:
        """Sync a nameless file in `directory` and wait for it.

        Raises: AioUnavailableError, OSError (the directory cannot be written at all).
        """
        results: list[OSError | None] = []
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"raftq")
            file.flush()
            try:
                self._submit(file.fileno(), results.append)
                self._reap(wait_for=1, timeout=_Timespec(PROBE_SECONDS, 0))
            except OSError as error:
                raise AioUnavailableError(f"io_submit: {error.strerror}") from error
        if results != [None]:
            raise AioUnavailableError(f"the first sync failed: {results or 'no answer'}")

    def sync(self, fd: int, done: Done) -> None:
        """Ask for an fdatasync of `fd`; the kernel keeps the file open until it is done."""
        assert not self._closed, "sync on a closed context"
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._eventfd, self._wake)
        if len(self._in_kernel) >= REQUESTS_MAX:
            # The file may be closed before its turn comes: its own descriptor is kept instead.
            self._waiting.append((os.dup(fd), done))
            return
        try:
            self._submit(fd, done)
        except OSError as error:
            # The kernel refused: that is a failed sync, told like any other.
            self._loop.call_soon(deliver, self._loop, done, error)

    def close(self) -> None:
        """Wait for what was submitted and deliver it. Blocks as long as the disk."""
        if self._closed:
            return
        while self._in_kernel or self._waiting:
            self._reap(wait_for=min(1, len(self._in_kernel)), timeout=None)
        self._deliver()
        self._closed = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._eventfd)
        self._call(self._calls.destroy, self._context)
        os.close(self._eventfd)

    def _submit(self, fd: int, done: Done) -> None:
        ticket = self._ticket_next
        self._ticket_next += 1
        IOCB.pack_into(
            self._request, 0, ticket, 0, 0, OPCODE_FDSYNC, 0, fd, 0, 0, 0, 0, FLAG_EVENTFD,
            self._eventfd,
        )  # fmt: skip
        taken = self._call(self._calls.submit, self._context, ctypes.c_long(1), self._request_list)
        assert taken == 1, "io_submit took nothing and said nothing"
        self._in_kernel[ticket] = done

    def _wake(self) -> None:
        # The counter is cleared before the events are read: one that comes between wakes us again.
        try:
            os.eventfd_read(self._eventfd)
        except BlockingIOError:
            return
        self._reap(wait_for=0, timeout=self._at_once)

    def _reap(self, *, wait_for: int, timeout: _Timespec | None) -> None:
        count = self._call(
            self._calls.getevents,
            self._context,
            ctypes.c_long(wait_for),
            ctypes.c_long(REQUESTS_MAX),
            self._events,
            None if timeout is None else ctypes.byref(timeout),
        )
        # The events are copied out first: the buffer is the kernel's to fill again.
        events = bytes(memoryview(self._events)[: count * EVENT.size])
        for ticket, _, result, _ in EVENT.iter_unpack(events):
            error = None if result >= 0 else OSError(-result, os.strerror(-result))
            self._finished.append((self._in_kernel.pop(ticket), error))
        self._deliver()
        while self._waiting and len(self._in_kernel) < REQUESTS_MAX:
            fd, done = self._waiting.popleft()
            try:
                self._submit(fd, done)
            except OSError as error:
                assert self._loop is not None, "what waits came through sync"
                deliver(self._loop, done, error)
            finally:
                os.close(fd)

    def _deliver(self) -> None:
        # A failed sync may end in `close`, from in here: nothing that has come may be waited for there.
        while self._finished:
            done, error = self._finished.popleft()
            if self._loop is None:
                done(error)
            else:
                deliver(self._loop, done, error)

    def _call(self, number: int, *arguments: object) -> int:
        while True:
            result = int(self._system_call(ctypes.c_long(number), *arguments))
            if result >= 0:
                return result
            code = ctypes.get_errno()
            if code != errno.EINTR:
                raise OSError(code, os.strerror(code))
