"""A node's replicas, its links and its timer, in one place.

The host runs turns: groups that want one are collected and run together in the next pass of the
loop, after everything that arrived in this one. One timer serves all groups; it fires at the
earliest deadline and costs nothing while a node is idle but for heartbeats.
"""

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping

from raftq.env import Environment
from raftq.errors import ProtocolError, RaftqError
from raftq.host import identity as identities
from raftq.host.bootstrap import Bootstrap
from raftq.host.catch_up import CatchUpBudget
from raftq.host.group import Group
from raftq.host.identity import Identity
from raftq.host.link import Link
from raftq.host.links import Links
from raftq.host.observer import Observer
from raftq.host.tuning import DEFAULT_TUNING, Tuning
from raftq.host.witness import Witness
from raftq.ids import ClusterId, GroupId, Micros, ReplicaId
from raftq.machine import Machine
from raftq.raft import Message
from raftq.raft.faults import NONE, Faults
from raftq.storage.group_log import GroupLog
from raftq.wire.frames import FrameKind
from raftq.wire.repair_messages import RepairMessage, encode_repair

Forwarded = Callable[[Link, int, memoryview], None]


class Host:
    """See the package's docstring.

    `activating` makes group 0's replica durable just before the node becomes active; `activated`
    is called once it may run replicas.
    """

    def __init__(
        self,
        environment: Environment,
        *,
        identity: Identity,
        loop: AbstractEventLoop,
        activating: Callable[[Identity], None],
        activated: Callable[[Identity], None],
        forwarded: Forwarded,
        on_link_lost: Callable[[str], None],
        faults: Faults = NONE,
        tuning: Tuning = DEFAULT_TUNING,
        witness: Witness | None = None,
    ) -> None:
        self.environment = environment
        self.loop = loop
        self.groups: dict[GroupId, Group] = {}
        self.links = Links(environment, identity, self, loop)
        self._faults = faults
        self._tuning = tuning
        self._witness = witness
        self.catch_up = CatchUpBudget(environment.clock)
        self._activated = activated
        self._forwarded = forwarded
        self._on_link_lost = on_link_lost
        self._wanted: list[Group] = []
        self._armed_at: Micros | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self.bootstrap_state = Bootstrap(
            identity,
            save=self._save,
            send=lambda node, body: self.links.link(node).send(FrameKind.BOOTSTRAP, body),
            mint=lambda: ClusterId(environment.entropy.bits(128)),
            activating=activating,
            activated=activated,
        )

    @property
    def identity(self) -> Identity:
        return self.links.identity

    def _save(self, identity: Identity) -> None:
        identities.save(self.environment.disk, identity)
        self.links.identity = identity

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen to peers at the address; an active node takes up its replicas first."""
        if self.identity.state == "active":
            self._activated(self.identity)
        address = await self.links.start(host, port)
        self.bootstrap_state.begin()
        return address

    def stop(self) -> None:
        """Close every log with its final mark, then the links."""
        if self._stopped:
            return
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for group in self.groups.values():
            group.stop()
        self.links.close()

    def add_group(
        self,
        group: GroupId,
        *,
        replica: ReplicaId,
        nodes: Mapping[ReplicaId, str],
        log: GroupLog,
        machine: Machine,
        observer: Observer,
        may_vote: bool = True,
    ) -> Group:
        """Take up a replica whose log has been recovered."""
        assert group not in self.groups
        member = Group(
            group=group,
            replica=replica,
            nodes=nodes,
            log=log,
            machine=machine,
            environment=self.environment,
            loop=self.loop,
            send=self._send,
            send_repair=self._send_repair,
            schedule=self._schedule,
            observer=observer,
            budget=self.catch_up,
            may_vote=may_vote,
            faults=self._faults,
            tuning=self._tuning,
            witness=self._witness,
        )
        self.groups[group] = member
        for node in self.links.up():
            member.link_up(node)
        member.want_turn()
        return member

    def remove_group(self, group: GroupId) -> None:
        """Run this replica no more."""
        member = self.groups.pop(group, None)
        if member is not None:
            member.stop()

    def change_members(self, identity: Identity) -> None:
        """Group 0 says that other nodes are members now; durable when it returns.

        Raises: OSError; then nothing has changed.
        """
        self.bootstrap_state.members_changed(identity)
        self.links.members_changed()

    # --- Turns --------------------------------------------------------------------------------

    def _schedule(self, group: Group) -> None:
        if not self._wanted:
            self.loop.call_soon(self._run)
        self._wanted.append(group)

    def _run(self) -> None:
        wanted, self._wanted = self._wanted, []
        if self._stopped:
            return
        try:
            for group in wanted:
                try:
                    group.turn()
                except Exception as error:
                    # A bug: this replica has stopped half way. The node's other groups go on.
                    group.quarantine(f"internal error: {error!r}")
                    self.loop.call_exception_handler(
                        {"message": "a turn failed", "exception": error}
                    )
        finally:
            self._arm()

    def _arm(self) -> None:
        if self._stopped:
            return  # A turn may have been the one that stopped the node.
        earliest: Micros | None = None
        for group in self.groups.values():
            if (earliest is None or group.deadline < earliest) and not group.quarantined:
                earliest = group.deadline
        if earliest is None or (self._armed_at is not None and self._armed_at <= earliest):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_at = earliest
        delay = max(earliest - self.environment.clock.monotonic(), 0) / 1_000_000
        self._timer = self.loop.call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._armed_at = None
        self._timer = None
        now = self.environment.clock.monotonic()
        for group in self.groups.values():
            if group.deadline <= now:
                group.want_turn()
        if not self._wanted:
            self._arm()

    def _send(self, node: str, group: GroupId, message: Message) -> None:
        self.links.link(node).send_raft(group, message)

    # --- What arrives -------------------------------------------------------------------------

    def link_up(self, node: str) -> None:
        self.bootstrap_state.link_up(node)
        for group in self.groups.values():
            group.link_up(node)

    def link_lost(self, node: str) -> None:
        if self._stopped:
            return
        self.links.say("link lost", node, node)
        self.bootstrap_state.link_lost(node)
        for group in self.groups.values():
            group.link_lost(node)
        self._on_link_lost(node)

    def raft_message(self, node: str, group: GroupId, message: Message) -> None:
        member = self.groups.get(group)
        if member is None:
            return  # Not made here yet, or not ours any more; the core expects loss.
        if member.nodes.get(message.sender, node) != node:
            raise ProtocolError(f"node {node} speaks for a replica of group {group} not its own")
        if message.to != member.replica or message.sender not in member.nodes:
            return  # For the replica that was here before; or of one that group 0 has yet to tell of.
        member.step(message)

    def _send_repair(self, node: str, group: GroupId, message: RepairMessage) -> None:
        self.links.link(node).send(FrameKind.REPAIR, *encode_repair(group, message))

    def repair_message(self, node: str, group: GroupId, message: RepairMessage) -> None:
        member = self.groups.get(group)
        if member is None:
            return
        if message.to != member.replica or member.nodes.get(message.sender) != node:
            raise ProtocolError(f"node {node} speaks for a replica of group {group} not its own")
        member.mending.step(message)

    def forwarded(self, link: Link, stream: int, body: memoryview) -> None:
        self._forwarded(link, stream, body)

    def refused(self, reason: str) -> None:
        self.bootstrap_state.refused(reason)

    def bootstrap(self, node: str, body: memoryview) -> None:
        try:
            self.bootstrap_state.message(node, body)
        except (RaftqError, KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"bootstrap message of node {node}: {error}") from error
