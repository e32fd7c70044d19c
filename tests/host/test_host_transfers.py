"""Machine snapshots between replicas, with a log and a core that only remember what they were told."""

import pytest

from raftq.errors import Corrupted
from raftq.host.catch_up import CatchUpBudget, CatchUpShare
from raftq.host.transfers import Transfers
from raftq.limits import CATCH_UP_BURST_BYTES, SNAPSHOT_KEPT_MICROS
from raftq.raft import Membership, Ready, SnapshotMeta
from raftq.raft.membership import encode
from raftq.raft.messages import SnapshotChunk
from raftq.raft.ready import SnapshotRequest
from raftq.raft.replica import NEVER

MEMBERSHIP = Membership((1, 2, 3))
CHAIN = bytes(range(16))


class Writer:
    def __init__(self, log, meta, done):
        self.log, self.meta, self.done = log, meta, done
        self.data = b""
        self.state = "open"
        self.problem = None

    def write_raw(self, data):
        assert self.state == "open"
        self.data += data

    def finish(self):
        assert self.state == "open"
        self.state = "finished"

    def abandon(self):
        self.state = "abandoned"

    def durable(self, *, valid=True):
        if valid:
            self.log.snapshot = self.meta
        else:
            self.problem = "spoilt"
        self.done()


class Log:
    def __init__(self):
        self.snapshot = SnapshotMeta(0, 0, bytes(16), 0, MEMBERSHIP)
        self.writers = []
        self.body = b"0123456789"
        self.kept = set()
        self.snapshots = self
        self.error = None

    def meta(self, index):
        return SnapshotMeta(index, 2, CHAIN, 77, MEMBERSHIP)

    def keep(self, index):
        self.kept.add(index)

    def let_go(self, index):
        self.kept.remove(index)

    def begin_snapshot(self, meta, done):
        self.writers.append(Writer(self, meta, done))
        return self.writers[-1]

    def read_bytes(self, index, position, length):
        if self.error:
            raise self.error
        return self.body[position : position + 4], position + 4 >= len(self.body)


class Core:
    def __init__(self):
        self.sent = []
        self.gone = []
        self.received = []

    def snapshot_chunk(self, to, meta, position, data, done):
        assert meta.chain == CHAIN
        self.sent.append((to, position, data, done))

    def snapshot_gone(self, to, index):
        self.gone.append((to, index))

    def snapshot_received(self, index, *, valid):
        self.received.append((index, valid))


class Group:
    """What a transfer sees of its group."""

    group = 5
    stopped = False

    def __init__(self):
        self.log, self.raft = Log(), Core()
        self.nodes = {1: "n1", 2: "n2", 3: "n3"}
        self.turns = 0

    def want_turn(self):
        self.turns += 1


@pytest.fixture
def group():
    return Group()


class Clock:
    def __init__(self):
        self.now = 0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def budget(clock):
    return CatchUpBudget(clock)


@pytest.fixture
def transfers(group, budget):
    return Transfers(group, CatchUpShare(budget))


def ready(*, send=(), receive=()):
    return Ready(None, (), (), 0, (), (), None, tuple(send), tuple(receive))


def serve(transfers, ready, now=0):
    transfers.serve(ready, now)


def chunk(index, position, data, *, done=False):
    return SnapshotChunk(1, 2, 3, index, 2, CHAIN, 77, encode(MEMBERSHIP), position, data, done)


def test_pieces_are_read_where_they_are_asked_for(transfers, group):
    serve(transfers, ready(send=[SnapshotRequest(2, 40, 0), SnapshotRequest(3, 40, 8)]))
    assert group.raft.sent == [(2, 0, b"0123", False), (3, 8, b"89", True)]


@pytest.mark.parametrize("error", [LookupError("gone"), Corrupted("rot"), OSError(5, "EIO")])
def test_a_snapshot_that_cannot_be_read_is_not_sent(transfers, group, error):
    group.log.error = error
    serve(transfers, ready(send=[SnapshotRequest(2, 40, 0)]))
    assert group.raft.sent == []
    assert group.raft.gone == [(2, 40)]


