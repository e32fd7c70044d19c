"""One replica of the model: a real core with its log, taken apart into a value and put together.

A core is deterministic and talks to nobody but its caller, so what it becomes and says is a function
of what it is and what happens to it. That makes exhaustive exploration cheap: the real code runs
once for each pair of a replica's state and an event, whatever the rest of the world looks like.

    Bench.begin()                      the states of all replicas at the start, and what is in flight
    Bench.events(state)                what may happen to a replica, besides that a message arrives
    Bench.happen(state, event)         what it becomes and says: an Outcome, or a Violated raised

Rules:

1.  Time stands still. An event makes a deadline due and lets the core look at its clock; afterwards
    every deadline, and everything ever heard, is put back to where it would be if it were now. So no
    state differs from another by its clock alone, and timers fire at any moment.
2.  The key of a state holds every attribute of core, log and shell, found by walking the objects, but
    for what is named in `UNSEEN` with its reason.
3.  Write numbers count from the last write that is durable; they only name writes.

It must not know of the other replicas, nor of what must hold among them: `raft_model.py`.
"""

import pickle
from collections import deque
from enum import Enum
from typing import NamedTuple

from raft_harness import WALL, Cluster, Node, Violated

from raftq.ids import NOBODY, Micros, WriteSeq
from raftq.limits import ELECTION_MICROS_MIN
from raftq.raft import ChangeRefused, Membership, Role
from raftq.raft.entry import MEMBERSHIP
from raftq.raft.messages import VoteRequest
from raftq.raft.replica import LONG_AGO, NEVER
from raftq.raft.replication import next_heartbeat

UNSEEN = frozenset(
    {
        # The shell's: who owns it, what the tests of stories look at, and what never changes here.
        "cluster", "applied_entries", "in_force", "counted", "wall_offset", "auto_sync", "alive",
        "reads", "may_vote",
        # Constants of a core, and the way back to its log, which the shell holds too.
        "faults", "_faults", "draw", "now", "wall", "_reader",
        # All clocks show the same and stand still: log time is 0, whoever was heard.
        "clocks",
    }
)  # fmt: skip


class Arrival(NamedTuple):
    """A message arrives; `late`: after the last contact with a leader was long ago."""

    message: object
    late: bool = False


class Outcome(NamedTuple):
    """What became of a replica, what it said, and whose majority it counted if it committed."""

    state: int
    sent: tuple
    electorate: Membership | None


class View(NamedTuple):
    """What the checkers look at in a replica's state; indexes count from 1."""

    replica: int
    leads: int
    """The term, if this replica leads it."""
    term: int
    standing: tuple[int, str, int, int]
    """Replica, role, term and durable term: by which it is known what can never matter again."""
    commit_index: int
    chains: tuple
    """Chain value of each index of the log; None below its snapshot."""
    terms: tuple
    durable_chains: tuple
    membership: Membership
    unfinished: bool
    """Whether a write is outstanding."""


class Still:
    """Chance without chance: every draw is 0, for timers fire at any moment anyway."""

    def randrange(self, _limit):
        return 0


def names(kind):
    """The attributes of a class's objects that count, where they are declared."""
    slots = [name for part in kind.__mro__ for name in getattr(part, "__slots__", ())]
    return tuple(sorted(set(slots) - UNSEEN))


_names: dict = {}


def key(thing):
    """A hashable value, equal for equal states. What is a tuple is a value already."""
    kind = type(thing)
    if kind in {int, bytes, str, bool, type(None)} or isinstance(thing, tuple | Enum):
        return thing
    if kind is list or kind is deque:
        return tuple(map(key, thing))
    if kind is dict:
        return tuple(sorted((name, key(value)) for name, value in thing.items()))
    if hasattr(thing, "__dict__"):
        return tuple(
            key(value) for name, value in sorted(vars(thing).items()) if name not in UNSEEN
        )
    if kind not in _names:
        _names[kind] = names(kind)
    return tuple(key(getattr(thing, name)) for name in _names[kind])


