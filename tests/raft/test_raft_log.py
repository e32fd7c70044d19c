"""The log's window over its reader, against a plain list; memberships; damage; write numbers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raft_fake_log import Disk, FakeLog
from raft_harness import WALL, Cluster

from raftq.errors import Corrupted
from raftq.ids import Index, Micros, ReplicaId, Term, WriteSeq
from raftq.raft import Command, HardState, Membership, Raft, Role, SnapshotMeta
from raftq.raft.clock import VoterClocks
from raftq.raft.entry import COMMANDS, GENESIS, MEMBERSHIP, build
from raftq.raft.faults import NONE
from raftq.raft.log import RaftLog
from raftq.raft.membership import encode
from raftq.raft.persistence import Persistence

ONE, TWO, THREE = (Membership(tuple(range(1, count + 1))) for count in (1, 2, 3))


SMALL = (Command(b"\x01", b"x"),)


def entry_after(log, *, term, kind=COMMANDS, commands=SMALL):
    return build(
        previous_chain=log.last_chain,
        index=Index(log.last_index + 1),
        term=Term(term),
        kind=kind,
        log_time=Micros(log.last_log_time + 1),
        commands=commands,
    )


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["append", "append", "append", "cut", "write", "evict", "compact", "reset"]
        ),
        st.integers(0, 5),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(steps=STEPS)
def test_log_is_like_a_list(steps):
    """Whatever is appended, truncated, written, evicted, compacted: lookups agree with a list."""
    fake = FakeLog(ONE)
    log = RaftLog(fake)
    persistence = Persistence(
        HardState(Term(0), ReplicaId(0), Index(0), WriteSeq(0)), Index(0), NONE
    )
    model = Disk(ONE)
    term = 1
    for step, number in steps:
        if step == "append":
            term += number == 0
            entry = entry_after(log, term=term)
            log.append(entry)
            model.entries_held.append(entry)
        elif step == "cut" and model.entries_held:
            index = Index(max(model.last_index - number, model.snapshot.index + 1))
            log.truncate(index)
            persistence.void_from(index)
            del model.entries_held[index - model.snapshot.index - 1 :]
        elif step == "reset":
            meta = SnapshotMeta(
                Index(model.last_index + 1 + number), Term(term), b"%016d" % number, Micros(9), TWO
            )
            log.install(meta)
            persistence.void_from(Index(1))
            model.snapshot, model.entries_held = meta, []
        write = persistence.take(log, Term(term), ReplicaId(0), Index(0), GENESIS)
        if write is not None:
            fake.write(write)
        if step == "write" and fake.pending:
            persistence.persisted(fake.sync(min(number, len(fake.pending)) or None))
        if step == "evict":
            log._bytes += 1 << 30
            log.evict(persistence.index)
            log._bytes -= 1 << 30
        if step == "compact" and not fake.pending and fake.last_index > fake.snapshot.index:
            index = Index(max(fake.last_index - number, fake.snapshot.index + 1))
            fake.compact(index)
            model.compact(index, model.log_time(index))
            log.compacted()
        compare(log, model)


def compare(log, model):
    assert log.last_index == model.last_index
    assert log.last_chain == model.chain(model.last_index)
    assert log.last_term == model.term_at(model.last_index)
    assert log.floor == model.snapshot.index
    for index in range(model.snapshot.index, model.last_index + 1):
        assert log.chain(index) == model.chain(index)
        assert log.term(index) == model.term_at(index)
    assert log.chain(model.last_index + 1) is None
    for index in range(model.snapshot.index + 1, model.last_index + 1):
        found = log.entries(index, Index(model.last_index + 1), 150)
        assert found == model.entries_held[index - model.snapshot.index - 1 :][: len(found)]
        assert log.before(index) == (model.term_at(index - 1), model.chain(index - 1))
    for term in range(1, 5):
        known = [
            index
            for index in range(model.snapshot.index + 1, model.last_index + 1)
            if model.term_at(index) <= term
        ]
        expected = max(known, default=model.snapshot.index)
        assert log.last_at_most(log.last_index, Term(term)) == expected


def test_entries_are_cut_at_the_byte_limit_but_at_least_one():
    log = RaftLog(FakeLog(ONE))
    for _ in range(5):
        log.append(entry_after(log, term=1, commands=(Command(b"\x01", bytes(100)),)))
    assert len(log.entries(Index(1), Index(6), 1)) == 1
    assert len(log.entries(Index(1), Index(6), 400)) == 2
    assert len(log.entries(Index(2), Index(4), 1 << 20)) == 2


def test_membership_follows_the_log_back_and_forth():
    log = RaftLog(FakeLog(ONE))
    for membership in (TWO, THREE):
        command = Command(encode(membership))
        log.append(entry_after(log, term=1, kind=MEMBERSHIP, commands=(command,)))
    assert log.membership == THREE
    assert [log.membership_at(Index(i)) for i in range(3)] == [ONE, TWO, THREE]
    log.truncate(Index(2))
    assert log.membership == TWO
    assert log.membership_index == 1


class DamagedLog(FakeLog):
    """An entry in the middle cannot be read."""

    bad = 2

    def entries(self, start, stop, max_bytes):
        if start <= self.bad < stop:
            if start == self.bad:
                raise Corrupted("rotten")
            stop = Index(self.bad) if max_bytes == 1 else stop
            if max_bytes != 1:
                raise Corrupted("rotten")
        return super().entries(start, stop, max_bytes)


def damaged_core():
    cluster = Cluster(3)
    cluster.elect(1)
    for number in range(3):
        cluster.propose(1, b"%d" % number)
    cluster.advance(100_000)
    log = DamagedLog(cluster.membership)
    log.cache = log.platter = cluster[2].log.platter
    log.platter.commit_index = log.platter.last_index
    return Raft(
        replica=ReplicaId(2), state=log.hard_state(), log=log, draw=lambda n: 0,
        monotonic=Micros(0), wall=Micros(WALL),
    )  # fmt: skip


def all_applied(core):
    applied = []
    while (ready := core.ready()) is not None:
        applied += ready.apply
    return applied


def test_damage_inside_the_log_keeps_a_replica_from_leading_only():
    """It goes on voting and following, applies nothing behind the damage, and is repaired."""
    core = damaged_core()
    assert core.status().damaged_index == 2
    core.tick(Micros(10_000_000), Micros(WALL))
    assert core.role is Role.FOLLOWER
    assert [entry.index for entry in all_applied(core)] == [1]
    assert core.may_vote
    core.log._reader.bad = 0
    core.repaired()
    assert [entry.index for entry in all_applied(core)] == [2, 3, 4]
    core.tick(Micros(20_000_000), Micros(WALL))
    assert core.role is Role.PRE_CANDIDATE


def test_completions_name_writes_not_indexes():
    log = RaftLog(FakeLog(ONE))
    persistence = Persistence(
        HardState(Term(0), ReplicaId(0), Index(0), WriteSeq(40)), Index(0), NONE
    )

    def write(term):
        made = persistence.take(log, Term(term), ReplicaId(0), Index(0), GENESIS)
        return made.seq

    log.append(entry_after(log, term=1))
    log.append(entry_after(log, term=1))
    first = write(1)
    log.truncate(Index(2))
    persistence.void_from(Index(2))
    log.append(entry_after(log, term=2))
    second = write(2)
    assert (first, second) == (41, 42)
    assert persistence.persisted(first)
    assert (persistence.index, persistence.term) == (1, 1)
    assert not persistence.persisted(first)
    assert persistence.persisted(second)
    assert (persistence.index, persistence.term) == (2, 2)
    assert persistence.idle


@pytest.mark.parametrize(
    ("offsets", "passed"),
    [
        ({}, 0),
        ({1: 0}, 0),
        ({1: 0, 2: 50}, 1_000),
        ({1: 0, 2: 50, 3: 70}, 1_050),
        ({1: -10, 2: -20, 3: -30}, 980),
        ({1: -10, 2: 10**15}, 990),
    ],
)
def test_time_that_a_quorum_of_three_has_passed(offsets, passed):
    clocks = VoterClocks()
    for replica, offset in offsets.items():
        clocks.hear(ReplicaId(replica), offset)
    assert clocks.passed(THREE, Micros(1_000)) == passed


def test_delayed_samples_only_raise():
    clocks = VoterClocks()
    clocks.hear_delayed(ReplicaId(1), 5)
    clocks.hear_delayed(ReplicaId(1), -9)
    assert clocks.passed(ONE, Micros(0)) == 5
    clocks.hear(ReplicaId(1), -9)
    assert clocks.passed(ONE, Micros(100)) == 91
