"""Replicas with damaged files: they go on, do not lead, are healed by the others, and lead again."""

import pytest
from host_world import World

from raftq.errors import Corrupted
from raftq.host import Member, answers, catch_up, repair
from raftq.host import identity as identities
from raftq.raft import Role, Write
from raftq.storage.group_log import Condition, GroupLog

BODY = bytes(range(256)) * 40
COMMANDS = 330
"""About 3.4 MB: two sealed segments and the one that is written."""


@pytest.fixture
def world():
    with World() as made:
        made.start()
        write(made, COMMANDS)
        made.run(0.3)
        yield made


def write(world, count, *, prefix=b"c"):
    leader = world.led()
    heard = []
    for number in range(count):
        heard.append(world.propose(leader, b"%s%d" % (prefix, number), BODY))
        if number % 4 == 3:
            world.run(0.004)
    world.until(lambda: all(heard), 30)
    assert all(place is not None for ((_, place),) in heard)


def stop(world, *names):
    for name in names:
        world.kill(name)


def files(world, name, part):
    disk = world.machines[name].disk
    return [path for path in disk.paths() if path.startswith("group-1/") and part in path]


def segments(world, name):
    return files(world, name, "segment-")


def drop_indexes(world, name):
    for path in files(world, name, ".index"):
        world.machines[name].disk.lose_file(path)


def logs(world, name):
    """The segments that hold entries; the first one holds the first membership."""
    return [path for path in segments(world, name) if path.endswith(".log")][1:]


def zero(world, name, number, start, stop_at):
    world.machines[name].disk.zero(logs(world, name)[number], start, stop_at)


def scrub(world, name):
    group = world.group(name)
    group.mending.scrubber.begin(world.machines[name].clock.monotonic())
    group.want_turn()


def is_healed(world):
    groups = [world.group(name) for name in world.nodes]
    return all(
        group.log.condition is Condition.OK
        and not group.mending.health
        and group.raft.status().damaged_index == 0
        for group in groups
    )


def check(world, expected):
    """All replicas hold one log, readable from the first entry to the last, and one machine."""
    world.until(lambda: is_healed(world), 60)
    world.until(
        lambda: (
            len({world.group(name).applied_index for name in world.nodes}) == 1
            and len(world.leaders()) == 1
        ),
        30,
    )
    chains = set()
    for name in world.nodes:
        group = world.group(name)
        assert group.quarantined is None
        assert len(group.machine.commands) == expected
        log = group.log
        index = log.first_index
        while index <= log.last_index:
            try:
                found = log.entries(index, log.last_index + 1, 1 << 20)
            except Corrupted:
                # Rot that nobody has read before.
                world.until(lambda: is_healed(world), 60)
            else:
                index = found[-1].index + 1
        chains.add((log.last_index, log.chain(log.last_index), group.machine.digest()))
    assert len(chains) == 1


def flip(world, name, path, position):
    world.machines[name].disk.flip_bit(path, position)


HARMLESS = ("a segment's header", "a missing beginning")
"""What they hold is also known from elsewhere."""

DAMAGE = {
    "a bit": lambda world, name: flip(world, name, logs(world, name)[0], 500_000),
    "a segment's header": lambda world, name: flip(world, name, logs(world, name)[1], 20),
    "a zeroed range": lambda world, name: zero(world, name, 1, 100_000, 900_000),
    "a stale sector": lambda world, name: zero(world, name, 1, 409_600, 413_696),
    "a zeroed tail": lambda world, name: zero(world, name, 0, 700_000, 1 << 20),
    "a truncation": lambda world, name: world.machines[name].disk.truncate(
        logs(world, name)[0], 600_000
    ),
    "a missing beginning": lambda world, name: world.machines[name].disk.lose_file(
        segments(world, name)[0]
    ),
    "a missing first segment": lambda world, name: world.machines[name].disk.lose_file(
        logs(world, name)[0]
    ),
    "a missing second segment": lambda world, name: world.machines[name].disk.lose_file(
        logs(world, name)[1]
    ),
    "an empty segment": lambda world, name: world.machines[name].disk.truncate(
        logs(world, name)[1], 0
    ),
}


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_replica_is_healed_by_the_others_without_a_restart(world, kind, indexed):
    victim = world.led()
    stop(world, victim)
    if not indexed:
        drop_indexes(world, victim)
    DAMAGE[kind](world, victim)
    world.start(victim)
    world.until(lambda: 1 in world.nodes[victim].host.groups)
    assert world.group(victim).quarantined is None
    if not indexed and kind not in HARMLESS:
        assert world.group(victim).log.holes
        assert "being fetched" in world.group(victim).mending.health
    scrub(world, victim)
    world.until(lambda: world.group(victim).mending.scrubber.passes == 1, 30)
    check(world, COMMANDS)
    assert world.group(victim).log.damage
    repaired = world.group(victim).log.patches.repaired_entries
    assert bool(repaired) != (kind in HARMLESS)
    write(world, 3, prefix=b"after")
    stop(world, victim)
    world.start(victim)
    world.until(lambda: 1 in world.nodes[victim].host.groups)
    check(world, COMMANDS + 3)


