"""Publishing: batches, receipts, and every way in which an answer can be lost."""

import asyncio
import re

import pytest
from fake_server import K, no_quorum, run

from raftq.errors import (
    InvalidArgument,
    MessageTooLarge,
    QueueFull,
    QueueNotFound,
    Timeout,
)


def test_send_gives_a_receipt():
    async def scenario(cluster):
        cluster.create_queue("orders", partitions=2)
        async with cluster.client() as client:
            first = await client.send("orders", b"a", key=b"k")
            second = await client.send("orders", b"b", key=b"k")
        assert (first.offset, second.offset) == (0, 1)
        assert first.partition == second.partition
        assert second.index > first.index
        assert (first.acks, first.duplicate, len(first.chain)) == ("quorum", False, 16)

    run(scenario)


def test_concurrent_sends_share_batches():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            await client.send("orders", b"first")
            cluster.n1.heard.clear()
            receipts = await asyncio.gather(
                *(client.send("orders", b"%d" % number) for number in range(500))
            )
        assert [receipt.offset for receipt in receipts] == list(range(1, 501))
        assert cluster.n1.heard.count(K.PUBLISH) == 1

    run(scenario)


@pytest.mark.parametrize("keyed", [False, True])
def test_send_many_keeps_order(keyed):
    async def scenario(cluster):
        cluster.create_queue("orders", partitions=3)
        bodies = [b"%06d" % number * 20 for number in range(5_000)]
        keys = [b"k%d" % (number % 7) for number in range(5_000)] if keyed else None
        async with cluster.client() as client:
            receipts = await client.send_many("orders", bodies, keys=keys)
            assert len(receipts) == 5_000
            queue = cluster.queue("orders")
            for position in (0, 1, 2_500, 4_999, -1):
                receipt = receipts[position]
                group = cluster.groups[queue.groups[receipt.partition]]
                for stored in group.log[queue.id, receipt.partition]:
                    offset = receipt.offset - stored.base_offset
                    if 0 <= offset < 10_000 and bodies[position] in stored.data:
                        break
                else:
                    raise AssertionError("a receipt that points elsewhere")
            if keyed:
                found = await all_messages(client, 5_000)
                for key in set(keys):
                    mine = [message.body for message in found if message.key == key]
                    assert mine == [
                        body for body, other in zip(bodies, keys, strict=True) if other == key
                    ]
        assert sorted(cluster.bodies("orders")) == bodies

    run(scenario, groups=2)


async def all_messages(client, count):
    found = []
    while len(found) < count:
        found += await client.receive("orders", max_messages=1_000, wait=1.0)
    return sorted(found, key=lambda message: (message.partition, message.offset))


def test_receipts_are_a_sequence():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            receipts = await client.send_many("orders", [b"x" * 1_000] * 200)
            assert [receipt.offset for receipt in receipts] == list(range(200))
            assert [receipt.offset for receipt in receipts[10:20:3]] == [10, 13, 16, 19]
            assert receipts[-1].offset == 199
            with pytest.raises(IndexError):
                receipts[200]
            assert len(await client.send_many("orders", [])) == 0

    run(scenario)


@pytest.mark.parametrize("lost", range(0, 80, 3))
def test_a_reply_cut_at_any_byte(lost):
    """Whatever part of the reply arrived: the message is there once, and its receipt is right."""

    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            await client.send("orders", b"before")
            cluster.n1.cut_after = lost
            receipt = await client.send("orders", b"cut")
            after = await client.send("orders", b"after")
        assert (receipt.offset, after.offset) == (1, 2)
        assert cluster.bodies("orders") == [b"before", b"cut", b"after"]
        return receipt.duplicate

    # A PUBLISHED frame has 68 bytes: with all of them there was no need to ask again.
    assert run(scenario) == (lost < 68)


def test_reconnect_with_outstanding_batches():
    """The connection breaks again and again under load: all is there once, and in order."""

    async def scenario(cluster):
        cluster.create_queue("orders")
        bodies = [b"%05d" % number * 40 for number in range(8_000)]

        async def nemesis():
            for _ in range(12):
                await asyncio.sleep(0.0007)
                cluster.n1.break_connections()

        async with cluster.client() as client, client.producer("orders") as producer:
            breaking = asyncio.get_running_loop().create_task(nemesis())
            pending = [await producer.submit(body) for body in bodies]
            receipts = await producer.send_many(bodies)
            await producer.flush()
            await breaking
        offsets = [handle.result().offset for handle in pending]
        assert offsets == list(range(8_000))
        assert receipts[0].offset == 8_000
        assert cluster.bodies("orders") == bodies + bodies
        assert not cluster.refusals, "what was sent again was sent in the wrong order"

    run(scenario)


