"""Whole nodes on simulated machines, and a client that speaks the wire protocol by hand."""

import asyncio

from raftq import batch
from raftq.errors import Busy, ConnectionFailed, NoQuorum
from raftq.host import Member
from raftq.host.tuning import DEFAULT_TUNING
from raftq.server import Address, Node, NodeConfig
from raftq.sim.hardware import Hardware
from raftq.sim.loop import SimLoop
from raftq.sim.network import Fabric, Latency
from raftq.wire import cbor, errors, handshake, requests
from raftq.wire.connection import ClientConnection
from raftq.wire.frames import FrameKind, FrameReader

SECOND = 1_000_000
CLIENT_PORT = 70
PEER_PORT = 7
NAMES = ("n1", "n2", "n3")
QUIET = Latency(spike_one_in=1_000_000_000)
RECEIVE_BYTES = 8_000_000
RETRIABLE = (Busy, ConnectionFailed, NoQuorum)


class Wire(asyncio.BufferedProtocol):
    """One client's connection: legal requests by `ask`, anything else by `transport`."""

    def __init__(self, world):
        self.world = world
        self.wire = ClientConnection()
        self.waiting = {}
        self.lost = False
        self.last_words = None

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, sizehint):
        return self.wire.reader.get_buffer(sizehint)

    def buffer_updated(self, count):
        for frame in self.wire.received(count):
            if frame.kind == FrameKind.ERROR and not frame.stream:
                self.last_words = errors.decode_error(frame.body)
            heard = self.waiting.pop(frame.stream, None)
            if heard is not None:
                heard.append((frame.kind, bytes(frame.body)))

    def connection_lost(self, error):
        self.lost = True

    # --- Asking -------------------------------------------------------------------------------

    def ask(self, kind, *parts):
        """Send a request; the list that is returned gets the reply."""
        stream, vectors = self.wire.request(kind, *parts)
        heard = self.waiting[stream] = Heard()
        heard.stream = stream
        self.transport.writelines(vectors)
        return heard

    def answer(self, kind, *parts, seconds=10):
        """Ask and wait.

        Raises: the error that came back.
        """
        return self.reply(self.ask(kind, *parts), seconds=seconds)

    def reply(self, heard, *, seconds=10):
        self.world.until(lambda: heard or self.lost, seconds)
        assert heard, f"the connection was lost: {self.last_words!r}"
        kind, body = heard[0]
        if kind == FrameKind.ERROR:
            raise errors.decode_error(body)
        return kind, memoryview(body)

    def greet(self):
        hello = handshake.encode_hello(handshake.Hello(handshake.VERSIONS, (), "test"))
        _, body = self.answer(FrameKind.HELLO, hello)
        self.wire.welcomed()
        return handshake.decode_welcome(body)

    def try_control(self, **fields):
        return cbor.decode(self.answer(FrameKind.CONTROL, cbor.encode(fields))[1])

    def control(self, **fields):
        """As `try_control`, and again while the cluster is not there yet."""
        for _ in range(100):
            try:
                return self.try_control(**fields)
            except (errors.NotLeader, *RETRIABLE) as error:
                problem = error
                self.world.run(0.1)
        raise problem

    # --- What a client does -------------------------------------------------------------------

    def create(self, name, **config):
        return self.control(do="create_queue", name=name, config=config)["queue"]

    def ask_publish(self, queue, bodies, *, partition=0, **options):
        data = batch.encode(
            [bytes(body) for body in bodies], queue=queue["id"], partition=partition, **options
        )
        parts = requests.encode_publish(requests.Publish(requests.ACKS_QUORUM, 0, data))
        return self.ask(FrameKind.PUBLISH, *parts)

    def publish(self, queue, bodies, **options):
        _, body = self.reply(self.ask_publish(queue, bodies, **options))
        return requests.decode_published(body)

    def ask_receive(self, session, queue, **changes):
        wanted = receive_request(session, queue)._replace(**changes)
        session.number += 1
        return self.ask(FrameKind.RECEIVE, *requests.encode_receive(wanted))

    def receive(self, session, queue, *, seconds=10, **changes):
        return self.delivered(self.ask_receive(session, queue, **changes), seconds=seconds)

    def delivered(self, heard, *, seconds=10):
        kind, body = self.reply(heard, seconds=seconds)
        return requests.decode_delivered(body) if kind == FrameKind.DELIVERED else kind

    def settle(self, session, queue, delivered, action=requests.ACK, **changes):
        items = tuple(
            requests.Item(each.partition, each.delivery, held.start, held.stop)
            for each in delivered.deliveries
            for held in each.ranges
        )
        settle = requests.Settle(
            session.group, session.id, session.attachment, session.number, 0, queue["id"],
            "default", action, items,
        )._replace(**changes)  # fmt: skip
        session.number += 1
        _, body = self.answer(FrameKind.SETTLE, *requests.encode_settle(settle))
        return requests.decode_settled(body).stale

    def read(self, queue, offset=0, *, partition=0, wait_us=0, max_bytes=RECEIVE_BYTES):
        read = requests.Read(queue["id"], partition, offset, max_bytes, wait_us)
        _, body = self.answer(FrameKind.READ, *requests.encode_read(read), seconds=60)
        return requests.decode_batches(body)

    def open_session(self, group):
        found = self.control(do="open_session", group=group)
        return Session(group, found["session"], found["attachment"])

    def ping(self):
        """Whether the node still answers this connection."""
        return "node" in self.try_control(do="status")


