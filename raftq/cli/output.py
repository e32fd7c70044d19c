"""What goes to standard output: text for people, JSON for machines. Errors go to standard error.

Rule: whatever a command prints goes through here, so that `--json` never has a stray line.
"""

import base64
import errno
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from raftq.errors import RaftqError

PIPE_WIDTH = 1_000


def console() -> Console:
    """Where people read; made anew, because tests and pipes change standard output."""
    # A pipe has no width: nothing is folded there.
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(file=sys.stdout, highlight=False, soft_wrap=True, width=width)


def error_console() -> Console:
    return Console(file=sys.stderr, highlight=False, soft_wrap=True)


def print_json(value: Mapping[str, Any]) -> None:
    """One object on one line, at once: a reader of a pipe sees it now."""
    sys.stdout.write(json.dumps(plain(value)) + "\n")
    sys.stdout.flush()


def print_text(text: str) -> None:
    console().print(Text(text))


def print_note(text: str) -> None:
    """Something for people that is not the answer."""
    error_console().print(Text(text, style="dim"))


def print_error(name: str, message: str) -> None:
    """The one line that a failed command ends with, for people."""
    line = " ".join(f"{name}: {message}".split())
    error_console().print(Text(line, style="bold red"))


def print_failure(error: RaftqError | OSError, *, as_json: bool) -> None:
    """The line of an error, with what is known of the request that it ended."""
    name, message = type(error).__name__, str(error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        message = f"{error.strerror} for the output; make room, or write it elsewhere"
    # An OSError is of this machine: of a file that cannot be read, before anything was asked for.
    outcome = error.outcome if isinstance(error, RaftqError) else "not_applied"
    if as_json:
        retriable = isinstance(error, RaftqError) and error.retriable
        fields = {"error": name, "message": message, "outcome": outcome, "retriable": retriable}
        sys.stderr.write(json.dumps(fields) + "\n")
    elif outcome == "unknown":
        print_error(name, f"{message}; the outcome is unknown: it may have been done")
    else:
        print_error(name, message)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A small table; numbers stand on the right."""
    body = [[_cell(value) for value in row] for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for position, name in enumerate(columns):
        numeric = bool(body) and all(row[position].isdigit() for row in body)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in body:
        table.add_row(*map(Text, row))
    console().print(table)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def bytes_fields(name: str, value: bytes | None) -> dict[str, str | None]:
    """Bytes as JSON can carry them: as text where they are text, else in base64 under `NAME_base64`."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode("ascii")}


def plain(value: object) -> Any:
    """The value, of what JSON knows: bytes become hexadecimal digits."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
