"""One group on its host: proposals, reads, bounds, failures, snapshots."""

import errno

import pytest
from host_world import LATER, NAMES, REFUSE, SECOND, World

from raftq.errors import Busy, InvalidArgument, StorageFull
from raftq.host import Redirect
from raftq.host.tuning import Tuning
from raftq.limits import MIB


@pytest.fixture
def world():
    with World() as world:
        world.start()
        yield world


def test_a_group_elects_commits_and_applies_everywhere(world):
    leader = world.led()
    heard = world.propose(leader, b"a", b"body")
    world.until(lambda: heard)
    reply, place = heard[0]
    assert reply == 1
    world.until(lambda: all(world.group(name).machine.commands for name in NAMES))
    group = world.group(leader)
    assert place.index == group.applied_index
    assert place.chain == group.log.chain(place.index)
    assert {world.group(name).machine.digest() for name in NAMES} == {group.machine.digest()}
    assert world.nodes[leader].events[0] == ("led", 1)
    assert ("effects", 1, 1) in world.nodes[leader].events
    followers = [name for name in NAMES if name != leader]
    assert all(world.nodes[name].events == [("follows", 1)] for name in followers)


def test_a_follower_redirects_to_the_leader(world):
    leader = world.led()
    world.run(0.2)
    follower = next(name for name in NAMES if name != leader)
    heard = world.propose(follower, b"a")
    assert isinstance(heard[0][0], Redirect)
    assert heard[0][0].leader == leader
    assert heard[0][0].outcome == "not_applied"


def test_duplicates_refusals_and_what_must_wait_are_each_answered_once(world):
    leader = world.led()
    heard = [
        world.propose(leader, header) for header in (b"a", b"a", REFUSE, LATER, b"b", LATER + b"2")
    ]
    world.until(lambda: all(heard))
    replies = [answers[0][0] for answers in heard]
    assert replies[:2] == [1, "duplicate"]
    assert heard[0][0][1] == heard[1][0][1], "the duplicate stands where the original does"
    assert isinstance(replies[2], InvalidArgument)
    assert replies[3:] == [2, 3, 4]
    world.run(0.1)
    assert world.propose(leader, b"a") == []
    world.run(0.1)
    assert [header for header, _ in world.group(leader).machine.commands] == [
        b"a", LATER, b"b", LATER + b"2",
    ]  # fmt: skip


def test_a_leader_cut_off_says_unknown_for_what_is_in_its_log(world):
    leader = world.led()
    world.isolate(leader)
    in_log = [world.propose(leader, b"a"), world.propose(leader, b"a")]
    world.until(lambda: not world.group(leader).leading)
    for heard in in_log:
        assert heard[0][0].outcome == "unknown"
    late = world.propose(leader, b"b")
    assert late[0][0].outcome == "not_applied"


def test_what_a_deposed_leader_said_of_its_proposals_is_true(world):
    """Its entry is replaced by the new leader's: nobody was told that it is there."""
    leader = world.led()
    world.isolate(leader)
    heard = [world.propose(leader, b"a"), world.propose(leader, b"a")]
    world.run(0.01)
    others = [name for name in NAMES if name != leader]
    world.until(lambda: any(world.group(name).leading for name in others))
    new = next(name for name in others if world.group(name).leading)
    other = world.propose(new, b"b")
    world.until(lambda: other)
    world.fabric.heal()
    world.until(lambda: world.group(leader).machine.commands == [[b"b", b""]])
    world.until(lambda: all(heard))
    assert all(isinstance(answers[0][0], Redirect) for answers in heard)


def test_a_read_at_the_leader_is_answered(world):
    leader = world.led()
    acked = world.propose(leader, b"a")
    world.until(lambda: acked)
    heard = world.read(leader)
    world.until(lambda: heard, 1)
    assert heard[0][0] is None
    assert heard[0][1].index >= acked[0][1].index


def test_a_read_at_a_follower_is_redirected(world):
    leader = world.led()
    follower = next(name for name in NAMES if name != leader)
    assert isinstance(world.read(follower)[0][0], Redirect)


def test_a_read_at_a_leader_that_was_replaced_is_refused_not_forgotten(world):
    leader = world.led()
    world.isolate(leader)
    heard = world.read(leader)
    world.run(0.1)
    assert heard == [], "without a quorum nothing is certain"
    world.until(lambda: not world.group(leader).leading)
    world.run(0.01)
    assert len(heard) == 1
    assert isinstance(heard[0][0], Redirect)


