"""A seeded scheduler that does to a group of cores whatever an unkind world may do.

Messages are lost, repeated and overtaken; syncs complete late and partly; power goes with a random
part of the unsynced writes; links break with and without notice; logs are compacted. The checkers
of the harness run after every step. Then the world turns kind: within seconds the group must agree
and commit, and a replica that was cut off must come back without deposing anybody.
"""

from raft_harness import Cluster, NotLeader, Violated

from raftq.ids import ReplicaId
from raftq.raft import Role
from raftq.raft.faults import NONE


class Explorer(Cluster):
    """One run of one seed."""

    def __init__(self, size, seed, *, faults=NONE, steps=1_000, promises=True, **weights):
        self.proposed = 0
        self.validating = []
        self.read_floor = {}
        self.answered = 0
        self.top = 0
        self.steps = steps
        super().__init__(size, seed=seed, faults=faults, auto_sync=False, promises=promises)
        random = self.random
        for node in self.nodes.values():
            node.wall_offset = random.choice((0, 0, 1_000, -1_000, 3_600_000_000))
        # Some worlds are mostly calm, some mostly hostile: each finds other mistakes.
        self.loss = random.choice((0, 2, 10))
        self.paces = random.choice(
            ((100, 1_000, 10_000), (1_000, 20_000, 60_000), (9_000, 300_000))
        )
        self.actions = [
            (self.deliver_some, 30 * size),
            (self.pass_time, random.choice((10, 20))),
            (self.sync_some, random.choice((5, 15, 30))),
            (self.propose_some, random.choice((5, 15))),
            (self.cut_some, random.choice((0, 0, 1))),
            (self.cut_leader, random.choice((0, 1))),
            (self.repeat_message, random.choice((1, 20))),
            (self.lose_message, self.loss),
            (self.crash_some, random.choice((0, 1, 3))),
            (self.restart_some, 3),
            (self.heal_some, 2),
            (self.break_link, 1),
            (self.compact_some, random.choice((0, 1))),
            (self.validate_some, 2),
            (self.read_some, 2),
            (self.transfer_some, random.choice((0, 1))),
            (self.change_some, 0),
        ]
        # A world may be made to favour what it takes to show a certain mistake.
        self.actions = [
            (action, weights.get(action.__name__, weight)) for action, weight in self.actions
        ]

    def run(self):
        if self.random.randrange(4):
            self.settle()
            for node in self.nodes.values():
                node.auto_sync = False
        actions = [action for action, weight in self.actions for _ in range(weight)]
        for _ in range(self.steps):
            self.random.choice(actions)()
        self.settle()
        self.returns_quietly()
        return self

    # --- What may happen --------------------------------------------------------------------------

    def living(self):
        return [node for node in self.nodes.values() if node.alive]

    def deliver_some(self):
        """Mostly the oldest; sometimes any."""
        if self.wire:
            overtake = self.random.randrange(4) == 0
            position = self.random.randrange(len(self.wire)) if overtake else 0
            message = self.wire[position]
            del self.wire[position]
            if not self.blocked(message):
                self.step(message)

    def repeat_message(self):
        if self.wire:
            message = self.random.choice(self.wire)
            if not self.blocked(message):
                self.step(message)

    def lose_message(self):
        if self.wire:
            del self.wire[self.random.randrange(len(self.wire))]

    def pass_time(self):
        self.now += self.random.choice(self.paces)
        self.tick()

    def sync_some(self):
        nodes = [node for node in self.living() if node.log.pending]
        if nodes:
            node = self.random.choice(nodes)
            most = len(node.log.pending) if self.random.randrange(2) else 1
            self.sync(node.replica, self.random.randint(1, most))

    def propose_some(self):
        for node in self.living():
            if node.core.can_propose() and self.random.randrange(2):
                self.proposed += 1
                self.propose(node.replica, b"%d" % self.proposed)

    def crash_some(self):
        node = self.random.choice(list(self.nodes.values()))
        if node.alive:
            self.crash(node.replica, self.random.randint(0, len(node.log.pending)))
            if self.random.randrange(2):
                self.tell_links(node.replica, "link_lost")

    def restart_some(self):
        dead = [node for node in self.nodes.values() if not node.alive]
        if dead:
            node = self.random.choice(dead)
            self.restart(node.replica)
            if self.random.randrange(2):
                self.tell_links(node.replica, "link_up")

    def tell_links(self, replica, event):
        for node in self.living():
            if node.replica != replica:
                getattr(node.core, event)(ReplicaId(replica))
                self.pump(node)

    def cut_some(self):
        ids = list(self.nodes)
        self.cut.add((self.random.choice(ids), self.random.choice(ids)))
        if self.random.randrange(3) == 0:
            self.isolate(self.random.choice(ids))

    def cut_leader(self):
        for node in self.living():
            if node.core.role is Role.LEADER:
                self.isolate(node.replica)
                self.propose_some()

    def heal_some(self):
        self.heal()

    def break_link(self):
        if len(self.nodes) == 1:
            return
        one, other = self.random.sample(list(self.nodes), 2)
        pair = {one, other}
        for message in [m for m in self.wire if {m.sender, m.to} == pair]:
            self.wire.remove(message)
        for event in ("link_lost", "link_up"):
            for mine, theirs in ((one, other), (other, one)):
                if self.nodes[mine].alive:
                    getattr(self.core(mine), event)(ReplicaId(theirs))
                    self.pump(self.nodes[mine])

    def compact_some(self):
        node = self.random.choice(self.living() or [None])
        if node is None:
            return
        self.evict(node.replica)
        # Only what is durable can be in a snapshot here.
        index = min(node.core.applied_index, node.core.durable_index, node.log.platter.last_index)
        if index > node.log.snapshot.index and not node.log.pending:
            self.compact(node.replica, index)

    def snapshot_complete(self, node, index, *, valid):
        """The shell takes its time to check and sync a snapshot."""
        self.validating.append((node, node.core, index, valid))

    def validate_some(self):
        for node, core, index, valid in self.validating:
            if node.alive and node.core is core:
                core.snapshot_received(index, valid=valid)
                self.pump(node)
        self.validating = []

    def read_some(self):
        for node in self.living():
            if node.core.role is Role.LEADER:
                context = (node.replica, self.now, len(self.read_floor))
                self.read_floor[context] = self.top
                try:
                    node.core.read_index(context)
                except NotLeader:
                    del self.read_floor[context]
                self.pump(node)

    def transfer_some(self):
        for node in self.living():
            if node.core.role is Role.LEADER:
                node.core.transfer_leadership(ReplicaId(self.random.choice(list(self.nodes))))
                self.pump(node)

    def change_some(self):
        """Of the membership: `raft_membership_explorer.py`."""

    # --- What must hold ---------------------------------------------------------------------------

    def check(self, node):
        super().check(node)
        core = node.core
        self.top = max(self.top, core.commit_index)
        for context, index in node.reads.items():
            self.answered += 1
            if index < self.read_floor[context]:
                raise Violated(f"a read asked for at {self.read_floor[context]} got {index}")
        node.reads.clear()
        if core.role is Role.LEADER and core.term >= max(self.leaders):
            link = core.log.chain(self.top)
            if self.top and link != self.committed[self.top]:
                known = core.log.floor > self.top
                if not known:
                    raise Violated(f"leader {core.replica} of term {core.term} lacks {self.top}")

    def converged(self):
        """All members of the newest configuration have the same, wholly committed log."""
        newest = max((node.core for node in self.living()), key=lambda core: core.commit_index)
        cores = [self.core(member) for member in newest.membership.members()]
        return len({core.log.last_chain for core in cores}) == 1 and all(
            core.commit_index == core.last_index for core in cores
        )

    def settle(self):
        """Everything works again: agreement and progress within seconds."""
        self.heal()
        for node in self.nodes.values():
            if not node.alive:
                self.restart(node.replica)
            node.auto_sync = True
            self.sync(node.replica)
        for _ in range(60):
            self.advance(200_000)
            self.validate_some()
            leader = self.leader()
            if leader is not None and self.converged():
                break
        else:
            raise Violated("no agreement within 12 seconds of calm")
        before = self.core(leader).commit_index
        self.propose(leader, b"last")
        self.advance(200_000)
        if self.core(leader).commit_index <= before or not self.converged():
            raise Violated("no progress in calm")

    def returns_quietly(self):
        """A follower cut off for two seconds comes back, and the term stays."""
        leader = self.leader()
        voters = self.core(leader).membership.voters if leader else ()
        if len(voters) < 3:
            return
        term = self.core(leader).term
        self.isolate(next(replica for replica in voters if replica != leader))
        self.advance(2_000_000)
        self.heal()
        self.advance(1_000_000)
        if self.core(leader).role is not Role.LEADER or self.core(leader).term != term:
            raise Violated("a replica that came back deposed a healthy leader")
