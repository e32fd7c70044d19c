"""Drawing a snapshot in slices while the state goes on changing.

Theory of operation. A drawing begins with the list of all items. An item that is about to change
before its turn has come is encoded then and there, and its bytes are kept; the others are encoded
when their turn comes. So what is drawn is the state as it was when the drawing began, and no slice
takes long. A single very large item is still encoded in one go.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, TypeVar

ItemType = TypeVar("ItemType")

_SLICE_BYTES: Final = 128 * 1024
_SLICE_ITEMS: Final = 1_000
"""A slice ends at either: both take about 5 ms at most."""


class Drawing(Generic[ItemType]):
    """One snapshot in the making. Who does not want it any more just lets go of it."""

    def __init__(
        self,
        items: Sequence[ItemType],
        *,
        encode: Callable[[ItemType], bytes],
        head: bytes,
        tail: bytes,
    ) -> None:
        self._items = iter(items)
        self._coming: dict[ItemType, bytes | None] = dict.fromkeys(items)
        """Items not drawn yet, with their bytes if they have changed since."""
        self._encode = encode
        self._head = head
        self._tail = tail
        self._ended = False

    def keep(self, item: ItemType) -> None:
        """The item is about to change."""
        if self._coming.get(item, b"") is None:
            self._coming[item] = self._encode(item)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._ended:
            raise StopIteration
        parts, self._head = [self._head], b""
        size = 0
        while size < _SLICE_BYTES and len(parts) < _SLICE_ITEMS:
            item = next(self._items, None)
            if item is None:
                parts.append(self._tail)
                self._ended = True
                break
            encoded = self._coming.pop(item) or self._encode(item)
            parts.append(encoded)
            size += len(encoded)
        return b"".join(parts)