def test_reads_of_a_stopped_or_quarantined_group_are_answered(world):
    leader = world.led()
    world.isolate(leader)
    process, group = world.machines[leader].process, world.group(leader)
    first = world.read(leader)
    world.run(0.01)
    process.call(group.quarantine, "a test")
    assert isinstance(first[0][0], Redirect)
    assert isinstance(world.read(leader)[0][0], Redirect)
    assert world.nodes[leader].events[-1] == ("deposed", 1)
    assert world.propose(leader, b"a")[0][0].outcome == "not_applied"


def test_a_hand_over_under_load_answers_everybody(world):
    leader = world.led()
    world.run(0.2)
    target = next(name for name in NAMES if name != leader)
    heard = [world.propose(leader, b"before %d" % number) for number in range(5)]
    world.machines[leader].process.call(world.group(leader).transfer, target)
    for number in range(20):
        if world.group(leader).leading:
            heard.append(world.propose(leader, b"during %d" % number))
        world.run(0.001)
    world.until(lambda: world.group(target).leading)
    world.run(0.5)
    assert all(len(answers) == 1 for answers in heard)
    kept = {header for header, _ in world.group(target).machine.commands}
    applied = sum(not isinstance(answers[0][0], Redirect) for answers in heard)
    assert applied <= len(kept)


def test_a_hand_over_by_one_that_does_not_lead_any_more_is_nothing(world):
    leader = world.led()
    follower = next(name for name in NAMES if name != leader)
    world.machines[follower].process.call(world.group(follower).transfer, leader)
    world.run(0.1)
    assert world.leaders() == [leader]


def test_the_next_entry_waits_for_the_outstanding_sync():
    with World("n1") as world:
        world.start()
        world.led()
        disk = world.machines["n1"].disk
        world.run(0.2)
        disk.stall(4_000)
        first = world.propose("n1", b"a")
        world.run(0.0001)
        more = [world.propose("n1", b"%d" % number) for number in range(10)]
        world.until(lambda: all(more))
        assert first[0][1].index + 1 == more[0][0][1].index
        assert len({heard[0][1].index for heard in more}) == 1, "one entry for all that waited"


def test_a_stalled_disk_does_not_hold_the_entry_longer_than_the_hold():
    with World() as world:
        world.start()
        leader = world.led()
        world.run(0.2)
        world.machines[leader].disk.stall(int(0.15 * SECOND), times=3)
        world.propose(leader, b"a")
        world.run(0.0005)
        begun = world.loop.now
        second = world.propose(leader, b"b")
        world.until(lambda: second)
        assert not isinstance(second[0][0], Redirect)
        assert world.loop.now - begun < 0.05 * SECOND, "a healthy quorum need not wait for it"


def test_more_than_may_wait_is_refused_as_busy():
    with World("n1") as world:
        world.start()
        world.led()
        world.machines["n1"].disk.stall(2 * SECOND)
        body = bytes(MIB)
        heard = [world.propose("n1", b"%d" % number, body) for number in range(100)]
        world.run(0.1)
        heard += [world.propose("n1", b"again %d" % number, body) for number in range(100)]
        busy = [answers[0][0] for answers in heard if answers]
        assert busy
        assert all(isinstance(error, Busy) and error.retry_after > 0 for error in busy)
        assert all(error.outcome == "not_applied" for error in busy)
        world.until(lambda: all(heard))
        kept = len(world.group("n1").machine.commands)
        assert kept + len(busy) == 200
        assert kept < 100, "what waits is bounded"


def test_a_full_disk_refuses_but_lets_the_reserve_be_used(world, monkeypatch):
    leader = world.led()
    log = world.group(leader).log
    monkeypatch.setattr(type(log), "is_full", property(lambda self: True))
    refused = world.propose(leader, b"a")
    assert isinstance(refused[0][0], StorageFull)
    assert f"the disk of node {leader!r} has less than 64 MiB free" in str(refused[0][0])
    freed = world.propose(leader, b"b", reserve=True)
    world.until(lambda: freed)
    assert freed[0][0] == 1


def test_a_failed_sync_stops_the_node_once(world):
    leader = world.led()
    world.run(0.2)
    world.machines[leader].disk.fail_syncs(-1)
    heard = [world.propose(leader, b"%d" % number) for number in range(3)]
    node = world.nodes[leader]
    world.until(lambda: node.failures)
    world.run(2)
    assert len(node.failures) == 1
    assert node.host.groups[1].stopped
    assert all(len(answers) == 1 for answers in heard)
    del world.nodes[leader]
    assert world.led() != leader


def test_a_failed_disk_with_many_groups_stops_the_node_once():
    with World(groups=5) as world:
        world.start()
        leader = world.led()
        world.run(0.2)
        node = world.nodes[leader]
        world.machines[leader].disk.fail_syncs(-1)
        for group in range(1, 6):
            if node.host.groups[group].leading:
                world.propose(leader, b"a", group=group)
        world.until(lambda: node.failures)
        world.run(2)
        assert len(node.failures) == 1


