"""CONTROL: administration, and everything else that is cold.

Three kinds of operations: those that any node answers from its own copy of the metadata, those that
are a command of group 0, and those of one queue group or of all groups of a queue (`fan_out.py`).
An operation of group 0 that takes effect in other groups (create, delete) is answered when it has:
the leader of group 0 watches its own table until the queue's state says so.

Nodes among themselves use a few operations more (`_INTERNAL`); a client that asks for one is
refused like for any name that does not exist.
"""

from asyncio import TimerHandle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raftq.errors import Busy, InvalidArgument, ProtocolError, QueueNotEmpty
from raftq.host import Done, Group, Place
from raftq.host.disk_alarm import full_text
from raftq.ids import METADATA_GROUP, GroupId
from raftq.metadata import (
    CreateQueue,
    DeleteQueue,
    MetadataMachine,
    Queue,
    QueueReply,
    ReplaceNode,
    UpdateQueue,
    encode,
)
from raftq.queue.config import QueueConfig
from raftq.server.answering import answer_map, answer_with
from raftq.server.fan_out import FanOut
from raftq.server.made import moved_aside
from raftq.server.request import Request
from raftq.version import VERSION
from raftq.wire import cbor, control
from raftq.wire.frames import FrameKind

if TYPE_CHECKING:
    from raftq.server.node import Node

_WAIT_SECONDS = 4.0
"""How long a change of the metadata is waited for before its asker is told to ask again."""

Operation = Callable[[Request, dict[str, Any]], None]
Waiter = Callable[[], bool]
"""Asked on every change of the metadata; True when it has answered and is done."""