def test_lost_answers_make_no_duplicates():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            cluster.n1.swallow[K.PUBLISH] = 3
            receipts = [await client.send("orders", b"%d" % number) for number in range(5)]
        assert [receipt.offset for receipt in receipts] == [0, 1, 2, 3, 4]
        assert cluster.bodies("orders") == [b"0", b"1", b"2", b"3", b"4"]

    run(scenario)


@pytest.mark.parametrize("redirects", [True, False])
def test_a_moved_leader_costs_no_error(redirects):
    async def scenario(cluster):
        cluster.create_queue("orders")
        for node in cluster.nodes.values():
            node.redirects = redirects
        async with cluster.client() as client:
            assert (await client.send("orders", b"1")).offset == 0
            cluster.move_leader(1, "n3")
            assert (await client.send("orders", b"2")).offset == 1
            cluster.move_leader(1, "n2")
            cluster.nodes["n3"].kill()
            assert (await client.send("orders", b"3")).offset == 2

    run(scenario, nodes=3)


def test_a_killed_leader_costs_a_delay():
    async def scenario(cluster):
        cluster.create_queue("orders")
        loop = asyncio.get_running_loop()
        async with cluster.client() as client:
            await client.send("orders", b"1")
            cluster.nodes["n1"].kill()
            loop.call_later(0.3, cluster.move_leader, 1, "n2")
            begun = loop.time()
            assert (await client.send("orders", b"2")).offset == 1
            assert loop.time() - begun < 0.45

    run(scenario, nodes=3)


def test_an_answer_that_never_comes():
    """The node answers pings but not this: the outcome is unknown, and later sends go on."""

    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client(timeout=3.0) as client:
            await client.send("orders", b"1")
            cluster.n1.delay[K.PUBLISH] = 100.0
            with pytest.raises(Timeout) as caught:
                await client.send("orders", b"2")
            assert caught.value.outcome == "unknown"
            cluster.n1.delay.clear()
            assert (await client.send("orders", b"3")).offset == 2

    run(scenario)


def test_refusals_that_pass_are_waited_out():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            cluster.n1.refuse[K.PUBLISH] = [*no_quorum(2), QueueFull("full")]
            assert (await client.send("orders", b"1")).offset == 0
            assert not cluster.n1.refuse[K.PUBLISH]

    run(scenario)


def test_a_full_queue_is_told_in_the_end():
    async def scenario(cluster):
        cluster.create_queue("orders", max_messages=3)
        async with cluster.client(timeout=1.0) as client:
            await client.send_many("orders", [b"1", b"2", b"3"])
            with pytest.raises(QueueFull) as caught:
                await client.send("orders", b"4")
            assert caught.value.outcome == "not_applied"
            message = (await client.receive("orders"))[0]
            await message.ack()
            assert (await client.send("orders", b"5")).offset == 3

    run(scenario)


def test_flush_raises_what_failed():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client(timeout=1.0) as client:
            producer = await client.producer("orders").open()
            await producer.send(b"0")
            cluster.n1.refuse[K.PUBLISH] = [InvalidArgument("no")]
            handle = await producer.submit(b"1")
            with pytest.raises(ExceptionGroup) as caught:
                await producer.__aexit__(None, None, None)
            assert [type(error) for error in caught.value.exceptions] == [InvalidArgument]
            with pytest.raises(InvalidArgument, match="no"):
                await handle
            with pytest.raises(InvalidArgument, match="closed"):
                await producer.send(b"2")

    run(scenario)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"body": "text"}, InvalidArgument),
        ({"body": b"x" * 2_000_000}, MessageTooLarge),
        ({"body": b"x", "key": "k"}, InvalidArgument),
        ({"body": b"x", "key": b"k" * 2_000}, InvalidArgument),
        ({"body": b"x", "headers": {"a": 1.5}}, InvalidArgument),
        ({"body": b"x", "priority": 300}, InvalidArgument),
        ({"body": b"x", "delay": -1}, InvalidArgument),
        ({"body": b"x", "acks": "none"}, InvalidArgument),
        ({"body": b"x", "dellay": 1}, InvalidArgument),
        ({"body": b"x", "ttl": 5.0}, InvalidArgument),
    ],
)
def test_a_bad_message_harms_no_other(arguments, error):
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            good, bad, fine = await asyncio.gather(
                client.send("orders", b"good"),
                client.send("orders", **arguments),
                client.send("orders", b"fine"),
                return_exceptions=True,
            )
            assert isinstance(bad, error)
            assert (good.offset, fine.offset) == (0, 1)

    run(scenario)