def test_different_damage_on_every_replica_is_healed_wherever_one_good_copy_exists(world):
    names = list(world.names)
    stop(world, *names)
    for number, name in enumerate(names):
        drop_indexes(world, name)
        for segment in (0, 1):
            start = 100_000 + number * 300_000
            zero(world, name, segment, start, start + 250_000)
    world.start()
    world.until(lambda: all(1 in node.host.groups for node in world.nodes.values()))
    assert all(world.group(name).log.holes for name in names)
    assert not world.leaders(), "nobody leads who cannot read its log"
    check(world, COMMANDS)
    assert len(world.leaders()) == 1


def test_what_no_replica_has_any_more_is_never_made_up(world):
    names = list(world.names)
    stop(world, *names)
    for name in names:
        drop_indexes(world, name)
        zero(world, name, 0, 400_000, 450_000)
    zero(world, "n1", 1, 400_000, 900_000)
    world.start()
    world.run(40)
    for name in names:
        group = world.group(name)
        assert len(group.log.holes) == 1, "what another one has was healed"
        assert group.quarantined is None
        assert not group.leading
        assert "are lost here" in group.mending.health
        assert group.raft.role is not Role.LEADER


def test_a_damaged_replica_votes_and_follows_and_does_not_lead(world):
    victim, other, _ = world.names
    stop(world, *world.names)
    drop_indexes(world, victim)
    zero(world, victim, 0, 100_000, 200_000)
    world.start(victim, other)
    # Without the third, its vote and its acknowledgement are needed.
    world.until(lambda: world.leaders() == [other])
    world.isolate("n3")
    write(world, 5, prefix=b"later")
    assert world.leaders() == [other]


def test_rot_under_a_running_leader_is_found_by_the_scrub_and_healed(world):
    leader = world.led()
    for path in logs(world, leader)[:2]:
        flip(world, leader, path, 500_000)
    group = world.group(leader)
    assert not group.log.holes
    scrub(world, group.nodes[group.replica])
    world.until(lambda: group.log.holes, 30)
    world.until(lambda: not group.leading, 5)
    check(world, COMMANDS)
    assert group.mending.scrubber.passes == 1
    assert group.mending.scrubber.scrubbed_bytes > 2_000_000
    assert len(group.log.damage) == 2


def test_rot_is_found_when_a_peer_is_given_entries(world):
    leader = world.led()
    late = next(name for name in world.names if name != leader)
    stop(world, late)
    drop_indexes(world, late)
    zero(world, late, 0, 100_000, 900_000)
    for name in world.nodes:
        flip(world, name, logs(world, name)[0], 200_000 + 300_000 * (name == leader))
    world.start(late)
    world.until(lambda: 1 in world.nodes[late].host.groups)
    check(world, COMMANDS)
    assert any(world.group(name).log.patches.repaired_entries for name in world.names)


def test_a_long_range_is_repaired_in_few_files(world, monkeypatch):
    """Each may be a quarter of what was repaired before it, within bounds."""
    entry = 4 * len(BODY)
    least, most = 2 * entry, 8 * entry
    monkeypatch.setattr(answers, "REPAIR_ANSWER_BYTES", entry)
    monkeypatch.setattr(repair, "PATCH_BYTES_MIN", least)
    monkeypatch.setattr(repair, "PATCH_BYTES_MAX", most)
    victim = world.led()
    stop(world, victim)
    drop_indexes(world, victim)
    for path in logs(world, victim)[:2]:
        world.machines[victim].disk.lose_file(path)
    world.start(victim)
    check(world, COMMANDS)
    patched = world.group(victim).log.patches.in_use()
    sizes = [(part.last - part.first + 1) * entry for part in patched]
    assert sum(sizes) > 2_000_000
    # From behind: the last entries are repaired first, in the smallest piece.
    assert least <= sizes[-1] <= least + entry
    assert sizes[1:4] == [most] * 3
    assert max(sizes) == most
    assert len(sizes) < sum(sizes) / least / 2


