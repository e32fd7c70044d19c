"""Goal: a partly connected group of five has a leader that stays within two seconds.

Method: three nodes see each other, the fourth sees only the second and the fifth only the third, while
clients see everybody. From two seconds after the cut no group that could be served changes its leader,
and publishes go on.
"""

import pytest

from raftq.sim.run import Plan, carry_out

SEEDS = range(1, 9)
STABLE_SECONDS = 2.0
WATCH_SECONDS = 4.0

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(150)]


def leaders(stage):
    """The newest leader of each group, with its term."""
    found = {}
    for name, node in stage.cluster.servers.items():
        for group, replica in node.host.groups.items():
            if replica.leading:
                found[group] = max(found.get(group, (0, "")), (replica.raft.term, name))
    return found


def served(stage, links):
    """The groups of which some node sees a majority, itself included, that sees it."""
    found = set()
    for group in next(iter(stage.cluster.servers.values())).metadata.machine.groups():
        nodes = list(group.nodes.values())
        for one in nodes:
            seen = sum(one == other or {one, other} in links for other in nodes)
            if seen > len(nodes) // 2:
                found.add(group.group)
    return found


def partly_connected(changes):
    async def scenario(stage):
        await stage.leader()
        await stage.pause(2.0, 2.5)
        one, two, three, four, five = stage.others()
        stage.cut(four, [one, three, five])
        stage.cut(five, [one, two])
        links = [{one, two}, {one, three}, {two, three}, {four, two}, {five, three}]
        await stage.pause(STABLE_SECONDS, STABLE_SECONDS)
        first = leaders(stage)
        wanted = served(stage, links)
        for _ in range(round(WATCH_SECONDS / 0.05)):
            await stage.pause(0.05, 0.05)
            now = leaders(stage)
            changes.extend(
                (group, first.get(group), now.get(group))
                for group in sorted(wanted)
                if group not in first or first[group] != now.get(group)
            )
        stage.heal()

    return scenario


@pytest.mark.parametrize("seed", SEEDS)
def test_a_partly_connected_group_settles_within_two_seconds(seed):
    changes = []
    result = carry_out(seed, Plan(nodes=5, seconds=14, scenario=partly_connected(changes)))
    assert result.violations == ()
    assert changes == []
    assert result.counters["acknowledged"] > 300
