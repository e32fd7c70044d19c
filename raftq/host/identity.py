"""Who this node is, as its data directory says: the small file `node`.

    {version, incarnation, name, cluster, state, members: [[name, host, port, incarnation], ...],
     founders: [[name, incarnation], ...], replicas: [[replica, name], ...], replica,
     former: [cluster, ...]}

`state` goes from "empty" to "prepared" to "active" and never back. The incarnation is minted with
the file: a wiped directory is another node, which owns no replica of the old one's.

`members` are those of now. The next three are there once the first of them was replaced: who they
were at the beginning, where the replicas of group 0 are, and which of those is this node's. A node
learns all that from group 0, and keeps it here because it must reach the others to ask group 0.

A cluster whose majority was given up (`raftq cluster recover`) goes on as another cluster: it has a
new id, so that whoever is still of the old one is refused on both sides, and `former` ones.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import cbor2

from raftq.env import Disk, Environment
from raftq.errors import ClusterMismatch, Corrupted
from raftq.ids import NOBODY, ClusterId, GroupId, NodeIncarnation, ReplicaId
from raftq.limits import FORMAT_VERSION
from raftq.storage import small_file

State = Literal["empty", "prepared", "active"]
PATH = "node"
UNKNOWN = NodeIncarnation(0)


@dataclass(frozen=True, slots=True)
class Member:
    """A node of the cluster. `incarnation` is 0 while it is not known."""

    name: str
    host: str
    port: int
    incarnation: NodeIncarnation = UNKNOWN


@dataclass(frozen=True, slots=True)
class Identity:
    """This node, in this run of its machine (`boot`).

    `members` is sorted by name. As long as they are the founders, replica i + 1 of group 0 is on
    members[i], and `founders`, `replicas` and `replica` are empty.
    """

    name: str
    incarnation: NodeIncarnation
    boot: int
    cluster: ClusterId
    state: State
    members: tuple[Member, ...]
    founders: tuple[tuple[str, NodeIncarnation], ...] = ()
    replicas: tuple[tuple[ReplicaId, str], ...] = ()
    replica: ReplicaId = NOBODY
    former: tuple[ClusterId, ...] = ()
    """What the cluster was called before its majority was given up, oldest first."""

    @property
    def first_cluster(self) -> ClusterId:
        """Under which name the cluster began: what group 0's machine knows it by, for ever."""
        return self.former[0] if self.former else self.cluster

    def member(self, name: str) -> Member | None:
        return next((member for member in self.members if member.name == name), None)

    def first_members(self) -> tuple[tuple[str, NodeIncarnation], ...]:
        """What group 0's machine begins with, on every node for ever."""
        return self.founders or tuple((member.name, member.incarnation) for member in self.members)

    def metadata_replicas(self) -> dict[ReplicaId, str]:
        """Where whoever may be a member of group 0 is."""
        if self.replicas:
            return dict(self.replicas)
        return {ReplicaId(i + 1): member.name for i, member in enumerate(self.members)}

    def metadata_replica(self) -> ReplicaId:
        """This node's own, of group 0."""
        if self.replica:
            return self.replica
        return next(r for r, name in self.metadata_replicas().items() if name == self.name)

    def with_members(
        self, members: tuple[Member, ...], replicas: tuple[tuple[ReplicaId, str], ...]
    ) -> "Identity":
        """The same node, in a cluster some of whose members were replaced."""
        return replace(
            self,
            members=members,
            founders=self.first_members(),
            replicas=replicas,
            replica=self.metadata_replica(),
        )

    def recovered(self, *, cluster: ClusterId, replica: ReplicaId) -> "Identity":
        """The same node, in a cluster that goes on from it alone: nobody else is of it yet."""
        return replace(
            self,
            cluster=cluster,
            former=(*self.former, self.cluster),
            founders=self.first_members(),
            replicas=((replica, self.name),),
            replica=replica,
        )


