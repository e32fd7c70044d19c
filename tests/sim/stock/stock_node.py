"""One process that runs a stock pysyncobj node on the simulated network, and its application.

Theory of operation. The library is given a transport that frames its pickled messages over one
connection per pair of nodes (the node with the higher number dials), and is ticked as its own thread
would tick it: at least every 50 ms, and whenever something has arrived. The replicated machine is a
list of payloads; the application of each node puts payloads into it and hears of their outcome.

Rules

1. The consensus, its journal and its serializer are the library's. What is overridden here does
   what the library does, and tells the watch.
2. What the library raises is noted and the node goes on, as its own thread does.
3. A message is heard only on the newest connection between two nodes.
4. A `Cure` mends one bug from outside, in the messages; all else is as without it.
5. Nodes have numbers for identities: the library iterates sets of nodes, and the order of a set of
   str would change from process to process.
"""

import asyncio
import enum
import pathlib
import traceback

import xxhash
from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, replicated
from pysyncobj.node import Node
from pysyncobj.pickle import dumps, loads
from pysyncobj.transport import Transport
from stock_watch import QUEUE

HERE = pathlib.Path(__file__).parent

PORT = 7500
TICK_SECONDS = 0.05
DIAL_SECONDS = 1.0
DIAL_PAUSE_SECONDS = 0.2
LENGTH_BYTES = 4
BUFFER_BYTES = 1 << 16
LEADER = 2


class Cure(enum.Enum):
    """A bug that is mended in the messages."""

    NONE = enum.auto()
    TRUNCATION = enum.auto()
    """Entries that a follower has already do not cut off what is behind them."""
    SNAPSHOT_COMMIT = enum.auto()
    """A piece of a snapshot commits nothing."""


class Machine(SyncObj):
    """The library's node with a list of payloads as its machine, which tells the watch."""

    def __init__(self, server, me, others, conf, transport):
        self.server = server
        self.transport = transport
        conf.onStateChanged = self._state_changed
        super().__init__(me, others, conf=conf, transport=transport)
        # From here on attributes belong to the machine's state, which snapshots hold.
        self.payloads = []
        self._tell_restored()
        server.machine = self

    @replicated
    def put(self, payload, padding):
        self.payloads.append(payload)
        return len(self.payloads) - 1

    @property
    def journal(self):
        return self._SyncObj__raftLog

    def digest(self):
        return xxhash.xxh3_64(" ".join(self.payloads).encode()).digest()

    def _tell_restored(self):
        watch, name = self.server.watch, self.server.name
        watch.restored(name, self.raftLastApplied, self.journal.last_index)

    def _state_changed(self, _, state):
        if state == LEADER:
            self.server.watch.elected(self.server.name, self.raftCurrentTerm, self.journal)

    def _SyncObj__doApplyCommand(self, command):  # noqa: N802 - the library's name.
        result = super()._SyncObj__doApplyCommand(command)
        self.server.watch.applied(
            self.server.name,
            self.raftLastApplied + 1,
            self.journal,
            leader_term=self.raftCurrentTerm if self._isLeader() else None,
            digest=self.digest,
        )
        return result

    def _SyncObj__loadDumpFile(self, clearJournal):  # noqa: N802, N803 - the library's names.
        held = self.journal.chains_by_index()
        super()._SyncObj__loadDumpFile(clearJournal)
        index = self.journal.last_index
        if held.get(index) != self.journal.chain_at(index):
            # The log had nothing to do with the snapshot: what was behind that index had to go.
            self.server.watch.truncated(self.server.name, index + 1)
        self._tell_restored()


class Connection(asyncio.BufferedProtocol):
    """Frames between two nodes. The first frame of the one who dials is its number."""

    def __init__(self, transport, peer=None):
        self.transport = transport
        self.peer = peer
        self.stream = None
        self._buffer = bytearray(BUFFER_BYTES)
        self._data = bytearray()

    def connection_made(self, stream):
        self.stream = stream
        if self.peer is not None:
            self.write(self.transport.me.id)
            self.transport.joined(self)

    def write(self, message):
        data = dumps(message)
        self.stream.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)

    def get_buffer(self, sizehint):
        return self._buffer

    def buffer_updated(self, count):
        self._data += self._buffer[:count]
        while len(self._data) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._data[:LENGTH_BYTES], "big")
            if len(self._data) < end:
                break
            frame = bytes(self._data[LENGTH_BYTES:end])
            del self._data[:end]
            self._heard(loads(frame))

    def _heard(self, message):
        if self.peer is None:
            self.peer = self.transport.nodes[message]
            self.transport.joined(self)
        else:
            self.transport.heard(self, message)

    def connection_lost(self, error):
        self.transport.left(self)


