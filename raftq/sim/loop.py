"""A deterministic asyncio event loop: time is a number, and nothing is polled.

Theory of operation. There is a queue of callbacks that are ready and a heap of timers, ordered by
(time, sequence). While something is ready it runs, first come, first served. When nothing is, time
jumps to the earliest timer; all timers of that instant become ready in the order of their making.
Running costs no virtual time. There is no selector and no thread: the simulated network and disk
are timers too.

Rules

1. The order of callbacks depends on the seed alone. Tasks hash by serial number, so that the sets
   asyncio keeps of them iterate alike in every process. The garbage collector, which finalises
   tasks and generators in cycles, is off from construction to `close` and runs at fixed times.
2. An exception that nobody handles ends `run_*` with SimulationError.
3. Callbacks belong to processes (`process.py`): those of a paused one wait, those of a dead one
   never run, and nothing of a dead one is finalised before `close`.
4. What a real loop would do with sockets, threads and signals raises NotImplementedError: code
   that is to be simulated must not ask for it.
"""
# ruff: noqa: SLF001 - a loop works on the private fields of asyncio's handles and tasks.

import asyncio
import collections
import contextlib
import contextvars
import gc
import heapq
import random
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from typing import Any, Self, TypeVar

from raftq.ids import Micros
from raftq.sim.process import DEAD, PROCESS, Process
from raftq.sim.task import SimHandle, SimTask
from raftq.sim.trace import Trace

Result = TypeVar("Result")

MICROS = 1_000_000
NO_SLACK = Micros(0)
COLLECT_EVERY_MICROS = 4 * MICROS
COLLECT_ALL_EVERY = 4
"""Mostly what was made since the last time is looked at: the whole heap of a cluster costs far more."""

YOUNG = 1
ALL = 2

CALLBACKS_PER_INSTANT_MAX = 2_000_000
"""More than this without time passing is code that waits for itself."""

CANCELLED_TIMERS_MAX = 1_000
"""Cancelled timers are dropped from the heap when there are more, and they are the majority."""


class SimulationError(Exception):
    """The run failed: the message says how, the cause is the exception that nobody handled."""


