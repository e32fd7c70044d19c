"""Hosts on simulated machines, with a toy machine in place of queues and metadata."""

import cbor2
from xxhash import xxh3_128

from raftq.errors import InvalidArgument
from raftq.host import Host, Member
from raftq.host import identity as identities
from raftq.host.tuning import DEFAULT_TUNING
from raftq.machine import Admitted, Applied, DuplicateOf, Later
from raftq.raft import Membership
from raftq.sim.hardware import Hardware
from raftq.sim.loop import SimLoop
from raftq.sim.network import Fabric, Latency
from raftq.storage.group_log import GroupLog

SECOND = 1_000_000
PORT = 7
NAMES = ("n1", "n2", "n3")
QUIET = Latency(spike_one_in=1_000_000_000)

REFUSE = b"refuse"
LATER = b"later"
TICK = b"tick"


class Toy:
    """Keeps every command, in order. A header that is known already is a duplicate."""

    def __init__(self):
        self.commands = []
        self.known = {}
        self.deadline = None
        self.ticks = 0
        self.noops = 0
        self.restored = 0

    def apply(self, meta, header, body):
        if header == TICK:
            self.ticks += 1
            self.deadline = None
            return Applied("tick")
        self.commands.append([header, bytes(body)])
        self.known[header] = meta.index
        return Applied(len(self.commands), (header,))

    def admission(self):
        return ToyAdmission(self)

    def next_deadline(self):
        return self.deadline

    def tick_command(self):
        return TICK

    def leader_changed(self, meta, gap):
        self.noops += 1

    def snapshot(self):
        whole = cbor2.dumps([self.commands, self.known, self.noops])
        return iter([whole[start : start + 1_000] for start in range(0, len(whole), 1_000)])

    def restore(self, slices):
        self.commands, self.known, self.noops = cbor2.loads(b"".join(slices))
        self.restored += 1

    def digest(self):
        return xxh3_128(cbor2.dumps([self.commands, self.noops])).digest()


class ToyAdmission:
    """The overlay: what is in flight is known too."""

    def __init__(self, machine):
        self.machine = machine
        self.in_flight = {}

    def admit(self, header, body, index, log_time):
        if header == REFUSE:
            return InvalidArgument("refused")
        if header.startswith(LATER) and self.in_flight:
            return Later(max(self.in_flight.values()))
        known = self.machine.known.get(header) or self.in_flight.get(header)
        if known is not None:
            return DuplicateOf(known, "duplicate")
        self.in_flight[header] = index
        return Admitted(header)

    def applied(self, index):
        self.in_flight = {key: at for key, at in self.in_flight.items() if at > index}


class HostNode:
    """One process: a host and its groups."""

    def __init__(self, world, name, environment):
        self.world = world
        self.name = name
        self.environment = environment
        self.events = []
        self.failures = []
        self.lost_links = []
        self.frames = []
        environment.disk.lock()
        members = tuple(Member(each, each, PORT) for each in world.members)
        self.identity = identities.load(environment, name=name, members=members)
        self.host = Host(
            environment,
            identity=self.identity,
            loop=world.loop,
            activating=lambda identity: None,
            activated=self.activated,
            forwarded=lambda *frame: self.frames.append(frame),
            on_link_lost=self.lost_links.append,
            tuning=world.tuning,
        )

    def activated(self, identity):
        replicas = identity.metadata_replicas()
        own = next(replica for replica, name in replicas.items() if name == self.name)
        for group in range(1, self.world.groups + 1):
            directory = f"group-{group}"
            facts = {"incarnation": identity.incarnation, "boot": identity.boot}
            disk, clock = self.environment.disk, self.environment.clock
            if not disk.names(directory):
                membership = Membership(tuple(replicas))
                GroupLog.create(disk, clock, directory, membership=membership, **facts).close()
            log = GroupLog.open(disk, clock, directory, **facts)
            self.host.add_group(
                group, replica=own, nodes=replicas, log=log, machine=Toy(), observer=self
            )

    async def start(self):
        await self.host.start(self.name, PORT)

    # The observer.
    def led(self, group):
        self.events.append(("led", group.group))

    def deposed(self, group):
        self.events.append(("deposed", group.group))

    def follows(self, group):
        self.events.append(("follows", group.group))

    def disk_full(self, group):
        self.events.append(("disk_full", group.group))

    def effects(self, group, effects):
        self.events.append(("effects", group.group, len(effects)))

    def applied(self, group):
        pass

    def failed(self, group, error):
        self.failures.append(error)
        self.host.stop()


class World:
    """The cluster. Use as a context manager."""

    def __init__(self, *names, groups=1, seed=1, members=None, tuning=DEFAULT_TUNING):
        self.names = names or NAMES
        self.members = members or self.names
        self.groups = groups
        self.tuning = tuning
        self.loop = SimLoop(seed=seed)
        self.fabric = Fabric(self.loop, seed=seed, latency=QUIET)
        self.machines = {
            name: Hardware(self.loop, self.fabric, name, seed=seed) for name in self.names
        }
        self.nodes = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.loop.close()

    def start(self, *names):
        for name in names or self.names:
            process, environment = self.machines[name].start()
            node = process.call(HostNode, self, name, environment)
            self.nodes[name] = node
            process.spawn(node.start())

    def kill(self, name):
        self.machines[name].kill()
        return self.nodes.pop(name)

    def run(self, seconds):
        self.loop.run_for(int(seconds * SECOND))

    def until(self, predicate, seconds=10):
        self.loop.run_until_true(predicate, limit=int(seconds * SECOND))

    def group(self, name, group=1):
        return self.nodes[name].host.groups[group]

    def leaders(self, group=1):
        return [
            name
            for name, node in self.nodes.items()
            if group in node.host.groups and node.host.groups[group].leading
        ]

    def led(self, seconds=10):
        """Run until every group has one leader; the first group's is returned."""
        groups = range(1, self.groups + 1)
        self.until(lambda: all(len(self.leaders(group)) == 1 for group in groups), seconds)
        return self.leaders()[0]

    def propose(self, name, header, body=b"", group=1, **options):
        """Propose at a node; the list that is returned gets the answer, once."""
        heard = []

        def done(reply, place):
            assert not heard, f"{header} was answered twice"
            heard.append((reply, place))

        process = self.machines[name].process
        process.call(self.group(name, group).propose, header, body, done, **options)
        return heard

    def read(self, name, group=1):
        heard = []
        process = self.machines[name].process
        process.call(self.group(name, group).read, lambda *answer: heard.append(answer))
        return heard

    def isolate(self, name):
        others = [other for other in self.names if other != name]
        self.fabric.partition([name], others)
