"""From data directories to work: which bytes of which segments are the log, for whom to read.

Theory of operation. Directories are searched for replicas (`group-<id>`), and each replica's units
are walked once, in order: what was truncated, torn or superseded is not part of the log, and only
the walk of a whole replica can tell. What the walk leaves are live ranges, at most one segment
long; small ones are packed into one *portion*, which is what one task reads.

The commit mark. A unit's entries are marked as committed only by a later unit, so the newest
acknowledged ones lie behind the mark of their own replica. A group's mark is the highest that any
of its replicas holds. It counts for another replica up to the highest index where both chains are
equal. Whatever the others say, a replica's entries up to its own mark are marked, or else a replica
that diverged would not be seen.

Nothing here knows Spark.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from raftq.errors import Corrupted, InvalidArgument
from raftq.limits import MIB
from raftq.storage.offline import PlainFile, open_directory
from raftq.storage.reader import LiveRange, Replica, entries_in, read_replica

PORTION_BYTES: Final = 128 * MIB
"""One task: long enough to be worth its start, short enough that many cores share the work."""

_SEARCH_DEPTH: Final = 2
"""Directories given may hold data directories, or directories of them."""

_GROUP: Final = "group-"


class Planned(NamedTuple):
    """A replica, and what the others of its group say of it."""

    node: str
    group: int
    directory: Path
    replica: Replica
    running: bool
    marked_through: int


class Chunk(NamedTuple):
    """A live range of one segment."""

    node: str
    group: int
    directory: str
    live: LiveRange
    marked_through: int


class Portion(NamedTuple):
    """What one task reads."""

    chunks: tuple[Chunk, ...]


def group_of(name: str) -> int | None:
    """The group whose replica a directory of this name holds; None if it is none."""
    digits = name.removeprefix(_GROUP)
    return int(digits) if name.startswith(_GROUP) and digits.isdecimal() else None


def data_directories(given: Iterable[str | Path]) -> dict[str, Path]:
    """The data directories in what was given, by node name.

    A node is named like its directory; where two are called the same, like their whole paths.

    Raises: InvalidArgument when one of those given holds none.
    """
    found: list[Path] = []
    for path in map(Path, given):
        holding = _holding(path.resolve(), _SEARCH_DEPTH) if path.is_dir() else []
        if not holding:
            raise InvalidArgument(
                f"{path} is no data directory of a node and holds none; give the directories that "
                "nodes were started with (--data)"
            )
        found += [directory for directory in holding if directory not in found]
    names = [directory.name for directory in found]
    return {
        directory.name if names.count(directory.name) == 1 else str(directory): directory
        for directory in found
    }


def _holding(directory: Path, depth: int) -> list[Path]:
    inside = sorted(entry for entry in directory.iterdir() if entry.is_dir())
    if any(group_of(entry.name) is not None for entry in inside):
        return [directory]
    return [found for entry in inside for found in _holding(entry, depth - 1)] if depth else []


def plan(directories: Iterable[str | Path], groups: frozenset[int] | None = None) -> list[Planned]:
    """All replicas in the directories; of these groups only, if some are named.

    Raises: InvalidArgument, OSError.
    """
    by_group: dict[int, list[tuple[str, Chains]]] = {}
    for node, directory in data_directories(directories).items():
        for path in sorted(directory.iterdir()):
            group = group_of(path.name)
            if group is not None and (groups is None or group in groups):
                replica = read_replica(*open_directory(path))
                by_group.setdefault(group, []).append((node, Chains(path, replica)))
    locked = _locked_inodes() if by_group else frozenset()
    planned = []
    for group, members in sorted(by_group.items()):
        best = max((chains for _, chains in members), key=lambda c: c.replica.commit_index)
        for node, chains in members:
            replica = chains.replica
            marked = max(replica.commit_index, _common(best, chains, best.replica.commit_index))
            running = _inode(chains.directory.parent / "lock") in locked
            planned.append(Planned(node, group, chains.directory, replica, running, marked))
    return planned


class Chains:
    """The chain values of a replica, looked up where they lie."""

    def __init__(self, directory: Path, replica: Replica) -> None:
        self.directory = directory
        self.replica = replica
        self._known: dict[int, bytes | None] = {
            live.first_index - 1: live.previous_chain for live in replica.ranges
        }
        self._known[replica.base.index] = replica.base.chain
        self._known[replica.last_index] = replica.last_chain
        self._known[replica.commit_index] = replica.commit_chain

    def at(self, index: int) -> bytes | None:
        """What the entry at `index` states; None if it is lost or not held."""
        if index not in self._known:
            self._known[index] = self._look_up(index)
        return self._known[index]

    def _look_up(self, index: int) -> bytes | None:
        for live in self.replica.ranges:
            if live.first_index <= index <= live.last_index:
                with PlainFile(self.directory / live.name) as file:
                    found = (entry for entry, *_ in entries_in(file, live) if entry.index == index)
                    return next((entry.chain for entry in found), None)
        return None


def _common(one: Chains, other: Chains, limit: int) -> int:
    """The highest index up to `limit` where both chains are equal; 0 if there is none."""

    def is_equal(index: int) -> bool:
        chain = one.at(index)
        return chain is not None and chain == other.at(index)

    equal = max(one.replica.first_index, other.replica.first_index) - 1
    unequal = min(limit, one.replica.last_index, other.replica.last_index)
    if unequal < equal or not is_equal(equal):
        return 0
    if is_equal(unequal):
        return unequal
    # A chain value covers all before it: equal at one index means equal up to there.
    while unequal - equal > 1:
        middle = (equal + unequal) // 2
        if is_equal(middle):
            equal = middle
        else:
            unequal = middle
    return equal


def portions(planned: Sequence[Planned], nodes: frozenset[str] | None = None) -> list[Portion]:
    """The live ranges, packed into work of about `PORTION_BYTES` each."""
    packed: list[Portion] = []
    waiting: list[Chunk] = []
    size = 0
    for chunk in _chunks(planned, nodes):
        length = chunk.live.stop - chunk.live.start
        if waiting and size + length > PORTION_BYTES:
            packed.append(Portion(tuple(waiting)))
            waiting, size = [], 0
        waiting.append(chunk)
        size += length
    return [*packed, Portion(tuple(waiting))] if waiting else packed


def _chunks(planned: Sequence[Planned], nodes: frozenset[str] | None) -> Iterator[Chunk]:
    for one in planned:
        if nodes is None or one.node in nodes:
            for live in one.replica.ranges:
                yield Chunk(one.node, one.group, str(one.directory), live, one.marked_through)


def refuse_damage(planned: Sequence[Planned]) -> None:
    """Raises: Corrupted when a replica has lost something that it had synced."""
    for one in planned:
        if one.replica.problems:
            raise Corrupted(
                f"node {one.node}, group {one.group}: {'; '.join(one.replica.problems)} "
                "(the option onError=row reads what is left)"
            )


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _locked_inodes() -> frozenset[int | None]:
    """Inodes of files that some process has locked: a running node locks its directory."""
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return frozenset()
    return frozenset(int(line.split()[5].rpartition(":")[2]) for line in lines if "FLOCK" in line)
