"""A cluster to test clients against: real protocol, real queue machine, no consensus and no disk.

Runs on the simulator's loop and network, so that time is a number. All nodes share the groups; each
group has a leader, the other nodes forward to it or redirect. What goes wrong is scripted: see the
attributes of `FakeNode`.
"""

import asyncio
from collections import defaultdict
from dataclasses import dataclass

from fake_controls import PORT, SECOND, Controls
from fake_group import FakeGroup, FakeQueue

from raftq import batch
from raftq.client.client import AsyncClient
from raftq.errors import NoQuorum, QueueNotFound, RaftqError
from raftq.queue import commands
from raftq.queue.config import QueueConfig
from raftq.queue.replies import Delivered
from raftq.sim.clock import SimClock
from raftq.sim.entropy import SimEntropy
from raftq.sim.loop import SimLoop
from raftq.sim.network import Fabric
from raftq.sim.process import Process
from raftq.wire import cbor, control, errors, handshake, requests
from raftq.wire.connection import PONG, ServerConnection
from raftq.wire.frames import FrameKind, encode_frame

K = FrameKind


class FakeNode:
    """One node, and what is scripted to go wrong on it."""

    def __init__(self, cluster, name):
        self.cluster = cluster
        self.name = name
        self.process = None
        self.connections = []
        self.heard = []
        self.silent = False
        """Hear everything, say nothing."""
        self.redirects = False
        """Answer NotLeader where others lead, instead of forwarding."""
        self.cut_after = None
        """Break the connection when so many more bytes have been written."""
        self.broke = asyncio.Event()
        """A connection broke because of `lose` or `swallow`."""
        self.lose = {}
        """Kind -> how many requests are lost before they do anything, the connection with them."""
        self.swallow = {}
        """Kind -> how many of its replies are lost, the connection with them."""
        self.refuse = {}
        """Kind -> errors to answer with, before anything is applied."""
        self.delay = {}
        """Kind -> seconds by which its reply is late."""

    async def start(self):
        self.process = Process(self.cluster.loop, self.name)
        network = self.cluster.fabric.network(self.name, self.process)
        await self.listen_on(network, self.name, PORT)

    async def listen_on(self, network, host, port):
        self.listener = await network.listen(host, port, lambda: FakeConnection(self))
        return self.listener

    def break_connections(self):
        for connection in list(self.connections):
            connection.transport.abort()

    def kill(self):
        self.process.kill()
        self.cluster.fabric.process_killed(self.process)
        for group in self.cluster.groups.values():
            if group.leader == self.name:
                group.leader = None


