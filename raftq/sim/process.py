"""A simulated process: the owner of callbacks, which can be paused and killed.

Theory of operation. Every callback and task of asyncio carries a context. A process puts itself
into the context of what it starts, and all that follows from that inherits it; so the loop knows,
for each callback, whose it is. A paused process' callbacks are kept until it goes on; those of a
dead one never run.

Rules

1. Nothing of a dead process is finalised before the loop is closed: a `finally` block of a killed
   process must not act on the living. What is dropped goes to the loop's graveyard.
2. A process is never reused: a restart is a new process.
"""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from raftq.sim.loop import SimLoop
    from raftq.sim.task import SimHandle

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

RUNNING = 0
PAUSED = 1
DEAD = 2


class Process:
    """One process of the simulation, on the host of the same name unless told otherwise."""

    def __init__(self, loop: "SimLoop", name: str) -> None:
        self.name = name
        self.state = RUNNING
        self.backlog: list[SimHandle] = []
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)
        self._loop = loop

    @property
    def is_dead(self) -> bool:
        return self.state == DEAD

    @property
    def is_paused(self) -> bool:
        return self.state == PAUSED

    def call(
        self,
        function: Callable[Parameters, Result],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Result:
        """Run `function` as a part of this process, now."""
        assert self.state == RUNNING, f"{self.name} does not run"
        return self.context.copy().run(function, *args, **kwargs)

    def spawn(
        self, work: Coroutine[Any, Any, Result], *, name: str | None = None
    ) -> "asyncio.Task[Result]":
        """Start a task of this process."""
        assert self.state == RUNNING, f"{self.name} does not run"
        return self._loop.create_task(work, name=name, context=self.context.copy())

    def pause(self) -> None:
        """Stop it, as by SIGSTOP: its timers come late, what arrives waits in the kernel."""
        assert self.state == RUNNING, f"{self.name} does not run"
        self.state = PAUSED

    def resume(self) -> None:
        assert self.state == PAUSED, f"{self.name} is not paused"
        self.state = RUNNING
        self._loop.go_on_with(self.backlog)
        self.backlog = []

    def kill(self) -> None:
        """End it without a word, as by SIGKILL. What it owned is kept, and never runs again.

        Its connections and files are the business of the simulated network and disk.
        """
        assert self.state != DEAD, f"{self.name} is dead already"
        self.state = DEAD
        self._loop.bury(self)


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("PROCESS", default=None)
"""Whose code is running; None is the simulator itself."""
