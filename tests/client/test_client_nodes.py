"""Which node is asked: silent ones, ones that refuse, ones that know of no leader; and for how long."""

import asyncio

import pytest
from fake_server import K, run

from raftq.errors import ConnectionFailed, NoQuorum, ProtocolError
from raftq.placement import partition_for


def test_a_silent_leader_is_noticed():
    async def scenario(cluster):
        cluster.create_queue("orders")
        loop = asyncio.get_running_loop()
        async with cluster.client() as client:
            await client.send("orders", b"1")
            cluster.nodes["n1"].silent = True
            cluster.move_leader(1, "n2")
            begun = loop.time()
            assert (await client.send("orders", b"2")).offset == 1
            assert loop.time() - begun < 2

    run(scenario, nodes=2)


@pytest.mark.parametrize("idle", [0.0, 0.3, 0.6, 0.9, 5.3])
def test_a_leader_that_fell_silent_while_idle_is_noticed_as_soon_as_it_is_asked(idle):
    """A new leader is elected in about half a second: to notice it should not take much longer."""

    async def scenario(cluster):
        cluster.create_queue("orders")
        loop = asyncio.get_running_loop()
        async with cluster.client() as client:
            await client.send("orders", b"1")
            await asyncio.sleep(idle)
            cluster.nodes["n1"].silent = True
            cluster.move_leader(1, "n2")
            begun = loop.time()
            assert (await client.send("orders", b"2")).offset == 1
            assert 0.3 < loop.time() - begun < 0.7

    run(scenario, nodes=2)


def test_a_node_that_fell_silent_is_not_asked_again_at_once():
    """It accepts connections all the same; others, who do not know yet, still name it."""

    async def scenario(cluster):
        cluster.create_queue("orders")
        loop = asyncio.get_running_loop()
        async with cluster.client() as client:
            await client.send("orders", b"1")
            n1, n2 = cluster.nodes.values()
            n1.silent = n2.redirects = True
            greeted = n1.heard.count(K.HELLO)
            loop.call_later(0.6, cluster.move_leader, 1, "n2")
            begun = loop.time()
            assert (await client.send("orders", b"2")).offset == 1
            assert loop.time() - begun < 0.8
            assert n1.heard.count(K.HELLO) == greeted

    run(scenario, nodes=2)


def test_a_detour_is_left_when_the_leader_is_known():
    """Who knew no leader asks any node, which passes it on; that is not for ever."""

    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            n1, n2, n3 = cluster.nodes.values()
            cluster.move_leader(1, "n3")
            await client.send("orders", b"1")
            cluster.groups[1].leader = None
            asyncio.get_running_loop().call_later(0.1, cluster.move_leader, 1, "n2")
            await client.send("orders", b"2")
            await asyncio.sleep(0.5)
            for node in cluster.nodes.values():
                node.heard.clear()
            await client.send("orders", b"3")
            assert K.PUBLISH in n2.heard
            assert K.PUBLISH not in n1.heard + n3.heard

    run(scenario, nodes=3)


async def send_to(client, group):
    """A message to the partition of a queue of three that the group hosts."""
    number = 0
    while partition_for(b"%d" % number, 3) != group - 1:
        number += 1
    await client.send("orders", b"x", key=b"%d" % number)


def test_who_leads_is_asked_of_a_node_that_was_heard_a_moment_ago():
    """A connection that is seldom used may be dead for a second before that is noticed."""

    async def scenario(cluster):
        cluster.create_queue("orders", partitions=3)
        loop = asyncio.get_running_loop()
        async with cluster.client() as client:
            n1, n2, _ = cluster.nodes.values()
            for group, node in ((1, "n1"), (2, "n2"), (3, "n3")):
                cluster.move_leader(group, node)
                await send_to(client, group)
            for _ in range(30):
                await send_to(client, 2)
                await send_to(client, 3)
                await asyncio.sleep(0.05)
            n1.silent = True
            n2.break_connections()
            cluster.move_leader(1, "n3")
            cluster.move_leader(2, "n3")
            begun = loop.time()
            await send_to(client, 2)
            assert loop.time() - begun < 0.3

    run(scenario, nodes=3, groups=3)


def test_no_node_at_all():
    async def scenario(cluster):
        cluster.create_queue("orders")
        for node in cluster.nodes.values():
            node.kill()
        with pytest.raises(ConnectionFailed, match="no node could be reached") as caught:
            await cluster.client(timeout=2.0).connect()
        assert caught.value.outcome == "not_applied"

    run(scenario, nodes=2)


@pytest.mark.parametrize("silent", [("n1",), ("n1", "n2"), ("n1", "n2", "n3")])
def test_nobody_waits_for_silent_nodes_beyond_his_time(silent):
    """A paused node accepts connections and says nothing, not even to a greeting."""

    async def scenario(cluster):
        cluster.create_queue("orders")
        loop = asyncio.get_running_loop()
        for name in silent:
            cluster.nodes[name].silent = True
        if "n3" not in silent:
            cluster.move_leader(1, "n3")
        client = cluster.client(timeout=3.0)
        begun = loop.time()
        if "n3" in silent:
            with pytest.raises(ConnectionFailed, match="no node could be reached") as caught:
                await client.send("orders", b"1")
            assert caught.value.outcome == "not_applied"
            assert loop.time() - begun < 3.1
        else:
            assert (await client.send("orders", b"1")).offset == 0
            assert loop.time() - begun < 1.5
        await client.close()

    run(scenario, nodes=3)


def test_without_a_quorum_the_node_that_answers_is_believed():
    """The others are silent; that no node could be reached would be wrong."""

    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client(timeout=3.0) as client:
            await client.send("orders", b"1")
            for name in ("n1", "n2"):
                cluster.nodes[name].silent = True
            cluster.groups[1].leader = None
        async with cluster.client(timeout=3.0) as client:
            with pytest.raises(NoQuorum):
                await client.send("orders", b"2")

    run(scenario, nodes=3)


def test_a_node_that_refuses_a_greeting_costs_that_send_and_no_other():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client(timeout=2.0) as client:
            await client.send("orders", b"1")
            cluster.n1.lose[K.PUBLISH] = 1
            cluster.n1.refuse[K.HELLO] = [ProtocolError("not you")] * 2
            with pytest.raises(ProtocolError, match="not you") as caught:
                await client.send("orders", b"2")
            assert caught.value.outcome == "unknown"
            assert (await client.send("orders", b"3")).offset == 1

    run(scenario)


def test_no_leader_in_time():
    async def scenario(cluster):
        cluster.create_queue("orders")
        loop = asyncio.get_running_loop()
        async with cluster.client(timeout=2.0) as client:
            await client.send("orders", b"1")
            cluster.groups[1].leader = None
            begun = loop.time()
            with pytest.raises(NoQuorum, match="2 s") as caught:
                await client.send("orders", b"2")
            assert caught.value.outcome == "not_applied"
            assert 1.8 < loop.time() - begun < 2.2
            cluster.groups[1].leader = "n1"
            assert (await client.send("orders", b"3")).offset == 1

    run(scenario)