class Bench(Cluster):
    """Where one replica at a time is put together, made to move, and taken apart."""

    def __init__(self, config):
        super().__init__(
            config.voters,
            learners=config.learners,
            faults=config.faults,
            promises=config.promises,
        )
        self.config = config
        self.random = Still()
        for replica in config.newcomers:
            self.join(replica)
        for replica, node in self.nodes.items():
            node.wall_offset = -WALL - self.now
            node.auto_sync = True
            self.restart(replica)
        self.states: list = []
        """By number: a replica's state as bytes that can be put together again."""
        self.views: list[View] = []
        self._numbers: dict = {}

    # --- A state, to and fro ----------------------------------------------------------------------

    def begin(self):
        """The states at the start; the messages that are then in flight."""
        if self.config.first == "led":
            self.take_office()
        self.restart_logs()
        for node in self.nodes.values():
            node.auto_sync = node.replica not in self.config.slow_disks
        self.rounds_max = {
            replica: node.core.round + self.config.rounds for replica, node in self.nodes.items()
        }
        self.term_before, self.index_before = self.core(1).term, self.core(1).last_index
        states = [self.take_apart(node) for node in self.nodes.values()]
        if self.config.first == "asked":
            outcome = self.happen(states[0], "timeout")
            return [outcome.state, *states[1:]], outcome.sent
        return states, ()

    def take_office(self):
        """Replica 1 leads; its no-op and the news of its commit are everywhere."""
        voter = self.nodes[1]
        voter.core.election_deadline = voter.core.now
        voter.core.contact = LONG_AGO
        for node in self.nodes.values():
            node.core.contact = LONG_AGO
        self.look_at_clock(voter)
        self.deliver()
        self.drop = lambda message: message.to in self.config.behind
        for _ in range(self.config.entries_before):
            self.propose(1)
            self.deliver()
        voter.core.heartbeat_at = voter.core.now
        self.look_at_clock(voter)
        self.deliver()
        self.drop = lambda _message: False
        assert voter.core.role is Role.LEADER
        assert voter.core.commit_index == voter.core.last_index

    def restart_logs(self):
        """What the checkers of the harness noted on the way is not part of the world."""
        self.leaders.clear()
        self.committed.clear()
        self.wire.clear()

    def put_together(self, state):
        node = pickle.loads(self.states[state])
        node.cluster = self
        core = node.core
        core.draw = self.random.randrange
        core.faults = core.persistence._faults = self.faults
        self.nodes[node.replica] = node
        return node

    def take_apart(self, node):
        self.stand_still(node)
        found = key(node)
        number = self._numbers.get(found)
        if number is None:
            number = self._numbers[found] = len(self.states)
            self.views.append(view(node))
            core = node.core
            node.cluster = core.draw = core.faults = core.persistence._faults = None
            self.states.append(pickle.dumps(node, pickle.HIGHEST_PROTOCOL))
        return number

    def stand_still(self, node):
        """As if whatever lies in the past or future had just been, or just been put off."""
        core = node.core
        now = core.now
        waited = now - core.contact >= ELECTION_MICROS_MIN or not self.config.pre_vote
        core.contact = LONG_AGO if waited else now
        core.link_carried = False
        if core.election_deadline != NEVER:
            core.election_deadline = Micros(now + ELECTION_MICROS_MIN)
        for progress in core.progress.values():
            progress.heard = now
        if core.role is Role.LEADER:
            core.heartbeat_at = next_heartbeat(now)
        else:
            # What the last office left behind, and the next one begins anew.
            core.term_start = 0
            core.recent_ends.clear()
        node.applied_entries.clear()
        self.number_writes(node)
        # What is said once is said: of equal messages that wait for the disk the first is enough.
        held = {message: (seq, message, about) for seq, message, about in reversed(node.held)}
        node.held = sorted(held.values(), key=repr)

    def number_writes(self, node):
        log, persistence = node.log, node.core.persistence
        gone = log.platter.seq
        if not gone:
            return
        log.platter.seq = 0
        log.cache.seq -= gone
        persistence.seq -= gone
        persistence._outstanding = deque(
            (WriteSeq(seq - gone), *rest) for seq, *rest in persistence._outstanding
        )
        log.pending = deque(write._replace(seq=write.seq - gone) for write in log.pending)
        node.held = [(seq - gone, *rest) for seq, *rest in node.held]

    # --- What may happen --------------------------------------------------------------------------

    def events(self, state):
        """Names of what may happen to a replica in this state; messages and crashes come on top."""
        config, seen = self.config, self.views[state]
        found = []
        if seen.unfinished:
            found.append("sync")
        if not seen.leads:
            if seen.replica in config.may_campaign:
                found.append("timeout")
            return found
        found.append("heartbeat")
        if config.lonely:
            found.append("lonely")
        if config.changes:
            found.append("give_up")
        found += [f"change {number}" for number in range(len(config.changes))]
        if config.entries:
            found.append("propose")
        if seen.replica in config.may_compact:
            found.append("compact")
        return found

    def happen(self, state, event):
        """The outcome; None if nothing comes of it, or if it leads out of bounds.

        Raises: Violated, or what an assertion of the core raises.
        """
        node = self.put_together(state)
        before = node.core.membership
        commit_index = node.core.commit_index
        self.restart_logs()
        if isinstance(event, Arrival):
            if event.late:
                node.core.contact = LONG_AGO
            self.step(event.message)
        else:
            verb, _, number = event.partition(" ")
            if not getattr(self, f"do_{verb}")(node, *map(int, filter(None, [number]))):
                return None
        if not self.is_within_bounds(node):
            return None
        config = self.config
        led = node.core.role is Role.LEADER and node.core.commit_index > commit_index
        sent = tuple(message for message in self.wire if not isinstance(message, config.lost))
        return Outcome(self.take_apart(node), sent, before if led else None)

    def is_within_bounds(self, node):
        core = node.core
        return core.term <= self.config.terms and core.round <= self.rounds_max[node.replica]

    def look_at_clock(self, node):
        node.core.tick(node.core.now, node.core.wall)
        self.pump(node)
        return True

    def do_timeout(self, node):
        node.core.election_deadline = node.core.now
        node.core.contact = LONG_AGO
        return self.look_at_clock(node)

    def do_heartbeat(self, node):
        node.core.heartbeat_at = node.core.now
        return self.look_at_clock(node)

    def do_lonely(self, node):
        """No quorum was heard for long: this leader resigns."""
        for progress in node.core.progress.values():
            progress.heard = LONG_AGO
        return self.do_heartbeat(node)

    def do_give_up(self, node):
        """The chosen successor took too long."""
        if node.core.transfer_to == NOBODY:
            return False
        node.core.transfer_deadline = node.core.now
        return self.do_heartbeat(node)

    def do_sync(self, node):
        self.sync(node.replica, 1)
        return True

    def do_crash(self, node):
        """Power goes, with all that is not durable, and comes back."""
        self.crash(node.replica)
        node.incoming = b""
        self.restart(node.replica)
        return True

    def do_propose(self, node):
        core = node.core
        if not core.can_propose():
            return False
        # By index, for a snapshot hides what it holds: the log without the no-op of each new term.
        no_ops = core.term - self.term_before
        proposed = core.last_index - self.index_before - no_ops - count(node, MEMBERSHIP)
        if proposed >= self.config.entries:
            return False
        self.propose(node.replica)
        return True

    def do_change(self, node, number):
        if count(node, MEMBERSHIP) >= self.config.changes_max:
            return False
        voters, learners = self.config.changes[number]
        if (voters, learners) == node.core.membership[:2]:
            return False
        try:
            self.change(node.replica, voters, learners)
        except ChangeRefused:
            return False
        return True

    def do_compact(self, node):
        if node.log.pending or node.core.applied_index <= node.log.snapshot.index:
            return False
        self.compact(node.replica)
        return True

    def may_be_late(self, state, message):
        """Whether it makes a difference how long ago the last contact with a leader was."""
        return self.config.pre_vote and isinstance(message, VoteRequest) and message.pre

    # --- How the harness is to behave here ----------------------------------------------------------

    def answer_chunk(self, node, request):
        """The snapshot is its own index, in as many pieces as the configuration says."""
        meta = node.log.snapshot
        if request.index != meta.index:
            node.core.snapshot_gone(request.to, request.index)
            return
        data = b"state at %d" % request.index
        size = -(-len(data) // self.config.pieces)
        piece = data[request.position : request.position + size]
        done = request.position + size >= len(data)
        node.core.snapshot_chunk(request.to, meta, request.position, piece, done)

    def check(self, node):
        """Of one replica alone; what holds among replicas is checked in the world."""
        super().check(node)
        core = node.core
        pending = [at for at, _ in core.log._memberships if at > core.commit_index]
        if len(pending) > 1 and self.promises:
            raise Violated(f"{node.replica} holds two uncommitted configurations: {pending}")


def count(node: Node, kind):
    """Entries of a kind in the log as the shell has it."""
    return sum(entry.kind == kind for entry in node.log.cache.entries_held)


def view(node):
    core, platter = node.core, node.log.platter
    indexes = range(1, core.last_index + 1)
    return View(
        replica=node.replica,
        leads=core.term if core.role is Role.LEADER else 0,
        term=core.term,
        standing=(node.replica, core.role.value, core.term, platter.term),
        commit_index=core.commit_index,
        chains=tuple(core.log.chain(index) for index in indexes),
        terms=tuple(core.log.term(index) for index in indexes),
        durable_chains=tuple(platter.chain(index) for index in range(1, platter.last_index + 1)),
        membership=core.membership,
        unfinished=bool(node.log.pending),
    )
