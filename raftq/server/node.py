"""The composition root: a node is built here, and nowhere else.

    environment (clock, disk, network, entropy)
        -> identity of the data directory -> host (links, bootstrap)
        -> group 0 with the metadata machine -> queue groups with queue machines
        -> router and handlers -> client port

A node whose data directory is new waits for its cluster to begin; one whose directory is known
takes up its replicas before it listens.
"""

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from raftq.env import Environment
from raftq.host import Group, Host, Identity, Member
from raftq.host import identity as identities
from raftq.host.tuning import DEFAULT_TUNING, Tuning
from raftq.host.witness import Witness
from raftq.ids import METADATA_GROUP, Micros
from raftq.observability.logs import logger
from raftq.queue.effects import Available
from raftq.queue.faults import NO_FAULTS as NO_QUEUE_FAULTS
from raftq.queue.faults import Faults as QueueFaults
from raftq.raft.faults import NONE, Faults
from raftq.server import recover
from raftq.server.admin import Admin
from raftq.server.client_port import ClientPort
from raftq.server.leaving import Leaving
from raftq.server.metadata_view import MetadataView
from raftq.server.publish import Publishing
from raftq.server.receive import Receiving
from raftq.server.reconcile import Reconciler
from raftq.server.releases import Releases
from raftq.server.relief import Relief
from raftq.server.replay import Replay
from raftq.server.replicas import Replicas
from raftq.server.router import Router
from raftq.server.settle import Settling
from raftq.storage.faults import NO_FAULTS as NO_STORAGE_FAULTS
from raftq.storage.faults import Faults as StorageFaults

_log = logger("raftq.server")


class Address(NamedTuple):
    """Where something listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """What a node is started with.

    `members` are the founding nodes with their peer addresses, the same list on every node; a data
    directory that belongs to a cluster ignores it. `groups` is how many groups a new cluster gets
    for its queues (0: as many as founders). The faults, the tuning and the witness are the simulator's.
    """

    name: str
    listen: Address
    members: tuple[Member, ...]
    groups: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    raft_faults: Faults = NONE
    storage_faults: StorageFaults = NO_STORAGE_FAULTS
    queue_faults: QueueFaults = NO_QUEUE_FAULTS
    tuning: Tuning = DEFAULT_TUNING
    witness: Witness | None = None


class Node:
    """One node, from `start()` to `stop()`. Bound to the running loop."""

    def __init__(
        self,
        environment: Environment,
        config: NodeConfig,
        *,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.environment = environment
        self.config = config
        self.loop: AbstractEventLoop = asyncio.get_running_loop()
        self.stopped = False
        self.failure: BaseException | None = None
        self._on_failure = on_failure
        environment.disk.lock()
        try:
            decision = recover.finish(environment)
            if decision is not None:
                _log.warning("recovered", groups=[row.group for row in decision.rows])
            self.identity = identities.load(environment, name=config.name, members=config.members)
        except BaseException:
            environment.disk.unlock()
            raise
        self.router = Router(self)
        self.host = Host(
            environment,
            identity=self.identity,
            loop=self.loop,
            activating=self._activating,
            activated=self._activated,
            forwarded=self.router.from_peer,
            on_link_lost=self.router.link_lost,
            faults=config.raft_faults,
            tuning=config.tuning,
            witness=config.witness,
        )
        self.metadata = MetadataView()
        self.replicas = Replicas(self)
        self.releases = Releases(self)
        self.publishing = Publishing(self)
        self.receiving = Receiving(self)
        self.settling = Settling(self)
        self.replay = Replay(self)
        self.relief = Relief(self)
        self.admin = Admin(self)
        self.reconciler = Reconciler(self)
        self.leaving = Leaving(self)
        self.port = ClientPort(self)
        self.client_address = config.listen
        self.peer_address: Address | None = None

    def now(self) -> Micros:
        """The monotonic clock."""
        return self.environment.clock.monotonic()

    async def start(self) -> None:
        """Listen. Returns once both ports are open; the cluster may still have to begin.

        Raises: OSError when an address is taken; ClusterMismatch, Corrupted.
        """
        own = self.identity.member(self.config.name)
        assert own is not None, "a node is one of its members"
        self.client_address = Address(
            *await self.port.start(self.config.listen.host, self.config.listen.port)
        )
        self.peer_address = Address(*await self.host.start(own.host, own.port))
        _log.info(
            "node listens",
            node=self.config.name,
            clients=str(self.client_address),
            peers=str(self.peer_address),
            state=self.host.identity.state,
        )
        self.reconciler.start()

    def _activating(self, identity: Identity) -> None:
        self.replicas.make_metadata(identity)

    def _activated(self, identity: Identity) -> None:
        self.identity = identity
        self.replicas.open_metadata(identity)

    async def stop(self) -> None:
        """Hand leaderships over, see clients off, close every log with its final mark."""
        if self.stopped:
            return
        await self.leaving.leave()
        self.close()

    def close(self) -> None:
        """Stop at once; safe at any moment."""
        if self.stopped:
            return
        self.stopped = True
        self.reconciler.stop()
        self.host.stop()
        self.port.close()
        self.router.vacancies.stop()
        for waiting in (self.receiving, self.replay, self.admin, self.releases):
            waiting.stop()
        self.environment.disk.unlock()

    # --- What groups tell (host.Observer) -----------------------------------------------------

    def led(self, group: Group) -> None:
        self.reconciler.wake()
        self.router.vacancies.filled(group.group)

    def follows(self, group: Group) -> None:
        self.router.vacancies.filled(group.group)

    def deposed(self, group: Group) -> None:
        self.receiving.deposed(group)
        self.replay.deposed(group)
        self.admin.deposed(group)
        self.leaving.deposed()

    def disk_full(self, group: Group) -> None:
        self.relief.disk_full(group)

    def effects(self, group: Group, effects: list[object]) -> None:
        seen: set[tuple[int, str]] = set()
        for effect in effects:
            if isinstance(effect, Available):
                key = (effect.queue, effect.subscription)
                if key not in seen:
                    seen.add(key)
                    self.receiving.available(group, effect.queue, effect.subscription)

    def applied(self, group: Group) -> None:
        if group.group == METADATA_GROUP:
            if self.metadata.refresh():
                self.admin.metadata_changed()
                self.reconciler.wake()
        else:
            self.replay.applied(group)

    def forgot(self, group: Group) -> None:
        self.replicas.note_amnesia(group.group)

    def failed(self, group: Group, error: BaseException) -> None:
        """A disk failed: nothing that this node says can be trusted any more, so it says nothing."""
        _log.error("node stops", group=group.group, error=str(error))
        self.failure = error
        self.close()
        if self._on_failure is not None:
            self._on_failure(error)
