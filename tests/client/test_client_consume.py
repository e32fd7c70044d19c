"""Consumers and readers: prefetch, keep-alive, merged acks, release, replay, gaps."""

import asyncio

import pytest
from fake_server import K, run

from raftq.errors import InvalidArgument, OffsetOutOfRange, QueueNotFound, StaleReceipt
from raftq.wire import requests

# --- Consumers -----------------------------------------------------------------------------------


def test_a_consumer_acks_in_ranges():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            await client.send_many("orders", [b"%d" % each for each in range(500)])
            seen = []
            async with client.consumer("orders", prefetch=200) as consumer:
                async for message in consumer:
                    seen.append(message.body)
                    await message.ack()
                    if len(seen) == 500:
                        break
                await consumer.flush()
                assert cluster.describe("orders")["settled"] == 500
            assert seen == [b"%d" % each for each in range(500)]
            acks = [each for each in cluster.settles if each.action == requests.ACK]
            assert sum(len(each.items) for each in acks) < 20

    run(scenario)


def test_a_consumer_keeps_messages_alive():
    """Handled, and waiting in the buffer, for five times the visibility timeout: nothing expires."""

    async def scenario(cluster):
        cluster.create_queue("orders", visibility_timeout=2.0)
        async with cluster.client() as client:
            await client.send_many("orders", [b"a", b"b", b"c"])
            async with client.consumer("orders") as consumer:
                counts = []
                async for message in consumer:
                    await asyncio.sleep(10)
                    await message.ack()
                    counts.append(message.delivery_count)
                    if len(counts) == 3:
                        break
                await consumer.flush()
            assert counts == [1, 1, 1]
            assert cluster.describe("orders")["settled"] == 3

    run(scenario)


def test_a_consumer_lets_go_of_what_takes_too_long():
    async def scenario(cluster):
        cluster.create_queue("orders", visibility_timeout=2.0)
        async with cluster.client() as client, cluster.client() as other:
            await client.send("orders", b"a")
            async with client.consumer("orders", max_handling_time=5.0) as consumer:
                message = await anext(consumer)
                await asyncio.sleep(4)
                assert await other.receive("orders") == []
                await asyncio.sleep(6)
                assert [each.body for each in await other.receive("orders", wait=0.1)] == [b"a"]
                await message.ack()
                with pytest.raises(StaleReceipt):
                    await consumer.flush()

    run(scenario)


def test_flush_waits_for_acks_on_their_way():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            await client.send_many("orders", [b"x"] * 10)
            async with client.consumer("orders") as consumer:
                for _ in range(10):
                    await (await anext(consumer)).ack()
                cluster.n1.delay[K.SETTLE] = 0.3
                await asyncio.sleep(0.1)
                loop = asyncio.get_running_loop()
                begun = loop.time()
                await consumer.flush()
                assert loop.time() - begun > 0.15
                cluster.n1.delay.clear()

    run(scenario)


def test_leaving_a_consumer_releases_what_was_prefetched():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            await client.send_many("orders", [b"x"] * 10)
            async with client.consumer("orders", prefetch=10) as consumer:
                message = await anext(consumer)
                await message.ack()
                assert cluster.describe("orders")["in_flight"] == 10
            assert cluster.describe("orders")["ready"] == 9
            assert cluster.describe("orders")["settled"] == 1
            releases = [each for each in cluster.settles if each.action == requests.NACK]
            assert all(not each.count and not each.time_us for each in releases)
            with pytest.raises(StopAsyncIteration):
                await anext(consumer)

    run(scenario)


def test_prefetch_is_the_bound_of_what_is_in_hand():
    async def scenario(cluster):
        cluster.create_queue("orders", partitions=4)
        async with cluster.client() as client:
            keys = [b"%d" % each for each in range(1_000)]
            await client.send_many("orders", [b"x"] * 1_000, keys=keys)
            highest = 0
            async with client.consumer("orders", prefetch=50) as consumer:
                for _ in range(400):
                    message = await anext(consumer)
                    highest = max(highest, cluster.describe("orders")["in_flight"])
                    await message.ack()
                    await asyncio.sleep(0.001)
            # Acks on their way are in flight for the server, and not in hand any more.
            assert 50 <= highest <= 75

    run(scenario, groups=2)


