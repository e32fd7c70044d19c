"""Goal: a node that loses its disk is replaced under load, and then counts as the old one did.

Method: a disk is lost in the middle of the traffic, the operator replaces the node, and something
else dies at a moment of chance, or at none; when all groups have changed, another node is killed, so
that whatever the new one said it holds is needed. The run's own checkers judge the rest: nothing
acknowledged is lost, one leader per term, equal replicas in the end.
"""

import pytest

from raftq.ids import METADATA_GROUP
from raftq.sim.run import Plan, carry_out

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(120)]


def leader_of_metadata(stage):
    for name, node in stage.cluster.servers.items():
        group = node.host.groups.get(METADATA_GROUP)
        if group is not None and group.leading:
            return name
    return stage.nodes[0]


async def nobody(stage, victim):
    await stage.pause(0.0, 0.1)


async def the_leader_of_group_0(stage, victim):
    name = leader_of_metadata(stage)
    stage.kill(name)
    await stage.pause(0.1, 1.0)
    stage.restart(name)


async def the_new_node(stage, victim):
    stage.power_loss(victim)
    await stage.pause(0.1, 1.0)
    stage.restart(victim)


async def a_groups_leader(stage, victim):
    name = await stage.leader()
    stage.power_loss(name)
    await stage.pause(0.1, 1.0)
    stage.restart(name)


async def the_new_disk(stage, victim):
    stage.lose_disk(victim)
    await stage.pause(1.5, 2.5)
    await stage.replace(victim)


async def one_after_the_other(stage, victim):
    """Cuts, stalls, kills and hand-overs at whatever node, the new one included."""
    for _ in range(5):
        node = stage.choose.choice(stage.nodes)
        what = stage.choose.randrange(5)
        if what == 0:
            stage.cut(node, stage.others(node))
        elif what == 1:
            stage.stall(node, 0.1, times=20)
        elif what == 2:
            stage.kill(node)
        elif what == 3:
            stage.power_loss(node)
        elif node in stage.cluster.servers:
            stage.transfer(node, stage.others(node)[0])
        await stage.pause(0.1, 0.7)
        stage.heal()
        await stage.pause(0.0, 0.5)


def scenario(fails):
    async def a_disk_is_lost(stage):
        await stage.leader()
        await stage.pause(1.0, 2.0)
        victim = stage.choose.choice(stage.nodes)
        stage.lose_disk(victim)
        await stage.pause(0.0, 2.0)
        await stage.replace(victim)
        await stage.pause(0.0, 0.8)
        await fails(stage, victim)
        await stage.replaced()
        other = stage.others(victim)[0]
        stage.power_loss(other)
        await stage.pause(2.0, 3.0)
        stage.restart(other)
        await stage.pause(1.0, 2.0)

    return a_disk_is_lost


FAILURES = [
    nobody,
    the_leader_of_group_0,
    the_new_node,
    a_groups_leader,
    the_new_disk,
    one_after_the_other,
]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("fails", FAILURES, ids=lambda each: each.__name__)
def test_a_lost_disk_is_replaced_under_load(fails, seed):
    result = carry_out(seed, Plan(nodes=3, seconds=16, scenario=scenario(fails)))
    assert result.violations == ()
    assert result.counters["acknowledged"] > 500
