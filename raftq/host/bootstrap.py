"""How a cluster begins: two phases, so that an empty data directory never votes.

Every node is started with the same list of members. The first member by name coordinates:

    all report "empty" and the identical list   ->  Prepare(cluster id, members, incarnations)
    each makes that durable ("prepared")        ->  Prepared
    all are prepared                            ->  Activate; each makes "active" durable

Only an active node runs its replica of group 0, so only it may vote. What makes crashes harmless:

1. While nobody is active nothing was promised: the coordinator may prepare anew, and a member takes
   another Prepare from the same coordinator.
2. Once anybody is active, all were prepared with that very list; a prepared member that hears of an
   active one of its cluster activates itself.
3. An active cluster refuses a member whose incarnation it does not know: a wiped directory is
   another node. A node with another list is refused with ClusterMismatch, by name.
4. Once group 0 says that such a node takes another one's place, the others accept its link, and
   whoever it is linked to sends Adopt(members, founders, its replica of group 0). The node makes
   that replica's directory as that of a stranger to the group, who neither votes nor campaigns, and
   is active; all else it learns from group 0. Adopt founds nothing, and may come twice.

The prepared list is group 0's first configuration, at index 0; it is no log entry.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from raftq.errors import ClusterMismatch, ProtocolError
from raftq.host.identity import Identity, Member, advanced
from raftq.ids import ClusterId, NodeIncarnation
from raftq.observability.logs import logger
from raftq.wire import cbor

_log = logger("raftq.host")


class Bootstrap:
    """One node's part. Sends maps through `send`, keeps its identity through `save`."""

    def __init__(
        self,
        identity: Identity,
        *,
        save: Callable[[Identity], None],
        send: Callable[[str, bytes], None],
        mint: Callable[[], ClusterId],
        activating: Callable[[Identity], None],
        activated: Callable[[Identity], None],
    ) -> None:
        self.identity = identity
        self._save = save
        self._send = send
        self._mint = mint
        self._activating = activating
        self._activated = activated
        self._reports: dict[str, dict[str, Any]] = {}
        self.problem: str | None = None
        """Why the cluster does not begin, for status and logs; None while it may."""

    @property
    def _coordinator(self) -> str:
        return self.identity.members[0].name

    def begin(self) -> None:
        """Called once the node listens: a cluster of one has nobody to wait for."""
        self._consider()

    def link_up(self, node: str) -> None:
        self._send(node, self._report())

    def link_lost(self, node: str) -> None:
        self._reports.pop(node, None)

    def members_changed(self, identity: Identity) -> None:
        """Group 0 says that other nodes are members now. They may be here already, and empty."""
        assert self.identity.state == "active"
        self._become(identity)

    def refused(self, reason: str) -> None:
        """What keeps a node that is not active yet from its cluster."""
        if self.identity.state != "active":
            self.problem = reason

    def _report(self) -> bytes:
        identity = self.identity
        return cbor.encode(
            {
                "do": "state",
                "state": identity.state,
                "cluster": identity.cluster.to_bytes(16, "little"),
                "incarnation": identity.incarnation,
                "members": [[m.name, m.host, m.port] for m in identity.members],
            }
        )

    def message(self, node: str, body: memoryview) -> None:
        """A linked node's map arrived.

        Raises: ProtocolError, ClusterMismatch.
        """
        fields = cbor.decode(body)
        verb = fields.get("do")
        if verb == "state":
            self._reports[node] = fields
            if fields["state"] == "active":
                self._hear_active(fields)
            elif fields["state"] == "empty" and self.identity.state == "active":
                self._adopt(node, NodeIncarnation(fields["incarnation"]))
        elif verb == "adopt":
            self._be_adopted(fields)
        elif verb == "prepare" and node == self._coordinator:
            self._prepare(fields)
            self._send(node, self._report())
        elif verb == "activate":
            self._hear_active(fields)
        self._consider()

    def _hear_active(self, fields: dict[str, Any]) -> None:
        cluster = int.from_bytes(fields["cluster"], "little")
        if self.identity.state == "prepared" and self.identity.cluster == cluster:
            self._activate()

    def _prepare(self, fields: dict[str, Any]) -> None:
        if self.identity.state == "active":
            return
        members = tuple(
            Member(name, host, port, NodeIncarnation(incarnation))
            for name, host, port, incarnation in fields["members"]
        )
        own = next((m for m in members if m.name == self.identity.name), None)
        if own is None or own.incarnation != self.identity.incarnation:
            return  # Meant for the directory that was here before.
        self._advance("prepared", int.from_bytes(fields["cluster"], "little"), members)

    def _advance(self, state: Any, cluster: int, members: tuple[Member, ...]) -> None:
        self._become(
            advanced(self.identity, state=state, cluster=ClusterId(cluster), members=members)
        )

    def _become(self, identity: Identity) -> None:
        # Durable first: what a failed save did not keep must never be reported.
        self._save(identity)
        self.identity = identity

    def _activate(self) -> None:
        # Group 0's directory is made first: an active node that lacks it has lost it.
        self._activating(self.identity)
        self._advance("active", self.identity.cluster, self.identity.members)
        self.problem = None
        _log.info("cluster active", cluster=f"{self.identity.cluster:032x}")
        self._activated(self.identity)

    def _adopt(self, node: str, incarnation: NodeIncarnation) -> None:
        """Tell a node with an empty directory where it belongs, if it has a place."""
        identity = self.identity
        replicas = identity.metadata_replicas()
        own = max(replica for replica, name in replicas.items() if name == node)
        member = identity.member(node)
        if member is None or member.incarnation != incarnation or own <= len(identity.members):
            return  # A founder was prepared before it had a place: this is not its directory.
        fields = {
            "do": "adopt",
            "cluster": identity.cluster.to_bytes(16, "little"),
            "incarnation": incarnation,
            "replica": own,
            "members": [[m.name, m.host, m.port, m.incarnation] for m in identity.members],
            "founders": [list(row) for row in identity.first_members()],
            "replicas": [list(row) for row in replicas.items()],
            "former": [each.to_bytes(16, "little") for each in identity.former],
        }
        _log.info("adopting", node=node, replica=own)
        self._send(node, cbor.encode(fields))

    def _be_adopted(self, fields: dict[str, Any]) -> None:
        identity = self.identity
        if identity.state != "empty" or fields["incarnation"] != identity.incarnation:
            return  # Meant for the directory that was here before, or said already.
        adopted = replace(
            identity,
            state="active",
            cluster=ClusterId(int.from_bytes(fields["cluster"], "little")),
            members=tuple(
                Member(name, host, port, NodeIncarnation(incarnation))
                for name, host, port, incarnation in fields["members"]
            ),
            founders=tuple((name, incarnation) for name, incarnation in fields["founders"]),
            replicas=tuple((replica, name) for replica, name in fields["replicas"]),
            replica=fields["replica"],
            former=tuple(
                ClusterId(int.from_bytes(each, "little")) for each in fields.get("former", ())
            ),
        )
        if (adopted.replica, identity.name) not in adopted.replicas:
            raise ProtocolError("this node was adopted without a replica of group 0")
        # As when activating: an active node that lacks group 0's directory has lost it.
        self._activating(adopted)
        self._become(adopted)
        self.problem = None
        _log.info("adopted", cluster=f"{adopted.cluster:032x}", replica=adopted.replica)
        self._activated(adopted)

    def _consider(self) -> None:
        """The coordinator's next step, if there is one."""
        identity = self.identity
        if identity.state == "active" or identity.name != self._coordinator:
            return
        others = [member.name for member in identity.members if member.name != identity.name]
        if any(name not in self._reports for name in others):
            return
        self.problem = self._mismatch(others)
        if self.problem is not None:
            _log.error("cluster cannot begin", reason=self.problem)
            return
        reports = [self._reports[name] for name in others]
        incarnations = {name: self._reports[name]["incarnation"] for name in others}
        incarnations[identity.name] = identity.incarnation
        listed = {member.name: member.incarnation for member in identity.members}
        if identity.state != "prepared" or listed != incarnations:
            members = tuple(
                replace(m, incarnation=NodeIncarnation(incarnations[m.name]))
                for m in identity.members
            )
            self._advance("prepared", self._mint(), members)
        identity = self.identity
        cluster = identity.cluster.to_bytes(16, "little")
        unprepared = [
            name
            for name, report in zip(others, reports, strict=True)
            if report["state"] != "prepared" or report["cluster"] != cluster
        ]
        if not unprepared:
            for name in others:
                self._send(name, cbor.encode({"do": "activate", "cluster": cluster}))
            self._activate()
            return
        rows = [[m.name, m.host, m.port, m.incarnation] for m in identity.members]
        for name in unprepared:
            self._reports.pop(name)  # Its next report is the answer.
            self._send(name, cbor.encode({"do": "prepare", "cluster": cluster, "members": rows}))

    def _mismatch(self, others: list[str]) -> str | None:
        own = [[m.name, m.host, m.port] for m in self.identity.members]
        for name in others:
            report = self._reports[name]
            if report["members"] != own:
                return str(
                    ClusterMismatch(
                        f"node {name!r} was started with another list of members; "
                        "give every node the same --cluster"
                    )
                )
            if report["state"] == "active":
                return str(
                    ClusterMismatch(
                        f"node {name!r} already belongs to an active cluster; "
                        "this data directory is new and cannot join it as a voter"
                    )
                )
        return None