def test_a_consumer_survives_reconnects():
    async def scenario(cluster):
        cluster.create_queue("orders", partitions=2)
        loop = asyncio.get_running_loop()
        bodies = [b"%d" % each for each in range(2_000)]

        async def nemesis():
            for _ in range(40):
                await asyncio.sleep(0.05)
                for node in cluster.nodes.values():
                    node.break_connections()

        async with cluster.client() as client:
            await client.send_many("orders", bodies, keys=bodies)
            seen = []
            breaking = loop.create_task(nemesis())
            async with client.consumer("orders", prefetch=100) as consumer:
                async for message in consumer:
                    seen.append(message.body)
                    await message.ack()
                    await asyncio.sleep(0.001)
                    if len(seen) == 2_000:
                        break
                await consumer.flush()
            await breaking
            assert sorted(seen) == sorted(bodies)
            assert cluster.describe("orders")["settled"] == 2_000

    run(scenario, nodes=2, groups=2)


def test_auto_ack_and_nack_from_a_consumer():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            await client.send_many("orders", [b"a", b"b"])
            async with client.consumer("orders", auto_ack=True) as consumer:
                assert (await anext(consumer)).body == b"a"
            assert cluster.describe("orders")["settled"] == 1
            async with client.consumer("orders", auto_ack=False) as consumer:
                message = await anext(consumer)
                await message.nack(reason="again")
                again = await anext(consumer)
                assert (again.body, again.delivery_count) == (b"b", message.delivery_count + 1)
                await again.ack()
            assert cluster.describe("orders")["settled"] == 2

    run(scenario)


def test_a_consumer_of_a_deleted_queue_ends_with_the_error():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client, client.consumer("orders") as consumer:
            waiting = asyncio.get_running_loop().create_task(anext(consumer))
            await asyncio.sleep(1)
            cluster.delete_queue("orders")
            with pytest.raises(QueueNotFound):
                await waiting

    run(scenario)


# --- Readers -------------------------------------------------------------------------------------


def test_a_reader_replays_and_follows():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            for number in range(5):
                await client.send("orders", b"%d" % number)
            await client.receive("orders", max_messages=5)
            bodies = [m.body async for m in client.reader("orders", follow=False)]
            assert bodies == [b"0", b"1", b"2", b"3", b"4"]
            reader = client.reader("orders", start=3)
            message = await anext(reader)
            assert (message.body, message.offset, message.delivery_count) == (b"3", 3, 0)
            with pytest.raises(InvalidArgument, match="read, not received"):
                await message.ack()
            await anext(reader)
            latest = client.reader("orders", start="latest")
            loop = asyncio.get_running_loop()
            waiting = [loop.create_task(anext(each)) for each in (reader, latest)]
            await asyncio.sleep(5)
            await client.send("orders", b"5")
            assert [(await each).body for each in waiting] == [b"5", b"5"]

    run(scenario)


def test_a_reader_tells_gaps():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            for number in range(6):
                await client.send("orders", b"%d" % number)
            cluster.holes |= {0, 3}
            reader = client.reader("orders", follow=False)
            assert [(await anext(reader)).offset, (await anext(reader)).offset] == [1, 2]
            with pytest.raises(OffsetOutOfRange, match="offsets 3 to 3"):
                await anext(reader)
            assert [message.offset async for message in reader] == [4, 5]
            with pytest.raises(OffsetOutOfRange, match="offsets 0 to 0"):
                await anext(client.reader("orders", start=0, follow=False))
            with pytest.raises(OffsetOutOfRange, match="does not exist yet"):
                await anext(client.reader("orders", start=100))

    run(scenario)


def test_a_reader_survives_a_lost_connection():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            for number in range(20):
                await client.send("orders", b"%d" % number)
            seen = []
            async for message in client.reader("orders", follow=False):
                seen.append(message.offset)
                if message.offset % 4 == 1:
                    cluster.n1.break_connections()
                    await asyncio.sleep(0.001)
            assert seen == list(range(20))

    run(scenario)
