"""Every state that a small group can get into: breadth first, each state once, checked as it is seen.

A world is the number of each replica's state, the set of messages that were ever sent, what was ever
decided (who led which term, what was committed), and the crashes that are left.

    World(config).explore()      a Report: how many states, how many ways to go on, how deep; and, of
                                 a violation, one of the shortest ways to it

Rules:

1.  The network is a set that grows. A message that was sent may arrive at any time, again and again,
    or never: so loss, repetition and overtaking need no events of their own.
2.  A message that can never again be of any effect is taken out of it: an answer to who asked as
    candidate or leader of a term, is neither any more, and has the term on its platter. Nobody
    stands twice in one term, not even after a crash.
3.  A crash is a crash with the restart after it: a replica that is down is one to which nothing
    happens. What was written and not synced is lost; that some of it was kept is the same as that it
    was synced before, and what was said then was lost.
4.  A replica's state and the messages to it determine where it can go, so that is computed once for
    each pair, by the real core.

What must hold in every world:

    election safety            one leader for each term, ever
    leader completeness        a leader has all that was committed in terms before its own
    state machine safety       what is committed at an index is never committed otherwise
    log matching               equal index and term: equal chains, so equal logs up to there
    durable quorums            a leader commits what is on the platters of a majority of its voters,
                               of both sides in a joint change; nobody promises what is not durable
    one change at a time       no log holds two configurations of which it knows no commit; and of
                               those replicas that hold all that is committed, no two are in
                               configurations with majorities that do not meet
"""

from array import array
from itertools import combinations, pairwise
from time import process_time
from typing import NamedTuple

from raft_harness import Violated
from raft_model_replica import Arrival, Bench

from raftq.raft.messages import (
    AppendReply,
    HeartbeatReply,
    SnapshotReply,
    VoteReply,
)

TO_LEADER = (AppendReply, HeartbeatReply, SnapshotReply)


class Ghost(NamedTuple):
    """What was ever decided: what a replica may forget, and the world may not."""

    leaders: tuple[tuple[int, int], ...]
    """(term, replica)"""
    committed: tuple[tuple[bytes, int], ...]
    """Of each index its chain value and the term of whoever committed it first."""


class Report(NamedTuple):
    states: int
    transitions: int
    """Ways to go on from a state that lead to another one."""
    depth: int
    replica_states: int
    seconds: float
    complete: bool
    violation: str
    trace: tuple[str, ...]


class Step(NamedTuple):
    """One way for one replica to go on."""

    event: object
    state: int
    sent: int
    crashes: int
    electorate: object
    violation: str


def word(event):
    """An event as people read it."""
    if not isinstance(event, Arrival):
        return str(event)
    message = event.message
    fields = [
        f"{name} {len(value) if name == 'entries' else value}"
        for name, value in zip(message._fields, message, strict=True)
        if name not in {"sender", "to", "wall"} and not isinstance(value, bytes)
    ]
    late = " after a long silence" if event.late else ""
    return f"{type(message).__name__} from {message.sender} arrives{late} ({', '.join(fields)})"


def is_void(standing, message):
    """Whether a message can have no effect any more on a replica of this standing, nor later."""
    replica, role, term, durable_term = standing
    if message.to != replica or message.term > durable_term:
        return False
    if isinstance(message, VoteReply):
        return not message.pre and (role != "candidate" or message.term < term)
    return isinstance(message, TO_LEADER) and (
        role not in {"candidate", "leader"} or message.term < term
    )


def quorums(membership):
    """All sets of replicas that are a quorum, by definition rather than by the code under test."""
    sides = [side for side in (membership.voters, membership.outgoing) if side]
    members = sorted({member for side in sides for member in side})
    for size in range(1, len(members) + 1):
        for chosen in combinations(members, size):
            if all(2 * len(set(side) & set(chosen)) > len(side) for side in sides):
                yield set(chosen)


