"""Replicas of a group over racks: losing one rack should cost as few replicas as possible.

Rules:

1. Spread comes first: a replica goes where the group has fewest so far. With three replicas that
   means three racks if there are three, and never two more in one rack than in another that has
   nodes left.
2. Then load: the node that hosts the fewest replicas of any group.
3. Then a hash of group and node, which scatters the groups of an empty cluster over equal nodes
   instead of piling them on the first by name.
4. Nodes without a label share one rack, the unnamed: caution, as nothing is known of them.

Where replicas are is decided once and stored; nothing here moves one.
"""

from collections.abc import Sequence
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from raftq.errors import InvalidArgument
from raftq.ids import GroupId


class Candidate(NamedTuple):
    """A node that may host a replica; `load` is the number of replicas it hosts by now."""

    node: str
    rack: str = ""
    load: int = 0


def choose_nodes(group: GroupId, candidates: Sequence[Candidate], count: int) -> tuple[str, ...]:
    """The `count` nodes that should host `group`, best first; the order of candidates is no matter.

    Raises: InvalidArgument when there are fewer candidates than that.
    """
    assert count >= 1
    assert len({candidate.node for candidate in candidates}) == len(candidates), "a node twice"
    if len(candidates) < count:
        raise InvalidArgument(
            f"group {group} cannot have {count} replicas on {len(candidates)} nodes; "
            "add nodes, or ask for fewer replicas"
        )
    by_preference = sorted(
        candidates,
        key=lambda candidate: (candidate.load, _weight(group, candidate.node), candidate.node),
    )
    in_rack = dict.fromkeys((candidate.rack for candidate in by_preference), 0)
    chosen: list[str] = []
    for _ in range(count):
        # The first of the least is taken, so among equal racks the order of preference decides.
        best = min(by_preference, key=lambda candidate: in_rack[candidate.rack])
        by_preference.remove(best)
        in_rack[best.rack] += 1
        chosen.append(best.node)
    return tuple(chosen)


def _weight(group: GroupId, node: str) -> int:
    return xxh3_64_intdigest(group.to_bytes(4, "little") + node.encode())
