"""Handles and tasks of the simulator's loop: asyncio's own, made cheap and deterministic.

Rules

1. A task hashes by its serial number: the sets that asyncio keeps iterate alike in every process.
2. A task knows its process from the context it was made with (`process.py`).
"""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from raftq.sim.process import PROCESS

if TYPE_CHECKING:
    from raftq.sim.loop import SimLoop


class SimHandle(asyncio.TimerHandle):
    """A callback that is ready, or will be at a time. asyncio's own, without what debugging needs."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[object, ...],
        loop: "SimLoop",
        context: contextvars.Context,
        when: float,
    ) -> None:
        # asyncio's constructor is not called: it costs more than running a small callback.
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._loop = loop
        self._context = context
        self._source_traceback = None
        self._repr = None
        self._when = when
        self._scheduled = False

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            # What a cancelled callback held is free at once, not when its time would have come.
            self._callback = None  # type: ignore[assignment]
            self._args = None  # type: ignore[assignment]
            if self._scheduled:
                self._loop.timer_cancelled()


class SimTask(asyncio.Task[Any]):
    """A task that hashes by serial number and knows its process."""

    __slots__ = ("process", "serial")

    def __init__(
        self,
        serial: int,
        work: Coroutine[Any, Any, Any],
        *,
        loop: "SimLoop",
        name: str,
        context: contextvars.Context,
    ) -> None:
        # Before asyncio's constructor, which puts the task into a set.
        self.serial = serial
        self.process = context.get(PROCESS)
        super().__init__(work, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self.serial

    def silence(self) -> None:
        """It will never finish, and that is no news."""
        setattr(self, "_log_destroy_pending", False)  # noqa: B010 - unknown to the type stubs.
