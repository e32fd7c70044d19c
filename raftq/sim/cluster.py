"""A whole simulated cluster: real nodes on simulated machines, and hosts for clients.

Rules

1. A restart is a new process with a new `Node` on the disk that the machine kept; nothing else is
   carried over.
2. A node that fails to start, or stops by itself without having been asked to, fails the run.
   Only a sync that failed excuses a stop, or a disk without any room; a node that has none is
   started again and again, as a supervisor would.
3. Clients live on machines of their own and reach nodes through the network alone.
"""

import asyncio
import contextvars
import errno
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from raftq.env import Environment
from raftq.host import Group, Member
from raftq.host.changes import advance
from raftq.host.tuning import DEFAULT_TUNING, Tuning
from raftq.ids import METADATA_GROUP, GroupId, Micros
from raftq.limits import KIB, MIB
from raftq.queue.faults import NO_FAULTS as NO_QUEUE_FAULTS
from raftq.queue.faults import Faults as QueueFaults
from raftq.raft import Role
from raftq.raft.faults import NONE as NO_RAFT_FAULTS
from raftq.raft.faults import Faults as RaftFaults
from raftq.server import Address, Node, NodeConfig
from raftq.server.request import Request
from raftq.sim.disk import UNLIMITED_BYTES
from raftq.sim.entropy import generator
from raftq.sim.hardware import Hardware
from raftq.sim.loop import SimLoop
from raftq.sim.network import Fabric, Latency
from raftq.sim.operator import Operator
from raftq.sim.process import Process
from raftq.sim.rot import Rot
from raftq.sim.watch import Watch
from raftq.storage.faults import NO_FAULTS as NO_STORAGE_FAULTS
from raftq.storage.faults import Faults as StorageFaults
from raftq.storage.log_writer import Sizes
from raftq.wire import cbor
from raftq.wire.frames import FrameKind

CLIENT_PORT = 7400
PEER_PORT = 7500
START_PAUSE_SECONDS = 0.5
START_PAUSE_MICROS = 500_000

SEGMENT_BYTES = (16 * KIB, 64 * KIB, 256 * KIB)
RESERVE_BYTES = 1 * MIB
SNAPSHOT_ENTRIES = (40, 80, 160, 400)
RETENTION_MICROS = (300_000, 2_000_000, 10_000_000)
CHECKPOINT_ENTRIES = (40, 400)


class Bugs(NamedTuple):
    """What is broken on purpose, on every node."""

    raft: RaftFaults = NO_RAFT_FAULTS
    storage: StorageFaults = NO_STORAGE_FAULTS
    queue: QueueFaults = NO_QUEUE_FAULTS


NO_BUGS = Bugs()


def draw_tuning(choose: random.Random) -> Tuning:
    """All is small: segments roll, snapshots are taken, and what is settled goes, many times a run."""
    first = choose.choice(SEGMENT_BYTES)
    largest = choose.choice([size for size in SEGMENT_BYTES if size >= first])
    return Tuning(
        snapshot_entries=choose.choice(SNAPSHOT_ENTRIES),
        checkpoint_entries=choose.choice(CHECKPOINT_ENTRIES),
        retention_micros=choose.choice(RETENTION_MICROS),
        expire_micros=choose.choice(RETENTION_MICROS),
        sizes=Sizes(
            segment_bytes_first=first, segment_bytes_max=largest, reserve_bytes=RESERVE_BYTES
        ),
    )


