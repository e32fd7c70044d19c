"""A consistent-hash ring of groups: proposes a group for each partition, with bounded load.

Theory of operation. Each group stands at `virtual_nodes` points of a ring of 2**64. A partition has
one point, and belongs to the first group clockwise from it. More groups take over arcs from those
that are there, in equal shares, and nothing else changes. With 128 points a group, shares differ by
about a tenth (one over the square root); what is left of the imbalance, and the small numbers of a
small cluster, the bound takes away: no group is proposed that would hold more than 5/4 of the average,
rounded down, unless every group holds as much already; the next one clockwise is.

    a group's points:     xxh3_64("group" || u32 group || u32 number), number from 0
    a partition's point:  xxh3_64("place" || u32 queue || u32 partition)

Integers little-endian. Points that coincide are ordered by group. Rule: whoever holds the same
groups and the same load proposes the same; a ring never changes after it was made.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import Final

from xxhash import xxh3_64_intdigest

from raftq.ids import GroupId, Partition, QueueId

VIRTUAL_NODES: Final = 128
LOAD_NUMERATOR: Final = 5
LOAD_DENOMINATOR: Final = 4
"""A group takes at most 5/4 of the average load. Nearer to 1 balances better but moves more."""

_PAIR: Final = Struct("<5sII")


def _point(kind: bytes, first: int, second: int) -> int:
    return xxh3_64_intdigest(_PAIR.pack(kind, first, second))


class Ring:
    """Groups on a circle."""

    __slots__ = ("_owners", "_points", "groups")

    def __init__(self, groups: Sequence[GroupId], virtual_nodes: int = VIRTUAL_NODES) -> None:
        assert groups, "a ring needs a group"
        assert len(dict.fromkeys(groups)) == len(groups), "a group stands on a ring once"
        assert virtual_nodes >= 1
        self.groups = tuple(sorted(groups))
        placed = sorted(
            (_point(b"group", group, number), group)
            for group in self.groups
            for number in range(virtual_nodes)
        )
        self._points = [point for point, _ in placed]
        self._owners = [group for _, group in placed]

    def preferences(self, queue: QueueId, partition: Partition) -> Iterator[GroupId]:
        """Every group once, in the order in which the partition meets them clockwise."""
        owners = self._owners
        start = bisect_left(self._points, _point(b"place", queue, partition))
        met: dict[GroupId, None] = {}
        for step in range(len(owners)):
            group = owners[(start + step) % len(owners)]
            if group not in met:
                met[group] = None
                yield group
                if len(met) == len(self.groups):
                    return

    def place(
        self,
        queue: QueueId,
        partition: Partition,
        load: Mapping[GroupId, int],
        *,
        even: bool = True,
    ) -> GroupId:
        """The group proposed for a partition that none hosts yet.

        `load` is what each group hosts by now, in whatever unit one more partition counts as one;
        groups that it does not name host nothing, and groups that the ring does not know are not
        counted. Not `even` is how it was once: with few partitions 5/4 of the average, rounded up,
        is twice the average, and a group could stay empty beside two that had two each.
        """
        loads = [load.get(group, 0) for group in self.groups]
        share, count = (1 + sum(loads)) * LOAD_NUMERATOR, len(self.groups) * LOAD_DENOMINATOR
        bound = max(share // count, 1 + min(loads)) if even else -(-share // count)
        for group in self.preferences(queue, partition):
            if load.get(group, 0) < bound:
                return group
        raise AssertionError("all groups above 5/4 of their own average")
