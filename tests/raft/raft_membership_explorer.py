"""Random worlds in which the group itself changes: members join, are promoted, leave, are replaced.

Newcomers start empty under a new id. Former members stay alive with all they know, and go on asking
for votes if nobody told them. What is checked besides: a leader counts as committed only what is on
the platters of a majority of its voters, of both sides during a joint change; nobody believes that
it is removed while it is a member; ids of former members stay refused; in the end no joint
configuration is left over.
"""

from collections import Counter

from raft_explorer import Explorer
from raft_harness import Violated

from raftq.ids import ReplicaId
from raftq.raft import ChangeRefused, Membership, Role
from raftq.raft.faults import NONE

NEWCOMERS_MAX = 5
KINDS = ("join", "join", "promote", "promote", "promote", "replace", "replace", "replace", "remove",
         "demote", "drop", "reshuffle", "reshuffle", "reuse")  # fmt: skip


def is_held(voters, holders):
    """By most of them; counted here once more, without the code under test."""
    return 2 * len(set(voters) & holders) > len(voters)


class ChangingExplorer(Explorer):
    """One run of one seed."""

    def __init__(self, size, seed, *, faults=NONE, kinds=KINDS, **options):
        self.kinds = kinds
        self.ids_max = size + NEWCOMERS_MAX
        self.changes = Counter()
        self.refusals = Counter()
        # There will be more members than at the beginning, and they have to catch up in between.
        options = {
            "steps": 3_000, "change_some": 15, "deliver_some": 40 * size + 80, "heal_some": 6,
            **options,
        }  # fmt: skip
        super().__init__(size, seed, faults=faults, **options)
        self.actions.append((self.split_some, options.get("split_some", 2)))
        self.actions.append((self.split_change, options.get("split_change", 1)))

    def split_some(self):
        """Two sides that do not hear each other."""
        ids = list(self.nodes)
        side = set(self.random.sample(ids, self.random.randint(1, len(ids))))
        self.split(side, set(ids) - side)

    def split_change(self):
        """A leader is asked for several changes while it hears the learners, and few others."""
        leaders = [node for node in self.living() if node.core.role is Role.LEADER]
        if not leaders:
            return
        node = self.random.choice(leaders)
        ids = set(self.nodes)
        others = sorted(ids - {node.replica})
        side = {node.replica, *self.random.sample(others, self.random.randrange(len(others) + 1))}
        if self.random.randrange(2):
            side |= set(node.core.membership.learners)
        self.heal()
        self.split(side, ids - side)
        for _ in range(4):
            self.change_one(node)

    def deliver_some(self):
        """An eager administrator: some leaders are asked as soon as they are elected."""
        super().deliver_some()
        for node in self.living():
            core = node.core
            elected = core.role is Role.LEADER and core.commit_index < core.term_start
            if elected and not self.random.randrange(8):
                self.change_one(node)

    def change_some(self):
        for node in self.living():
            if node.core.role is Role.LEADER and self.random.randrange(2):
                self.change_one(node)

    def change_one(self, node):
        core = node.core
        kind = self.random.choice(self.kinds)
        wanted = getattr(self, f"wish_{kind}")(core.membership, core.replica)
        if not wanted:
            return
        try:
            core.propose_membership(wanted)
        except ChangeRefused as refused:
            self.refusals[refused.reason] += 1
            return
        self.changes[kind] += 1
        if kind == "reuse":
            raise Violated(f"{wanted} was accepted after {node.in_force}")
        for member in wanted.members():
            if member not in self.nodes:
                self.join(member)
                self.nodes[member].auto_sync = False
        node.in_force = core.membership
        self.pump(node)

    # --- What may be wanted; None where there is nothing to do --------------------------------------

    def wish_join(self, present, _leader):
        newest = max(self.nodes)
        if newest >= self.ids_max:
            return None
        return present._replace(learners=(*present.learners, ReplicaId(newest + 1)))

    def wish_promote(self, present, _leader):
        return self.swap(present, into=self.one_of(present.learners))

    def wish_remove(self, present, leader):
        return self.swap(present, out=self.one_of(self.removable(present, leader)))

    def wish_replace(self, present, leader):
        into = self.one_of(present.learners)
        return into and self.swap(
            present, out=self.one_of(self.removable(present, leader)), into=into
        )

    def wish_demote(self, present, _leader):
        out = self.one_of(present.voters)
        following = self.swap(present, out=out)
        return following and following._replace(learners=tuple(sorted((*present.learners, out))))

    def wish_drop(self, present, _leader):
        gone = self.one_of(present.learners)
        return gone and present._replace(learners=tuple(i for i in present.learners if i != gone))

    def wish_reshuffle(self, present, _leader):
        """Any voters out of the members; who is neither voter nor was one goes on learning."""
        members = present.members()
        voters = tuple(sorted(self.random.sample(members, self.random.randint(1, len(members)))))
        learners = tuple(i for i in present.learners if i not in voters)
        return Membership(voters, learners)

    def wish_reuse(self, present, _leader):
        former = [i for i in self.nodes if i not in present.members() and i <= present.retired]
        return former and present._replace(
            learners=tuple(sorted((*present.learners, self.random.choice(former))))
        )

    def swap(self, present, *, out=None, into=None):
        """One voter less, one learner more that votes, or both at once."""
        voters = tuple(sorted(({*present.voters} - {out}) | ({into} - {None})))
        if not voters or voters == present.voters:
            return None
        return Membership(voters, tuple(i for i in present.learners if i != into))

    def removable(self, present, leader):
        """Leaders are removed as often as all others together."""
        return [leader] if self.random.randrange(2) and leader in present.voters else present.voters

    def one_of(self, ids):
        return self.random.choice(ids) if ids else None

    # --- What must hold -----------------------------------------------------------------------------

    def pump(self, node):
        """One step may commit one configuration and begin the next: look after each call."""
        self.check_quorum(node)
        super().pump(node)

    def complete(self, node, seq):
        super().complete(node, seq)
        self.check_quorum(node)

    def check(self, node):
        super().check(node)
        self.check_quorum(node)
        core = node.core
        pending = [at for at, _ in core.log._memberships if at > core.commit_index]
        if len(pending) > 1 and self.promises:
            raise Violated(f"{node.replica} holds two uncommitted configurations: {pending}")
        if core.removed:
            newest = max((other.core for other in self.living()), key=lambda c: c.commit_index)
            if core.replica in newest.membership_at(newest.commit_index).members():
                raise Violated(f"{core.replica} believes that it is removed")

    def check_quorum(self, node):
        """By the configuration that was in force when the leader counted: before this step."""
        core = node.core
        index, counted = core.commit_index, node.counted
        voters, _, outgoing, _ = node.in_force
        node.counted, node.in_force = index, core.membership
        if core.role is not Role.LEADER or index <= counted or not self.promises:
            return
        link = core.log.chain(index)
        holders = {
            replica
            for replica, other in self.nodes.items()
            if other.log.platter.last_index >= index
            and other.log.platter.chain(index) in {link, None}
        }
        if not is_held(voters, holders) or (outgoing and not is_held(outgoing, holders)):
            raise Violated(f"{index} is committed on {sorted(holders)} alone")

    def converged(self):
        return super().converged() and not any(
            node.core.membership.outgoing for node in self.living() if node.core.role is Role.LEADER
        )
