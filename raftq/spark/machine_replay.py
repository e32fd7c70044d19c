"""Replays one node's logs through fresh queue machines, in a process of its own.

    python -m raftq.spark.machine_replay < work        (JSON in, JSON lines out)

The work names replicas: {"group", "directory", "stop", "every"}. For each, the machine's digest is
told at every multiple of `every` and at `stop`, or the problem that ended the replay. Nodes are
replayed in processes with different hash seeds, as they are in production: a machine that depends
on the order of a set or of hashes comes to another state in one of them.

What happens to an entry here is what the host does with it: commands are applied, and an entry
without commands that begins a leader's term moves the deadlines by the gap before it.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from raftq.errors import Corrupted
from raftq.ids import Index, Micros
from raftq.machine import Meta
from raftq.queue.machine import QueueMachine
from raftq.spark.rows import KINDS, commands
from raftq.storage.offline import PlainFile, open_directory
from raftq.storage.reader import FoundEntry, entries_in, read_replica
from raftq.storage.snapshots import body_slices, read_header, snapshot_name


def digests(directory: Path, *, stop: int, every: int) -> Iterator[tuple[int, str]]:
    """(index, digest in hex) of a replica's machine, as it was at these indexes.

    Raises: Corrupted when the log cannot be replayed so far.
    """
    replica = read_replica(*open_directory(directory))
    machine = QueueMachine()
    before = replica.first_index - 1
    applied_log_time = 0
    if before:
        with closing(PlainFile(directory / snapshot_name(Index(before)))) as file:
            meta, position = read_header(file, replica.incarnation)
            machine.restore(body_slices(file, position))
        applied_log_time = meta.log_time
    for live in replica.ranges:
        with PlainFile(directory / live.name) as file:
            for found in entries_in(file, live):
                if before >= stop:
                    return
                before = _next(found, before)
                applied_log_time = _apply(machine, found, applied_log_time)
                if before % every == 0 or before == stop:
                    yield before, machine.digest().hex()
    if before < stop:
        raise Corrupted(f"the log ends at {before}")


def _next(found: FoundEntry, before: int) -> int:
    index = found.entry.index
    if index != before + 1 or not found.proved:
        raise Corrupted(f"entry {before + 1} is missing or damaged")
    return index


def _apply(machine: QueueMachine, found: FoundEntry, applied_log_time: int) -> int:
    entry = found.entry
    kind = KINDS[entry.kind]
    if kind == "commands":
        for position, (header, body) in enumerate(commands(entry)):
            machine.apply(Meta(entry.index, entry.term, entry.log_time, position), header, body)
    elif kind == "noop":
        gap = Micros(max(entry.log_time - applied_log_time, 0))
        machine.leader_changed(Meta(entry.index, entry.term, entry.log_time, 0), gap)
    return entry.log_time


def main() -> None:
    work: list[dict[str, Any]] = json.load(sys.stdin)
    for item in work:
        group = item["group"]
        try:
            found = digests(Path(item["directory"]), stop=item["stop"], every=item["every"])
            for index, digest in found:
                _tell(group=group, index=index, digest=digest)
        except Exception as error:  # A machine that raises is what is looked for.
            _tell(group=group, problem=f"{type(error).__name__}: {error}")


def _tell(**values: object) -> None:
    sys.stdout.write(json.dumps(values) + "\n")


if __name__ == "__main__":
    main()