class FakeConnection(Controls, asyncio.BufferedProtocol):
    def __init__(self, node):
        self.node = node
        self.cluster = node.cluster
        self.wire = ServerConnection()
        self.sessions = {}
        self.goodbye = False
        self.waiting = {}

    def connection_made(self, transport):
        self.transport = transport
        self.node.connections.append(self)

    def connection_lost(self, exc):
        self.node.connections.remove(self)
        for cancel in list(self.waiting.values()):
            cancel()
        for (group, session), attachment in self.sessions.items():
            release = commands.encode_release(session, attachment, goodbye=self.goodbye)
            seconds = 0 if self.goodbye else 1
            self.cluster.loop.call_later(seconds, self.cluster.groups[group].apply, release)

    def eof_received(self):
        return False

    def get_buffer(self, sizehint):
        return self.wire.reader.get_buffer(sizehint)

    def buffer_updated(self, count):
        for frame in self.wire.received(count):
            self.node.heard.append(frame.kind)
            if frame.kind == K.HELLO:
                self.greet(frame)
            elif frame.kind == K.PING:
                self.write([PONG])
            elif frame.kind == K.GOODBYE:
                self.goodbye = True
                self.transport.close()
            elif frame.kind == K.CANCEL:
                if frame.stream in self.waiting:
                    self.waiting.pop(frame.stream)()
            elif frame.kind != K.PONG:
                self.serve(frame.kind, frame.stream, memoryview(bytes(frame.body)))

    def greet(self, frame):
        if self.node.refuse.get(K.HELLO):
            error = self.node.refuse[K.HELLO].pop(0)
            self.transport.writelines(encode_frame(K.ERROR, 0, errors.encode_error(error)))
            self.transport.close()
            return
        hello = handshake.decode_hello(frame.body)
        handshake.choose_version(hello.versions)
        self.wire.welcomed()
        welcome = handshake.Welcome(1, (), 7, self.node.name, dict(handshake.LIMITS))
        self.write(self.wire.reply(K.WELCOME, frame.stream, handshake.encode_welcome(welcome)))

    def write(self, vectors):
        node = self.node
        data = b"".join(vectors)
        if node.silent or self.transport.is_closing():
            return
        if node.cut_after is not None:
            if len(data) > node.cut_after:
                self.transport.write(data[: node.cut_after])
                node.cut_after = None
                # What was written is on its way: end the stream behind it.
                self.transport.close()
                return
            node.cut_after -= len(data)
        self.transport.write(data)

    def serve(self, kind, stream, body):
        def answer(reply_kind, *parts):
            self.waiting.pop(stream, None)
            if stream not in self.wire.streams:
                return
            if self.node.swallow.get(kind):
                self.node.swallow[kind] -= 1
                self.node.broke.set()
                self.transport.abort()
                return
            vectors = self.wire.reply(reply_kind, stream, *parts)
            late = self.node.delay.get(kind)
            if late:
                self.cluster.loop.call_later(late, self.write, vectors)
            else:
                self.write(vectors)

        if self.node.lose.get(kind):
            self.node.lose[kind] -= 1
            self.node.broke.set()
            self.transport.abort()
            return
        try:
            if self.node.refuse.get(kind):
                raise self.node.refuse[kind].pop(0)
            getattr(self, f"_{KINDS[kind]}")(body, stream, answer)
        except (RaftqError, errors.NotLeader, errors.Moved) as error:
            answer(K.ERROR, errors.encode_error(error))

    def group(self, number):
        group = self.cluster.groups[number]
        if group.leader is None:
            raise errors.NotLeader(None)
        if self.node.redirects and group.leader != self.node.name:
            raise errors.NotLeader(group.leader)
        return group

    def apply(self, group, header, body=b""):
        reply = group.apply(header, body)
        if isinstance(reply, RaftqError):
            self.cluster.refusals.append(type(reply).__name__)
            raise reply
        return reply

    # --- Requests ----------------------------------------------------------------------------

    def _publish(self, body, stream, answer):
        wanted = requests.decode_publish(body)
        header = batch.verify(wanted.batch)
        number = self.cluster.group_of.get((header.queue, header.partition))
        if number is None:
            raise QueueNotFound("no such queue")
        group = self.group(number)
        stamp = batch.encode_stamp(header.queue, header.partition, 0, header.count)
        reply = self.apply(group, stamp, wanted.batch)
        published = requests.Published(
            number, header.partition, reply.base_offset, reply.count, 2, reply.duplicate, 1,
            group.index, bytes(16),
        )  # fmt: skip
        answer(K.PUBLISHED, *requests.encode_published(published))

    def _receive(self, body, stream, answer):
        wanted = requests.decode_receive(body)
        group = self.group(wanted.group)
        if wanted.notify_only:
            self._watch(group, wanted, stream, answer)
            return
        taker = commands.Taker(
            wanted.session, wanted.attachment, wanted.number, wanted.wanted, wanted.queue,
            wanted.subscription, wanted.max_messages, wanted.max_bytes, wanted.visibility_us,
            wanted.partitions,
        )  # fmt: skip
        reply = self.apply(group, commands.encode_deliver([taker]))
        assert isinstance(reply, Delivered)
        result = reply.results[0]
        if result.error is not None:
            raise result.error
        answer(K.DELIVERED, *requests.encode_delivered(self.cluster.stored(group, result)))

    def _watch(self, group, wanted, stream, answer):
        def give_up():
            group.drop(watch)
            answer(K.DELIVERED, *requests.encode_delivered(requests.Delivered((), ())))

        timer = self.cluster.loop.call_later(wanted.wait_us / SECOND, give_up)
        watch = (wanted, answer, timer)
        self.waiting[stream] = give_up
        group.watches.append(watch)
        group.look()

    def _settle(self, body, stream, answer):
        settle = requests.decode_settle(body)
        by = (settle.session, settle.attachment, settle.number, settle.wanted)
        items = [(settle.queue, p, settle.subscription, d, a, b) for p, d, a, b in settle.items]
        if settle.action == requests.ACK:
            header = commands.encode_ack(*by, items)
        elif settle.action == requests.NACK:
            header = commands.encode_nack(
                *by,
                items,
                delay_us=settle.time_us,
                reason=settle.reason,
                count=settle.count,
                reject=settle.reject,
            )
        else:
            header = commands.encode_extend(*by, items, visibility_us=settle.time_us)
        self.cluster.settles.append(settle)
        reply = self.apply(self.group(settle.group), header)
        stale = tuple(requests.Item(*item) for _, *item in reply.stale)
        answer(K.SETTLED, *requests.encode_settled(requests.Settled(stale)))

    def _read(self, body, stream, answer):
        wanted = requests.decode_read(body)
        group = self.group(self.cluster.group_of[wanted.queue, wanted.partition])
        log = [
            each
            for each in group.log[wanted.queue, wanted.partition]
            if each.base_offset not in self.cluster.holes
        ]
        end = group.machine.next_offset(wanted.queue, wanted.partition)
        first = log[0].base_offset if log else end
        found = [
            each
            for each in log
            if each.base_offset + batch.read_header(each.data).count > wanted.offset
        ]
        reply = requests.Batches(first, end, tuple(found[:2]))

        def give():
            self.waiting.pop(stream, None)
            answer(K.BATCHES, *requests.encode_batches(reply))

        if wanted.offset == end and wanted.wait_us:
            timer = self.cluster.loop.call_later(wanted.wait_us / SECOND, give)
            self.waiting[stream] = lambda: (timer.cancel(), give())
        else:
            give()

    def _control(self, body, stream, answer):
        wanted = cbor.decode(body)
        control.check_request(wanted)
        self.cluster.controls.append(wanted)
        reply = getattr(self, f"do_{wanted['do']}")(wanted)
        answer(K.CONTROLLED, cbor.encode(reply))


