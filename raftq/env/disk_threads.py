"""Dedicated threads for the calls that block on a disk.

Theory of operation. The loop's thread puts (work, done) into a queue; a thread runs the work, which
raises OSError or returns, and leaves (done, error) in a deque. Whoever leaves the first one asks
the loop to deliver; those that follow until it does are delivered with it, so that a burst of
completions wakes the loop once.

Rules

1. `done` is called exactly once for each submit, on the loop's thread.
2. Threads are started only while all present ones are busy, up to the bound; they are daemons, so
   that a disk that never answers cannot keep a process from ending.
3. `close` waits for what was submitted and delivers it before it returns.
"""

import asyncio
import collections
import queue
import threading
from collections.abc import Callable

Work = Callable[[], None]
Done = Callable[[OSError | None], None]


def deliver(loop: asyncio.AbstractEventLoop, done: Done, error: OSError | None) -> None:
    """Call `done`; a bug in one completion must not swallow those behind it."""
    try:
        done(error)
    except Exception as bug:
        loop.call_exception_handler({"message": "a disk completion failed", "exception": bug})


class DiskThreads:
    """At most `threads_max` threads, for the loop that first submits."""

    def __init__(self, *, name: str, threads_max: int) -> None:
        assert threads_max > 0, "work needs a thread"
        self._name = name
        self._threads_max = threads_max
        self._threads: list[threading.Thread] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: queue.SimpleQueue[tuple[Work, Done] | None] = queue.SimpleQueue()
        self._finished: collections.deque[tuple[Done, OSError | None]] = collections.deque()
        self._outstanding = 0
        self._waking = False
        self._closed = False

    def submit(self, work: Work, done: Done) -> None:
        assert not self._closed, "submitted to closed disk threads"
        loop = asyncio.get_running_loop()
        assert self._loop in {None, loop}, "disk threads serve one loop"
        self._loop = loop
        self._outstanding += 1
        if self._outstanding > len(self._threads) < self._threads_max:
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._asked.put((work, done))

    def close(self) -> None:
        """Wait for what was submitted, deliver it, end the threads. Blocks as long as the disk."""
        if self._closed:
            return
        self._closed = True
        for _ in self._threads:
            self._asked.put(None)
        for thread in self._threads:
            thread.join()
        self._deliver()
        assert self._outstanding == 0, "a completion was lost"

    def _work(self) -> None:
        loop = self._loop
        assert loop is not None, "a thread without a loop to report to"
        while (item := self._asked.get()) is not None:
            work, done = item
            error: OSError | None = None
            try:
                work()
            except OSError as failure:
                error = failure
            except Exception as bug:  # Reported as a failed disk: the caller stops, fail closed.
                error = OSError(f"disk work failed: {bug!r}")
                error.__cause__ = bug
            # The flag is cleared before the deque is drained, and read here after appending to it:
            # whichever comes first, no completion is left behind.
            self._finished.append((done, error))
            if not self._waking:
                self._waking = True
                try:
                    loop.call_soon_threadsafe(self._deliver)
                except RuntimeError:
                    # The loop is closed already: `close` delivers.
                    continue

    def _deliver(self) -> None:
        assert self._loop is not None or not self._finished, "finished work of no loop"
        self._waking = False
        while self._finished:
            done, error = self._finished.popleft()
            self._outstanding -= 1
            if self._loop is not None:
                deliver(self._loop, done, error)