def test_a_cancelled_send_does_not_cancel_the_others():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            await client.send("orders", b"0")
            loop = asyncio.get_running_loop()
            tasks = [loop.create_task(client.send("orders", b"%d" % n)) for n in range(3)]
            await asyncio.sleep(0)
            tasks[1].cancel()
            receipts = [await tasks[0], await tasks[2]]
            assert [receipt.offset for receipt in receipts] == [1, 3]
            assert tasks[1].cancelled()

    run(scenario)


def test_unknown_and_remade_queues():
    async def scenario(cluster):
        async with cluster.client() as client:
            with pytest.raises(QueueNotFound, match="no queue"):
                await client.send("orders", b"1")
            cluster.create_queue("orders")
            assert (await client.send("orders", b"1")).offset == 0
            cluster.delete_queue("orders")
            with pytest.raises(QueueNotFound):
                await client.send("orders", b"2")
            cluster.create_queue("orders")
            assert (await client.send("orders", b"3")).offset == 0
            cluster.delete_queue("orders")
            cluster.create_queue("orders")
            assert (await client.send("orders", b"4")).offset == 0

    run(scenario)


def test_options_per_message_take_the_slow_way():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            receipts = await client.send_many(
                "orders", [b"a", b"b"], timestamp=[5.0, 6.5], headers={"h": "v"}
            )
            assert [receipt.offset for receipt in receipts] == [0, 1]
            messages = await client.receive("orders", max_messages=2)
            assert [message.timestamp for message in messages] == [5.0, 6.5]
            assert [message.headers for message in messages] == [{"h": "v"}] * 2

    run(scenario)


def test_one_key_may_stand_for_all():
    async def scenario(cluster):
        cluster.create_queue("orders", partitions=5)
        async with cluster.client() as client:
            receipts = await client.send_many("orders", [b"a", b"b", b"c"], keys=b"k")
            assert len({receipt.partition for receipt in receipts}) == 1
            slow = await client.send_many("orders", [b"d", b"e"], keys=b"k", timestamp=[5.0, 6.0])
            messages = await client.receive("orders", max_messages=10)
            assert [message.key for message in messages] == [b"k"] * 5
            assert slow[0].partition == receipts[0].partition

    run(scenario)


@pytest.mark.parametrize(
    ("bodies", "options", "says"),
    [
        (5, {}, "bodies is a list of bytes, not 5"),
        (b"ab", {}, "bodies is a list of bytes, not b'ab'"),
        ("ab", {}, "bodies is a list of bytes, not 'ab'"),
        (None, {}, "bodies is a list of bytes, not None"),
        ([5], {}, "encode it first"),
        ([b"a"], {"keys": "k"}, "keys is a list"),
        ([b"a"], {"keys": 7}, "keys is a list"),
        ([b"a"], {"keys": [b"k", b"l"]}, "2 items for 1 messages"),
        ([b"a"], {"headers": 7}, "headers are a map"),
    ],
)
def test_what_cannot_be_sent_is_said_by_name(bodies, options, says):
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            with pytest.raises(InvalidArgument, match=re.escape(says)):
                await client.send_many("orders", bodies, **options)
            assert (await client.send("orders", b"a")).offset == 0

    run(scenario)


def test_a_linger_gathers():
    async def scenario(cluster):
        cluster.create_queue("orders")
        loop = asyncio.get_running_loop()
        async with cluster.client() as client, client.producer("orders", linger=0.05) as producer:
            begun = loop.time()
            handles = []
            for number in range(10):
                handles.append(await producer.submit(b"%d" % number))
                await asyncio.sleep(0.002)
            await handles[0]
            assert 0.05 <= loop.time() - begun < 0.06
            assert cluster.n1.heard.count(K.PUBLISH) == 1

    run(scenario)


def test_submit_waits_for_space(monkeypatch):
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client, client.producer("orders", window=1) as producer:
            handles = [await producer.submit(b"x" * 50_000) for _ in range(40)]
            assert producer._buffered < 400_000
            assert handles[0].done()
            await producer.flush()
            assert [handle.result().offset for handle in handles] == list(range(40))

    monkeypatch.setattr("raftq.client.producer.BUFFER_BYTES", 300_000)
    run(scenario)