class World:
    """The exploration of one configuration."""

    def __init__(self, config):
        self.config = config
        self.bench = Bench(config)
        self.views = self.bench.views
        self.messages: list = []
        self.bits: dict = {}
        self.mailbox: dict[int, int] = {}
        """Of each replica: the messages to it, as a set of bits."""
        self.void: dict[tuple, int] = {}
        """Of each standing of a replica: the messages without effect from now on."""
        self.steps: dict[tuple[int, int], list[Step]] = {}
        self.outcomes: dict = {}
        self.ghosts: list[Ghost] = []
        self.ghost_numbers: dict[Ghost, int] = {}
        self.known: dict = {}
        """Answers of the checkers, which depend on few numbers each."""

    # --- Numbers for things -----------------------------------------------------------------------

    def post(self, messages):
        """The bits of messages."""
        found = 0
        for message in messages:
            bit = self.bits.get(message)
            if bit is None:
                bit = self.bits[message] = 1 << len(self.messages)
                self.messages.append(message)
                self.mailbox[message.to] = self.mailbox.get(message.to, 0) | bit
                for standing in self.void:
                    if is_void(standing, message):
                        self.void[standing] |= bit
            found |= bit
        return found

    def void_for(self, standing):
        """Bits of the messages that are without effect from now on."""
        found = self.void.get(standing)
        if found is None:
            found = 0
            for number, message in enumerate(self.messages):
                found |= is_void(standing, message) << number
            self.void[standing] = found
        return found

    def number(self, ghost):
        if ghost not in self.ghost_numbers:
            self.ghost_numbers[ghost] = len(self.ghosts)
            self.ghosts.append(ghost)
        return self.ghost_numbers[ghost]

    # --- Where a replica can go -------------------------------------------------------------------

    def outcome(self, state, event):
        place = state, event
        if place not in self.outcomes:
            try:
                found = self.bench.happen(state, event)
            except AssertionError as wrong:
                self.outcomes[place] = Step(event, state, 0, 0, None, str(wrong) or repr(wrong))
                return self.outcomes[place]
            step = None
            if found is not None:
                crashes = int(event == "crash")
                step = Step(
                    event, found.state, self.post(found.sent), crashes, found.electorate, ""
                )
            self.outcomes[place] = step
        return self.outcomes[place]

    def steps_of(self, state, inbox):
        """All that can happen to a replica with these messages on the way to it."""
        events: list = self.bench.events(state)
        if self.config.crashes and self.views[state].replica in self.config.may_crash:
            events.append("crash")
        left = inbox
        while left:
            bit = left & -left
            left ^= bit
            message = self.messages[bit.bit_length() - 1]
            events.append(Arrival(message))
            if self.bench.may_be_late(state, message):
                events.append(Arrival(message, late=True))
        found = {}
        for event in events:
            step = self.outcome(state, event)
            if step is not None and (step.state != state or step.sent or step.violation):
                found.setdefault((step.state, step.sent, step.crashes, step.violation), step)
        return list(found.values())

    # --- Through all worlds -----------------------------------------------------------------------

    def explore(self, *, progress=None, seconds=1e9, states_max=1 << 62):
        """Breadth first, so that the way to the first violation is a shortest one."""
        begun = process_time()
        seen: dict[tuple, int] = {}
        self.parents = array("L")
        self.order = seen
        ghost = self.number(Ghost((), ()))
        try:
            states, sent = self.bench.begin()
            for state in states:
                ghost = self.witness(ghost, state)
        except Violated as wrong:
            return self.report(begun, 0, 0, False, str(wrong), ("the beginning",))
        world = (*states, self.post(sent), ghost, self.config.crashes)
        seen[world] = 0
        self.parents.append(0)
        frontier = [world]
        transitions = depth = 0
        while frontier:
            following = []
            for world in frontier:
                parent = seen[world]
                for replica, step in self.ways(world):
                    try:
                        new = self.go(world, replica, step)
                        if new not in seen or step.electorate is not None:
                            self.check(new, replica, step, changed=new[-2] != world[-2])
                    except Violated as wrong:
                        trace = (*self.trace(world), f"{replica + 1}: {word(step.event)}")
                        return self.report(begun, transitions, depth + 1, False, str(wrong), trace)
                    if new == world:
                        continue
                    transitions += 1
                    if new not in seen:
                        seen[new] = len(seen)
                        self.parents.append(parent)
                        following.append(new)
            depth += bool(following)
            frontier = following
            if progress is not None:
                progress(depth, len(seen), len(frontier), process_time() - begun)
            if process_time() - begun > seconds or len(seen) > states_max:
                return self.report(begun, transitions, depth, False, "", ())
        return self.report(begun, transitions, depth, True, "", ())

    def report(self, begun, transitions, depth, complete, violation, trace):
        return Report(
            len(self.order), transitions, depth, len(self.views), process_time() - begun,
            complete, violation, trace,
        )  # fmt: skip

    def ways(self, world):
        """(position of the replica, step) for all that can happen."""
        messages, crashes = world[-3], world[-1]
        steps, mailbox = self.steps, self.mailbox
        for position, state in enumerate(world[:-3]):
            place = state, messages & mailbox.get(position + 1, 0)
            found = steps.get(place)
            if found is None:
                found = steps[place] = self.steps_of(*place)
            for step in found:
                if step.crashes <= crashes:
                    yield position, step

    def go(self, world, position, step):
        """The world after it.

        Raises: Violated.
        """
        if step.violation:
            raise Violated(step.violation)
        *states, messages, ghost, crashes = world
        before = states[position]
        states[position] = state = step.state
        messages |= step.sent
        if state != before or step.sent:
            views, void = self.views, self.void
            for one in states:
                standing = views[one].standing
                messages &= ~(void[standing] if standing in void else self.void_for(standing))
            ghost = self.witness(ghost, state)
        return (*states, messages, ghost, crashes - step.crashes)

    def trace(self, world):
        """The events on the way to a world, found once more by looking."""
        worlds = list(self.order)
        path = [self.order[world]]
        while path[-1]:
            path.append(self.parents[path[-1]])
        path.reverse()
        told = []
        for parent, child in pairwise(path):
            for position, step in self.ways(worlds[parent]):
                if self.go(worlds[parent], position, step) == worlds[child]:
                    told.append(f"{position + 1}: {word(step.event)}")
                    break
        return tuple(told)

    # --- What must hold ---------------------------------------------------------------------------

    def witness(self, ghost, state):
        """What is decided once this replica is in this state."""
        place = "witness", ghost, state
        if place not in self.known:
            self.known[place] = self.number(self.decided(self.ghosts[ghost], self.views[state]))
        return self.known[place]

    def decided(self, ghost, seen):
        leaders, committed = dict(ghost.leaders), list(ghost.committed)
        if seen.leads and leaders.setdefault(seen.leads, seen.replica) != seen.replica:
            raise Violated(f"{leaders[seen.leads]} and {seen.replica} both lead term {seen.leads}")
        for index, link in enumerate(seen.chains[: seen.commit_index]):
            if index == len(committed):
                committed.append((link, seen.term))
            elif link not in {committed[index][0], None}:
                raise Violated(f"{seen.replica} committed another entry at {index + 1}")
        return Ghost(tuple(sorted(leaders.items())), tuple(committed))

    def check(self, world, position, step, *, changed):
        """After a step of one replica, by which what was decided may have changed."""
        known = self.known
        *states, _, ghost, _ = world
        state = states[position]
        if step.electorate is not None:
            self.check_quorum(states, state, step.electorate)
        for place, other in enumerate(states):
            if place != position:
                pair = (state, other) if state < other else (other, state)
                if pair not in known:
                    known[pair] = self.logs_match(*pair)
            if changed or place == position:
                what = "complete", ghost, other
                if what not in known:
                    known[what] = self.is_complete(self.ghosts[ghost], self.views[other])
        if self.config.changes:
            what = (
                "in force",
                ghost,
                *sorted(
                    {self.views[one].membership for one in states if self.holds_all(ghost, one)}
                ),
            )
            if what not in known:
                known[what] = self.majorities_meet(what[2:])

    def logs_match(self, one, other):
        mine, theirs = self.views[one], self.views[other]
        for index, (link, term, peer, same) in enumerate(
            zip(mine.chains, mine.terms, theirs.chains, theirs.terms, strict=False), 1
        ):
            if term is not None and term == same and link != peer:
                raise Violated(f"logs of {mine.replica} and {theirs.replica} differ at {index}")
        return True

    def is_complete(self, ghost, seen):
        for index, (link, term) in enumerate(ghost.committed):
            if seen.leads > term and (
                index >= len(seen.chains) or seen.chains[index] not in {link, None}
            ):
                raise Violated(f"{seen.replica}, leader of term {seen.leads}, lacks {index + 1}")
        return True

    def holds_all(self, ghost, state):
        place = "holds", ghost, state
        if place not in self.known:
            seen, committed = self.views[state], self.ghosts[ghost].committed
            top = len(committed)
            self.known[place] = bool(seen.membership.voters) and (
                not top
                or (len(seen.chains) >= top and seen.chains[top - 1] in {committed[-1][0], None})
            )
        return self.known[place]

    def majorities_meet(self, memberships):
        for one, other in combinations(memberships, 2):
            for mine in quorums(one):
                for theirs in quorums(other):
                    if not mine & theirs:
                        raise Violated(f"majorities {mine} and {theirs} decide alone")
        return True

    def check_quorum(self, states, leader, electorate):
        """A leader has just committed."""
        index = self.views[leader].commit_index
        link = self.views[leader].chains[index - 1]
        holders = set()
        for state in states:
            durable = self.views[state].durable_chains
            if len(durable) >= index and durable[index - 1] in {link, None}:
                holders.add(self.views[state].replica)
        if self.config.promises and not any(chosen <= holders for chosen in quorums(electorate)):
            raise Violated(f"{index} is committed on {sorted(holders)} alone")
