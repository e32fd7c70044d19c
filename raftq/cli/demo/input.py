"""The demo's input: files, and the messages that stand for them.

Every line is a message: its key is the file's name, its header the number of the line, its body the
line with its ending. One more per file, the manifest, says what the file must be like in the end.
A line that is longer than a message should be is cut; the pieces count as lines.
"""

import hashlib
import json
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from raftq.errors import InvalidArgument

LINE_HEADER: Final = "line"
MANIFEST_HEADER: Final = "manifest"
PIECE_BYTES: Final = 256 * 1024

_line_headers: Final[list[dict[str, Any]]] = []


class SourceFile(NamedTuple):
    """One file of the input. `name` is its path below the input, as bytes."""

    name: bytes
    path: Path


class Manifest(NamedTuple):
    """What a rebuilt file is compared with."""

    name: bytes
    lines: int
    size: int
    sha256: str

    def encode(self) -> bytes:
        fields = {"path": os.fsdecode(self.name), "lines": self.lines}
        return json.dumps(fields | {"size": self.size, "sha256": self.sha256}).encode("ascii")


def decode_manifest(body: bytes) -> Manifest:
    fields = json.loads(body)
    return Manifest(os.fsencode(fields["path"]), fields["lines"], fields["size"], fields["sha256"])


def find_files(given: Path | None) -> list[SourceFile]:
    """The files of the input: Python's own standard library, or what was given, in a fixed order.

    Raises: InvalidArgument.
    """
    if given is None:
        root = Path(sysconfig.get_path("stdlib"))
        paths = [p for p in root.rglob("*.py") if "site-packages" not in p.relative_to(root).parts]
    elif given.is_file():
        root, paths = given.parent, [given]
    elif given.is_dir():
        root, paths = given, list(given.rglob("*"))
    else:
        raise InvalidArgument(f"--input {given}: there is no such file or directory")
    files = [
        SourceFile(os.fsencode(path.relative_to(root).as_posix()), path)
        for path in paths
        if path.is_file()
    ]
    if not files:
        raise InvalidArgument(f"--input {root}: there are no files")
    return sorted(files)


def split_lines(content: bytes) -> list[bytes]:
    """The lines with their endings; joined they are the content again."""
    lines = content.splitlines(keepends=True)
    if max(map(len, lines), default=0) <= PIECE_BYTES:
        return lines
    return [
        line[start : start + PIECE_BYTES]
        for line in lines
        for start in range(0, len(line), PIECE_BYTES)
    ]


def line_headers(count: int) -> list[dict[str, Any]]:
    """Headers of the lines 1 to `count`; the same objects for every file."""
    known = _line_headers
    known.extend({LINE_HEADER: number} for number in range(len(known) + 1, count + 1))
    return known[:count]


class Portion(NamedTuple):
    """Messages that are sent by one call, and the manifests among them."""

    bodies: list[bytes]
    keys: list[bytes]
    headers: list[dict[str, Any]]
    manifests: list[Manifest]


def portions(files: list[SourceFile], messages: int) -> Iterator[Portion]:
    """The messages of all files in order, in portions of so many.

    Raises: OSError.
    """
    portion = Portion([], [], [], [])
    for file in files:
        content = file.path.read_bytes()
        lines = split_lines(content)
        manifest = Manifest(
            file.name, len(lines), len(content), hashlib.sha256(content).hexdigest()
        )
        headers = line_headers(len(lines))
        start = 0
        while start < len(lines):
            stop = min(len(lines), start + messages - len(portion.bodies))
            portion.bodies.extend(lines[start:stop])
            portion.headers.extend(headers[start:stop])
            portion.keys.extend([file.name] * (stop - start))
            start = stop
            if len(portion.bodies) == messages:
                yield portion
                portion = Portion([], [], [], [])
        portion.bodies.append(manifest.encode())
        portion.headers.append({MANIFEST_HEADER: True})
        portion.keys.append(file.name)
        portion.manifests.append(manifest)
        if len(portion.bodies) == messages:
            yield portion
            portion = Portion([], [], [], [])
    if portion.bodies:
        yield portion


def count_messages(files: list[SourceFile]) -> int:
    """How many messages the files will be: a quick count for the progress bar, made exact later."""
    return sum(file.path.read_bytes().count(b"\n") + 1 for file in files)
