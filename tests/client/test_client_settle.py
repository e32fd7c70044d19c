"""Settling: ack, nack, extend and reject."""

import asyncio

import pytest
from fake_server import run

from raftq.errors import InvalidArgument


def test_nack_and_extend():
    async def scenario(cluster):
        cluster.create_queue("orders", delivery_limit=2)
        async with cluster.client() as client:
            await client.send_many("orders", [b"a", b"b"])
            first, second = await client.receive("orders", max_messages=2, visibility_timeout=2.0)
            await first.nack(delay=3.0, reason="not yet")
            await second.extend(100.0)
            await asyncio.sleep(2.5)
            assert await client.receive("orders", max_messages=2) == []
            again = await client.receive("orders", max_messages=2, wait=5.0)
            if not again:
                cluster.groups[1].tick()
                again = await client.receive("orders", max_messages=2)
            assert [(message.body, message.delivery_count) for message in again] == [(b"a", 2)]
            await client.nack(again, reason="boom" * 1_000)
            assert cluster.describe("orders")["dead"] == 1
            await client.ack(second)
            with pytest.raises(InvalidArgument):
                await client.extend(second, 0)
            with pytest.raises(InvalidArgument):
                await client.nack(second, delay=-1.0)

    run(scenario)


def test_what_is_rejected_is_a_dead_letter_at_once():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            await client.send_many("orders", [b"a", b"b", b"c"])
            first, second = await client.receive("orders", max_messages=2)
            await first.nack(reason="no use", reject=True)
            await client.nack(second, reject=True)
            async with client.consumer("orders") as consumer:
                await (await anext(consumer)).nack(reject=True)
            assert cluster.describe("orders")["dead"] == 3
            assert all(settle.reject for settle in cluster.settles)
            with pytest.raises(InvalidArgument, match="takes no delay"):
                await client.nack(first, delay=1.0, reject=True)

    run(scenario)


def test_messages_of_many_queues_in_one_ack():
    async def scenario(cluster):
        async with cluster.client() as client:
            messages = []
            for name in ("a", "b"):
                cluster.create_queue(name, partitions=2)
                await client.send_many(name, [b"x"] * 50, keys=[b"%d" % n for n in range(50)])
                messages += await client.receive(name, max_messages=100)
            assert len(messages) == 100
            await client.ack(reversed(messages))
            assert cluster.describe("a")["settled"] == cluster.describe("b")["settled"] == 50

    run(scenario, groups=2)