class Admin:
    """Handles CONTROL."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._waiters: list[tuple[Request, Waiter, TimerHandle]] = []
        fan_out = FanOut(node)
        self._operations: dict[str, Operation] = {
            "metadata": self._metadata,
            "list_queues": self._list_queues,
            "create_queue": self._create_queue,
            "update_queue": self._update_queue,
            "delete_queue": self._delete_queue,
            "replace_node": self._replace_node,
            "status": self._status,
            "digest": self._digest,
            **fan_out.operations(),
        }
        self._internal: dict[str, Operation] = {
            "propose_metadata": self._propose_metadata,
            "release": node.releases.apply,
            "has_room": node.relief.tell,
            **fan_out.internal(),
        }
        node.router.serve(FrameKind.CONTROL, self._handle)

    def _handle(self, request: Request) -> None:
        wanted = cbor.decode(request.body)
        name = wanted.get("do")
        if request.is_internal and name in self._internal:
            self._internal[name](request, wanted)
            return
        control.check_request(wanted)
        self._operations[str(name)](request, wanted)

    def handle_internal(self, request: Request) -> None:
        """An operation of this node itself, by the same way as another node's."""
        request.is_internal = True
        self._node.router.handle(request)

    # --- Group 0 ------------------------------------------------------------------------------

    def _propose_metadata(self, request: Request, wanted: dict[str, Any]) -> None:
        command = wanted["command"]
        if type(command) is not bytes:
            raise ProtocolError("propose_metadata needs the bytes of a command")
        self._propose(request, command, answer_map(request, lambda _: {}))

    def _propose(self, request: Request, header: bytes, done: Done) -> None:
        group = self._node.router.leading(METADATA_GROUP)
        if group is None:
            self._node.router.forward(request, METADATA_GROUP)
        else:
            group.propose(header, b"", done, reserve=True)

    def _propose_queue(
        self, request: Request, header: bytes, settled: Callable[[QueueReply], bool]
    ) -> None:
        """Propose, then wait until `settled` has answered."""

        def applied(reply: object, _place: Place) -> None:
            assert isinstance(reply, QueueReply)
            if not settled(reply):
                self._wait(request, lambda: settled(reply))

        self._propose(request, header, answer_with(request, applied))

    def _wait(self, request: Request, waiter: Waiter) -> None:
        def give_up() -> None:
            if not request.is_answered:
                request.fail(
                    Busy(
                        "the change is under way, but a group that takes part has no leader yet; "
                        "see `raftq cluster status`, then ask again",
                        outcome="unknown",
                        retry_after=0.5,
                    )
                )
                self._waiters = [each for each in self._waiters if not each[0].is_answered]

        request.on_cancel = give_up
        timer = self._node.loop.call_later(_WAIT_SECONDS, give_up)
        self._waiters.append((request, waiter, timer))

    def metadata_changed(self) -> None:
        """Group 0's applied state moved: whoever waits for it looks."""
        waiters, self._waiters = self._waiters, []
        for request, waiter, timer in waiters:
            if request.is_answered or waiter():
                timer.cancel()
            else:
                self._waiters.append((request, waiter, timer))

    def stop(self) -> None:
        """Nobody waits any more; the connections end."""
        for _, _, timer in self._waiters:
            timer.cancel()
        self._waiters.clear()

    def deposed(self, group: Group) -> None:
        if group.group == METADATA_GROUP:
            waiters, self._waiters = self._waiters, []
            for request, _, timer in waiters:
                timer.cancel()
                if not request.is_answered:
                    request.fail(group.redirect(applied=True))

    def _create_queue(self, request: Request, wanted: dict[str, Any]) -> None:
        config = QueueConfig.from_user(wanted["config"]).to_map()
        name = control.check_queue_name(wanted["name"])
        command = CreateQueue(name=name, config=config, even=True)
        self._propose_queue(request, encode(command), self._once_active(request, name))

    def _update_queue(self, request: Request, wanted: dict[str, Any]) -> None:
        name = control.check_queue_name(wanted["name"])
        present = self._node.metadata.queue(name)
        config = QueueConfig.from_map(present.config).updated(wanted["config"]).to_map()
        command = UpdateQueue(name=name, config=config, expected_version=present.version)
        self._propose_queue(request, encode(command), self._once_active(request, name))

    def _delete_queue(self, request: Request, wanted: dict[str, Any]) -> None:
        name = control.check_queue_name(wanted["name"])
        if self._node.router.leading(METADATA_GROUP) is None:
            # Whether it is protected is for the newest copy of the metadata to say.
            self._node.router.forward(request, METADATA_GROUP)
            return
        if self._node.metadata.queue(name).config.get("protected"):
            raise InvalidArgument(
                f"queue {name!r} is protected; update it with protected=False (--unprotected) first"
            )

        def settled(reply: QueueReply) -> bool:
            found = self._by_id(reply)
            if found is None:
                request.answer_map({})
            elif found.refusal is not None and found.refusal.version >= reply.config_version:
                request.fail(
                    QueueNotEmpty(
                        f"queue {name!r} still holds messages, in partition "
                        f"{found.refusal.partition} at least; drain it, or delete it with force"
                    )
                )
            else:
                return False
            return True

        command = DeleteQueue(name=name, force=wanted["force"])
        self._propose_queue(request, encode(command), settled)

    def _by_id(self, reply: QueueReply) -> Queue | None:
        machine = self._node.metadata.machine
        return machine.queue_by_id(reply.queue) if machine is not None else None

    def _once_active(self, request: Request, name: str) -> Callable[[QueueReply], bool]:
        """Answers with the queue when the groups have taken over what it is to be."""

        def settled(reply: QueueReply) -> bool:
            found = self._by_id(reply)
            if found is None:
                request.fail(Busy(f"queue {name!r} was deleted meanwhile", retry_after=0.1))
            elif found.state == "active":
                request.answer_map({"queue": queue_map(found)})
            return request.is_answered

        return settled

    def _replace_node(self, request: Request, wanted: dict[str, Any]) -> None:
        node, name = self._node, wanted["name"]
        machine = node.metadata.machine
        if node.router.leading(METADATA_GROUP) is None or machine is None:
            node.router.forward(request, METADATA_GROUP)
            return
        known, links = machine.node(name), node.host.links
        if known is None or node.host.identity.member(name) is None:
            raise InvalidArgument(f"no member of this cluster is called {name!r}")
        is_up = name == node.host.identity.name or links.link(name).is_up
        successor = None if is_up else links.candidate(name)
        if successor is None:
            if groups := _changing_on(machine, name):
                request.answer_map({"node": name, "groups": groups})
                return
            if is_up:
                raise InvalidArgument(f"node {name!r} is up; only one that is gone can be replaced")
            raise InvalidArgument(
                f"no new data directory asks for the place of node {name!r}: start a node of that "
                "name, at the same peer address, with an empty --data, then ask again"
            )

        command = ReplaceNode(name=name, incarnation=known.incarnation, successor=successor)
        answer = answer_map(
            request, lambda _: {"node": name, "groups": _changing_on(machine, name)}
        )
        self._propose(request, encode(command), answer)

    # --- Any node -----------------------------------------------------------------------------

    def _metadata(self, request: Request, wanted: dict[str, Any]) -> None:
        machine = self._node.metadata.machine
        if machine is None:
            raise Busy("the cluster has not begun yet", retry_after=0.1)
        name = wanted.get("queue")
        queues = [queue_map(self._node.metadata.queue(name))] if name is not None else []
        request.answer_map(
            {
                "version": machine.version,
                "queues": queues,
                "groups": [self._group_map(group.group) for group in machine.groups()],
                "nodes": [
                    {
                        "name": node.name,
                        "host": node.host,
                        "port": node.port,
                        "incarnation": node.incarnation,
                    }
                    for node in machine.nodes()
                ],
            }
        )

    def _group_map(self, group: GroupId) -> dict[str, Any]:
        replica = self._node.host.groups.get(group)
        return {
            "group": group,
            "leader": self._node.router.leader_node(group) if replica is not None else None,
            "term": replica.raft.term if replica is not None else 0,
            "voters": self._node.metadata.nodes_of(group),
        }

    def _list_queues(self, request: Request, _wanted: dict[str, Any]) -> None:
        machine = self._node.metadata.machine
        queues = machine.queues() if machine is not None else ()
        request.answer_map({"queues": [queue_map(queue) for queue in queues]})

    def _status(self, request: Request, _wanted: dict[str, Any]) -> None:
        node = self._node
        machine = node.metadata.machine
        identity = node.host.identity
        up = {*node.host.links.up(), identity.name}
        known = {record.name: record for record in machine.nodes()} if machine else {}
        request.answer_map(
            {
                "cluster": f"{identity.cluster:032x}" if identity.cluster else "",
                "node": identity.name,
                "version": VERSION,
                "state": identity.state,
                "problem": node.host.bootstrap_state.problem or _disk_problem(node),
                "nodes": [
                    {
                        "name": member.name,
                        "peer": f"{member.host}:{member.port}",
                        "client": f"{known[member.name].host}:{known[member.name].port}"
                        if member.name in known and known[member.name].host
                        else None,
                        "up": member.name in up,
                        "replacement": node.host.links.candidate(member.name) is not None,
                    }
                    for member in identity.members
                ],
                "groups": [group_status(group) for group in node.host.groups.values()],
                "changing": changing(machine) if machine is not None else [],
                "lost": sorted(node.replicas.lost),
                "void": sorted(node.replicas.void),
                "moved_aside": moved_aside(node.environment.disk),
                "queues": len(machine.queues()) if machine is not None else 0,
            }
        )

    def _digest(self, request: Request, wanted: dict[str, Any]) -> None:
        group = self._node.host.groups.get(GroupId(wanted["group"]))
        if group is None:
            raise Busy(f"group {wanted['group']} has no replica on this node", retry_after=1.0)
        request.answer_map(
            {
                "applied_index": group.applied_index,
                "digest": group.machine.digest(),
                "chain": group.log.chain(group.applied_index) or bytes(16),
            }
        )


