"""A power loss: the files of a dead node as its disk would have kept them.

The fault layer (`fault_layer.c`) has written down how to take back each change, and when what was
synced. Changes that are not covered by a sync are undone, from the newest to the oldest: all of them,
or for each 512 bytes of data and for each file size those after a point of chance.

    write  undone per sector      size  undone or not       names  undone, newest first, as far as
                                                            chance goes: their order is the journal's

Rules

1. A file's sync makes its data and size durable; a directory's sync makes the names in it durable.
2. Deterministic for one undo log and one generator.
"""

import os
import random
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from chaos_stage import Stage

_HEADER: Final = struct.Struct("<QQQqqQ")
SECTOR_BYTES: Final = 512


class Change(NamedTuple):
    """One record of the undo log."""

    kind: str
    sequence: int
    inode: int
    offset: int
    old_size: int
    payload: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.payload)

    def paths(self) -> list[Path | None]:
        return [Path(os.fsdecode(part)) if part else None for part in self.payload.split(b"\0")]


def read_undo(path: Path) -> Iterator[Change]:
    """The records; one that a kill has cut short describes no change that was made."""
    data = path.read_bytes()
    position = 0
    while len(data) - position >= _HEADER.size:
        kind, sequence, inode, offset, old_size, length = _HEADER.unpack_from(data, position)
        position += _HEADER.size
        payload = data[position : position + length]
        if len(payload) < length:
            return
        position += length
        yield Change(chr(kind), sequence, inode, offset, old_size, payload)


def lose_power(stage: Stage, name: str) -> str:
    """Change the dead node's files to what a power loss leaves; a sentence that says how much."""
    nodes = stage.nodes
    image = Image(nodes.directory(name), nodes.saved_path(name), stage.choose)
    said = image.make(list(read_undo(nodes.undo_path(name))))
    nodes.undo_path(name).unlink()
    shutil.rmtree(nodes.saved_path(name))
    # The page cache is gone, so the machine was started anew.
    nodes.boot_path(name).write_text(f"{stage.choose.getrandbits(128):032x}")
    return f"{name}: {said}"


def _sectors(change: Change) -> range:
    """The 512-byte sectors that a write touches."""
    return range(change.offset // SECTOR_BYTES, -(-change.end // SECTOR_BYTES))


class Image:
    """The files of one node, and how much of what was not synced is lost."""

    def __init__(self, directory: Path, saved: Path, choose: random.Random) -> None:
        self._directory = directory
        self._saved = saved
        self._choose = choose
        self._everything = choose.random() < 0.5

    def make(self, changes: list[Change]) -> str:
        synced = {each.inode: each.offset for each in changes if each.kind == "S"}
        directories = {each.inode: each.offset for each in changes if each.kind == "D"}
        data = [
            each
            for each in changes
            if each.kind in "WZ" and each.sequence > synced.get(each.inode, 0)
        ]
        paths = {
            path.stat().st_ino: path
            for where in (self._saved, self._directory)
            for path in where.rglob("*")
            if path.is_file()
        }
        names = [
            each for each in changes
            if each.kind in "CRUM" and not self._is_durable(each, directories)
        ]  # fmt: skip
        for inode, path in sorted(paths.items()):
            self._undo_data(path, [each for each in data if each.inode == inode])
        kept = 0 if self._everything else self._choose.randint(0, len(names))
        for change in reversed(names[kept:]):
            self._undo_name(change)
        how = "all" if self._everything else "parts"
        return f"{how} of {len(data)} unsynced writes and {len(names) - kept} names lost"

    @staticmethod
    def _is_durable(change: Change, directories: dict[int, int]) -> bool:
        path = change.paths()[1 if change.kind == "R" else 0]
        assert path is not None
        try:
            inode = path.parent.stat().st_ino
        except FileNotFoundError:
            return True
        return change.sequence <= directories.get(inode, 0)

    def _undo_data(self, path: Path, changes: list[Change]) -> None:
        if not changes:
            return
        touched: dict[int, list[int]] = {}
        for change in changes:
            for sector in _sectors(change):
                touched.setdefault(sector, []).append(change.sequence)
        newest = {sector: self._moment(sequences) for sector, sequences in sorted(touched.items())}
        size = self._size(path, changes)
        with path.open("r+b") as file:
            for change in reversed(changes):
                for sector in _sectors(change):
                    if change.sequence > newest[sector]:
                        start = max(change.offset, sector * SECTOR_BYTES)
                        stop = min(change.end, (sector + 1) * SECTOR_BYTES)
                        old = change.payload[start - change.offset : stop - change.offset]
                        os.pwrite(file.fileno(), old, start)
            file.truncate(size)

    def _moment(self, sequences: list[int]) -> int:
        """The newest change to a sector that reached the disk; 0: none."""
        kept = 0 if self._everything else self._choose.randint(0, len(sequences))
        return sequences[kept - 1] if kept else 0

    def _size(self, path: Path, changes: list[Change]) -> int:
        """The size before the first change whose new size did not reach the disk."""
        kept = 0 if self._everything else self._choose.randint(0, len(changes))
        return changes[kept].old_size if kept < len(changes) else path.stat().st_size

    def _undo_name(self, change: Change) -> None:
        first, *more = change.paths()
        assert first is not None
        if change.kind == "C":
            first.unlink(missing_ok=True)
        elif change.kind == "M":
            if first.is_dir() and not any(first.iterdir()):
                first.rmdir()
        elif change.kind == "U" and more[0] is not None:
            os.link(more[0], first)
        elif change.kind == "R" and more[0] is not None and more[0].exists():
            more[0].rename(first)
            if more[1] is not None:
                os.link(more[1], more[0])
