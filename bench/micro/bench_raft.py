"""What consensus costs in CPU: one entry through a leader, one through a follower, one heartbeat.

The log is a dummy that keeps nothing and syncs are reported at once, so the figures are the core's
own. Run with `pytest bench/micro/bench_raft.py --benchmark-only`, or as a script for a table.
"""

import time
from collections.abc import Callable
from typing import Any

from raftq.ids import Index, Micros, ReplicaId, Term, WriteSeq
from raftq.raft import Command, Entry, HardState, Membership, Message, Raft, Role, SnapshotMeta
from raftq.raft.entry import GENESIS
from raftq.raft.messages import Append, AppendReply, Heartbeat, HeartbeatReply, VoteReply

LEADER, FIRST, SECOND = ReplicaId(1), ReplicaId(2), ReplicaId(3)
MEMBERSHIP = Membership((LEADER, FIRST, SECOND))
WALL = Micros(1_700_000_000_000_000)
BATCH = 1_000


class EmptyLog:
    """A log that was empty at the start; what is written is forgotten."""

    snapshot = SnapshotMeta(Index(0), Term(0), GENESIS, Micros(0), MEMBERSHIP)
    first_index = Index(1)
    last_index = Index(0)

    def term(self, index: Index) -> Term | None:
        return Term(0) if not index else None

    def chain(self, index: Index) -> bytes | None:
        return GENESIS if not index else None

    def log_time(self, index: Index) -> Micros | None:
        return Micros(0) if not index else None

    def entries(self, start: Index, stop: Index, max_bytes: int) -> list[Entry]:
        raise LookupError(start, stop, max_bytes)


def make(replica: ReplicaId) -> Raft:
    return Raft(
        replica=replica,
        state=HardState(Term(0), ReplicaId(0), Index(0), WriteSeq(0)),
        log=EmptyLog(),
        draw=lambda bound: bound // 2,
        monotonic=Micros(0),
        wall=WALL,
    )


def drain(core: Raft) -> list[Message]:
    """Do everything a Ready asks for; syncs complete at once. Gives the messages."""
    out: list[Message] = []
    while (ready := core.ready()) is not None:
        out += ready.send_now
        if ready.write is not None:
            core.persisted(ready.write.seq)
        out += ready.send_after
        if ready.apply:
            core.applied(ready.apply[-1].index)
    return out


def success(sender: ReplicaId, core: Raft) -> AppendReply:
    none, last = Index(0), core.last_index
    return AppendReply(
        sender, LEADER, core.term, True, last, none, none, Term(0), last, WALL, whole=True
    )


def leader() -> Raft:
    core = make(LEADER)
    core.tick(Micros(600_000), Micros(WALL + 600_000))
    drain(core)
    core.step(VoteReply(FIRST, LEADER, Term(1), granted=True, pre=True, wall=WALL))
    drain(core)
    core.step(VoteReply(FIRST, LEADER, Term(1), granted=True, pre=False, wall=WALL))
    drain(core)
    for sender in (FIRST, SECOND):
        core.step(success(sender, core))
    drain(core)
    assert core.role is Role.LEADER
    assert core.can_propose()
    return core


def lead_entries(commands_per_entry: int, body: bytes) -> Callable[[], None]:
    """Propose, Ready, own sync, both followers' replies, commit, apply: BATCH times."""
    core = leader()
    commands = [Command(b"\x01 some header of a publish", body)] * commands_per_entry

    def run() -> None:
        for _ in range(BATCH):
            core.propose(commands, core.log_time())
            ready = core.ready()
            assert ready is not None
            assert ready.write is not None
            core.step(success(FIRST, core))
            core.persisted(ready.write.seq)
            core.step(success(SECOND, core))
            ready = core.ready()
            assert ready is not None
            core.applied(ready.apply[-1].index)

    return run


