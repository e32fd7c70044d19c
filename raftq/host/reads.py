"""Linearizable reads on their way.

A read is *asked* until a round of heartbeats has confirmed that this replica still leads, which gives
it an index; then it *waits* until everything up to that index is applied.
"""

from collections.abc import Callable, Iterable

from raftq.errors import RaftqError
from raftq.host.proposals import Done, Place, tell
from raftq.ids import Index


class Reads:
    """Who asked, and who waits for which index."""

    def __init__(self) -> None:
        self._asked: list[Done] = []
        self._waiting: list[tuple[Index, Done]] = []

    def ask(self, done: Done) -> None:
        self._asked.append(done)

    def confirmed(self, reads: Iterable[tuple[Done, Index]]) -> None:
        """What the core has found an index for."""
        for done, index in reads:
            self._asked.remove(done)
            self._waiting.append((index, done))

    def serve(self, applied: Index, place: Callable[[Index], Place | None]) -> None:
        """Answer whom the applied state is new enough for."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for index, done in waiting:
            if index <= applied:
                tell(done, None, place(applied))
            else:
                self._waiting.append((index, done))

    def fail(self, refusal: Callable[[], RaftqError]) -> None:
        """Leadership is over: everybody hears."""
        asked, self._asked = self._asked, []
        waiting, self._waiting = self._waiting, []
        for done in [*asked, *[done for _, done in waiting]]:
            tell(done, refusal(), None)