class SimLoop(asyncio.AbstractEventLoop):
    """Use as a context manager, or call `close`: until then the garbage collector is this loop's.

    With `timer_slack`, timers fire up to so many microseconds late, drawn from `seed`.
    """

    def __init__(
        self, *, seed: int = 0, timer_slack: Micros = NO_SLACK, trace: Trace | None = None
    ) -> None:
        self.now = Micros(0)
        self.callbacks = 0
        self.trace = trace if trace is not None else Trace()
        self._ready: collections.deque[SimHandle] = collections.deque()
        self._timers: list[tuple[int, int, SimHandle]] = []
        self._timers_cancelled = 0
        self._sequence = 0
        self._tasks_made = 0
        self._timer_slack = timer_slack
        self._random = random.Random(seed)
        self._failure: BaseException | None = None
        self._failure_message = ""
        self._stopping = False
        self._running = False
        self._closed = False
        self._collect_at = COLLECT_EVERY_MICROS
        self._collections = 0
        self._graveyard: list[object] = []
        self._generators: dict[int, Process | None] = {}
        self._collector_was_on = gc.isenabled()
        gc.disable()
        # What an earlier loop left behind would be frozen with the rest, again and again.
        gc.collect()
        gc.freeze()

    # --- What asyncio asks of a loop -----------------------------------------------------------

    def time(self) -> float:
        return self.now / MICROS

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def stop(self) -> None:
        self._stopping = True

    def call_soon(
        self,
        callback: Callable[..., object],
        *args: object,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        if context is None:
            context = contextvars.copy_context()
        handle = SimHandle(callback, args, self, context, 0.0)
        if not self._closed:
            self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: object,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        when = self.now + max(0, round(delay * MICROS))
        return self.call_at_micros(Micros(when), callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: object,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        return self.call_at_micros(Micros(round(when * MICROS)), callback, *args, context=context)

    def call_at_micros(
        self,
        when: Micros,
        callback: Callable[..., object],
        *args: object,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        """As call_at, in the loop's own unit."""
        moment: int = self.now
        if when > moment:
            moment = when
            if self._timer_slack:
                moment += int(self._random.random() * self._timer_slack)
        if context is None:
            context = contextvars.copy_context()
        handle = SimHandle(callback, args, self, context, moment / MICROS)
        if not self._closed:
            handle._scheduled = True
            self._sequence += 1
            heapq.heappush(self._timers, (moment, self._sequence, handle))
        return handle

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, Result] | Coroutine[Any, Any, Result],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> "asyncio.Task[Result]":
        assert asyncio.iscoroutine(coro), "generators are no coroutines any more"
        self._tasks_made += 1
        serial = self._tasks_made
        if context is None:
            context = contextvars.copy_context()
        return SimTask(serial, coro, loop=self, name=name or f"task-{serial}", context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Nothing may go unhandled: the first one ends the run."""
        subject = context.get("task") or context.get("future")
        process = subject.process if isinstance(subject, SimTask) else PROCESS.get()
        is_dead = process is not None and process.state == DEAD
        if self._closed or is_dead or self._failure is not None:
            return
        failure = context.get("exception")
        self._failure_message = context.get("message", "unhandled")
        self._failure = failure or SimulationError(repr(context.get("task", context)))

    async def shutdown_asyncgens(self) -> None:
        """asyncio.Runner asks for it; `close` does it."""

    async def shutdown_default_executor(self, *_: object) -> None:
        """There is no executor."""

    # --- Running -------------------------------------------------------------------------------

    def run_until(self, moment: Micros) -> None:
        """Run everything that happens up to and at `moment`."""
        assert moment >= self.now, "time does not go back"
        self._run(moment, lambda: False)
        if self.now < moment and not self._stopping:
            self.now = moment
            if moment >= self._collect_at:
                self._collect()
                self._run(moment, lambda: False)

    def run_for(self, duration: Micros) -> None:
        self.run_until(Micros(self.now + duration))

    def run_until_true(self, predicate: Callable[[], bool], *, limit: Micros) -> None:
        """Run until `predicate` holds; it is asked whenever time is about to pass.

        Raises: SimulationError if it does not within `limit`.
        """
        moment = Micros(self.now + limit)
        if not self._run(moment, predicate):
            raise SimulationError(
                f"at {self.time():.6f} s: what was waited for did not happen in {limit / MICROS} s"
            )

    def run_until_complete(self, future: Any) -> Any:
        """Run a coroutine or future to its end; time passes as far as that takes."""
        task = asyncio.ensure_future(future, loop=self)
        if not self._run(None, task.done) and not task.done():
            raise SimulationError(f"at {self.time():.6f} s: nothing is left to happen")
        return task.result()

    def run_forever(self) -> None:
        """Run until `stop`, or until nothing is left to happen."""
        self._run(None, lambda: False)

    def _run(self, moment: Micros | None, predicate: Callable[[], bool]) -> bool:
        """Run until the predicate holds (True), or time would pass `moment` (False)."""
        assert not self._running, "the loop runs already"
        assert not self._closed, "the loop is closed"
        self._stopping = False
        with self._set_up():
            while True:
                self._run_ready()
                if predicate():
                    return True
                if self._stopping or not self._advance(moment):
                    return False

    def _run_ready(self) -> None:
        """Run what is ready, and what becomes ready by it, without time passing."""
        ready = self._ready
        budget = CALLBACKS_PER_INSTANT_MAX
        while ready:
            handle = ready.popleft()
            if handle._cancelled:
                continue
            context = handle._context
            process = context.get(PROCESS)
            if process is not None and process.state:
                self._withhold(process, handle)
                continue
            budget -= 1
            try:
                context.run(handle._callback, *handle._args)
            except Exception as error:
                facts = {"message": "a callback raised", "exception": error}
                context.run(self.call_exception_handler, facts)
            if self._failure is not None:
                self._raise_failure()
            if not budget:
                raise SimulationError(f"at {self.time():.6f} s: time does not pass any more")
        self.callbacks += CALLBACKS_PER_INSTANT_MAX - budget

    def _advance(self, moment: Micros | None) -> bool:
        """Jump to the next timer, at most to `moment`; make those of that instant ready."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
            self._timers_cancelled -= 1
        if not timers:
            return False
        when = timers[0][0]
        if moment is not None and when > moment:
            return False
        self.now = Micros(when)
        if when >= self._collect_at:
            self._collect()
        while timers and timers[0][0] == when:
            handle = heapq.heappop(timers)[2]
            handle._scheduled = False
            if handle._cancelled:
                self._timers_cancelled -= 1
            else:
                self._ready.append(handle)
        return True

    def _collect(self) -> None:
        self._collect_at = self.now + COLLECT_EVERY_MICROS
        self.trace.mix(self.now, self.callbacks, self._sequence)
        self._collections += 1
        gc.collect(ALL if self._collections % COLLECT_ALL_EVERY == 0 else YOUNG)
        self._raise_failure()

    def timer_cancelled(self) -> None:
        """A timer in the heap was cancelled (its handle says so)."""
        self._timers_cancelled += 1
        if self._timers_cancelled > max(CANCELLED_TIMERS_MAX, len(self._timers) // 2):
            # Entries are unique, so that the order of what remains is what it was.
            self._timers[:] = [timer for timer in self._timers if not timer[2]._cancelled]
            heapq.heapify(self._timers)
            self._timers_cancelled = 0

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            message = f"at {self.time():.6f} s: {self._failure_message}: {failure!r}"
            raise SimulationError(message) from failure

    @contextlib.contextmanager
    def _set_up(self) -> Iterator[None]:
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._generator_begun, finalizer=self._generator_dropped)
        asyncio._set_running_loop(self)
        self._running = True
        try:
            yield
        finally:
            self._running = False
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    # --- Processes -----------------------------------------------------------------------------

    def _withhold(self, process: Process, handle: SimHandle) -> None:
        if process.state == DEAD:
            self._graveyard.append(handle)
        else:
            process.backlog.append(handle)

    def go_on_with(self, backlog: list[SimHandle]) -> None:
        """The process that these were kept for runs again."""
        self._ready.extend(backlog)

    def bury(self, process: Process) -> None:
        """Keep what a dead process leaves behind, so that nothing of it is finalised."""
        self._graveyard.append(process)
        for task in self._tasks():
            if task.process is process:
                self._graveyard.append(task)

    def keep(self, owned: object) -> None:
        """Keep `owned` until the loop is closed; for what belonged to a dead process."""
        self._graveyard.append(owned)

    def _tasks(self) -> list[SimTask]:
        """Unfinished tasks in the order of their making."""
        tasks = [task for task in asyncio.all_tasks(self) if isinstance(task, SimTask)]
        return sorted(tasks, key=lambda task: task.serial)

    # --- Asynchronous generators ---------------------------------------------------------------

    def _generator_begun(self, generator: AsyncGenerator[Any, Any]) -> None:
        # By address and without holding it: a finished generator leaves a row behind that the next
        # one at that address takes over.
        self._generators[id(generator)] = PROCESS.get()

    def _generator_dropped(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Python lets go of an unfinished one: its `finally` blocks run in a task of their own."""
        process = self._generators.pop(id(generator), None)
        if self._closed:
            return
        if process is None:
            self.create_task(_close_generator(generator))
        elif process.state == DEAD:
            self._graveyard.append(generator)
        else:
            self.create_task(_close_generator(generator), context=process.context.copy())

    # --- The end -------------------------------------------------------------------------------

    def close(self) -> None:
        """End it: what is unfinished is closed quietly, in order; the collector is given back."""
        if self._closed:
            return
        assert not self._running, "close from outside"
        self._closed = True
        self._ready.clear()
        self._timers.clear()
        for task in self._tasks():
            task.silence()
            coroutine = task.get_coro()
            # What a frame does on being closed concerns nobody any more.
            with contextlib.suppress(Exception):
                if isinstance(coroutine, Coroutine):
                    coroutine.close()
        self._graveyard.clear()
        gc.unfreeze()
        if self._collector_was_on:
            gc.enable()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _close_generator(generator: AsyncGenerator[Any, Any]) -> None:
    await generator.aclose()
