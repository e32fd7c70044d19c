"""Bootstraps joined by queues in memory: every save and every message is a step that may be cut.

A node's identity is its disk: what `save` was given and returned from. Links follow the rules of the
real ones (`Links.check`); a link that is down loses what was on it.
"""

import random
from collections import deque
from types import SimpleNamespace

from raftq.errors import ClusterMismatch, RaftqError
from raftq.host.bootstrap import Bootstrap
from raftq.host.identity import Identity, Member
from raftq.host.links import Links
from raftq.wire.handshake import VERSIONS, PeerHello

ENVIRONMENT = SimpleNamespace(clock=SimpleNamespace(monotonic=lambda: 0))


class Crash(Exception):
    """The process is killed here."""


def members_named(*names):
    return tuple(Member(name, name, 7) for name in names)


class Node:
    """One data directory and, while it is up, the process on it."""

    def __init__(self, world, name, members):
        self.world = world
        self.name = name
        self.disk = Identity(
            name,
            world.mint(),
            1,
            0,
            "empty",
            tuple(sorted(members, key=lambda member: member.name)),
        )
        self.bootstrap = None
        self.links = None
        self.has_directory = False
        self.activations = 0

    @property
    def identity(self):
        return self.disk

    def start(self):
        self.links = Links(ENVIRONMENT, self.disk, None, None)
        self.bootstrap = Bootstrap(
            self.disk,
            save=self.save,
            send=lambda to, body: self.world.send(self.name, to, body),
            mint=self.world.mint,
            activating=self.activating,
            activated=self.activated,
        )
        if self.disk.state == "active":
            assert self.has_directory, "active without the directory of group 0"
        self.world.run(self, self.bootstrap.begin)

    def save(self, identity):
        self.world.saves += 1
        if self.world.crash_at == (self.world.saves, "before"):
            raise Crash
        assert identity.state != "active" or self.has_directory
        self.disk = identity
        self.links.identity = identity
        if self.world.crash_at == (self.world.saves, "after"):
            raise Crash

    def activating(self, identity):
        self.has_directory = True

    def activated(self, identity):
        assert self.disk.state == "active"
        assert identity == self.disk
        self.activations += 1

    def hello(self):
        disk = self.disk
        return PeerHello(VERSIONS, (), disk.cluster, disk.name, disk.incarnation, disk.boot)


class World:
    """The nodes, what is on its way between them, and the hand that crashes one."""

    def __init__(self, *names, seed=None, members=None):
        self.random = random.Random(seed) if seed is not None else None
        self.minted = 100
        self.saves = 0
        self.crash_at = None
        self.crashed = []
        self.refusals = []
        self.queues = {}
        self.nodes = {
            name: Node(self, name, (members or {}).get(name, members_named(*names)))
            for name in names
        }

    def mint(self):
        self.minted += 1
        return self.minted

    def start_all(self):
        for node in self.nodes.values():
            self.start(node.name)

    def start(self, name):
        self.nodes[name].start()
        self.link_all()

    def link_all(self):
        """Every pair that is up and may be linked gets a link."""
        for one in self.nodes.values():
            for other in self.nodes.values():
                if one.name < other.name and one.bootstrap and other.bootstrap:
                    self.link(one, other)

    def link(self, one, other):
        if (one.name, other.name) in self.queues:
            return
        try:
            other.links.check(one.hello(), None)
            one.links.check(other.hello(), other.name)
        except ClusterMismatch as error:
            self.refusals.append(str(error))
            return
        self.queues[one.name, other.name] = deque()
        self.queues[other.name, one.name] = deque()
        for near, far in ((one, other), (other, one)):
            if near.bootstrap:
                self.run(near, lambda near=near, far=far: near.bootstrap.link_up(far.name))

    def unlink(self, one, other):
        if self.queues.pop((one.name, other.name), None) is None:
            return
        self.queues.pop((other.name, one.name), None)
        for near, far in ((one, other), (other, one)):
            if near.bootstrap:
                near.bootstrap.link_lost(far.name)

    def send(self, source, target, body):
        queue = self.queues.get((source, target))
        if queue is not None:
            queue.append(body)

    def run(self, node, work):
        """Something that the node does; a crash ends its process."""
        try:
            work()
        except Crash:
            self.crash_at = None
            self.crashed.append(node.name)
            self.kill(node.name)

    def kill(self, name):
        node = self.nodes[name]
        node.bootstrap = None
        for other in self.nodes.values():
            if other is not node:
                self.unlink(node, other)

    def wipe(self, name):
        """The directory is emptied: another incarnation."""
        self.kill(name)
        old = self.nodes[name]
        plain = members_named(*(member.name for member in old.disk.members))
        self.nodes[name] = Node(self, name, plain)

    def step(self):
        """Deliver one message; False when nothing is on its way."""
        ready = [pair for pair, queue in self.queues.items() if queue]
        if not ready:
            return False
        source, target = self.random.choice(ready) if self.random else ready[0]
        body = self.queues[source, target].popleft()
        node = self.nodes[target]

        def heard():
            try:
                node.bootstrap.message(source, memoryview(body))
            except RaftqError:
                self.unlink(node, self.nodes[source])

        self.run(node, heard)
        return True

    def settle(self):
        for _ in range(10_000):
            if not self.step():
                return
        raise AssertionError("the bootstrap talks for ever")

    def states(self):
        return [node.disk.state for node in self.nodes.values()]

    def assert_begun(self, *names):
        """All of these are active members of one and the same cluster."""
        found = [self.nodes[name] for name in names or self.nodes]
        assert [node.disk.state for node in found] == ["active"] * len(found)
        assert len({node.disk.cluster for node in found}) == 1
        assert len({node.disk.members for node in found}) == 1
        for node in found:
            assert node.disk.cluster != 0
            assert node.disk.member(node.name).incarnation == node.disk.incarnation
            assert node.has_directory
