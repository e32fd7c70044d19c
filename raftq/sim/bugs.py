"""Known bugs, and for each the run that finds it: the proof that the checkers see what they watch.

Each bug is one that a careful implementation avoids by one rule. It is switched on by its name, on
all nodes. Some are found by faults drawn at random; the others need several things to happen in
turn, which a scenario arranges (the seed still varies when exactly).
"""

from typing import Final, NamedTuple

from raftq.host.identity import group_directory
from raftq.ids import METADATA_GROUP
from raftq.queue.faults import Faults as QueueFaults
from raftq.raft.faults import Faults as RaftFaults
from raftq.sim.cluster import NO_BUGS, Bugs
from raftq.sim.run import MESSAGE_BYTES, TERMS_PER_SCENARIO, Plan, Result, carry_out
from raftq.sim.stage import Scenario, Stage
from raftq.storage.faults import Faults as StorageFaults

NODES = 3
SECONDS = 20
OPERATIONS = 600


class SeededBug(NamedTuple):
    """A bug, and how it is looked for."""

    bugs: Bugs
    scenario: Scenario
    message_bytes: int = MESSAGE_BYTES
    operations: int = OPERATIONS
    nodes: int = NODES
    terms: int = TERMS_PER_SCENARIO


async def power_fails_everywhere(stage: Stage) -> None:
    """All machines lose power, while their disks are slow and clients are being answered."""
    for _ in range(4):
        await stage.leader()
        await stage.pause(0.3, 0.8)
        for node in stage.nodes:
            stage.stall(node, 0.4)
        await stage.pause(0.1, 0.3)
        stage.power_loss(*stage.nodes)
        await stage.pause(0.5, 0.6)
        stage.restart(*stage.nodes)


async def voter_forgets(stage: Stage) -> None:
    """A voter loses power right after its vote; who lost that election asks it again."""
    for _ in range(4):
        old = await stage.leader()
        voter, other = stage.others(old)[:2]
        await stage.pause(0.2, 0.6)
        stage.stall(voter, 2.0)
        stage.cut(old, [voter, other, *stage.cluster.clients])
        await stage.new_leader(old, seconds=2.0)
        stage.power_loss(voter)
        stage.cut(other, [voter])
        stage.join(old, voter)
        await stage.pause(0.05, 0.2)
        stage.restart(voter)
        await stage.pause(1.0, 1.5)
        stage.heal()


async def power_fails_after_recovery(stage: Stage) -> None:
    """One replica lags. One of the others is killed and recovers; before it has written anything,
    its power fails. Then it meets the one that lags, alone.
    """
    for _ in range(12):
        leader = await stage.leader()
        late, victim = stage.others(leader)
        await stage.pause(0.2, 0.5)
        stage.cut(late, [leader, victim])
        await stage.pause(0.2, 0.5)
        await stage.just_synced(victim)
        stage.kill(victim)
        await stage.pause(0.0, 0.05)
        stage.restart(victim)
        await stage.pause(0.0, 0.03)
        stage.power_loss(victim)
        stage.kill(leader)
        await stage.pause(0.2, 0.3)
        stage.join(late, victim)
        stage.restart(victim)
        await stage.pause(0.6, 1.0)
        stage.heal()


async def tail_is_replaced_while_syncing(stage: Stage) -> None:
    """A deposed leader with a long tail learns, durably, of a later term before a shorter tail
    replaces its own. That is not synced yet when it is sent again, and counted. Then the new leader
    dies, and the power of the old one fails.
    """
    for _ in range(5):
        old = await stage.leader()
        others = stage.others(old)
        await stage.pause(0.3, 0.6)
        stage.cut(old, others)
        for client in stage.cluster.clients:
            stage.cut(client, others)
        # What clients sent meanwhile is the long tail; from now on they are not heard.
        first = await stage.new_leader(old, seconds=1.5)
        if first is not None:
            # Of a second leader, the first append does not fit what the deposed one has.
            second = stage.others(old, first)[0]
            stage.transfer(first, second)
            await stage.new_leader(first, seconds=0.5)
            stage.reset(old, others)
            stage.kill(first)
            for client in stage.cluster.clients:
                stage.cut(client, [old])
            stage.stall(old, 0.4)
            stage.join(old, second)
            stage.join(stage.cluster.clients[0], second)
            await stage.pause(0.2, 0.4)
            for _ in range(stage.choose.randint(1, 4)):
                await stage.pause(0.1, 0.2)
                stage.reset(old, [second])
            await stage.pause(0.05, 0.2)
            stage.power_loss(old)
            stage.kill(second)
            await stage.pause(0.1, 0.2)
            stage.restart(old, first)
            await stage.pause(1.0, 1.5)
        stage.heal()


