"""Files of a directory as an audit opens them: by their names, for reading, without a disk port."""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol

from raftq.storage.segment import ReadableFile


class OfflineFile(ReadableFile, Protocol):
    """One file, open for reading."""

    def close(self) -> None: ...


OpenFile = Callable[[str], OfflineFile]
"""Opens a file by its name in the replica's directory."""


class PlainFile:
    """A file of the local file system."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb", buffering=0)

    @property
    def path(self) -> str:
        return str(self._path)

    def read(self, position: int, length: int) -> bytes:
        self._file.seek(position)
        parts = []
        while length > 0 and (data := self._file.read(length)):
            parts.append(data)
            length -= len(data)
        return b"".join(parts)

    def size(self) -> int:
        return self._path.stat().st_size

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "PlainFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_directory(path: str | Path) -> tuple[list[str], OpenFile]:
    """Names and opener of a directory of the local file system."""
    directory = Path(path)
    names = sorted(entry.name for entry in directory.iterdir() if entry.is_file())
    return names, lambda name: PlainFile(directory / name)