def stored(disk: Disk, *, boot: int) -> Identity | None:
    """What the directory says of itself, whoever asks; None if it says nothing.

    Raises: Corrupted, OSError.
    """
    payload = small_file.load(disk, PATH)
    if payload is None:
        return None
    return _from_map(payload, name=None, boot=boot)


def load(environment: Environment, *, name: str, members: tuple[Member, ...]) -> Identity:
    """The directory's identity; a new one is minted for an empty directory.

    Raises: ClusterMismatch when the directory belongs to a node of another name, or when it lost
    its identity while groups are still there; Corrupted.
    """
    disk, boot = environment.disk, environment.boot
    payload = small_file.load(disk, PATH)
    if payload is not None:
        known = _from_map(payload, name=name, boot=boot)
        # Until it is prepared, a node's list is what it was started with last.
        return known if known.state != "empty" else replace(known, members=_sorted(members))
    if any(entry.startswith("group-") for entry in disk.names("")):
        raise ClusterMismatch(
            "the data directory holds groups but no identity (file 'node'); "
            "restore that file, or start with an empty directory as a new node"
        )
    fresh = Identity(
        name=name,
        incarnation=NodeIncarnation(environment.entropy.bits(64)),
        boot=boot,
        cluster=ClusterId(0),
        state="empty",
        members=_sorted(members),
    )
    save(disk, fresh)
    return fresh


def _sorted(members: tuple[Member, ...]) -> tuple[Member, ...]:
    return tuple(sorted(members, key=lambda member: member.name))


def save(disk: Disk, identity: Identity) -> None:
    """Make the identity durable; returns after the sync."""
    members = [[m.name, m.host, m.port, m.incarnation] for m in identity.members]
    payload: dict[str, Any] = {
        "version": FORMAT_VERSION,
        "name": identity.name,
        "incarnation": identity.incarnation,
        "cluster": identity.cluster.to_bytes(16, "little"),
        "state": identity.state,
        "members": members,
    }
    if identity.replica:
        payload["founders"] = [list(row) for row in identity.founders]
        payload["replicas"] = [list(row) for row in identity.replicas]
        payload["replica"] = identity.replica
    if identity.former:
        payload["former"] = [cluster.to_bytes(16, "little") for cluster in identity.former]
    small_file.save(disk, PATH, cbor2.dumps(payload))


def _from_map(payload: bytes, *, name: str | None, boot: int) -> Identity:
    fields: dict[str, Any] = cbor2.loads(payload)
    if fields.get("version") != FORMAT_VERSION:
        raise Corrupted(f"the identity file has version {fields.get('version')}")
    if name is not None and fields["name"] != name:
        raise ClusterMismatch(
            f"the data directory belongs to node {fields['name']!r}, not {name!r}; "
            "give each node its own --data"
        )
    return Identity(
        name=fields["name"],
        incarnation=NodeIncarnation(fields["incarnation"]),
        boot=boot,
        cluster=ClusterId(int.from_bytes(fields["cluster"], "little")),
        state=fields["state"],
        members=tuple(Member(*row) for row in fields["members"]),
        founders=tuple((name, incarnation) for name, incarnation in fields.get("founders", ())),
        replicas=tuple((replica, node) for replica, node in fields.get("replicas", ())),
        replica=ReplicaId(fields.get("replica", NOBODY)),
        former=tuple(
            ClusterId(int.from_bytes(each, "little")) for each in fields.get("former", ())
        ),
    )


def advanced(
    identity: Identity,
    *,
    state: State,
    cluster: ClusterId | None = None,
    members: tuple[Member, ...] | None = None,
) -> Identity:
    """The same node, further on in its bootstrap."""
    return replace(
        identity,
        state=state,
        cluster=identity.cluster if cluster is None else cluster,
        members=identity.members if members is None else members,
    )


def group_directory(group: GroupId) -> str:
    return f"group-{group}"