async def power_fails_while_rolling(stage: Stage) -> None:
    """The last sync of a full segment is slow; power fails soon after the next one's first."""
    for _ in range(6):
        await stage.leader()
        await stage.pause(0.2, 0.5)
        for node in stage.nodes:
            stage.stall(node, 0.3, times=1)
        await stage.pause(0.05, 0.3)
        stage.power_loss(*stage.nodes)
        await stage.pause(0.5, 0.6)
        stage.restart(*stage.nodes)


async def deposed_leader_returns(stage: Stage) -> None:
    """A leader is cut off with clients; another is elected; they meet again on new connections."""
    for _ in range(5):
        old = await stage.leader()
        others = stage.others(old)
        await stage.pause(0.3, 0.8)
        stage.cut(old, others)
        await stage.pause(0.3, 1.0)
        stage.reset(old, others)
        await stage.pause(0.1, 0.2)
        stage.heal()
        await stage.pause(0.3, 0.5)


async def client_repeats_to_deposed_leader(stage: Stage) -> None:
    """As above, and its clients' connections break: they send again what nobody answered."""
    for _ in range(5):
        old = await stage.leader()
        await stage.pause(0.3, 0.8)
        stage.cut(old, stage.others(old))
        await stage.pause(0.02, 0.3)
        stage.reset(old, stage.cluster.clients)
        await stage.pause(0.5, 1.0)
        stage.heal()
        await stage.pause(0.3, 0.5)


async def deaf_node_campaigns(stage: Stage) -> None:
    """Again and again a follower does not hear the leader, while everybody hears it."""
    for _ in range(12):
        leader = await stage.leader()
        stage.deafen(stage.others(leader)[0])
        await stage.pause(1.0, 1.5)
        stage.heal()
        await stage.pause(0.2, 0.4)


async def sync_fails_before_power(stage: Stage) -> None:
    """One sync fails on every node, and soon afterwards all power."""
    for _ in range(4):
        await stage.leader()
        await stage.pause(0.3, 0.8)
        for node in stage.nodes:
            stage.fail_next_sync(node)
        await stage.pause(0.001, 0.03)
        stage.power_loss(*stage.nodes)
        await stage.pause(0.3, 0.5)
        stage.heal()


async def link_breaks_while_disk_is_slow(stage: Stage) -> None:
    """A follower's disk is slow; its link breaks when more waits than one append carries, and the
    leader finds out anew what it has.
    """
    for _ in range(5):
        leader = await stage.leader()
        slow = stage.others(leader)[0]
        await stage.pause(0.2, 0.4)
        stage.stall(slow, 1.5, times=4)
        for _ in range(3):
            await stage.pause(0.3, 0.5)
            stage.reset(leader, [slow])
        stage.heal()


async def reply_outlives_its_term(stage: Stage) -> None:
    """A leader of five is cut off with one follower, whose disk is slow. It is deposed, its tail and
    the follower's are replaced, and it leads again. Only now that follower's disk has done what it
    was asked in the old term, and its answers leave.
    """
    group = METADATA_GROUP
    for _ in range(6):
        old = await stage.leader(group)
        await stage.pause(0.1, 0.3)
        slow, *rest = stage.others(old)
        delay = 0.7 + 0.5 * stage.choose.random()
        stage.stall(slow, delay, times=1, where=group_directory(group))
        stage.cut(old, rest)
        await stage.command(old, 6)
        new = await stage.new_leader(old, seconds=1.0, group=group)
        if new is not None:
            for node in rest:
                stage.join(old, node)
            # Nobody is handed the lead who has not said, in this term, that it lacks nothing.
            await stage.pause(0.1, 0.15)
            stage.transfer(new, old)
            if await stage.leads(old, group, seconds=0.3):
                stage.block(old, slow)
                stage.cut(old, rest[1:])
                await stage.command(old, 20)
        stage.heal()
        await stage.pause(0.3, 0.6)


