"""The command line: one noun a file, verbs inside.

    main         the commands together, and how an error ends one
    options      the options that many commands share
    output       what goes to standard output, for people or for machines
    connect      a client for the time of one command
    node, dev    nodes as processes; processes.py starts and kills them
    queue, messages, dead, cluster, log      what users do
    recover      `raftq cluster recover`: what is said before a majority is given up
    audit, bench, simulate     what judges and measures
    demo/        real input, three processes, one of them killed, everything counted

Rules

1. Standard output holds what was asked for and nothing else; with `--json` that is one object, or
   one a line where there may be many. Progress, logs and errors go to standard error.
2. An error is one line: its name, what happened, what to do, and whether it may have been done all
   the same; with `--json` an object. Exit status 0: done; 1: the operation
   failed; 2: the command was not understood.
3. Whatever a command does can be done with the library; a command only asks and shows.
"""

import os
import signal

_INTERRUPTED = 130


def main() -> None:
    """Run the command that the process was started with."""
    # Ctrl-C while modules are loaded ends the process silently: nothing has been begun.
    if ours := signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    # Imported here, so that whoever needs one file of this package does not pay for all of it.
    from raftq.cli.main import run  # noqa: PLC0415

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
