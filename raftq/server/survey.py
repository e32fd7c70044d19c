"""What a stopped node's directory holds of each group: what has to be known to decide about it.

Everything is read as an audit reads it: every entry, proved by its chain, and nothing is changed. A
replica may be given its group alone if it was a voter, everything that it ever took from its log is
still there, and it can name the members; `obstacle` says what of that is missing.
"""

from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

from raftq.env import Disk
from raftq.errors import Corrupted
from raftq.host.identity import Identity, group_directory
from raftq.ids import METADATA_GROUP, GroupId, Index, ReplicaId, Term
from raftq.raft import Membership
from raftq.raft import membership as memberships
from raftq.raft.entry import MEMBERSHIP
from raftq.raft.ready import SnapshotMeta
from raftq.server.made import Made
from raftq.storage import small_file
from raftq.storage.offline import OfflineFile
from raftq.storage.reader import Replica, commands, entries_in, read_replica
from raftq.storage.recovery import MEMBERS
from raftq.storage.walk import Condition

NOBODY_KNOWN = Membership(())


class Holding(NamedTuple):
    """One replica's directory."""

    group: GroupId
    replica: ReplicaId
    condition: str
    """Of its files: ok, damaged or amnesiac."""
    term: Term
    first_index: Index
    last_index: Index
    last_term: Term
    last_chain: bytes
    commit_index: Index
    membership: Membership
    """The last one in the log, committed or not."""
    problems: tuple[str, ...]
    obstacle: str
    """Why it cannot go on alone; empty if it can."""

    @property
    def unmarked(self) -> int:
        """Entries that may have been acknowledged, and may not."""
        return self.last_index - self.commit_index

    @property
    def is_voter(self) -> bool:
        return self.membership.is_voter(self.replica)


def groups_here(disk: Disk) -> list[GroupId]:
    """The groups of which the data directory has a replica's directory."""
    names = [name.removeprefix("group-") for name in disk.names("") if name.startswith("group-")]
    return sorted(GroupId(int(name)) for name in names if name.isdecimal())


def look(disk: Disk, identity: Identity, made: dict[GroupId, Made]) -> list[Holding]:
    """Every replica here, by group. Reads all of them to their ends.

    Raises: OSError.
    """
    found = []
    for group in groups_here(disk):
        row = made.get(group)
        replica = row.replica if row is not None else ReplicaId(0)
        if group == METADATA_GROUP and row is None:
            replica = identity.metadata_replica()
        is_finished = group == METADATA_GROUP or (row is not None and row.is_finished)
        found.append(_look_at(disk, group, replica, is_finished=is_finished))
    return found


def _look_at(disk: Disk, group: GroupId, replica: ReplicaId, *, is_finished: bool) -> Holding:
    directory = group_directory(group)

    def open_file(name: str) -> OfflineFile:
        return disk.open(f"{directory}/{name}")

    names = disk.names(directory)
    stored = read_replica(names, open_file)
    last_term, membership, gaps = _read_entries(stored, open_file)
    if membership == NOBODY_KNOWN:
        membership = first_membership(disk, directory)
    has_forgotten = stored.condition is Condition.AMNESIAC or "amnesiac" in names
    condition = "amnesiac" if has_forgotten else stored.condition.value
    held = Holding(
        group=group,
        replica=replica,
        condition=condition,
        term=stored.term,
        first_index=stored.first_index,
        last_index=stored.last_index,
        last_term=last_term,
        last_chain=stored.last_chain,
        commit_index=stored.commit_index,
        membership=membership,
        problems=(*stored.problems, *gaps),
        obstacle="",
    )
    return held._replace(obstacle=_obstacle(held, stored, gaps, is_finished=is_finished))


def _read_entries(
    stored: Replica, open_file: Callable[[str], OfflineFile]
) -> tuple[Term, Membership, list[str]]:
    """Term of the last entry, last membership among them, and what is missing."""
    base = newest_snapshot(stored)
    term, membership = (base.term, base.membership) if base else (Term(0), NOBODY_KNOWN)
    gaps: list[str] = []
    expected = int(stored.first_index)
    for live in stored.ranges:
        with closing(open_file(live.name)) as file:
            for entry, _, _, proved in entries_in(file, live):
                if entry.index != expected:
                    gaps.append(f"entries {expected} to {entry.index - 1} are lost here")
                if not proved:
                    gaps.append(f"entry {entry.index} does not verify")
                if entry.kind == MEMBERSHIP:
                    membership = memberships.decode(commands(entry)[0].header)
                term, expected = entry.term, entry.index + 1
    if expected <= stored.last_index:
        gaps.append(f"entries {expected} to {stored.last_index} are lost here")
    return term, membership, gaps


def newest_snapshot(stored: Replica) -> SnapshotMeta | None:
    """The newest that verifies."""
    sound = [each.meta for each in stored.snapshots if each.meta is not None]
    return max(sound, key=lambda meta: meta.index, default=None)


def first_membership(disk: Disk, directory: str) -> Membership:
    """What the group began with, as far as this replica was told; nobody if that is lost."""
    try:
        kept = small_file.load(disk, f"{directory}/{MEMBERS}")
    except Corrupted:
        return NOBODY_KNOWN
    return memberships.decode(kept) if kept is not None else NOBODY_KNOWN


def _obstacle(held: Holding, stored: Replica, gaps: list[str], *, is_finished: bool) -> str:
    newest = newest_snapshot(stored)
    if not is_finished or held.replica == 0:
        return "its directory was being made: it holds nothing"
    if not stored.segments:
        return "nothing of its log is left"
    if stored.replayed_from and (newest is None or newest.index < stored.replayed_from):
        return "the snapshot that its machine begins with is lost"
    if gaps:
        return gaps[0]
    if not held.membership.voters:
        return "it does not know the members of its group"
    if not held.is_voter:
        return "it is no voter of its group: what it holds was never counted"
    return ""