def test_answers_are_held_back_while_the_giver_has_work(world, monkeypatch):
    for name in ("CATCH_UP_IDLE_BYTES_PER_SECOND", "CATCH_UP_FLOOR_BYTES_PER_SECOND"):
        monkeypatch.setattr(catch_up, name, 2_000_000)
    monkeypatch.setattr(catch_up, "CATCH_UP_PERCENT", 0)
    victim = next(name for name in world.names if name not in world.leaders())
    stop(world, victim)
    drop_indexes(world, victim)
    zero(world, victim, 1, 0, 1_900_000)
    world.start(victim)
    world.until(lambda: 1 in world.nodes[victim].host.groups)
    begun = world.loop.time()
    world.until(lambda: is_healed(world), 60)
    took = world.loop.time() - begun
    givers = [world.nodes[name].host.catch_up.spent_bytes for name in world.names]
    assert sum(givers) > 1_500_000
    assert took > (sum(givers) - 3 * catch_up.CATCH_UP_BURST_BYTES) / 2_000_000 / 2
    check(world, COMMANDS)


def test_a_scrub_of_sound_files_finds_nothing_and_its_slices_are_small(world):
    log = world.group(world.led()).log
    slices = list(log.scrub())
    assert sum(slices) > 2_000_000
    assert max(slices) < 600_000
    assert (log.damage, log.holes) == ((), [])


def take_snapshot(world, name):
    group = world.group(name)
    group.snapshotter.take_soon()
    before = group.log.snapshot.index
    world.propose(world.led(), b"snap %d %s" % (before, name.encode()), b"x")
    world.until(lambda: group.log.snapshot.index > before)


def test_a_snapshot_that_rots_is_replaced_and_removed_only_then(world):
    victim = world.led()
    group = world.group(victim)
    take_snapshot(world, victim)
    path = files(world, victim, "snapshot-")[-1]
    flip(world, victim, path, 300)
    scrub(world, group.nodes[group.replica])
    world.until(lambda: group.mending.scrubber.passes == 1, 30)
    assert group.log.snapshot.index == 0
    assert path in files(world, victim, "snapshot-")
    world.propose(world.led(), b"one more", b"x")
    world.until(lambda: group.log.snapshot.index > 0)
    assert path in files(world, victim, "snapshot-")
    take_snapshot(world, victim)
    world.run(0.5)
    assert path not in files(world, victim, "snapshot-")


def test_a_replica_whose_only_snapshot_is_lost_fetches_another(world):
    """Its log begins with the snapshot, so nothing else can bring its machine back."""
    leader = world.led()
    for name in sorted(world.names, key=lambda name: name == leader):
        take_snapshot(world, name)
    world.run(0.5)
    late = next(name for name in world.names if name != leader)
    meta = world.group(leader).log.snapshot
    stop(world, late)
    begin_after(world, late, meta)
    world.start(late)
    world.until(lambda: 1 in world.nodes[late].host.groups)
    assert world.group(late).log.needs_snapshot
    assert "snapshot" in world.group(late).mending.health
    check(world, COMMANDS + 3)
    assert world.group(late).machine.restored == 1


def begin_after(world, name, meta):
    """The replica's log begins behind a snapshot of which the file is gone."""
    machine = world.machines[name]
    disk = machine.disk
    _, environment = machine.start()
    members = tuple(Member(each, each, 7) for each in world.members)
    own = identities.load(environment, name=name, members=members)
    log = GroupLog.open(disk, machine.clock, "group-1", incarnation=own.incarnation, boot=own.boot)
    state = log.state
    log.write(
        Write(
            state.last_write + 1,
            meta,
            0,
            (),
            max(state.term, meta.term),
            0,
            meta.index,
            meta.term,
            meta.chain,
            meta.index,
            meta.chain,
        )
    )
    log.close()
    machine.kill()
    for path in files(world, name, "snapshot-"):
        disk.lose_file(path)