class SimulatedTransport(Transport):
    """The library's transport over simulated connections."""

    def __init__(self, server, me, others):
        super().__init__(None, me, others)
        self.server = server
        self.me = me
        self.nodes = {node.id: node for node in others}
        self._connections = {}
        self._verified = None

    def send(self, node, message):
        connection = self._connections.get(node)
        if connection is None:
            return False
        if message["type"] == "next_node_idx" and message["success"]:
            if self._verified is not None:
                message = {**message, "next_node_idx": self._verified + 1}
            self.server.watch.promised(self.server.name, message["next_node_idx"] - 1)
        connection.write(message)
        return True

    def joined(self, connection):
        older = self._connections.get(connection.peer)
        self._connections[connection.peer] = connection
        if older is not None:
            older.stream.abort()
            self._onNodeDisconnected(connection.peer)
        self._onNodeConnected(connection.peer)

    def left(self, connection):
        if self._connections.get(connection.peer) is connection:
            del self._connections[connection.peer]
            self._onNodeDisconnected(connection.peer)

    def heard(self, connection, message):
        if self._connections.get(connection.peer) is connection:
            self.server.step(self._onMessageReceived, connection.peer, self._cured(message))
            self._verified = None
            self.server.step(self.server.machine.doTick)

    def _cured(self, message):
        cure = self.server.cure
        if message["type"] != "append_entries":
            return message
        if cure is Cure.SNAPSHOT_COMMIT and "prevLogIdx" not in message:
            return {**message, "commit_index": 0}
        if cure is Cure.TRUNCATION and "entries" in message:
            return self._without_known(message)
        return message

    def _without_known(self, message):
        """The same message for what follows the log, if the log holds all that it brings."""
        journal = self.server.machine.journal
        start = message["prevLogIdx"] - journal[0][1]
        if message["term"] < self.server.machine.raftCurrentTerm or not 0 <= start < len(journal):
            return message
        entries = message["entries"]
        held = journal[start : start + 1 + len(entries)]
        expected = [message["prevLogTerm"], *(entry[2] for entry in entries)]
        if [entry[2] for entry in held] != expected:
            return message
        self._verified = verified = message["prevLogIdx"] + len(entries)
        _, last_index, last_term = journal[-1]
        return {
            **message,
            "entries": [],
            "prevLogIdx": last_index,
            "prevLogTerm": last_term,
            "commit_index": min(message["commit_index"], verified),
        }


class Server:
    """One process: a node, and the application that uses it."""

    def __init__(self, cluster, name, numbers):
        self.cluster = cluster
        self.watch = cluster.watch
        self.cure = cluster.cure
        self.name = name
        self.machine = None
        self._numbers = numbers
        self._tasks = []

    async def run(self, environment, options):
        number = self._numbers[self.name]
        me = Node(number)
        others = [Node(other) for other in self._numbers.values() if other != number]
        transport = SimulatedTransport(self, me, others)
        conf = SyncObjConf(
            autoTick=False, useFork=False, journalFile="log", fullDumpFile="dump", **options
        )
        self.step(Machine, self, me, others, conf, transport)
        if self.machine is None:
            return  # What its disk holds does not let it start.
        await environment.network.listen(self.name, PORT, lambda: Connection(transport))
        loop = asyncio.get_running_loop()
        for name, other in self._numbers.items():
            if other < number:
                dialing = self._dial(environment.network, name, transport, transport.nodes[other])
                self._tasks.append(loop.create_task(dialing))
        self._tasks.append(loop.create_task(self._work(environment.entropy)))
        while True:
            self.step(self.machine.doTick)
            await asyncio.sleep(TICK_SECONDS)

    def step(self, function, *args):
        """Let the library do something, as its own thread would."""
        try:
            function(*args)
        except Exception as error:
            raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
            if pathlib.Path(raised_in).parent == HERE:
                raise  # It is the adapter that is wrong.
            self.cluster.tell(self.name, f"raised {error!r}")

    async def _dial(self, network, name, transport, node):
        while True:
            if not self.machine.isNodeConnected(node):
                try:
                    async with asyncio.timeout(DIAL_SECONDS):
                        await network.connect(name, PORT, lambda: Connection(transport, node))
                except OSError:
                    pass  # Again, after a pause.
            await asyncio.sleep(DIAL_PAUSE_SECONDS)

    async def _work(self, entropy):
        """Put payloads, one after another, without waiting for their outcome."""
        mode, starts = self.cluster.mode, self.cluster.starts(self.name)
        padding = bytes(mode.message_bytes)
        number = 0
        while True:
            await asyncio.sleep(entropy.below(2 * mode.pause_micros) / 1_000_000)
            if self.cluster.is_loaded:
                number += 1
                self._put(f"{self.name}.{starts}.{number}", padding)

    def _put(self, payload, padding):
        def told(offset, reason):
            if reason == FAIL_REASON.SUCCESS:
                self.watch.acknowledged(payload, offset)

        self.watch.ledger.attempted(QUEUE, payload)
        self.machine.put(payload, padding, callback=told)