def test_pieces_become_a_snapshot_once_it_is_durable(transfers, group):
    serve(transfers, ready(receive=[chunk(40, 0, b"01")]))
    serve(transfers, ready(receive=[chunk(40, 2, b"23"), chunk(40, 4, b"4", done=True)]))
    (writer,) = group.log.writers
    assert writer.data == b"01234"
    assert writer.state == "finished"
    assert writer.meta == SnapshotMeta(40, 2, CHAIN, 77, MEMBERSHIP)
    assert group.raft.received == [], "not before it is durable"
    writer.durable()
    assert group.raft.received == [(40, True)]
    assert group.turns == 1


def test_one_that_does_not_verify_is_told_as_invalid(transfers, group):
    serve(transfers, ready(receive=[chunk(40, 0, b"01", done=True)]))
    group.log.writers[0].durable(valid=False)
    assert group.raft.received == [(40, False)]


def test_a_newer_one_takes_the_place_of_an_unfinished_one(transfers, group):
    serve(transfers, ready(receive=[chunk(40, 0, b"01")]))
    serve(transfers, ready(receive=[chunk(50, 0, b"ab"), chunk(40, 2, b"23"), chunk(50, 2, b"c")]))
    first, second = group.log.writers
    assert first.state == "abandoned"
    assert second.data == b"abc"


def test_the_same_one_from_its_beginning_starts_over(transfers, group):
    serve(transfers, ready(receive=[chunk(40, 0, b"01"), chunk(40, 0, b"01", done=True)]))
    first, second = group.log.writers
    assert (first.state, second.state, second.data) == ("abandoned", "finished", b"01")


def test_one_that_is_begun_while_the_last_becomes_durable_is_kept_apart(transfers, group):
    """The first is on its way to the disk when the leader begins with a newer one."""
    serve(transfers, ready(receive=[chunk(40, 0, b"01", done=True), chunk(50, 0, b"ab")]))
    first, second = group.log.writers
    first.durable()
    assert group.raft.received == []
    serve(transfers, ready(receive=[chunk(50, 2, b"c", done=True)]))
    assert second.data == b"abc"
    second.durable()
    assert group.raft.received == [(50, True)]


def test_nothing_is_told_to_a_stopped_group(transfers, group):
    serve(transfers, ready(receive=[chunk(40, 0, b"01", done=True)]))
    group.stopped = True
    group.log.writers[0].durable()
    assert group.raft.received == []


def test_pieces_wait_for_the_budget(transfers, group, budget, clock):
    budget.applied(1)
    budget.spent(CATCH_UP_BURST_BYTES)
    serve(transfers, ready(send=[SnapshotRequest(2, 40, 0)]))
    serve(transfers, ready(send=[SnapshotRequest(2, 40, 4), SnapshotRequest(3, 40, 0)]))
    assert group.raft.sent == []
    assert clock.now < transfers.deadline < 100_000
    clock.now = transfers.deadline
    transfers.tick(clock.now)
    assert [each[:2] for each in group.raft.sent] == [(2, 4), (3, 0)], "the newest of each"
    transfers.tick(clock.now)
    assert len(group.raft.sent) == 2


def test_a_snapshot_is_kept_while_it_is_asked_for(transfers, group, clock):
    serve(transfers, ready(send=[SnapshotRequest(2, 40, 0)]))
    serve(transfers, ready(send=[SnapshotRequest(3, 50, 0)]), SNAPSHOT_KEPT_MICROS // 2)
    assert group.log.kept == {40, 50}
    assert transfers.deadline == SNAPSHOT_KEPT_MICROS
    transfers.tick(SNAPSHOT_KEPT_MICROS)
    assert group.log.kept == {50}
    transfers.tick(2 * SNAPSHOT_KEPT_MICROS)
    assert group.log.kept == set()
    assert transfers.deadline == NEVER
