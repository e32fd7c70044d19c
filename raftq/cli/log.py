"""`raftq log`: what the segment files of a replica hold, read offline and without changing anything.

Rules

1. Nothing is locked and nothing written: a running node's directory may be read, but then its end is
   moving, and what lies behind the commit mark is no fault.
2. Damage is reported, never raised: the rest is read and judged all the same.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from raftq.cli.options import JsonOption
from raftq.cli.output import print_error, print_json, print_table, print_text
from raftq.errors import InvalidArgument
from raftq.storage.index import PATCH
from raftq.storage.offline import OpenFile, open_directory
from raftq.storage.reader import (
    FoundEntry,
    LiveRange,
    Replica,
    entries_in,
    is_whole,
    read_replica,
    replaced,
)
from raftq.storage.recovered import recovered_in
from raftq.storage.walk import Condition

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="What the segment files hold: read offline, nothing is changed.",
)

GROUP_PREFIX: Final = "group-"
_KINDS: Final = {0: "noop", 1: "commands", 2: "membership"}

PathsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH...",
        help="Replica directories (group-N), data directories of nodes, or what holds them.",
    ),
]


class Directory(NamedTuple):
    """One replica's directory, read."""

    path: Path
    group: str
    replica: Replica
    open_file: OpenFile


def find_replicas(paths: list[Path]) -> list[Path]:
    """The replica directories at and below the paths.

    Raises: InvalidArgument when there is none.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise InvalidArgument(f"{path} is not a directory")
        below = [path, *sorted(path.rglob(f"{GROUP_PREFIX}*"))]
        for each in below:
            # What was moved aside (group-7.forgot-...) counts no more; it can still be named itself.
            is_live = each.name.removeprefix(GROUP_PREFIX).isdecimal() or each == path
            if each.name.startswith(GROUP_PREFIX) and is_live and each.is_dir():
                found[each] = None
    if not found:
        raise InvalidArgument(
            f"{', '.join(map(str, paths))}: no replica (group-N) is there; "
            "name a node's data directory"
        )
    return list(found)


def read_directory(path: Path) -> Directory:
    """Walk one replica's directory."""
    names, open_file = open_directory(path)
    replica = read_replica(names, open_file)
    return Directory(path, path.name.removeprefix(GROUP_PREFIX), replica, open_file)


def entries_of(directory: Directory) -> Iterator[FoundEntry]:
    """The live entries of a replica, in order."""
    for live in directory.replica.ranges:
        with closing(directory.open_file(live.name)) as file:
            yield from entries_in(file, live)


