"""Starts the process anew with a fixed hash seed.

The order of a set of str or bytes depends on a seed that Python draws when it starts, so that a run
can be repeated in another process only if both start with the same one. Machines must not depend on
it at all; the simulator fixes it so that whatever else does (a library, a test) repeats as well.
"""

import os
import sys

HASH_SEED = "0"


def has_fixed_hashes() -> bool:
    """Whether this process hashes alike in every run."""
    return not sys.flags.hash_randomization


def fix_hashes() -> None:
    """Return if hashes are fixed; else replace this process by the same command with them fixed."""
    if has_fixed_hashes():
        return
    environment = os.environ | {"PYTHONHASHSEED": HASH_SEED}
    sys.stdout.flush()
    sys.stderr.flush()
    command = [sys.executable, *sys.orig_argv[1:]]
    os.execve(sys.executable, command, environment)  # noqa: S606 - our own command line again.
