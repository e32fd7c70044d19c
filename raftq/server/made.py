"""What this node has made of each group, remembered outside the groups' directories: `replicas`.

    rows of [group, replica, is_finished, incarnation, former]

It is written before a group's directory is begun, and again once that is durable: a directory is
never run under an id that was another's, and what an id lower than the one here asks for is of an
earlier time. `former` is there after `raftq cluster recover`: the group's members as its log knew
them when this replica was made its only voter.

A directory whose replica counts no more is moved aside, whole, under a name that nothing opens:
`group-7.forgot-<incarnation>`. That comes before its successor is noted: cut in between, the group has
no directory under the old id, and so it is lost, as it was anyway. Whoever may need what it holds finds it there; nobody but the
operator removes it.
"""

from typing import Final, NamedTuple

import cbor2

from raftq.env import Disk
from raftq.host.identity import group_directory
from raftq.ids import NOBODY, GroupId, ReplicaId
from raftq.storage import small_file

_PATH: Final = "replicas"
_ASIDE: Final = ".forgot-"


class Made(NamedTuple):
    """What this node has made of a group, or has begun to make."""

    replica: ReplicaId
    is_finished: bool
    incarnation: int
    """0: the node's."""
    former: tuple[ReplicaId, ...] = ()
    """Of a recovered group; empty for all others."""


NOTHING: Final = Made(NOBODY, is_finished=False, incarnation=0)


def load(disk: Disk) -> dict[GroupId, Made]:
    """Raises: Corrupted, OSError."""
    stored = small_file.load(disk, _PATH)
    rows = cbor2.loads(stored) if stored is not None else []
    return {
        group: Made(ReplicaId(replica), is_finished, incarnation, tuple(*former))
        for group, replica, is_finished, incarnation, *former in rows
    }


def save(disk: Disk, made: dict[GroupId, Made]) -> None:
    """Durable on return. Raises: OSError."""
    rows = [[group, *each] for group, each in sorted(made.items())]
    small_file.save(disk, _PATH, cbor2.dumps(rows))


def aside(group: GroupId, incarnation: int) -> str:
    """Where a directory with this incarnation goes when it counts no more."""
    return f"{group_directory(group)}{_ASIDE}{incarnation:016x}"


def move_aside(disk: Disk, group: GroupId, incarnation: int) -> None:
    """The group has no directory on return, durably, and nothing of it is lost.

    Raises: OSError.
    """
    directory = group_directory(group)
    disk.sync_directory(directory)
    disk.rename(directory, aside(group, incarnation))
    disk.sync_directory("")


def moved_aside(disk: Disk) -> list[str]:
    """The directories that lie here for the operator to keep or to remove."""
    return [name for name in disk.names("") if name.startswith("group-") and _ASIDE in name]


def clear(disk: Disk, directory: str) -> None:
    """Nothing is left of a creation that was cut."""
    names = disk.names(directory)
    for name in names:
        disk.remove(f"{directory}/{name}")
    if names:
        disk.sync_directory(directory)
