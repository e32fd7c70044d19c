"""Goal: a node and a cluster in the user's own loop work, say how they are, and leave nothing global.

Method: real disks and sockets; waiting is for states, never for times.
"""

import asyncio
import logging

import pytest
from prometheus_client import REGISTRY

from raftq.embedded import Cluster, Node
from raftq.errors import ClusterMismatch, InvalidArgument, NoQuorum


def one_node(tmp_path, **options):
    peers = options.pop("peers", "127.0.0.1:0")
    return Node("n1", data=tmp_path / "n1", listen="127.0.0.1:0", members={"n1": peers}, **options)


async def until_ready(node):
    async with asyncio.timeout(10):
        while node.not_ready():  # noqa: ASYNC110 - a state without an event.
            await asyncio.sleep(0.01)


async def page(node, path):
    host, _, port = node.admin_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.decode().partition("\r\n\r\n")
    return int(head.split()[1]), body


def test_a_node_becomes_ready_and_says_so(tmp_path):
    async def main():
        async with one_node(tmp_path, admin_listen="127.0.0.1:0", groups=1) as node:
            reasons = node.not_ready()
            assert reasons
            assert (await page(node, "/health/live"))[0] == 200
            await until_ready(node)
            assert await page(node, "/health/ready") == (200, '{"ready": true, "reasons": []}\n')
            status, text = await page(node, "/metrics")
            assert status == 200
            for line in (
                "raftq_node_is_ready 1.0",
                'raftq_group_is_leader{group="1"} 1.0',
                'raftq_group_is_quarantined{group="0"} 0.0',
            ):
                assert line in text.splitlines()
            assert node.is_running
        assert not node.is_running
        assert node.not_ready() == ["the node is stopping"]

    asyncio.run(main())


def test_a_directory_serves_one_node_at_a_time_and_one_name(tmp_path):
    async def main():
        async with one_node(tmp_path) as node:
            with pytest.raises(InvalidArgument, match="in use"):
                await one_node(tmp_path).start()
            assert node.is_running
        other = Node(
            "n2", data=tmp_path / "n1", listen="127.0.0.1:0", members={"n2": "127.0.0.1:0"}
        )
        with pytest.raises(ClusterMismatch, match="n1"):
            await other.start()

    asyncio.run(main())


def test_members_must_name_the_node(tmp_path):
    with pytest.raises(InvalidArgument, match="n1"):
        Node("n1", data=tmp_path, listen="127.0.0.1:0", members={"n2": "127.0.0.1:1"})


@pytest.mark.parametrize("nodes", [0, 10])
def test_a_cluster_is_small(tmp_path, nodes):
    with pytest.raises(InvalidArgument, match="1 to 9"):
        Cluster(nodes, data=tmp_path)


def test_a_cluster_serves_while_a_node_is_away(tmp_path):
    async def main():
        async with Cluster(3, data=tmp_path) as cluster, cluster.client() as client:
            await client.create_queue("orders", partitions=2)
            await client.send_many("orders", [b"%d" % number for number in range(100)])
            cluster.kill_node("n2")
            receipts = await client.send_many("orders", [b"a", b"b"])
            assert len(receipts) == 2
            taken = []
            while len(taken) < 102:
                messages = await client.receive("orders", max_messages=200, wait=5.0)
                assert messages
                await client.ack(messages)
                taken += messages
            assert len({(m.partition, m.offset) for m in taken}) == 102
            await cluster.start_node("n2")
            await cluster.ready()
            assert (await client.describe_queue("orders")).depth == 0

    asyncio.run(main())


def test_a_cluster_comes_back_with_its_data(tmp_path):
    async def main():
        async with Cluster(1, data=tmp_path) as cluster, cluster.client() as client:
            await client.create_queue("orders")
            await client.send("orders", b"kept")
        async with Cluster(1, data=tmp_path) as cluster, cluster.client() as client:
            (message,) = await client.receive("orders", wait=5.0)
            assert message.body == b"kept"

    asyncio.run(main())


def test_what_is_missing_is_named(tmp_path):
    async def main():
        async with Cluster(3, data=tmp_path) as cluster:
            for name in ("n1", "n2"):
                cluster.kill_node(name)
            # The last one still believes in a leader for a moment; then it says what it lacks.
            async with asyncio.timeout(10):
                while not cluster.not_ready():  # noqa: ASYNC110 - as above.
                    await asyncio.sleep(0.01)
            with pytest.raises(NoQuorum, match="n3: group"):
                await cluster.ready(seconds=0.01)

    asyncio.run(main())


def test_nothing_global_is_touched(tmp_path):
    handlers = logging.getLogger("raftq").handlers[:], logging.getLogger().handlers[:]
    metrics = {metric.name for metric in REGISTRY.collect()}

    async def main():
        async with one_node(tmp_path, admin_listen="127.0.0.1:0") as node:
            await page(node, "/metrics")

    asyncio.run(main())
    assert handlers == (logging.getLogger("raftq").handlers, logging.getLogger().handlers)
    assert metrics == {metric.name for metric in REGISTRY.collect()}
