"""One simulated file: what its page cache shows, and what its platter would show after a crash.

The bytes are kept once, as the page cache shows them. For every write that no sync has covered yet
its place and what it overwrote are remembered, so that a crash can take it back. Appends overwrite
nothing, so they cost nothing to remember.

Who decides that power is lost, and what happens to names, is `disk`.
"""

from collections.abc import Sequence

from raftq.env import Buffer, Entropy

SECTOR_BYTES = 512
ZEROS_BYTES = 64 * 1024


class UnsyncedWrite:
    """One write that no sync has covered: where, what it overwrote, the size of the file after."""

    __slots__ = ("failed", "length", "old", "position", "size_after")

    def __init__(self, position: int, length: int, old: bytes, size_after: int) -> None:
        self.position = position
        self.length = length
        self.old = old
        self.size_after = size_after
        self.failed = False


class Inode:
    """One file. Bytes from `len(data)` up to `size` are zeros that were never overwritten."""

    __slots__ = ("data", "durable_size", "preparing", "size", "writes")

    def __init__(self) -> None:
        self.data = bytearray()
        self.size = 0
        self.durable_size = 0
        self.preparing = 0
        self.writes: list[UnsyncedWrite] = []

    def put(self, position: int, vectors: Sequence[Buffer], length: int) -> None:
        data = self.data
        held = len(data)
        old = bytes(data[position : position + length]) if position < held else b""
        if position >= held:
            # Long zeros behind everything, a segment's rest, need not be kept to be read.
            if length < ZEROS_BYTES or vectors[0] != bytes(length):
                if position > held:
                    data.extend(bytes(position - held))
                for vector in vectors:
                    data += vector
        else:
            data[position : position + length] = b"".join(vectors)
        self.size = max(self.size, position + length)
        self.writes.append(UnsyncedWrite(position, length, old, self.size))

    def settle(self, count: int) -> None:
        """The first `count` writes have reached the platter, except those that failed before."""
        kept = [write for write in self.writes[:count] if write.failed]
        for write in self.writes[:count]:
            if not write.failed:
                self.durable_size = max(self.durable_size, write.size_after)
        self.writes[:count] = kept

    def lose(self, entropy: Entropy) -> None:
        """Power is lost: take back a part of what no sync has covered."""
        if self.preparing:
            self.size = self.durable_size = entropy.below(self.preparing + 1)
            self.preparing = 0
            return
        if not self.writes:
            return
        mood = entropy.below(4)
        size = self._surviving_size(mood, entropy)
        survives = self._surviving_writes(mood, entropy)
        if mood == 3 or any(write.failed for write in self.writes):
            self._lose_sectors(mood, entropy)
        else:
            for write, survived in zip(reversed(self.writes), reversed(survives), strict=True):
                if not survived:
                    self._restore(write, write.position, write.position + write.length)
        self.writes.clear()
        self.size = self.durable_size = size
        del self.data[size:]

    def _surviving_size(self, mood: int, entropy: Entropy) -> int:
        if mood < 2:
            return self.durable_size if mood == 0 else self.size
        sizes = [self.durable_size, *(write.size_after for write in self.writes)]
        return sizes[entropy.below(len(sizes))]

    def _surviving_writes(self, mood: int, entropy: Entropy) -> list[bool]:
        if mood == 2:
            return [entropy.below(2) == 1 for _ in self.writes]
        return [mood == 1] * len(self.writes)

    def _lose_sectors(self, mood: int, entropy: Entropy) -> None:
        """Each sector keeps its own number of the writes that touched it."""
        touching: dict[int, list[int]] = {}
        for ordinal, write in enumerate(self.writes):
            first = write.position // SECTOR_BYTES
            last = (write.position + write.length - 1) // SECTOR_BYTES
            for sector in range(first, last + 1):
                touching.setdefault(sector, []).append(ordinal)
        for sector, ordinals in touching.items():
            if mood == 0:
                keep = 0
            elif mood == 1:
                keep = len(ordinals)
            else:
                keep = entropy.below(len(ordinals) + 1)
            for place, ordinal in enumerate(ordinals):
                if self.writes[ordinal].failed:
                    keep = min(keep, place)
                    break
            start, stop = sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES
            for ordinal in reversed(ordinals[keep:]):
                write = self.writes[ordinal]
                end = min(stop, write.position + write.length)
                self._restore(write, max(start, write.position), end)

    def _restore(self, write: UnsyncedWrite, start: int, stop: int) -> None:
        old = write.old[start - write.position : stop - write.position]
        stop = min(stop, len(self.data))
        if start < stop:
            self.data[start:stop] = (old + bytes(stop - start))[: stop - start]


def finish_sync(inode: Inode, covered: list[UnsyncedWrite], error: OSError | None) -> None:
    if error is not None:
        for write in covered:
            write.failed = True
        return
    # Writes are settled in order, so what this sync covers is a prefix of what is left.
    left = len(inode.writes)
    if left and covered:
        last = covered[-1]
        count = next((n + 1 for n in range(left) if inode.writes[n] is last), 0)
        inode.settle(count)
