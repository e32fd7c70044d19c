"""A group of cores in memory: an explicit log whose syncs are commands, and a network in a list.

Nothing happens by itself: time, delivery, syncs, crashes and links are moved by the test. What must
hold always is checked after every step:

    one leader per term, of those who became leader
    what one replica committed at an index nobody ever commits otherwise (by chain, so the whole
    prefix is compared), and no commit index points behind its log
    what was applied is applied in order, once, and is what was committed
"""

from collections import deque
from random import Random

from raft_fake_log import FakeLog

from raftq.ids import Micros, ReplicaId
from raftq.limits import CACHED_LOG_BYTES
from raftq.raft import (
    Command,
    Membership,
    NotLeader,
    Raft,
    Role,
    election,
)
from raftq.raft.entry import commands
from raftq.raft.faults import NONE
from raftq.raft.messages import AppendReply, VoteReply, VoteRequest
from raftq.raft.ready import UNLIMITED

WALL = 1_700_000_000_000_000


class Violated(AssertionError):
    """A promise of consensus was broken: what the checkers below raise."""


class Node:
    """One replica: core, log, machine (the applied bodies), and the messages held for a sync."""

    def __init__(self, cluster, replica, membership, *, may_vote=True):
        self.cluster = cluster
        self.replica = ReplicaId(replica)
        self.log = FakeLog(membership)
        self.alive = True
        self.auto_sync = True
        self.wall_offset = 0
        self.may_vote = may_vote
        self.allowance = UNLIMITED
        self.applied_entries: dict[int, bytes] = {}
        self.incoming = b""
        self.in_force = membership
        """The configuration that the core had when it was last looked at."""
        self.counted = 0
        """How far it had committed then."""
        self.start()

    def start(self):
        self.held = []
        self.reads = {}
        self.last_applied = self.log.snapshot.index
        self.core = Raft(
            replica=self.replica,
            state=self.log.hard_state(),
            log=self.log,
            draw=self.cluster.random.randrange,
            monotonic=Micros(self.cluster.now),
            wall=Micros(self.wall()),
            may_vote=self.may_vote,
            faults=self.cluster.faults,
            allowance=self.allowance,
        )

    def wall(self):
        return WALL + self.cluster.now + self.wall_offset

    @property
    def bodies(self):
        """Bodies of the proposed commands that this replica's machine has applied."""
        return [body for _, body in sorted(self.applied_entries.items()) if body]

    def log_bodies(self):
        disk = self.log.cache
        return [
            b"".join(bytes(command.body) for command in commands(entry))
            for entry in disk.entries_held
            if entry.kind == 1
        ]


