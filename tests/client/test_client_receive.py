"""Receiving and settling: fairness, bounds, lost replies, late deliveries, consumers, readers."""

import asyncio

import pytest
from fake_server import SECOND, K, run

from raftq.errors import (
    InvalidArgument,
    QueueNotFound,
    SessionExpired,
    StaleReceipt,
)
from raftq.queue import commands
from raftq.wire import requests


def test_receive_and_ack():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            await client.send_many(
                "orders", [b"a", b"b", b"c"], keys=[b"k", None, b"l"], headers={"kind": "new"}
            )
            assert await client.receive("orders", max_messages=0 + 1)
            messages = await client.receive("orders", max_messages=10)
            assert [message.body for message in messages] == [b"b", b"c"]
            second = messages[1]
            assert (second.key, second.headers, second.queue) == (b"l", {"kind": "new"}, "orders")
            assert (second.partition, second.offset, second.delivery_count) == (0, 2, 1)
            assert second.timestamp == pytest.approx(cluster.clock.wall() / SECOND, abs=1)
            assert second.receipt.offset == 2
            assert messages[0].key is None
            await client.ack(messages)
            assert cluster.describe("orders")["settled"] == 2
            assert cluster.describe("orders")["in_flight"] == 1

    run(scenario)


def test_an_empty_queue_waits_and_wakes():
    async def scenario(cluster):
        cluster.create_queue("orders", partitions=4)
        loop = asyncio.get_running_loop()
        async with cluster.client() as client, cluster.client() as other:
            begun = loop.time()
            assert await client.receive("orders", wait=0.5) == []
            assert 0.5 <= loop.time() - begun < 0.51
            waiting = loop.create_task(client.receive("orders", max_messages=5, wait=60.0))
            await asyncio.sleep(30)
            begun = loop.time()
            await other.send("orders", b"wake up")
            assert [message.body for message in await waiting] == [b"wake up"]
            assert loop.time() - begun < 0.01
            # The watches at the other groups are withdrawn.
            await asyncio.sleep(0.01)
            assert not any(group.watches for group in cluster.groups.values())

    run(scenario, nodes=2, groups=3)


@pytest.mark.parametrize(
    "options",
    [{"max_messages": "x"}, {"max_messages": 1.5}, {"max_messages": None}, {"wait": "long"}],
)
def test_what_is_no_number_is_refused_by_name(options):
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            with pytest.raises(InvalidArgument, match=next(iter(options))):
                await client.receive("orders", **options)

    run(scenario)


def test_never_more_than_max_messages():
    """Messages in every group, and one is asked for: one is in flight, wherever it came from."""

    async def scenario(cluster):
        cluster.create_queue("orders", partitions=6)
        async with cluster.client() as client:
            waiting = asyncio.get_running_loop().create_task(
                client.receive("orders", max_messages=3, wait=5.0)
            )
            await asyncio.sleep(0.1)
            await client.send_many(
                "orders", [b"x"] * 600, keys=[b"%d" % each for each in range(600)]
            )
            assert len(await waiting) == 3
            await asyncio.sleep(0.1)
            assert cluster.describe("orders")["in_flight"] == 3

    run(scenario, nodes=3, groups=3)


def test_groups_are_asked_in_fair_turns():
    async def scenario(cluster):
        queue = cluster.create_queue("orders", partitions=3)
        async with cluster.client() as client:
            keys = [b"%d" % each for each in range(900)]
            await client.send_many("orders", [b"x"] * 900, keys=keys)
            counts = dict.fromkeys(queue.groups, 0)
            for _ in range(30):
                for message in await client.receive("orders", max_messages=10):
                    counts[queue.groups[message.partition]] += 1
            assert min(counts.values()) >= 80

    run(scenario, groups=3)


@pytest.mark.parametrize("lost", range(0, 300, 13))
def test_a_delivery_cut_at_any_byte(lost):
    """The receive is repeated under its number: every message comes, once, in one delivery."""

    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            await client.send_many("orders", [b"a", b"b", b"c"])
            await client.receive("orders", visibility_timeout=0.001)
            await asyncio.sleep(0.1)
            cluster.n1.cut_after = lost
            messages = await client.receive("orders", max_messages=10)
            assert [message.body for message in messages] == [b"a", b"b", b"c"]
            assert messages[1].delivery_count == 1
            await client.ack(messages)
        assert cluster.describe("orders")["settled"] == 3

    run(scenario)