def follow_entries(body: bytes) -> Callable[[], None]:
    """Append in, Ready, sync: BATCH times, with entries made beforehand."""
    source = leader()
    appends: list[Append] = []
    core = make(FIRST)
    for message in [*_first_append(source)]:
        core.step(message)
    drain(core)

    def refill() -> None:
        appends.clear()
        for _ in range(BATCH):
            source.propose([Command(b"\x01 header", body)], source.log_time())
            out = drain(source)
            appends.extend(m for m in out if isinstance(m, Append) and m.to == FIRST)
            for sender in (FIRST, SECOND):
                source.step(success(sender, source))
            drain(source)

    def run() -> None:
        for message in appends:
            core.step(message)
            ready = core.ready()
            assert ready is not None
            assert ready.write is not None
            core.persisted(ready.write.seq)
            if ready.apply:
                core.applied(ready.apply[-1].index)

    run.refill = refill  # type: ignore[attr-defined] # The benchmark fills it before each round.
    return run


def _first_append(source: Raft) -> list[Append]:
    noop = source.log.entries(Index(1), Index(2), 1)
    return [
        Append(LEADER, FIRST, source.term, Index(0), Term(0), GENESIS, Index(1), tuple(noop)),
    ]


def heartbeats() -> Callable[[], None]:
    """A tick with two heartbeats, and both replies."""
    core = leader()
    clock = [600_000]

    def run() -> None:
        for _ in range(BATCH):
            clock[0] += 50_000
            core.tick(Micros(clock[0]), Micros(WALL + clock[0]))
            ready = core.ready()
            assert ready is not None
            for beat in ready.send_now:
                assert isinstance(beat, Heartbeat)
                wall = Micros(WALL + clock[0])
                reply = HeartbeatReply(
                    beat.to, LEADER, core.term, beat.round, core.last_index, wall, whole=True
                )
                core.step(reply)

    return run


def hear_heartbeats() -> Callable[[], None]:
    """A heartbeat, heard by a follower."""
    source = leader()
    core = make(FIRST)
    for message in _first_append(source):
        core.step(message)
    drain(core)
    beat = Heartbeat(
        LEADER, FIRST, core.term, 1, Index(1), core.log.last_chain, Index(0), bytes(16)
    )

    def run() -> None:
        for _ in range(BATCH):
            core.step(beat)
            core.ready()

    return run


def test_leader_entry(benchmark: Any) -> None:
    benchmark(lead_entries(1, bytes(100)))


def test_leader_entry_of_64_kib(benchmark: Any) -> None:
    benchmark(lead_entries(1, bytes(65_536)))


def test_leader_entry_of_100_commands(benchmark: Any) -> None:
    benchmark(lead_entries(100, bytes(100)))


def test_follower_entry(benchmark: Any) -> None:
    run = follow_entries(bytes(100))
    benchmark.pedantic(run, setup=run.refill, rounds=10)  # type: ignore[attr-defined]


def test_follower_entry_of_64_kib(benchmark: Any) -> None:
    run = follow_entries(bytes(65_536))
    benchmark.pedantic(run, setup=run.refill, rounds=5)  # type: ignore[attr-defined]


def test_heartbeat_round(benchmark: Any) -> None:
    benchmark(heartbeats())


def test_heartbeat_heard(benchmark: Any) -> None:
    benchmark(hear_heartbeats())


def main() -> None:
    """Microseconds per item, best of five."""
    items: dict[str, Callable[[], None]] = {
        "leader, entry of 100 B": lead_entries(1, bytes(100)),
        "leader, entry of 64 KiB": lead_entries(1, bytes(65_536)),
        "leader, entry of 100 commands": lead_entries(100, bytes(100)),
        "follower, entry of 100 B": follow_entries(bytes(100)),
        "follower, entry of 64 KiB": follow_entries(bytes(65_536)),
        "leader, tick with two heartbeats and replies": heartbeats(),
        "follower, heartbeat": hear_heartbeats(),
    }
    for name, run in items.items():
        best = float("inf")
        for _ in range(5):
            getattr(run, "refill", lambda: None)()
            begin = time.perf_counter()
            run()
            best = min(best, time.perf_counter() - begin)
        print(f"{best / BATCH * 1e6:8.2f} us  {name}")


if __name__ == "__main__":
    main()
