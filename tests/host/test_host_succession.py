"""To whom a leader hands over, and the wishes it has by itself."""

import pytest
from host_world import NAMES, World

from raftq.host.succession import FULL_AGAIN_MICROS, successor
from raftq.limits import DISK_RESERVE_BYTES, MIB


@pytest.fixture
def world():
    with World() as world:
        world.start()
        yield world


def others(leader):
    return [name for name in NAMES if name != leader]


def replica_on(group, node):
    return next(replica for replica, name in group.nodes.items() if name == node)


def test_groups_spread_over_those_that_lack_nothing(world):
    leader = world.led()
    world.run(0.2)
    group = world.group(leader)
    found = [successor(group.raft, turn=turn) for turn in range(4)]
    assert sorted(found[:2]) == sorted(replica_on(group, each) for each in others(leader))
    assert found[2:] == found[:2]


def test_one_that_lacks_what_is_committed_is_chosen_only_if_there_is_no_other(world):
    leader = world.led()
    late, good = others(leader)
    world.isolate(late)
    for number in range(3):
        acked = world.propose(leader, b"%d" % number)
        world.until(lambda acked=acked: acked)
    group = world.group(leader)
    assert {successor(group.raft, turn=turn) for turn in range(4)} == {replica_on(group, good)}
    only_late = {replica_on(group, late)}
    assert successor(group.raft, among=only_late) == replica_on(group, late)
    world.run(0.4)
    assert successor(group.raft, among=only_late) is None, "it was not heard for too long"
    assert not group.succession.hand_over(reachable=[late])
    assert not group.succession.hand_over(reachable=[])
    assert world.machines[leader].process.call(group.succession.hand_over, reachable=[good])
    world.until(lambda: world.group(good).leading)


def test_a_follower_hands_nothing_over(world):
    leader = world.led()
    follower = others(leader)[0]
    assert not world.group(follower).succession.hand_over(reachable=NAMES)


def test_a_full_disk_is_said_now_and_then_and_by_the_leader_alone(world):
    leader = world.led()
    for name in NAMES:
        disk = world.machines[name].disk
        disk.capacity_bytes = disk.used_bytes + DISK_RESERVE_BYTES - MIB
    world.until(lambda: world.group(leader).log.is_full)

    def said():
        return [
            world.nodes[name].events.count(("disk_full", 1)) for name in (leader, *others(leader))
        ]

    world.run(0.1)
    assert said() == [1, 0, 0]
    world.run(FULL_AGAIN_MICROS / 1e6)
    assert said() == [2, 0, 0]
