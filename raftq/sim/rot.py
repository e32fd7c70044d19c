"""Rot: bytes of a replica's files change under it, wherever another replica still has them.

What is hit lies inside: a whole unit that is known to be synced bounds it, whatever a power loss
takes. (At the end, damage means amnesia, and a cluster without membership changes would lose a
voter for good.) Ranges of entries that were hit on one node are never hit on another, so one good
copy of everything exists, and everything has to be healed.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

from raftq.ids import Index
from raftq.limits import KIB
from raftq.sim.disk import SimDisk
from raftq.storage.segment import (
    SEGMENT_HEADER_BYTES,
    Scanner,
    is_segment,
    read_segment_header,
    sequence_of,
)
from raftq.storage.unit import UnitHeader, seed_of

MARGIN = 200
"""Entries between what is bad on one node and on another: a lost unit makes those before it, that
were not committed yet, uncertain as well.
"""

SECTOR = 4 * KIB
CLASSES = ("flip", "flip", "sector", "zeros", "misdirected", "index", "header", "patch", "file")


class _Lying(NamedTuple):
    """One unit where it lies. `first` to `last` are its entries."""

    path: str
    header: UnitHeader
    first: Index
    last: Index


class Rot:
    """What has rotted so far, on all nodes of a cluster."""

    def __init__(self) -> None:
        self.strikes = 0
        self._bad: dict[str, list[tuple[str, Index, Index]]] = {}

    def strike(self, node: str, disk: SimDisk, choose: random.Random) -> str:
        """Damage one file of a node; what was done."""
        directories = sorted({path.partition("/")[0] for path in disk.paths() if "/" in path})
        directory = choose.choice(directories) if directories else ""
        units = [unit for unit in _inside(disk, directory) if self._is_good(node, directory, unit)]
        if not units:
            return "nothing to rot"
        self.strikes += 1
        unit = choose.choice(units)
        done = self._damage(disk, directory, unit, units, choose)
        for hit in done[1]:
            self._bad.setdefault(directory, []).append((node, hit.first, hit.last))
        return done[0]

    def _is_good(self, node: str, directory: str, unit: _Lying) -> bool:
        return all(
            node == other or unit.last + MARGIN < first or last + MARGIN < unit.first
            for other, first, last in self._bad.get(directory, [])
        )

    def _damage(
        self,
        disk: SimDisk,
        directory: str,
        unit: _Lying,
        units: list[_Lying],
        choose: random.Random,
    ) -> tuple[str, list[_Lying]]:
        kind = choose.choice(CLASSES)
        path, header = unit.path, unit.header
        if kind in {"index", "patch"}:
            part = ".index" if kind == "index" else "/patch-"
            others = [name for name in disk.paths() if name.startswith(directory) and part in name]
            if others:
                path = choose.choice(others)
                disk.flip_bit(path, choose.randrange(len(disk.contents(path))), choose.randrange(8))
                return f"rot: a bit of {path}", []
        in_file = [each for each in units if each.path == path]
        newest = max(name for name in disk.paths() if name.startswith(f"{directory}/segment-"))
        is_all = len(in_file) == len(list(_units(disk, path)))
        if kind == "header" and path != newest:
            disk.flip_bit(path, choose.randrange(SEGMENT_HEADER_BYTES - 16))
            return f"rot: the header of {path}", []
        if kind == "file" and path != newest and is_all:
            disk.lose_file(path)
            return f"rot: {path} is gone", in_file
        if kind in {"sector", "zeros", "misdirected"}:
            start = header.position if kind == "zeros" else header.position // SECTOR * SECTOR
            stop = start + SECTOR
            touched = [
                each
                for each in _units(disk, path)
                if each.header.position < stop and each.header.end > start
            ]
            if start >= SECTOR and all(each in in_file for each in touched):
                contents = disk.contents(path)
                stop = min(stop, len(contents))
                if kind == "misdirected":
                    # What was to be written elsewhere lies here: whole, with a right checksum.
                    other = choose.randrange(len(contents) // SECTOR) * SECTOR
                    disk.overwrite(path, start, contents[other : other + SECTOR][: stop - start])
                else:
                    disk.zero(path, start, stop)
                return f"rot: {kind} at {start} of {path}", touched
        position = choose.randrange(header.position, header.end)
        disk.flip_bit(path, position, choose.randrange(8))
        return f"rot: a bit at {position} of {path}", [unit]


def _units(disk: SimDisk, path: str) -> Iterator[_Lying]:
    """The units of one segment."""
    name = path.rpartition("/")[2]
    sequence = sequence_of(name)
    assert sequence is not None
    file = disk.open(path)
    try:
        header = read_segment_header(file, sequence=sequence, incarnation=None)
        if header is None:
            return
        last = header.last_index
        for found in Scanner(
            file, seed_of(header.incarnation, sequence), start=SEGMENT_HEADER_BYTES, stop=None
        ):
            end = found.header.last_index
            yield _Lying(path, found.header, Index(min(last, end) + 1), max(last, end))
            last = end
    finally:
        file.close()


def _inside(disk: SimDisk, directory: str) -> list[_Lying]:
    """The units that a later whole one bounds, even when all that is not synced is lost."""
    units = [
        unit
        for path in disk.paths()
        if path.startswith(f"{directory}/") and is_segment(path.rpartition("/")[2])
        for unit in _units(disk, path)
    ]
    synced = max((unit.header.synced_through for unit in units), default=0)
    known = max(
        (unit.header.synced_through for unit in units if unit.header.number <= synced), default=0
    )
    return [unit for unit in units if unit.header.number <= known - 2]