def test_a_deadline_becomes_a_tick_in_the_log(world):
    leader = world.led()
    group = world.group(leader)
    group.machine.deadline = group.raft.log_time() + 100_000
    world.machines[leader].process.call(group.want_turn)
    world.run(0.05)
    assert group.machine.ticks == 0
    world.run(0.2)
    assert group.machine.ticks == 1


def test_a_machine_that_raises_stops_its_replica_and_no_other():
    with World(groups=2) as world:
        world.start()
        world.led()
        world.run(0.2)
        name = world.leaders(1)[0]
        reported = []
        world.loop.call_exception_handler = reported.append
        broken = world.group(name, 1)

        def apply(meta, header, body):
            raise ZeroDivisionError("a bug")

        broken.machine.apply = apply
        heard = world.propose(name, b"a", group=1)
        world.run(0.5)
        assert "ZeroDivisionError" in broken.quarantined
        assert len(reported) == 1
        assert len(heard) == 1
        world.run(1)
        other = world.leaders(2)[0]
        ok = world.propose(other, b"b", group=2)
        world.until(lambda: ok)
        assert all(not node.host.groups[2].quarantined for node in world.nodes.values())
        assert [each for each in world.leaders(1) if each != name]


def test_a_snapshot_is_taken_and_restored_on_restart():
    with World(tuning=Tuning(snapshot_entries=20, checkpoint_entries=5)) as world:
        world.start()
        leader = world.led()
        for number in range(50):
            heard = world.propose(leader, b"%d" % number, bytes(100))
            world.until(lambda heard=heard: heard)
        world.run(0.5)
        victim = next(name for name in NAMES if name != leader)
        group = world.group(victim)
        assert group.log.snapshot.index >= 40
        assert world.group(leader).raft.checkpoints
        digest = group.machine.digest()
        world.kill(victim)
        world.run(0.1)
        world.start(victim)
        world.until(lambda: world.group(victim).machine.digest() == digest)
        again = world.group(victim)
        assert again.machine.restored == 1
        assert not again.quarantined
        heard = world.propose(leader, b"last")
        world.until(lambda: again.machine.commands[-1][0] == b"last")


def test_after_a_snapshot_that_failed_the_next_is_taken():
    with World("n1", tuning=Tuning(snapshot_entries=20)) as world:
        world.start()
        group = world.group(world.led())
        disk = world.machines["n1"].disk
        rename = disk.rename

        def full(old, new):
            raise OSError(errno.ENOSPC, "the directory is full")

        disk.rename = full
        for number in range(50):
            if number == 25:
                assert group.log.snapshot.index == 0
                disk.rename = rename
            heard = world.propose("n1", b"%d" % number)
            world.until(lambda heard=heard: heard)
        world.run(0.5)
        assert group.log.snapshot.index >= 40
        assert world.nodes["n1"].failures == []


def _raise_at_once():
    raise ZeroDivisionError("a bug")


def _raise_later():
    yield b"a slice"
    raise ZeroDivisionError("a bug")


@pytest.mark.parametrize("buggy", [_raise_at_once, _raise_later])
def test_a_machine_that_cannot_tell_its_state_goes_on_and_is_asked_again(buggy):
    with World("n1", tuning=Tuning(snapshot_entries=20)) as world:
        world.start()
        group = world.group(world.led())
        reported = []
        world.loop.call_exception_handler = reported.append
        snapshot = group.machine.snapshot
        group.machine.snapshot = buggy
        for number in range(70):
            if number == 30:
                world.run(0.5)
                assert len(reported) == group.snapshotter.failures == 1
                assert group.log.snapshot.index == 0
                group.machine.snapshot = snapshot
            heard = world.propose("n1", b"%d" % number)
            world.until(lambda heard=heard: heard)
        world.run(0.5)
        assert group.log.snapshot.index >= 40
        assert group.quarantined is None
        assert not [name for name in world.machines["n1"].disk.paths() if name.endswith(".tmp")]


def test_a_machine_that_differs_is_found_by_its_digest():
    with World(tuning=Tuning(checkpoint_entries=5)) as world:
        world.start()
        leader = world.led()
        victim = next(name for name in NAMES if name != leader)
        world.group(victim).machine.noops += 1
        for number in range(10):
            heard = world.propose(leader, b"%d" % number)
            world.until(lambda heard=heard: heard)
        world.until(lambda: world.group(victim).quarantined)
        assert "differs" in world.group(victim).quarantined
        assert world.leaders() == [leader]
        heard = world.propose(leader, b"last")
        world.until(lambda: heard)
        assert heard[0][0] == 11