def queue_map(queue: Queue) -> dict[str, Any]:
    """A queue as clients see it."""
    return {
        "name": queue.name,
        "id": queue.queue,
        "config": queue.config,
        "state": queue.state,
        "partitions": [
            {"partition": number, "group": group} for number, group in enumerate(queue.groups)
        ],
    }


def _disk_problem(node: "Node") -> str | None:
    if any(group.log.is_full for group in node.host.groups.values()):
        return full_text(node.host.identity.name)
    return None


def changing(machine: MetadataMachine) -> list[dict[str, Any]]:
    """The places of groups that are not filled as they shall be."""
    found = []
    for group in machine.groups():
        for name in sorted({replica.node for replica in group.leaving}):
            successor = group.replica_on(name)
            assert successor is not None, "who leaves has a successor"
            found.append(
                {
                    "group": group.group,
                    "node": name,
                    "joining": successor.replica,
                    "created": successor.state == "created",
                    "leaving": [r.replica for r in group.leaving if r.node == name],
                }
            )
    return found


def _changing_on(machine: MetadataMachine, name: str) -> list[int]:
    """Where what an earlier directory of the node left has not been taken over yet."""
    known = machine.node(name)
    return [
        group.group
        for group in machine.groups()
        if known is not None
        and any(r.node == name and r.incarnation != known.incarnation for r in group.leaving)
    ]


def group_status(group: Group) -> dict[str, Any]:
    """A replica as this node sees it."""
    status = group.raft.status()
    followers = {follower.replica: follower for follower in status.followers}
    members = status.membership.members()
    return {
        "group": group.group,
        "leader": group.leader_node,
        "role": group.raft.role.name.lower(),
        "term": group.raft.term,
        "commit_index": group.raft.commit_index,
        "applied_index": group.applied_index,
        "quarantined": group.quarantined,
        "log_time_alarms": group.log_time_alarm.count,
        "health": group.mending.health,
        "holes": [tuple(hole) for hole in group.log.holes],
        "repaired": [tuple(part) for part in group.log.patches.in_use()],
        "damage": list(group.log.damage),
        "syncs": group.log.syncs,
        "bytes_written": group.log.bytes_written,
        "last_index": status.last_index,
        "replicas": [
            {
                "node": name,
                "replica": replica,
                "match_index": followers[replica].match_index if replica in followers else None,
                "silent_us": followers[replica].silent if replica in followers else None,
            }
            for replica, name in group.nodes.items()
            if replica in members or not members
        ],
    }
