"""`raftq cluster recover` on a directory of this machine: look, and, when told so, decide and finish.

Rule: while one of these is open the directory is locked, so no node runs on it; looking changes
nothing.
"""

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Self

from raftq.embedded.outside import environment_of
from raftq.env.disk import RealDisk
from raftq.errors import InvalidArgument
from raftq.ids import METADATA_GROUP, GroupId
from raftq.server import recover
from raftq.server.recover import Decision
from raftq.server.survey import Holding

__all__ = ["METADATA_GROUP", "Decision", "Holding", "Recovery"]


class Recovery:
    """Use as a context manager.

    Raises: InvalidArgument when it is no data directory, or a process has it.
    """

    def __init__(self, data: str | Path) -> None:
        self.data = Path(data)
        if not self.data.is_dir():
            raise InvalidArgument(f"{data} is not a directory; name a node's data directory")
        disk = RealDisk(str(self.data))
        self._environment = environment_of(disk)
        self._disk = disk

    def __enter__(self) -> Self:
        try:
            self._disk.lock()
        except BaseException:
            self._disk.unlock()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._disk.unlock()

    def pending(self) -> Decision | None:
        """What was decided before and is not finished. Raises: Corrupted, OSError."""
        return recover.decided(self._environment)

    def finish(self) -> None:
        """Carry out what was decided. Once; durable on return. Raises: Corrupted, OSError."""
        asyncio.run(self._finish())

    async def _finish(self) -> None:
        recover.finish(self._environment)

    def look(self) -> tuple[str, list[Holding]]:
        """The node's name, and what it holds of each group.

        Raises: Corrupted, InvalidArgument, OSError.
        """
        self._identity, self._holdings = recover.examine(self._environment)
        if self._identity is None:
            raise InvalidArgument(f"{self.data} is no data directory: it has no file 'node'")
        return self._identity.name, self._holdings

    def check(self, groups: list[GroupId]) -> None:
        """Whether these groups may go on from here.

        Raises: InvalidArgument.
        """
        recover.check(self._identity, self._holdings, groups)

    def decide(self, groups: list[GroupId]) -> Decision:
        """Let them go on from here: durable on return, and to be finished.

        Raises: OSError; then nothing was decided.
        """
        assert self._identity is not None, "looked at first"
        return recover.decide(self._environment, self._identity, self._holdings, groups)