@pytest.mark.parametrize("lost", range(0, 60, 7))
def test_an_ack_cut_at_any_byte(lost):
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            await client.send_many("orders", [b"a", b"b"])
            messages = await client.receive("orders", max_messages=10)
            cluster.n1.cut_after = lost
            await client.ack(messages)
            assert cluster.describe("orders")["settled"] == 2

    run(scenario)


def test_a_reconnect_attaches_before_the_release():
    """The socket breaks, the client is back within the second: it keeps what it holds."""

    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            await client.send_many("orders", [b"a", b"b"])
            messages = await client.receive("orders", max_messages=1)
            cluster.n1.break_connections()
            await asyncio.sleep(0.01)
            more = await client.receive("orders", max_messages=1)
            await asyncio.sleep(5)
            await client.ack([*messages, *more])
            assert cluster.describe("orders")["settled"] == 2

    run(scenario)


def test_goodbye_gives_back_at_once():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            await client.send("orders", b"a")
            await client.receive("orders")
        await asyncio.sleep(0.01)
        assert cluster.describe("orders")["ready"] == 1
        async with cluster.client() as client:
            assert (await client.receive("orders"))[0].delivery_count == 2

    run(scenario)


def test_a_cancelled_receive_gives_back_what_arrives_late():
    async def scenario(cluster):
        cluster.create_queue("orders")
        loop = asyncio.get_running_loop()
        async with cluster.client() as client:
            await client.send("orders", b"a")
            await client.receive("orders", visibility_timeout=0.001)
            await asyncio.sleep(0.01)
            cluster.n1.delay[K.RECEIVE] = 0.5
            waiting = loop.create_task(client.receive("orders"))
            await asyncio.sleep(0.1)
            assert cluster.describe("orders")["in_flight"] == 1
            waiting.cancel()
            await asyncio.sleep(0.5)
            assert waiting.cancelled()
            assert cluster.describe("orders")["ready"] == 1
            nack = cluster.settles[-1]
            assert (nack.action, nack.count, nack.time_us) == (requests.NACK, False, 0)

    run(scenario)


def test_a_cancelled_receive_whose_answer_is_lost_gives_back_too():
    """Nobody asks for that number again; the attach tells that something is held."""

    async def scenario(cluster):
        cluster.create_queue("orders")
        loop = asyncio.get_running_loop()
        async with cluster.client() as client:
            await client.send_many("orders", [b"a", b"b"])
            mine = await client.receive("orders")
            cluster.n1.delay[K.RECEIVE] = 0.5
            waiting = loop.create_task(client.receive("orders"))
            await asyncio.sleep(0.1)
            waiting.cancel()
            await asyncio.sleep(0)
            cluster.n1.break_connections()
            cluster.n1.delay.clear()
            await asyncio.sleep(0.1)
            await client.extend(mine, 60.0)
            await asyncio.sleep(0.1)
            assert cluster.describe("orders") == {
                "ready": 1, "in_flight": 1, "settled": 0, "dead": 0, "delayed": 0,
            }  # fmt: skip
            await client.ack(mine)

    run(scenario)


def test_a_cancellation_in_the_turn_of_the_reply():
    """The reply is there and its receiver is not: what it brought goes back."""

    async def scenario(cluster):
        cluster.create_queue("orders")
        loop = asyncio.get_running_loop()
        async with cluster.client() as client:
            await client.send_many("orders", [b"a"] * 3)
            await client.ack(await client.receive("orders"))
            waiting = loop.create_task(client.receive("orders"))
            connection = next(iter(client._router._connections.values()))
            taken = connection._take

            def take_and_cancel(frame):
                taken(frame)
                if frame.kind == K.DELIVERED:
                    waiting.cancel()

            connection._take = take_and_cancel
            await asyncio.sleep(0.1)
            assert waiting.cancelled()
            assert cluster.describe("orders")["ready"] == 2

    run(scenario)


def test_a_receive_cancelled_between_groups_gives_back_what_it_has():
    async def scenario(cluster):
        cluster.create_queue("orders", partitions=2)
        loop = asyncio.get_running_loop()
        async with cluster.client() as client:
            keys = [b"%d" % each for each in range(20)]
            await client.send_many("orders", [b"x"] * 20, keys=keys)
            await client.ack(await client.receive("orders", max_messages=20))
            await client.send_many("orders", [b"x"] * 20, keys=keys)
            cluster.n1.delay[K.RECEIVE] = 0.1
            waiting = loop.create_task(client.receive("orders", max_messages=100))
            await asyncio.sleep(0.15)
            waiting.cancel()
            await asyncio.sleep(0.5)
            assert cluster.describe("orders")["ready"] == 20

    run(scenario, groups=2)


