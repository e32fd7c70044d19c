"""What a producer gets back. Receipts are made when they are looked at, not when they arrive."""

from bisect import bisect_right
from collections.abc import Generator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, overload

from raftq.client.outgoing import OutgoingBatch
from raftq.ids import Index, Offset, Partition, Term
from raftq.wire.requests import ACKS_NAMES, Published


class Receipt(NamedTuple):
    """Where a message is: `chain` is the hash chain of its group's log at `index`.

    `duplicate` says that the message was there before: the call was repeated, the message is not.
    """

    partition: Partition
    offset: Offset
    term: Term
    index: Index  # type: ignore[assignment]  # Hides tuple.index, which nobody asks a receipt for.
    chain: bytes
    acks: str
    duplicate: bool


def receipt_of(published: Published, position: int) -> Receipt:
    """The receipt of the message at `position` of a batch."""
    return Receipt(
        published.partition,
        Offset(published.base_offset + position),
        published.term,
        published.index,
        published.chain,
        ACKS_NAMES[published.acks],
        published.duplicate,
    )


class PendingReceipt:
    """A receipt to come: await it, now or later, or leave that to `flush`."""

    __slots__ = ("_batch", "_position")

    def __init__(self, batch: OutgoingBatch, position: int) -> None:
        self._batch = batch
        self._position = position

    def done(self) -> bool:
        return self._batch.is_done

    def result(self) -> Receipt:
        """The receipt of a message that is done.

        Raises: the error that its batch met.
        """
        return receipt_of(self._batch.result(), self._position)

    def __await__(self) -> Generator[Any, None, Receipt]:
        yield from self._batch.wait().__await__()
        return self.result()


class Receipts(Sequence[Receipt]):
    """One receipt per message, in the order of the messages."""

    __slots__ = ("_batches", "_ends", "_places", "_positions")

    def __init__(self, batches: list[Published], positions: list[list[int]] | None = None) -> None:
        self._batches = batches
        self._positions = positions
        """Which messages are in each batch, unless batch follows batch; -1 is somebody else's."""
        if positions is None:
            self._ends = list(accumulate(batch.count for batch in batches))
        else:
            self._ends = list(accumulate(len(some) - some.count(-1) for some in positions))
        self._places: dict[int, tuple[int, int]] | None = None

    @property
    def batches(self) -> list[Published]:
        """The batches that hold these messages, and perhaps others sent at the same time."""
        return self._batches

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _place(self, position: int) -> tuple[int, int]:
        """In which batch a message is, and where."""
        if self._positions is None:
            number = bisect_right(self._ends, position)
            return number, position - (self._ends[number - 1] if number else 0)
        if self._places is None:
            self._places = {
                message: (number, within)
                for number, some in enumerate(self._positions)
                for within, message in enumerate(some)
            }
        return self._places[position]

    @overload
    def __getitem__(self, position: int) -> Receipt: ...

    @overload
    def __getitem__(self, position: slice) -> list[Receipt]: ...

    def __getitem__(self, position: int | slice) -> Receipt | list[Receipt]:
        if isinstance(position, slice):
            return [self[each] for each in range(*position.indices(len(self)))]
        if position < 0:
            position += len(self)
        if not 0 <= position < len(self):
            raise IndexError("no such receipt")
        number, within = self._place(position)
        return receipt_of(self._batches[number], within)

    def __repr__(self) -> str:
        return f"<{len(self)} receipts>"
