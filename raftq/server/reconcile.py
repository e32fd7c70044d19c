"""Makes the world as the metadata says it should be, and reports back what has been done.

A table and a reconciler: group 0's applied state is the table; every node compares it with what it
has, on every change and whenever it begins to lead a group, and does the difference. All steps are
idempotent and any node may resume any of them, so nothing is lost when one dies half way.

    every node                      register its client address; make replicas of groups that are
                                    being created, report them; run those of active groups;
                                    know who the members are now
    the leader of group 0           give a fresh cluster its groups
    the leader of any group         change its members, report that
    the leader of a queue group     configure and drop partitions there, report them
"""

from asyncio import TimerHandle
from collections.abc import Callable
from typing import TYPE_CHECKING

from raftq.errors import QueueNotEmpty, RaftqError
from raftq.host import Group, Place
from raftq.ids import METADATA_GROUP
from raftq.limits import MAX_REASON_BYTES
from raftq.machine import Buffer
from raftq.metadata import (
    Command,
    Configure,
    Drop,
    EnsureGroups,
    GroupRecovered,
    MetadataMachine,
    PartitionDropped,
    PartitionReady,
    PartitionRefused,
    RegisterNode,
    ReplicaCreated,
    ReplicaLost,
    ReplicaWork,
    Seal,
    encode,
)
from raftq.observability.logs import logger
from raftq.queue import commands
from raftq.queue.config import QueueConfig
from raftq.server.members import Members
from raftq.server.request import Request
from raftq.wire import cbor
from raftq.wire.frames import FrameKind

if TYPE_CHECKING:
    from raftq.server.node import Node

_log = logger("raftq.server")

_AGAIN_SECONDS = 0.1
"""While something is left to do (no leader, a lost report), it is tried again this often."""

_LOOK_SECONDS = 1.0
"""With nothing known to be left, a look costs little and finds what a lost race forgot."""


