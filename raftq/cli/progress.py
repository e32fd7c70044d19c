"""What long work is doing: a bar on a terminal, a line for each phase elsewhere; never on stdout."""

from types import TracebackType
from typing import Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Bars

from raftq.cli.output import error_console, print_note


class Progress:
    """One task at a time."""

    def __init__(self) -> None:
        self._console = error_console()
        self._bars: Bars | None = None
        if self._console.is_terminal:
            self._bars = Bars(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[note]}"),
                console=self._console,
                transient=True,
            )
        self._task = None if self._bars is None else self._bars.add_task("", note="")

    def phase(self, text: str, *, total: int | None = None) -> None:
        """What begins now."""
        if self._bars is None or self._task is None:
            print_note(text)
        else:
            self._bars.reset(self._task, description=text, total=total, note="")

    def advance(self, completed: int, note: str) -> None:
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, completed=completed, note=note)

    def step(self, text: str, completed: int, total: int) -> None:
        """A step of a known number of steps begins."""
        if self._bars is None or self._task is None:
            print_note(text)
        else:
            self._bars.update(self._task, description=text, completed=completed, total=total)

    def note(self, text: str) -> None:
        """Something that happened."""
        if self._bars is None:
            print_note(text)
        else:
            self._bars.console.print(text, style="dim", highlight=False)

    def stop(self) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
