"""A child process that never outlives its parent, however that one ends.

Two ways, because each has a gap: the parent holds the writing end of the child's standard input, so
the child reads its end when the parent is gone; and the kernel is asked for a SIGKILL, which also
reaches a child that is stopped. The kernel counts the parent's *thread*: start such children from a
thread that stays.
"""

import ctypes
import os
import signal
import sys
import threading
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def exit_with_parent() -> None:
    """Called by the child: end this process at once when the parent is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    threading.Thread(target=_watch_standard_input, name="raftq-parent", daemon=True).start()


def _watch_standard_input() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGKILL)