class Cluster:
    """Several nodes, the messages between them, and the checkers."""

    def __init__(self, size=3, *, seed=0, faults=NONE, learners=(), auto_sync=True, promises=True):
        self.random = Random(seed)
        self.faults = faults
        self.now = 1_000_000
        self.wire: deque = deque()
        self.cut: set[tuple[int, int]] = set()
        self.drop = lambda message: False
        self.promises = promises
        self.leaders: dict[int, int] = {}
        self.committed: dict[int, bytes] = {}
        self.committed_top = {}
        self.history = []
        voters = tuple(ReplicaId(i) for i in range(1, size + 1))
        self.membership = Membership(voters, tuple(ReplicaId(i) for i in learners))
        self.nodes: dict[int, Node] = {}
        for replica in self.membership.members():
            self.nodes[replica] = Node(self, replica, self.membership)
            self.nodes[replica].auto_sync = auto_sync
        for node in self.nodes.values():
            self.pump(node)

    def __getitem__(self, replica):
        return self.nodes[replica]

    def core(self, replica):
        return self.nodes[replica].core

    # --- One node ---------------------------------------------------------------------------------

    def pump(self, node):
        """Do what the core asks for until it asks for nothing."""
        core = node.core
        while node.alive and (ready := core.ready()) is not None:
            if ready.write is not None:
                node.log.write(ready.write)
            if ready.snapshot is not None:
                node.last_applied = ready.snapshot.index
            for message in ready.send_now:
                self.send(node, message, self.speaks_of(node, message))
            for message in ready.send_after:
                speaks_of = self.speaks_of(node, message)
                node.held.append((ready.after_seq, message, speaks_of))
            for chunk in ready.snapshot_receive:
                self.receive_chunk(node, chunk)
            for entry in ready.apply:
                self.check_applied(node, entry)
            if ready.apply:
                core.applied(ready.apply[-1].index)
            for context, index in ready.reads:
                node.reads[context] = index
            for request in ready.snapshot_send:
                self.answer_chunk(node, request)
            if node.auto_sync and node.log.pending:
                self.complete(node, node.log.sync())
        self.check(node)

    def complete(self, node, seq):
        if seq is None:
            return
        node.core.persisted(seq)
        due = [item for item in node.held if item[0] <= seq]
        node.held = [item for item in node.held if item[0] > seq]
        for _, message, speaks_of in due:
            self.send(node, message, speaks_of)

    def sync(self, replica, count=None):
        node = self.nodes[replica]
        self.complete(node, node.log.sync(count))
        self.pump(node)

    def step(self, message):
        node = self.nodes[message.to]
        if node.alive:
            node.core.step(message)
            self.pump(node)

    def crash(self, replica, kept=0):
        node = self.nodes[replica]
        node.alive = False
        node.log.crash(kept)
        self.wire = deque(m for m in self.wire if replica not in (m.sender, m.to))

    def restart(self, replica, **changed):
        node = self.nodes[replica]
        for name, value in changed.items():
            setattr(node, name, value)
        node.alive = True
        node.start()
        self.pump(node)

    def join(self, replica):
        """A new replica, which knows nobody yet."""
        self.nodes[replica] = Node(self, replica, Membership(()))

    def change(self, replica, voters, learners=()):
        """Ask replica's core for another configuration; gives the index of the first step."""
        wanted = Membership(tuple(map(ReplicaId, voters)), tuple(map(ReplicaId, learners)))
        index = self.core(replica).propose_membership(wanted)
        self.pump(self.nodes[replica])
        return index

    def propose(self, replica, body=b"x"):
        core = self.core(replica)
        index = core.propose([Command(b"\x01", body)], core.log_time())
        self.pump(self.nodes[replica])
        return index

    # --- Snapshots --------------------------------------------------------------------------------

    def compact(self, replica, index=None):
        node = self.nodes[replica]
        node.log.compact(node.core.applied_index if index is None else index)
        node.core.compacted()
        self.evict(replica)
        self.pump(node)

    def evict(self, replica):
        """Let the core forget all it may, as if it had seen many megabytes since."""
        core = self.core(replica)
        core.log._bytes += CACHED_LOG_BYTES
        before = core.log._bytes
        core.log.evict(min(core.applied_index, core.durable_index))
        core.log._bytes -= CACHED_LOG_BYTES
        assert core.log._bytes <= before

    def answer_chunk(self, node, request):
        """The snapshot is its own index as text, in pieces of two bytes; only the newest is held."""
        meta = node.log.snapshot
        if request.index != meta.index:
            node.core.snapshot_gone(request.to, request.index)
            return
        data = b"state at %d" % request.index
        piece = data[request.position : request.position + 2]
        done = request.position + 2 >= len(data)
        node.core.snapshot_chunk(request.to, meta, request.position, piece, done)

    def receive_chunk(self, node, chunk):
        if chunk.position == 0:
            node.incoming = b""
        assert chunk.position == len(node.incoming)
        node.incoming += chunk.data
        if chunk.done:
            valid = node.incoming == b"state at %d" % chunk.index
            self.snapshot_complete(node, chunk.index, valid=valid)

    def snapshot_complete(self, node, index, *, valid):
        node.core.snapshot_received(index, valid=valid)

    # --- The network ------------------------------------------------------------------------------

    def speaks_of(self, node, message):
        """The chain that an acknowledgement is about, as it is when the core makes it."""
        if isinstance(message, AppendReply) and message.success:
            return node.core.log.chain(message.match_index)
        return None

    def send(self, node, message, speaks_of):
        """Check that what a message promises is on the platter, then send it.

        A promise of an older term may be overtaken by a newer one: it was kept when it counted.
        """
        if self.promises:
            platter = node.log.platter
            if isinstance(message, AppendReply) and message.success:
                kept = platter.term > message.term or (
                    platter.term == message.term
                    and platter.last_index >= message.match_index
                    and platter.chain(message.match_index) in {speaks_of, None}
                )
            elif isinstance(message, VoteRequest) and not message.pre:
                kept = platter.term > message.term or platter.vote == message.sender
            elif isinstance(message, VoteReply) and message.granted and not message.pre:
                kept = platter.term > message.term or platter.vote == message.to
            else:
                kept = True
            if not kept:
                raise Violated(f"{node.replica} promises what is not durable")
        self.post(message)

    def post(self, message):
        if not self.drop(message):
            self.wire.append(message)

    def blocked(self, message):
        return (message.sender, message.to) in self.cut or message.to not in self.nodes

    def deliver(self, only=None, limit=10_000):
        """Deliver, oldest first, until nothing (that `only` admits) is on the way."""
        held = deque()
        while self.wire:
            limit -= 1
            assert limit, "messages go round for ever"
            message = self.wire.popleft()
            if self.blocked(message):
                continue
            if only is not None and not only(message):
                held.append(message)
                continue
            self.step(message)
        self.wire = held

    def isolate(self, replica):
        for other in self.nodes:
            self.cut |= {(replica, other), (other, replica)}

    def split(self, *sides):
        """Only nodes of the same side hear each other."""
        for one in self.nodes:
            for other in self.nodes:
                if not any(one in side and other in side for side in sides):
                    self.cut.add((one, other))

    def heal(self):
        self.cut.clear()

    # --- Time -------------------------------------------------------------------------------------

    def advance(self, micros, *, deliver=True, latency=500):
        """Let time pass from deadline to deadline; messages take `latency`."""
        end = self.now + micros
        while self.now < end:
            deadlines = [n.core.next_deadline() for n in self.nodes.values() if n.alive]
            due = min([max(d, self.now + 1) for d in deadlines] + [end])
            if deliver and self.wire:
                due = min(due, self.now + latency)
            self.now = min(due, end)
            self.tick()
            if deliver:
                self.deliver_once()

    def deliver_once(self):
        """What is on the way now arrives; what it causes does not yet."""
        for _ in range(len(self.wire)):
            message = self.wire.popleft()
            if not self.blocked(message):
                self.step(message)

    def tick(self):
        for node in self.nodes.values():
            if node.alive:
                node.core.tick(Micros(self.now), Micros(node.wall()))
                self.pump(node)

    def elect(self, replica=None):
        """Time passes until there is a leader, if need be this one, with its no-op applied."""
        for _ in range(100):
            if replica is not None and self.core(replica).role is not Role.LEADER:
                # Without a pre-vote, which a live leader would refuse.
                election.campaign(self.core(replica))
                self.pump(self.nodes[replica])
            self.advance(100_000)
            leader = self.leader()
            if leader is not None and (replica is None or leader == replica):
                return leader
        raise AssertionError("nobody was elected")

    def leader(self):
        """The leader of the highest term that may take proposals, or None."""
        leading = [
            (node.core.term, replica)
            for replica, node in self.nodes.items()
            if node.alive and node.core.can_propose()
        ]
        return max(leading)[1] if leading else None

    # --- Checkers ---------------------------------------------------------------------------------

    def check(self, node):
        core = node.core
        if core.role is Role.LEADER:
            known = self.leaders.setdefault(core.term, core.replica)
            if known != core.replica:
                raise Violated(f"{known} and {core.replica} both lead term {core.term}")
        if core.diverged is not None:
            raise Violated(f"{core.replica} diverged: {core.diverged}")
        self.check_committed(node, core.commit_index)

    def check_committed(self, node, index):
        if not index:
            return
        link = node.core.log.chain(index)
        if link is None or index > node.core.last_index:
            raise Violated(f"{node.replica} committed {index}, behind its log")
        if self.committed.setdefault(index, link) != link:
            raise Violated(f"{node.replica} committed another entry at {index}")

    def check_applied(self, node, entry):
        if entry.index != node.last_applied + 1:
            raise Violated(f"{node.replica} applied {entry.index} after {node.last_applied}")
        node.last_applied = entry.index
        if self.committed.setdefault(entry.index, entry.chain) != entry.chain:
            raise Violated(f"{node.replica} applied another entry at {entry.index}")
        body = b"".join(bytes(command.body) for command in commands(entry) if entry.kind == 1)
        node.applied_entries[entry.index] = body

    def converged(self):
        """All living replicas have the same, wholly committed log."""
        cores = [node.core for node in self.nodes.values() if node.alive]
        return len({core.log.last_chain for core in cores}) == 1 and all(
            core.commit_index == core.last_index for core in cores
        )


def roles(cluster):
    return {replica: node.core.role.value for replica, node in cluster.nodes.items()}


__all__ = ["WALL", "Cluster", "Node", "NotLeader", "Violated", "roles"]