def test_a_slow_answer_to_the_first_try_takes_nothing_back():
    """The reply comes after the receive was repeated with success: the messages stay."""

    async def scenario(cluster):
        cluster.create_queue("orders")
        loop = asyncio.get_running_loop()
        async with cluster.client() as client:
            await client.send("orders", b"a")
            await client.ack(await client.receive("orders"))
            await client.send("orders", b"b")
            cluster.n1.delay[K.RECEIVE] = 7.0
            waiting = loop.create_task(client.receive("orders"))
            await asyncio.sleep(3)
            cluster.n1.delay.clear()
            messages = await waiting
            await asyncio.sleep(10)
            assert cluster.describe("orders")["in_flight"] == 1
            await client.ack(messages)

    run(scenario)


def test_answers_that_never_come_use_up_no_numbers():
    async def scenario(cluster):
        cluster.create_queue("orders")
        loop = asyncio.get_running_loop()
        async with cluster.client() as client:
            await client.send_many("orders", [b"x"] * 200)
            await client.receive("orders")
            cluster.n1.delay[K.RECEIVE] = 10_000.0
            for _ in range(10):
                waiting = loop.create_task(client.receive("orders"))
                await asyncio.sleep(0.01)
                waiting.cancel()
            cluster.n1.delay.clear()
            for _ in range(150):
                messages = await client.receive("orders", max_messages=1)
                await client.ack(messages)
            assert cluster.describe("orders")["settled"] == 150
            # Those that nobody got went back when the session was attached anew.
            assert cluster.describe("orders")["in_flight"] == 1

    run(scenario)


def test_stale_receipts_name_what_failed():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            await client.send_many("orders", [b"a", b"b", b"c"])
            late = await client.receive("orders", max_messages=2, visibility_timeout=1.0)
            await asyncio.sleep(2)
            fresh = await client.receive("orders", max_messages=10)
            with pytest.raises(StaleReceipt, match="2 messages of 'orders'") as caught:
                await client.ack([*fresh, *late])
            assert caught.value.failed == tuple(message.receipt for message in late)
            assert cluster.describe("orders")["settled"] == 3

    run(scenario)


def test_an_expired_session_is_replaced():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            await client.send_many("orders", [b"a", b"b"])
            message = (await client.receive("orders"))[0]
            session = message.receipt.session
            cluster.groups[1].apply(commands.encode_release(session, 0, goodbye=True))
            with pytest.raises(StaleReceipt):
                await message.ack()
            again = await client.receive("orders", max_messages=2)
            assert [message.body for message in again] == [b"a", b"b"]
            assert again[0].receipt.session != session
            await client.ack(again)

    run(scenario)


def test_a_leader_that_moves_while_receiving():
    async def scenario(cluster):
        cluster.create_queue("orders", partitions=2)
        for node in cluster.nodes.values():
            node.redirects = True
        async with cluster.client() as client:
            keys = [b"%d" % each for each in range(100)]
            await client.send_many("orders", [b"x"] * 100, keys=keys)
            seen = []
            for turn in range(10):
                cluster.move_leader(1 + turn % 2, f"n{1 + turn % 3}")
                messages = await client.receive("orders", max_messages=10, wait=1.0)
                await client.ack(messages)
                seen += [message.key for message in messages]
            assert sorted(seen) == sorted(keys)

    run(scenario, nodes=3, groups=2)


def test_many_receives_at_once_stay_within_the_numbers():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            await client.send_many("orders", [b"x"] * 500)
            cluster.n1.delay[K.RECEIVE] = 0.01
            found = await asyncio.gather(
                *(client.receive("orders", max_messages=2) for _ in range(250))
            )
            offsets = sorted(message.offset for messages in found for message in messages)
            assert offsets == list(range(500))

    run(scenario)


def test_arguments_are_checked():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            for wrong in ({"max_messages": 0}, {"max_messages": 10_001}, {"wait": -1.0}):
                with pytest.raises(InvalidArgument):
                    await client.receive("orders", **wrong)
            with pytest.raises(InvalidArgument, match="subscription"):
                await client.receive("orders", subscription="a/b")
            with pytest.raises(InvalidArgument, match="subscribe first"):
                await client.receive("orders", subscription="billing")
            with pytest.raises(QueueNotFound):
                await client.receive("nothing")

    run(scenario)


def test_sessions_that_cannot_be_opened():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client(timeout=1.0) as client:
            cluster.n1.refuse[K.RECEIVE] = [SessionExpired("gone") for _ in range(100)]
            with pytest.raises(Exception, match="gone"):
                await client.receive("orders")

    run(scenario)