@app.command()
def inspect(
    paths: PathsArgument,
    entries: Annotated[
        bool, typer.Option("--entries", help="Show each entry, not only a summary.")
    ] = False,
    start: Annotated[int, typer.Option("--from", min=0, help="First index to show.")] = 0,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="0: all.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Show what replicas hold; with --json an object for each replica, or each entry, a line.

    ```
    raftq log inspect raftq-data/n1
    raftq log inspect raftq-data/n1/group-1 --entries --from 1000 --limit 20
    ```
    """
    directories = [read_directory(path) for path in find_replicas(paths)]
    if entries:
        for directory in directories:
            _show_entries(directory, start, limit, as_json=as_json)
        return
    if as_json:
        for directory in directories:
            print_json(replica_map(directory))
        return
    print_table(
        (
            "replica",
            "condition",
            "term",
            "entries",
            "commit mark",
            "segments",
            "packed",
            "patches",
            "not whole",
            "snapshots",
            "problems",
        ),
        [
            (
                directory.path,
                directory.replica.condition.name.lower(),
                directory.replica.term,
                f"{directory.replica.first_index}..{directory.replica.last_index}",
                directory.replica.commit_index,
                len(directory.replica.segments),
                len(directory.replica.packed),
                len(patches_of(directory.replica)),
                _not_whole(directory.replica),
                len(directory.replica.snapshots),
                len(directory.replica.problems),
            )
            for directory in directories
        ],
    )
    for directory in directories:
        for sentence in let_go(directory.replica):
            print_text(f"{directory.path}: {sentence}")
    for directory in directories:
        for problem in directory.replica.problems:
            print_text(f"{directory.path}: {problem}")
        for reason in directory.replica.repaired:
            print_text(f"{directory.path}: {reason} (nothing is missing: it is repaired)")


def patches_of(replica: Replica) -> list[LiveRange]:
    """The ranges that are read from patches."""
    return [live for live in replica.ranges if live.segment >= PATCH]


def _not_whole(replica: Replica) -> int:
    return sum(live.not_whole for live in replica.ranges)


def let_go(replica: Replica) -> list[str]:
    """What a replica does not hold any more, in sentences; it is no fault."""
    found = []
    base = replica.base
    if base.index:
        how = "were released" if replica.released else "are in the snapshot that the log began with"
        found.append(
            f"history begins at entry {replica.first_index}: entries up to {base.index} {how}"
        )
    if count := _not_whole(replica):
        found.append(
            f"{count} entries up to {replica.not_whole_through} are not whole: bodies of settled "
            "messages gave way to their digests"
        )
    return found


def _gone_map(replica: Replica) -> dict[str, Any]:
    """What was let go of, as JSON shows it."""
    return {
        "base_index": replica.base.index,
        "base_chain": replica.base.chain,
        "base_log_time": replica.base.log_time,
        "released": replica.released,
        "not_whole": _not_whole(replica),
        "not_whole_through": replica.not_whole_through,
    }


def replica_map(directory: Directory) -> dict[str, Any]:
    """A replica as JSON shows it."""
    replica = directory.replica
    return {
        "path": str(directory.path),
        "group": directory.group,
        "incarnation": f"{replica.incarnation:016x}",
        "condition": replica.condition.name.lower(),
        "tail_cut": replica.tail_cut,
        "term": replica.term,
        "first_index": replica.first_index,
        "last_index": replica.last_index,
        "last_chain": replica.last_chain,
        "commit_index": replica.commit_index,
        "commit_chain": replica.commit_chain,
        **_gone_map(replica),
        "segments": list(replica.segments),
        "packed": [packed._asdict() for packed in replica.packed],
        "patches": [
            {
                "name": live.name,
                "first_index": live.first_index,
                "last_index": live.last_index,
                "not_whole": live.not_whole,
            }
            for live in patches_of(replica)
        ],
        "snapshots": [
            {"index": snapshot.index, "problem": snapshot.problem} for snapshot in replica.snapshots
        ],
        "problems": list(replica.problems),
        "repaired": list(replica.repaired),
    }


def _show_entries(directory: Directory, start: int, limit: int, *, as_json: bool) -> None:
    shown = 0
    for found in entries_of(directory):
        entry = found.entry
        if entry.index < start:
            continue
        fields = {
            "replica": str(directory.path),
            "index": entry.index,
            "term": entry.term,
            "kind": _KINDS.get(entry.kind, str(entry.kind)),
            "log_time": entry.log_time,
            "bytes": entry.size,
            "chain": entry.chain,
            "bodies_released": sum(replaced(entry)),
            "proved": found.proved,
            "marked": entry.index <= directory.replica.commit_index,
            "segment": found.segment,
            "position": found.position,
        }
        recovered = recovered_in(entry)
        if as_json:
            print_json({**fields, "recovered": recovered} if recovered else fields)
        else:
            is_patch = found.segment >= PATCH
            place = "a patch" if is_patch else f"segment {found.segment}"
            remark = "" if is_whole(entry) else f"  {fields['bodies_released']} bodies released"
            remark += "" if found.proved else "  NOT PROVED"
            if recovered:
                remark += (
                    f"  RECOVERED on {recovered['node']}: replica {recovered['was']} goes on alone as "
                    f"{recovered['replica']}, without the majority of {recovered['former']}"
                )
            print_text(
                f"{entry.index:>10}  term {entry.term}  {fields['kind']:<10} {entry.size:>9} B  "
                f"{entry.chain.hex()[:16]}  {place} at {found.position}{remark}"
            )
        shown += 1
        if shown == limit:
            return


class Checked(NamedTuple):
    """A replica after every entry has been read."""

    directory: Directory
    entries: int
    size: int
    problems: list[str]
    chains: dict[int, bytes]
    """By index, up to the commit mark: what other replicas of the group are compared with."""


@app.command()
def verify(paths: PathsArgument, as_json: JsonOption = False) -> None:
    """Check every entry and snapshot, and compare the replicas of each group with each other.

    Each entry's hash chain is computed anew from its bytes; where bodies were released, from their
    digests. What was released is no fault and is said. Ends with status 1 if anything is wrong.

    ```
    raftq log verify raftq-data
    raftq log verify raftq-data/n1/group-1 raftq-data/n2/group-1 --json
    ```
    """
    checked = [_check(read_directory(path)) for path in find_replicas(paths)]
    differences = compare(checked)
    is_sound = not differences and not any(each.problems for each in checked)
    if as_json:
        rows = [
            {
                "path": str(each.directory.path),
                "group": each.directory.group,
                "entries": each.entries,
                "bytes": each.size,
                "commit_index": each.directory.replica.commit_index,
                "commit_chain": each.directory.replica.commit_chain,
                **_gone_map(each.directory.replica),
                "problems": each.problems,
                "repaired": list(each.directory.replica.repaired),
            }
            for each in checked
        ]
        print_json({"sound": is_sound, "replicas": rows, "differences": differences})
    else:
        print_table(
            ("replica", "entries", "bytes", "commit mark", "problems"),
            [
                (
                    each.directory.path,
                    each.entries,
                    each.size,
                    each.directory.replica.commit_index,
                    len(each.problems),
                )
                for each in checked
            ],
        )
        for each in checked:
            for problem in each.problems:
                print_text(f"{each.directory.path}: {problem}")
            for reason in each.directory.replica.repaired:
                print_text(f"{each.directory.path}: {reason} (repaired)")
            for sentence in let_go(each.directory.replica):
                print_text(f"{each.directory.path}: {sentence}")
        for difference in differences:
            print_text(difference)
        if is_sound:
            print_text("sound: every chain verifies, and equal indexes have equal chains")
    if not is_sound:
        print_error("Corrupted", "the logs are not sound; what is wrong stands above")
        raise typer.Exit(1)


def _check(directory: Directory) -> Checked:
    replica = directory.replica
    problems = list(replica.problems)
    if replica.condition is not Condition.OK:
        problems.append(f"the replica is {replica.condition.name.lower()}")
    problems += [
        f"snapshot {snapshot.index}: {snapshot.problem}"
        for snapshot in replica.snapshots
        if snapshot.problem
    ]
    if not can_be_replayed(replica):
        problems.append("no sound snapshot is at or behind what was let go of")
    count = size = 0
    # What a log begins behind must be what the others have there.
    chains: dict[int, bytes] = {replica.base.index: replica.base.chain}
    expected = int(replica.first_index)
    for found in entries_of(directory):
        entry = found.entry
        if entry.index != expected:
            problems.append(f"entry {expected} is missing: the next one is {entry.index}")
        if not found.proved:
            problems.append(f"entry {entry.index}: its chain does not verify")
        expected = entry.index + 1
        if entry.index <= replica.commit_index:
            chains[entry.index] = entry.chain
        count += 1
        size += entry.size
    if expected != replica.last_index + 1:
        problems.append(f"the log should end at {replica.last_index}, it ends at {expected - 1}")
    return Checked(directory, count, size, problems, chains)


def can_be_replayed(replica: Replica) -> bool:
    """Whether a machine can be made: from the beginning of the log, or from a snapshot behind."""
    lowest = replica.replayed_from
    sound = (snapshot.index for snapshot in replica.snapshots if not snapshot.problem)
    return not lowest or any(lowest <= index <= replica.last_index for index in sound)


def compare(checked: list[Checked]) -> list[str]:
    """Where replicas of one group differ, up to what each of them has marked as committed."""
    groups: dict[str, list[Checked]] = defaultdict(list)
    for each in checked:
        groups[each.directory.group].append(each)
    differences = []
    for group, replicas in sorted(groups.items()):
        first, *others = replicas
        for other in others:
            common = sorted(first.chains.keys() & other.chains.keys())
            unequal = next((i for i in common if first.chains[i] != other.chains[i]), None)
            if unequal is not None:
                differences.append(
                    f"group {group} differs from index {unequal} on: {first.directory.path} and "
                    f"{other.directory.path} are not replicas of one log"
                )
    return differences