class SimCluster:
    """The servers and client hosts of one run; what the nemesis acts on."""

    def __init__(
        self,
        loop: SimLoop,
        seed: int,
        *,
        nodes: int,
        clients: int,
        groups: int,
        bugs: Bugs = NO_BUGS,
        tuning: Tuning = DEFAULT_TUNING,
    ) -> None:
        self.loop = loop
        self.fabric = Fabric(loop, seed=seed)
        self.watch = Watch(loop)
        self.nodes: Sequence[str] = tuple(f"n{number + 1}" for number in range(nodes))
        self.clients: Sequence[str] = tuple(f"c{number + 1}" for number in range(clients))
        self.rotten = Rot()
        self.servers: dict[str, Node] = {}
        """The nodes that run, by name; a paused one is among them."""
        self.operator = Operator(self)
        self._failing: dict[str, bool] = {}
        self._full: dict[str, bool] = {}
        self._stopped: dict[str, bool] = {}
        """Nodes that stopped themselves, and will be started again unless somebody else does."""
        self._choose = generator(seed, "cluster")
        self._groups = groups
        self._bugs = bugs
        self._tuning = tuning
        self._members = tuple(Member(name, name, PEER_PORT) for name in self.nodes)
        self._machines = {
            name: Hardware(loop, self.fabric, name, seed=seed)
            for name in (*self.nodes, *self.clients)
        }

    def start(self) -> None:
        """Switch all servers on."""
        for name in self.nodes:
            self.restart(name)

    @property
    def url(self) -> str:
        """Where clients find the cluster."""
        return "raftq://" + ",".join(f"{name}:{CLIENT_PORT}" for name in self.nodes)

    def machine(self, name: str) -> Hardware:
        return self._machines[name]

    def replicas(self, group: GroupId) -> dict[str, Group]:
        """The replicas of a group that run, by node."""
        return {
            name: node.host.groups[group]
            for name, node in self.servers.items()
            if group in node.host.groups
        }

    # --- Servers -------------------------------------------------------------------------------

    async def _run(self, name: str, environment: Environment) -> None:
        config = NodeConfig(
            name,
            Address(name, CLIENT_PORT),
            self._members,
            groups=self._groups,
            raft_faults=self._bugs.raft,
            storage_faults=self._bugs.storage,
            queue_faults=self._bugs.queue,
            tuning=self._tuning,
            witness=self.watch,
        )
        while True:
            node = Node(environment, config, on_failure=lambda error: self._failed(name, error))
            self.servers[name] = node
            try:
                await node.start()
            except OSError as error:
                node.close()
                is_full = error.errno == errno.ENOSPC and name in self._full
                if not is_full and name not in self._failing:
                    raise
                await asyncio.sleep(START_PAUSE_SECONDS)
            else:
                return

    def _failed(self, name: str, error: BaseException) -> None:
        """A node stops itself: right if its disk was made to fail, else a bug."""
        is_full = isinstance(error, OSError) and error.errno == errno.ENOSPC and name in self._full
        if name not in self._failing and not is_full:
            raise error
        process = self._machines[name].process

        def stop() -> None:
            if self._machines[name].process is process:
                self.loop.trace.event(self.loop.now, name, f"stops: {error}")
                self.kill(name)
                if name not in self._failing:
                    self._stopped[name] = True
                    again = Micros(self.loop.now + START_PAUSE_MICROS)
                    # This is still the process that stopped: what it schedules never runs.
                    self.loop.call_at_micros(
                        again, self._start_again, name, context=contextvars.Context()
                    )

        self.loop.call_at_micros(self.loop.now, stop)

    def _start_again(self, name: str) -> None:
        if self._stopped.pop(name, False):
            self.restart(name)

    def serving(self) -> list[str]:
        """The nodes that run and are not paused."""
        processes = {name: self._machines[name].process for name in self.servers}
        return [name for name, each in processes.items() if each is not None and not each.is_paused]

    def restart(self, node: str) -> None:
        process, environment = self._machines[node].start()
        process.spawn(self._run(node, environment))

    def stop(self, node: str) -> None:
        """A planned stop: the node hands over and leaves, and its process ends with that."""
        process, server = self._machines[node].process, self.servers.get(node)
        assert process is not None, f"{node} is down"
        if server is None:
            self.kill(node)  # It has hardly begun.
            return

        def end() -> None:
            if self._machines[node].process is process:
                self.kill(node)

        async def leave() -> None:
            await server.stop()
            self.loop.call_at_micros(self.loop.now, end)

        process.spawn(leave())

    def kill(self, node: str) -> None:
        self.servers.pop(node, None)
        if not self._stopped.pop(node, False):
            self._machines[node].kill()

    def power_loss(self, node: str) -> None:
        self.servers.pop(node, None)
        self._stopped.pop(node, None)
        self._machines[node].power_loss()

    def lose_disk(self, node: str) -> None:
        """The node is killed, and comes back with an empty disk."""
        self.kill(node)
        self._machines[node].disk.lose_all()
        self.restart(node)

    def replace_disk(self, node: str) -> None:
        """As `lose_disk`, and the operator has the cluster take it for the old one."""
        self.lose_disk(node)
        self.operator.replace(node)

    def control(self, node: str, **fields: Any) -> list[int]:
        """Ask a node as a client would; what kind of frame it answered is in the list, once it has."""
        kinds: list[int] = []
        request = Request(
            FrameKind.CONTROL,
            memoryview(cbor.encode(fields)),
            lambda kind, _parts: kinds.append(kind),
        )
        process = self._machines[node].process
        assert process is not None, f"{node} is down"
        process.call(self.servers[node].router.handle, request)
        return kinds

    def hurry_changes(self, node: str) -> None:
        """Ask who has only just won an election here for the next step of its membership change."""
        process, machine = self._machines[node].process, self.servers[node].metadata.machine
        if process is None or machine is None:
            return
        for group in self.servers[node].host.groups.values():
            work = machine.work_for_members(group.group)
            if work.leaving and group.raft.role is Role.LEADER and not group.leading:
                joining = {each.replica: each.node for each in work.joining}
                leaving = {each.replica: each.node for each in work.leaving}
                process.call(advance, group, joining=joining, leaving=leaving)

    def pause(self, node: str) -> None:
        if not self._stopped.pop(node, False):
            self._machines[node].pause()

    def resume(self, node: str) -> None:
        if self._machines[node].is_up:
            self._machines[node].resume()
        else:
            self.restart(node)

    def leader(self, group: GroupId | None = None) -> str | None:
        """Who leads that group, or the first that serves a queue; of two that believe it, the later."""
        leading = [
            (replica.group != METADATA_GROUP, -replica.group, replica.raft.term, name)
            for name, node in self.servers.items()
            for replica in node.host.groups.values()
            if replica.leading and group in {None, replica.group}
        ]
        return max(leading)[-1] if leading else None

    # --- Clients -------------------------------------------------------------------------------

    def start_client(self, host: str) -> tuple[Process, Environment]:
        """A new client process on a client host."""
        return self._machines[host].start()

    def kill_client(self, host: str) -> None:
        self._machines[host].kill()

    # --- Links, disks, clocks ------------------------------------------------------------------

    def block(self, source: str, target: str) -> None:
        self.fabric.block(source, target)

    def unblock(self, source: str, target: str) -> None:
        self.fabric.unblock(source, target)

    def reset_connections(self, one: str, other: str) -> None:
        self.fabric.reset_connections(one, other)

    def stall_syncs(self, node: str, duration: Micros) -> None:
        self._machines[node].disk.stall(duration)

    def fail_syncs(self, node: str) -> None:
        self._failing[node] = True
        self._machines[node].disk.fail_syncs(-1)

    def fail_next_sync(self, node: str) -> None:
        """One sync fails with EIO, and no other; all else is as with `fail_syncs`."""
        self._failing[node] = True
        self._machines[node].disk.fail_syncs(1)

    def has_failing_syncs(self, node: str) -> bool:
        return node in self._failing

    def mend_syncs(self, node: str) -> None:
        self._machines[node].disk.fail_syncs(0)
        del self._failing[node]
        self._stopped.pop(node, None)
        if not self._machines[node].is_up:
            self.restart(node)

    def fill_disk(self, node: str) -> None:
        """Less is left than the reserve for what frees space; now and then nothing at all."""
        self._full[node] = True
        disk = self._machines[node].disk
        reserve = self._tuning.sizes.reserve_bytes
        room = self._choose.choice((0, self._choose.randrange(reserve), reserve - 1))
        disk.capacity_bytes = disk.used_bytes + room

    def empty_disk(self, node: str) -> None:
        del self._full[node]
        self._machines[node].disk.capacity_bytes = UNLIMITED_BYTES

    def slow_network(self, latency: Latency | None) -> None:
        self.fabric.set_latency(latency or Latency())

    def end_stalls(self) -> None:
        """No sync that begins from now on is stalled."""
        for machine in self._machines.values():
            machine.disk.end_stalls()

    def rot(self, node: str, choose: random.Random) -> str:
        return self.rotten.strike(node, self._machines[node].disk, choose)

    def jump_wall(self, node: str, by: Micros) -> None:
        self._machines[node].clock.jump_wall(by)

    def set_clock_rate(self, node: str, rate: int) -> None:
        self._machines[node].clock.set_rate(rate)
