"""Numbers of producers: holes in them, names that others take, and what nobody knows any more."""

import asyncio

import pytest
from fake_server import K, run

from raftq.errors import (
    ConnectionFailed,
    InvalidArgument,
    ProducerFenced,
    QueueNotFound,
    SequenceGap,
    SessionExpired,
    Timeout,
)


def test_a_batch_given_up_does_not_stop_those_behind_it():
    """Its number is a hole: what follows gets new numbers under a new identity, once."""

    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client(timeout=1.0) as client, client.producer("orders") as producer:
            await producer.send(b"0")
            cluster.n1.refuse[K.PUBLISH] = [InvalidArgument("no")]
            results = await asyncio.gather(
                producer.send_many([b"x" * 40_000] * 2),
                producer.send_many([b"y" * 40_000] * 2),
                producer.send_many([b"z" * 40_000] * 2),
                return_exceptions=True,
            )
            assert isinstance(results[0], InvalidArgument)
            assert results[0].failed == (0, 1)
            assert [receipt.offset for receipt in results[1]] == [1, 2]
            assert [receipt.offset for receipt in results[2]] == [3, 4]
            assert (await producer.send(b"1")).offset == 5
        assert [body[:1] for body in cluster.bodies("orders")] == [b"0", *b"y y z z 1".split()]

    run(scenario)


def test_a_batch_lost_and_given_up_costs_those_behind_it_a_delay_and_no_error():
    """Whether it was applied, nor whether they were, is known when they are refused for the gap."""

    async def scenario(cluster):
        cluster.create_queue("orders")
        loop = asyncio.get_running_loop()
        async with cluster.client(timeout=1.0) as client, client.producer("orders") as producer:
            await producer.send(b"0")
            cluster.n1.lose[K.PUBLISH] = 1_000
            first = loop.create_task(producer.send(b"1"))
            await asyncio.sleep(0.6)
            second = loop.create_task(producer.send(b"2"))
            third = loop.create_task(producer.send_many([b"3", b"4"]))
            with pytest.raises(ConnectionFailed) as caught:
                await first
            assert caught.value.outcome == "unknown"
            cluster.n1.lose.clear()
            assert (await second).offset == 1
            assert [receipt.offset for receipt in await third] == [2, 3]
        assert cluster.bodies("orders") == [b"0", b"2", b"3", b"4"]

    run(scenario)


def test_a_hole_and_a_leader_that_says_nothing_cost_no_more_than_the_time_of_the_call():
    async def scenario(cluster):
        cluster.create_queue("orders")
        loop = asyncio.get_running_loop()
        async with cluster.client(timeout=1.0) as client, client.producer("orders") as producer:
            await producer.send(b"0")
            cluster.n1.refuse[K.PUBLISH] = [SequenceGap("a gap")]
            cluster.n1.delay[K.CONTROL] = 100.0
            begun = loop.time()
            with pytest.raises(Timeout):
                await producer.send(b"1")
            assert loop.time() - begun < 1.1
            cluster.n1.delay.clear()
            assert (await producer.send(b"2")).offset == 1

    run(scenario)


def test_whoever_begins_anew_does_not_publish_again_what_is_in_the_log():
    """A leader that is none any more refuses for a gap what another one has applied."""

    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client, client.producer("orders") as producer:
            await producer.send(b"0")
            cluster.n1.swallow[K.PUBLISH] = 1
            sending = asyncio.gather(
                producer.send_many([b"x" * 40_000] * 2), producer.send_many([b"y" * 40_000] * 2)
            )
            await cluster.n1.broke.wait()
            cluster.n1.refuse[K.PUBLISH] = [SequenceGap("a gap"), SequenceGap("a gap")]
            first, second = await sending
            assert not cluster.n1.refuse[K.PUBLISH]
            assert [receipt.offset for receipt in first] == [1, 2]
            assert [receipt.offset for receipt in second] == [3, 4]
            assert (await producer.send(b"1")).offset == 5
        assert [body[:1] for body in cluster.bodies("orders")] == b"0 x x y y 1".split()

    run(scenario)


def test_a_producer_that_was_forgotten_says_what_it_cannot_know_and_goes_on():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client, client.producer("orders") as producer:
            await producer.send(b"0")
            cluster.n1.lose[K.PUBLISH] = 1
            sending = asyncio.get_running_loop().create_task(producer.send(b"1"))
            await cluster.n1.broke.wait()
            cluster.forget_producers("orders")
            with pytest.raises(SessionExpired, match="does not know it any more") as caught:
                await sending
            assert caught.value.outcome == "unknown"
            assert (await producer.send(b"2")).offset == 1

    run(scenario)


def test_named_producers_go_on_and_fence():
    async def scenario(cluster):
        cluster.create_queue("orders", partitions=2)
        async with cluster.client() as client, cluster.client() as other:
            older = await client.producer("orders", name="ingest").open()
            await older.send(b"1", key=b"k")
            async with other.producer("orders", name="ingest") as newer:
                assert (await newer.send(b"2", key=b"k")).offset == 1
                with pytest.raises(ProducerFenced):
                    await older.send(b"3", key=b"k")
                assert (await newer.send(b"4", key=b"k")).offset == 2

    run(scenario)


@pytest.mark.parametrize("end", ["fenced", "deleted"])
def test_who_submits_hears_at_once_that_nothing_can_be_published_any_more(end):
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client, cluster.client() as other:
            producer = await client.producer("orders", name="ingest").open()
            await producer.send(b"1")
            if end == "fenced":
                await other.producer("orders", name="ingest").open()
            else:
                cluster.delete_queue("orders")
            error = ProducerFenced if end == "fenced" else QueueNotFound
            with pytest.raises(error):
                await producer.send(b"2")
            with pytest.raises(error) as caught:
                await producer.submit(b"3")
            assert caught.value.outcome == "not_applied"
            with pytest.raises(error):
                await producer.send_many([b"4"])

    run(scenario)


def test_a_fenced_producer_that_finds_a_hole_does_not_fence_its_successor():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client, cluster.client() as other:
            older = await client.producer("orders", name="ingest").open()
            await older.send(b"1")
            async with other.producer("orders", name="ingest") as newer:
                cluster.n1.refuse[K.PUBLISH] = [SequenceGap("a gap")]
                with pytest.raises(ProducerFenced, match="'ingest' was opened by somebody else"):
                    await older.send(b"2")
                assert (await newer.send(b"3")).offset == 1
        assert cluster.bodies("orders") == [b"1", b"3"]

    run(scenario)


def test_an_opening_whose_answer_is_lost_is_tried_again():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            for number in range(2):
                cluster.n1.swallow[K.CONTROL] = 2
                async with client.producer("orders", name="ingest") as producer:
                    assert (await producer.send(b"%d" % number)).offset == number

    run(scenario)