async def leaders_change_while_members_do(stage: Stage) -> None:
    """A disk is lost and replaced. Leadership moves on and on, and who gets it is asked at once for
    the next step.
    """
    await stage.pause(0.5, 1.0)
    victim = stage.others(await stage.leader())[0]
    stage.lose_disk(victim)
    await stage.pause(0.5, 1.0)
    await stage.replace(victim)
    for _ in range(20):
        leader = await stage.leader()
        follower = next(node for node in stage.others(leader) if node != victim)
        for node in stage.nodes:
            stage.stall(node, 0.05, times=4)
        stage.transfer(leader, follower)
        await stage.hurry_changes(seconds=0.1 + 0.2 * stage.choose.random())
    stage.heal()
    await stage.replaced()


BUGS: Final[dict[str, SeededBug]] = {
    "ack-before-fsync": SeededBug(
        Bugs(raft=RaftFaults(ack_before_fsync=True)), power_fails_everywhere
    ),
    "vote-not-synced": SeededBug(Bugs(raft=RaftFaults(vote_unsynced=True)), voter_forgets),
    "recovered-tail-not-synced": SeededBug(
        Bugs(storage=StorageFaults(recovered_tail_unsynced=True)),
        power_fails_after_recovery,
        message_bytes=4_000,
        operations=2_000,
    ),
    "completion-by-index": SeededBug(
        Bugs(raft=RaftFaults(completion_by_index=True)),
        tail_is_replaced_while_syncing,
        operations=2_000,
    ),
    "completion-for-other-file": SeededBug(
        Bugs(storage=StorageFaults(completion_for_other_file=True)),
        power_fails_while_rolling,
        message_bytes=100_000,
    ),
    "heartbeat-commit-unchecked": SeededBug(
        Bugs(raft=RaftFaults(heartbeat_commit_unchecked=True)), deposed_leader_returns
    ),
    "duplicate-answered-early": SeededBug(
        Bugs(queue=QueueFaults(duplicate_answered_early=True)), client_repeats_to_deposed_leader
    ),
    "no-dedup": SeededBug(Bugs(queue=QueueFaults(no_dedup=True)), client_repeats_to_deposed_leader),
    "failed-sync-repeated": SeededBug(
        Bugs(storage=StorageFaults(failed_sync_repeated=True)), sync_fails_before_power
    ),
    "truncates-what-agrees": SeededBug(
        Bugs(raft=RaftFaults(truncates_what_agrees=True)),
        link_breaks_while_disk_is_slow,
        message_bytes=100_000,
        operations=1_500,
    ),
    "older-replies-counted": SeededBug(
        Bugs(raft=RaftFaults(older_replies_counted=True)),
        reply_outlives_its_term,
        nodes=5,
        terms=60,
    ),
    "change-before-no-op": SeededBug(
        Bugs(raft=RaftFaults(change_before_noop=True)), leaders_change_while_members_do, terms=60
    ),
    "no-pre-vote": SeededBug(Bugs(raft=RaftFaults(no_pre_vote=True)), deaf_node_campaigns),
}


def look_for(name: str, seed: int, *, is_there: bool = True, table: bool = False) -> Result:
    """Run the scenario of a bug: with the bug, or to see that it is clean without."""
    bug = BUGS[name]
    plan = Plan(
        nodes=bug.nodes,
        seconds=SECONDS,
        operations=bug.operations,
        bugs=bug.bugs if is_there else NO_BUGS,
        scenario=bug.scenario,
        message_bytes=bug.message_bytes,
        terms=bug.terms,
    )
    return carry_out(seed, plan, table=table)
