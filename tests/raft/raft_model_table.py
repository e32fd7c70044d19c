"""Explores configurations of the model and prints a table of what there was: see tools/explore.

A line of progress goes to stderr, the table to stdout. A violation is printed with a shortest way to
it, event by event. Exit code 0: all were explored to the end and nothing was violated.
"""

import argparse
import sys
from ast import literal_eval
from dataclasses import fields, replace

from raft_model import World
from raft_model_configs import LARGE, SMALL, Config

BOUNDS = {field.name for field in fields(Config)} - {"name", "what", "lost"}


def bound(text):
    """A bound as NAME=VALUE, the value as Python writes it.

    Raises: ValueError, which argparse turns into a usage error.
    """
    name, _, value = text.partition("=")
    if name not in BOUNDS:
        raise ValueError(name)
    return name, value if name in {"fault", "first"} else literal_eval(value)


def arguments():
    parser = argparse.ArgumentParser(prog="tools/explore")
    parser.add_argument("--config", action="append", default=[], choices=[c.name for c in LARGE])
    parser.add_argument("--bounds", nargs="+", default=[], type=bound, metavar="NAME=VALUE")
    parser.add_argument("--small", action="store_true", help="the bounds of the test suite")
    parser.add_argument("--list", action="store_true", help="what there is, and its bounds")
    parser.add_argument(
        "--seconds", type=float, default=480, help="of CPU, for each; then it stops"
    )
    return parser.parse_args()


def line(depth, states, waiting, seconds):
    """Progress, on one line that is written over."""
    print(
        f"\r  depth {depth}, {states:,} states, {waiting:,} of them new, {seconds:.0f} s",
        end="\033[K", file=sys.stderr, flush=True,
    )  # fmt: skip


def main():
    options = arguments()
    chosen = SMALL if options.small else LARGE
    chosen = [config for config in chosen if config.name in options.config or not options.config]
    chosen = [replace(config, **dict(options.bounds)) for config in chosen]
    if options.list:
        for config in chosen:
            print(f"{config.name}: {config.what}\n  {bounds_of(config)}")
        return 0
    print("| configuration | states | transitions | depth | states of a replica | seconds | |")
    print("|---|---:|---:|---:|---:|---:|---|")
    code = 0
    for config in chosen:
        report = World(config).explore(progress=line, seconds=options.seconds)
        print("\r\033[K", end="", file=sys.stderr)
        verdict = report.violation or ("complete" if report.complete else "stopped")
        print(
            f"| {config.name} | {report.states:,} | {report.transitions:,} | {report.depth} "
            f"| {report.replica_states:,} | {report.seconds:.1f} | {verdict} |",
            flush=True,
        )
        for number, event in enumerate(report.trace, 1):
            print(f"  {number:3} {event}")
        code |= not report.complete
    return code


def bounds_of(config):
    """What differs from the defaults."""
    plain = Config(config.name, config.what)
    return ", ".join(
        f"{name}={value}" for name in sorted(BOUNDS)
        if (value := getattr(config, name)) != getattr(plain, name)
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