class Reconciler:
    """One node's reconciler."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._timer: TimerHandle | None = None
        self._woken = False
        self._in_flight: set[object] = set()
        self._members = Members(node)

    def start(self) -> None:
        self._arm(_AGAIN_SECONDS)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def wake(self) -> None:
        """Something changed: look at it in the next pass of the loop."""
        if not self._woken and not self._node.stopped:
            self._woken = True
            self._node.loop.call_soon(self._look)

    def _arm(self, seconds: float) -> None:
        self.stop()
        # What is refused because the node closes asks for another look, too.
        if not self._node.stopped:
            self._timer = self._node.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._woken = False
        if self._node.stopped:
            return
        machine = self._node.metadata.machine
        is_changing = False
        try:
            if machine is not None:
                self._members.follow(machine)
                self._reconcile_node(machine)
                self._reconcile_cluster(machine)
                for group in list(self._node.host.groups.values()):
                    if group.leading:
                        is_changing |= self._members.change(machine, group, self._report)
                        self._reconcile_group(machine, group)
        except OSError as error:
            # A full disk may have room again later; nothing was reported that was not done.
            _log.error("reconcile step failed", error=str(error))
        finally:
            self._arm(_AGAIN_SECONDS if self._in_flight or is_changing else _LOOK_SECONDS)

    # --- One piece of work at a time, each until it is answered ---------------------------------

    def _report(self, key: object, command: Command) -> None:
        """Have group 0 apply a command; asked again at the next look if it was not."""
        if key in self._in_flight:
            return
        self._in_flight.add(key)

        def answered(kind: int, _parts: tuple[Buffer, ...]) -> None:
            self._in_flight.discard(key)
            if kind == FrameKind.ERROR:
                self._arm(_AGAIN_SECONDS)

        body = cbor.encode({"do": "propose_metadata", "command": encode(command)})
        self._node.admin.handle_internal(Request(FrameKind.CONTROL, memoryview(body), answered))

    def _propose(
        self, group: Group, key: object, header: bytes, done: Callable[[object], None]
    ) -> None:
        if key in self._in_flight:
            return
        self._in_flight.add(key)

        def applied(reply: object, _place: Place | None) -> None:
            self._in_flight.discard(key)
            done(reply)

        group.propose(header, b"", applied, reserve=True)

    # --- Every node ---------------------------------------------------------------------------

    def _reconcile_node(self, machine: MetadataMachine) -> None:
        node = self._node
        identity = node.host.identity
        address = node.client_address
        known = machine.node(identity.name)
        if known is None or (known.host, known.port) != (address.host, address.port):
            self._report(
                "register",
                RegisterNode(
                    name=identity.name,
                    incarnation=identity.incarnation,
                    host=address.host,
                    port=address.port,
                    labels=node.config.labels,
                ),
            )
        self._report_recovered(machine)
        work = machine.work_for_node(identity.name, identity.incarnation)
        for replica in work.create:
            made = node.replicas.make(replica)
            if made is None:
                continue
            if not made:
                self._report_lost(replica)
                continue
            self._report(
                ("created", replica.group, replica.replica),
                ReplicaCreated(
                    group=replica.group,
                    replica=replica.replica,
                    incarnation=identity.incarnation,
                ),
            )
        for replica in work.keep:
            if not node.replicas.exists(replica.group):
                self._report_lost(replica)
        for replica in work.run:
            if not node.replicas.run(replica):
                self._report_lost(replica)

    def _report_recovered(self, machine: MetadataMachine) -> None:
        """What was decided offline about replicas here, until group 0 knows of it."""
        identity, recovered = self._node.host.identity, self._node.replicas.recovered()
        for group, made in recovered.items():
            known = machine.group(group)
            own = known.replica_on(identity.name) if known is not None else None
            if own is None or own.replica >= made.replica:
                continue
            if others := machine.gone_on(group, made.former):
                self._node.replicas.note_void(group, others)
                continue
            self._report(
                ("recovered", group, made.replica),
                GroupRecovered(
                    group=group,
                    replica=made.replica,
                    node=identity.name,
                    incarnation=identity.incarnation,
                    former=made.former,
                    highest=max(each.replica for each in recovered.values()),
                ),
            )

    def _report_lost(self, replica: ReplicaWork) -> None:
        self._report(
            ("lost", replica.group, replica.replica),
            ReplicaLost(
                group=replica.group,
                replica=replica.replica,
                incarnation=self._node.host.identity.incarnation,
            ),
        )

    def _reconcile_cluster(self, machine: MetadataMachine) -> None:
        """A fresh cluster has group 0 and no other: its leader asks for the first ones."""
        if self._node.router.leading(METADATA_GROUP) is not None and len(machine.groups()) == 1:
            count = self._node.config.groups or len(self._node.host.identity.members)
            self._report("groups", EnsureGroups(count=count))

    # --- The leader of a queue group ----------------------------------------------------------

    def _reconcile_group(self, machine: MetadataMachine, group: Group) -> None:
        for work in machine.work_for_group(group.group):
            place = (work.queue, work.partition)
            if isinstance(work, Drop):
                dropped = PartitionDropped(queue=work.queue, partition=work.partition)
                header = commands.encode_drop(*place, force=work.force)
                self._carry_out(group, work, header, dropped)
            else:
                ready = PartitionReady(
                    queue=work.queue, partition=work.partition, version=work.version
                )
                config = QueueConfig.from_map(work.config)
                header = commands.encode_configure(
                    *place, work.version, config, sealed=isinstance(work, Seal)
                )
                self._carry_out(group, work, header, ready)

    def _carry_out(
        self, group: Group, work: Configure | Seal | Drop, header: bytes, report: Command
    ) -> None:
        """Have the group apply it, then tell group 0 what came of it."""

        def done(reply: object) -> None:
            if isinstance(reply, QueueNotEmpty):
                refused = PartitionRefused(
                    queue=work.queue,
                    partition=work.partition,
                    version=work.version,
                    reason=str(reply)[:MAX_REASON_BYTES],
                )
                self._report(("refused", work.queue, work.partition, work.version), refused)
            elif isinstance(reply, RaftqError):
                self._arm(_AGAIN_SECONDS)
            else:
                self._report(("done", work.queue, work.partition, work.version), report)

        self._propose(group, ("work", work.queue, work.partition, work.version), header, done)