KINDS = {
    K.PUBLISH: "publish",
    K.RECEIVE: "receive",
    K.SETTLE: "settle",
    K.READ: "read",
    K.CONTROL: "control",
}


class FakeCluster:
    """Nodes n1, n2, ... and groups 1, 2, ... led by them in turn."""

    def __init__(self, loop, *, nodes=1, groups=1, seed=1):
        self.loop = loop
        self.fabric = Fabric(loop, seed=seed)
        self.clock = SimClock(loop)
        self.seed = seed
        self.fill(nodes=nodes, groups=groups)

    def fill(self, *, nodes, groups):
        self.addresses = {}
        self.nodes = {f"n{number}": FakeNode(self, f"n{number}") for number in range(1, nodes + 1)}
        names = list(self.nodes)
        self.groups = {
            number: FakeGroup(self, number, names[(number - 1) % nodes])
            for number in range(1, groups + 1)
        }
        self.queues = {}
        self.group_of = {}
        self.settles = []
        self.controls = []
        self.refusals = []
        self.holes = set()
        self.clients = 0
        self.next_queue = 1

    @property
    def n1(self):
        return self.nodes["n1"]

    async def start(self):
        for node in self.nodes.values():
            await node.start()

    def queue(self, name):
        if name not in self.queues:
            raise QueueNotFound(f"no queue {name!r}")
        return self.queues[name]

    def create_queue(self, name, config=None, **options):
        config = config or QueueConfig.from_user(options)
        numbers = list(self.groups)
        groups = tuple(numbers[each % len(numbers)] for each in range(config.partitions))
        queue = FakeQueue(name, self.next_queue, groups, config)
        self.next_queue += 1
        self.queues[name] = queue
        for partition, group in enumerate(groups):
            self.group_of[queue.id, partition] = group
            header = commands.encode_configure(queue.id, partition, 1, config)
            assert not isinstance(self.groups[group].apply(header), RaftqError)
        return queue

    def delete_queue(self, name):
        queue = self.queue(name)
        del self.queues[name]
        for partition, group in enumerate(queue.groups):
            del self.group_of[queue.id, partition]
            self.groups[group].apply(commands.encode_drop(queue.id, partition, force=True))

    def stored(self, group, result):
        batches = {}
        for each in result.deliveries:
            for start, stop, _ in each.ranges:
                for stored in group.log[each.queue, each.partition]:
                    end = stored.base_offset + batch.read_header(stored.data).count
                    if stored.base_offset < stop and start < end:
                        batches[each.partition, stored.base_offset] = stored
        deliveries = tuple(
            requests.Delivery(
                d.partition, d.delivery, d.deadline, tuple(requests.Range(*r) for r in d.ranges)
            )
            for d in result.deliveries
        )
        return requests.Delivered(deliveries, tuple(batches.values()))

    def outside(self):
        """The three ports of a new client, on a host of its own."""
        self.clients += 1
        name = f"client{self.clients}"
        network = self.fabric.network(name, Process(self.loop, name))
        return Outside(SimClock(self.loop), network, SimEntropy(self.seed, name))

    def client(self, **options):
        hosts = ",".join(f"{name}:{PORT}" for name in self.nodes)
        return AsyncClient(f"raftq://{hosts}", outside=self.outside(), **options)

    def describe(self, name, subscription="default"):
        """Sums over the partitions of a queue."""
        total = defaultdict(int)
        queue = self.queues[name]
        for partition, group in enumerate(queue.groups):
            stats = self.groups[group].machine.describe(queue.id, partition)
            for each in stats.subscriptions:
                if each.name == subscription:
                    for field in ("ready", "in_flight", "settled", "dead", "delayed"):
                        total[field] += getattr(each, field)
        return dict(total)

    def bodies(self, name):
        """All that is in the log, partition after partition."""
        queue = self.queues[name]
        return [
            body
            for partition, group in enumerate(queue.groups)
            for stored in self.groups[group].log[queue.id, partition]
            for body in batch.Batch(stored.data).bodies()
        ]

    def forget_producers(self, name):
        """Let so much time pass that idle producers are forgotten, or act as if."""
        queue = self.queues[name]
        for partition, group in enumerate(queue.groups):
            self.groups[group].machine._state.partitions[queue.id, partition].producers.clear()

    def move_leader(self, group, node):
        self.groups[group].leader = node


@dataclass(frozen=True)
class Outside:
    clock: object
    network: object
    entropy: object


def run(scenario, *, nodes=1, groups=1, seed=1):
    """Run `scenario(cluster)`, a coroutine function, in virtual time."""
    with SimLoop(seed=seed) as loop:
        cluster = FakeCluster(loop, nodes=nodes, groups=groups, seed=seed)

        async def whole():
            await cluster.start()
            return await scenario(cluster)

        return loop.run_until_complete(whole())


def no_quorum(count):
    return [NoQuorum("alone", outcome="not_applied") for _ in range(count)]
