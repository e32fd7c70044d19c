"""Which messages somebody has seen: by partition and offset, a digest each, in eight bytes."""

from array import array
from collections.abc import Iterator

from xxhash import xxh3_64_intdigest

NOTHING = 0


def digest(body: bytes) -> int:
    """Never NOTHING, which stands for a message that was not seen."""
    return xxh3_64_intdigest(body) or 1


class Record:
    """Digests by partition and offset."""

    def __init__(self) -> None:
        self.count = 0
        """Different messages."""
        self.contradictions = 0
        """Messages that were noted twice, with different bodies."""
        self._digests: dict[int, array[int]] = {}

    def note(self, partition: int, offset: int, seen: int) -> bool:
        """Note one message; whether it was new."""
        digests = self._digests.setdefault(partition, array("Q"))
        if offset >= len(digests):
            digests.frombytes(bytes(8 * (offset + 1 - len(digests))))
        known = digests[offset]
        if known == NOTHING:
            digests[offset] = seen
            self.count += 1
            return True
        if known != seen:
            self.contradictions += 1
        return False

    def at(self, partition: int, offset: int) -> int:
        digests = self._digests.get(partition, ())
        return digests[offset] if offset < len(digests) else NOTHING

    def partitions(self) -> dict[int, int]:
        """How many offsets each partition reaches to."""
        return {partition: len(digests) for partition, digests in self._digests.items()}

    def missing_in(self, other: "Record") -> Iterator[tuple[int, int]]:
        """What is noted here, and not there or with another body: partition and offset."""
        for partition, digests in sorted(self._digests.items()):
            for offset, seen in enumerate(digests):
                if seen != NOTHING and other.at(partition, offset) != seen:
                    yield partition, offset