class Heard(list):
    """The reply of one stream, once it is there."""

    stream = 0


class Session:
    """A client's identity in one group."""

    def __init__(self, group, session, attachment):
        self.group, self.id, self.attachment = group, session, attachment
        self.number = 1


def receive_request(session, queue):
    return requests.Receive(
        group=session.group,
        session=session.id,
        attachment=session.attachment,
        number=session.number,
        wanted=0,
        queue=queue["id"],
        subscription="default",
        max_messages=100,
        max_bytes=RECEIVE_BYTES,
        visibility_us=0,
        wait_us=0,
    )


def bodies_of(delivered):
    """The messages that were handed out, in order."""
    found = []
    stored = [(each, batch.Batch(each.data)) for each in delivered.batches]
    for delivery in delivered.deliveries:
        for start, stop, _ in delivery.ranges:
            for offset in range(start, stop):
                for each, data in stored:
                    at = offset - each.base_offset
                    if each.partition == delivery.partition and 0 <= at < data.count:
                        found += data.bodies(at, at + 1)
    return found


def read_bodies(batches):
    return [body for each in batches.batches for body in batch.Batch(each.data).bodies()]


class World:
    """A cluster. Use as a context manager."""

    def __init__(self, *names, seed=1, groups=0, start=True, tuning=DEFAULT_TUNING):
        self.names = names or NAMES
        self.tuning = tuning
        self.groups = groups
        self.loop = SimLoop(seed=seed)
        self.fabric = Fabric(self.loop, seed=seed, latency=QUIET)
        self.machines = {
            name: Hardware(self.loop, self.fabric, name, seed=seed)
            for name in (*self.names, "client")
        }
        self.nodes = {}
        self.failures = []
        self.client_process, self.client_environment = self.machines["client"].start()
        if start:
            self.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.loop.close()

    # --- The cluster --------------------------------------------------------------------------

    def start(self, *names):
        for name in names or self.names:
            process, environment = self.machines[name].start()
            members = tuple(Member(each, each, PEER_PORT) for each in self.names)
            config = NodeConfig(
                name, Address(name, CLIENT_PORT), members, groups=self.groups, tuning=self.tuning
            )
            task = process.spawn(self._run(name, environment, config))
            self.until(lambda task=task, name=name: task.done() or name in self.nodes)

    async def _run(self, name, environment, config):
        node = Node(environment, config, on_failure=self.failures.append)
        await node.start()
        self.nodes[name] = node

    def kill(self, name):
        self.machines[name].kill()
        return self.nodes.pop(name)

    def wipe(self, name, *, below=""):
        """The files of a dead node's directory vanish."""
        disk = self.machines[name].disk
        for path in disk.paths():
            if path.startswith(below):
                disk.lose_file(path)
        for directory in sorted(disk._directories, reverse=True):
            if directory and directory.startswith(below.rstrip("/")):
                disk._directories.discard(directory)

    def run(self, seconds):
        self.loop.run_for(int(seconds * SECOND))

    def until(self, predicate, seconds=10):
        self.loop.run_until_true(predicate, limit=int(seconds * SECOND))

    def isolate(self, name):
        self.fabric.partition([name], [other for other in self.names if other != name])

    def leader(self, group, *, among=None):
        """The node that leads the group, waited for."""

        def leaders():
            return [
                name
                for name, node in self.nodes.items()
                if (among is None or name in among)
                and group in node.host.groups
                and node.host.groups[group].leading
            ]

        self.until(leaders)
        return leaders()[0]

    def group(self, name, group):
        return self.nodes[name].host.groups[group]

    def digests_agree(self, group):
        """Whether all replicas have applied the same, to the same."""
        replicas = [node.host.groups[group] for node in self.nodes.values()]
        facts = {
            (each.applied_index, each.machine.digest(), each.log.chain(each.applied_index))
            for each in replicas
        }
        return len(facts) == 1 and len(replicas) == len(self.names)

    # --- Clients ------------------------------------------------------------------------------

    def connect(self, name="n1", *, greet=True, port=CLIENT_PORT, protocol=None):
        client = protocol or Wire(self)
        task = self.client_process.spawn(
            self.client_environment.network.connect(name, port, lambda: client)
        )
        self.until(task.done)
        task.result()
        if greet:
            client.greet()
        return client

    def raw(self, name="n1", port=CLIENT_PORT):
        """A connection without any protocol: bytes out, bytes in."""
        return self.connect(name, greet=False, port=port, protocol=Raw())


class Raw(asyncio.BufferedProtocol):
    """Bytes out; what comes back is cut into frames."""

    def __init__(self):
        self.reader = FrameReader()
        self.reader.authenticated()
        self.frames = []
        self.lost = False

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, sizehint):
        return self.reader.get_buffer(sizehint)

    def buffer_updated(self, count):
        self.frames += [(f.kind, f.stream, bytes(f.body)) for f in self.reader.received(count)]

    def connection_lost(self, error):
        self.lost = True

    def send(self, data):
        self.transport.write(data)

    def error(self):
        """The error that the server's last frame carries; None if it said nothing."""
        if not self.frames:
            return None
        kind, _, body = self.frames[-1]
        return errors.decode_error(body) if kind == FrameKind.ERROR else None
