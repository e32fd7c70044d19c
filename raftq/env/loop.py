"""The real event loop: uvloop where it is installed, asyncio's own elsewhere.

Rules

1. `run` is for processes that are raftq's own (a node, the command line). It may therefore change
   the garbage collector for the whole process; embedded use brings its own loop and never calls it.
2. A server's start-up objects live as long as it does: they are frozen out of every collection, and
   collections come seldom, because one of a grown heap is a pause of many milliseconds.
"""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

SERVER_GC_THRESHOLDS = (50_000, 20, 100)
"""Allocations before a young collection, young before middle, middle before full ones."""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes this process's event loop."""
    try:
        import uvloop  # noqa: PLC0415 - absent on Windows, where asyncio's own loop serves.
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def run(main: Coroutine[Any, Any, Result], *, server: bool = False) -> Result:
    """Run `main` to its end on a new loop; Ctrl-C cancels it. `server` tunes the collector."""
    if server:
        gc.collect()
        gc.freeze()
        gc.set_threshold(*SERVER_GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)
