"""Replays one node's logs through fresh queue machines, in a process of its own.

    python -m raftq.spark.machine_replay < work        (JSON in, JSON lines out)

The work names replicas: {"group", "directory", "start", "common", "stop", "every"}. Each is replayed
from `start`; the machine's digest is told at `common`, where all others come by (0: nowhere), at every
multiple of `every` and at `stop`, or the problem that ended the replay. Nodes are replayed in processes with different hash seeds, as they are in production: a machine that depends
on the order of a set or of hashes comes to another state in one of them.

What happens to an entry here is what the host does with it: commands are applied, and an entry
without commands that begins a leader's term moves the deadlines by the gap before it.

A log that has let go of its beginning, or of bodies, is replayed from a snapshot behind all that:
`starts` says from which.
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
from raftq.spark.plan import Chains
from raftq.spark.rows import KINDS, commands
from raftq.storage.offline import PlainFile, open_directory
from raftq.storage.reader import FoundEntry, Replica, entries_in, is_whole, read_replica
from raftq.storage.snapshots import body_slices, read_header, snapshot_name


def starts(directory: Path, replica: Replica) -> list[Index]:
    """Where the replay of a log may begin, ascending: 0 or the indexes of snapshots.

    From each of them on all is held, and whole; a snapshot counts if it verifies and has the chain
    value that the log has there.
    """
    lowest = replica.replayed_from
    found = [] if lowest else [Index(0)]
    chains = Chains(directory, replica)
    for snapshot in sorted(replica.snapshots):
        meta = snapshot.meta
        is_behind = meta is not None and snapshot.index >= lowest
        if meta is not None and is_behind and chains.at(meta.index) == meta.chain:
            found.append(meta.index)
    return found


def states(
    directory: Path, replica: Replica, *, start: int, stop: int
) -> Iterator[tuple[int, QueueMachine]]:
    """(index, machine) at `start`, one of `starts`, and behind each entry; always the same machine.

    Raises: Corrupted when the log cannot be replayed so far.
    """
    machine = QueueMachine()
    applied_log_time = 0
    if start:
        with closing(PlainFile(directory / snapshot_name(Index(start)))) as file:
            meta, position = read_header(file, replica.incarnation)
            machine.restore(body_slices(file, position))
        applied_log_time = meta.log_time
    before = start
    yield before, machine
    for live in replica.ranges:
        if live.last_index <= start:
            continue
        with PlainFile(directory / live.name) as file:
            for found in entries_in(file, live):
                if found.entry.index <= start:
                    continue
                if before >= stop:
                    return
                before = _next(found, before)
                applied_log_time = _apply(machine, found, applied_log_time)
                yield before, machine
    if before < stop:
        raise Corrupted(f"the log ends at {before}")


def digests(
    directory: Path, *, start: int, common: int, stop: int, every: int
) -> Iterator[tuple[int, str]]:
    """(index, digest in hex) of a replica's machine, as it was at these indexes.

    Raises: Corrupted when the log cannot be replayed so far.
    """
    replica = read_replica(*open_directory(directory))
    for index, machine in states(directory, replica, start=start, stop=stop):
        if index and (index in {common, stop} or index % every == 0):
            yield index, machine.digest().hex()


def _next(found: FoundEntry, before: int) -> int:
    index = found.entry.index
    if index != before + 1 or not found.proved:
        raise Corrupted(f"entry {before + 1} is missing or damaged")
    return index


def _apply(machine: QueueMachine, found: FoundEntry, applied_log_time: int) -> int:
    entry = found.entry
    if not is_whole(entry):
        raise Corrupted(f"bodies of entry {entry.index} were released")
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
            directory = Path(item["directory"])
            bounds = {name: item[name] for name in ("start", "common", "stop", "every")}
            found = digests(directory, **bounds)
            for index, digest in found:
                _tell(group=group, index=index, digest=digest)
        except Exception as error:  # A machine that raises is what is looked for.
            _tell(group=group, problem=f"{type(error).__name__}: {error}")


def _tell(**values: object) -> None:
    sys.stdout.write(json.dumps(values) + "\n")


if __name__ == "__main__":
    main()
