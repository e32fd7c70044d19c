"""A producer and two consumers on a real cluster, and the ledger of what they were told."""

import asyncio
import itertools
import random
import time

import raftq
from raftq.client.ports import real_outside
from raftq.client.routing import Router
from raftq.client.url import parse_url

QUEUE = "chaos"
PARTITIONS = 3
SENDERS = 3


class Load:
    """The application: it knows nothing of nodes, and no error may reach it."""

    def __init__(self, url, *, seed):
        self.url = url
        self.choose = random.Random(seed)
        self.sent = 0
        self.acked = {}
        self.acked_at = []
        self.consumed = {}
        self.problems = []
        self.sending = True
        self.tasks = []

    async def start(self):
        self.clients = [raftq.AsyncClient(self.url) for _ in range(3)]
        for client in self.clients:
            await client.connect()
        self.client = self.clients[0]
        await self.client.create_queue(
            QUEUE, partitions=PARTITIONS, visibility_timeout=3.0, delivery_limit=None
        )
        self.senders = [asyncio.create_task(self._send()) for _ in range(SENDERS)]
        self.senders.append(asyncio.create_task(self._send_many()))
        self.consumers = [asyncio.create_task(self._consume(each)) for each in self.clients[1:]]

    def _next(self):
        self.sent += 1
        return self.sent

    def _acknowledged(self, number, receipt):
        self.acked[number] = (receipt.partition, receipt.offset)

    async def _send(self):
        try:
            while self.sending:
                number = self._next()
                body = b"%d" % number
                receipt = await self.client.send(QUEUE, body, key=b"%d" % (number % 50))
                self._acknowledged(number, receipt)
                self.acked_at.append(time.monotonic())
                await asyncio.sleep(self.choose.random() * 0.03)
        except Exception as error:
            self.problems.append(error)

    async def _send_many(self):
        try:
            while self.sending:
                numbers = [self._next() for _ in range(20)]
                receipts = await self.client.send_many(QUEUE, [b"%d" % each for each in numbers])
                for number, receipt in zip(numbers, receipts, strict=True):
                    self._acknowledged(number, receipt)
                await asyncio.sleep(self.choose.random() * 0.5)
        except Exception as error:
            self.problems.append(error)

    async def _consume(self, client):
        try:
            async with client.consumer(QUEUE, prefetch=50) as consumer:
                async for message in consumer:
                    place = (message.partition, message.offset)
                    found = self.consumed.setdefault(place, [])
                    found.append((message.delivery_count, int(message.body)))
                    await message.ack()
        except Exception as error:
            self.problems.append(error)

    # --- Judgement ----------------------------------------------------------------------------

    def longest_gap(self, begin, end):
        """The longest time without an acknowledgement between two moments."""
        times = [begin, *(each for each in self.acked_at if begin < each < end), end]
        return max(late - early for early, late in itertools.pairwise(times))

    async def finish(self):
        """Stop sending, wait until everything is consumed, and leave."""
        self.sending = False
        async with asyncio.timeout(40):
            await asyncio.gather(*self.senders)
        try:
            async with asyncio.timeout(30):
                while not self.problems and not await self._is_drained():  # noqa: ASYNC110 - remote.
                    await asyncio.sleep(0.1)
        finally:
            for task in self.consumers:
                task.cancel()
            await asyncio.gather(*self.consumers, return_exceptions=True)
        assert self.problems == [], f"the client library hides the kills: {self.problems!r}"

    async def _is_drained(self):
        found = await self.client.describe_queue(QUEUE)
        return found.ready == found.in_flight == found.delayed == 0 and all(
            place in self.consumed for place in self.acked.values()
        )

    async def judge(self):
        """Compare what was acknowledged with what is in the log and what was handed out."""
        assert len(set(self.acked.values())) == len(self.acked), "one offset for two messages"
        kept = {}
        for partition in range(PARTITIONS):
            async for message in self.client.reader(QUEUE, partition=partition, follow=False):
                kept[partition, message.offset] = int(message.body)
        lost = {number for number, place in self.acked.items() if kept.get(place) != number}
        assert lost == set(), "acknowledged messages lost"
        assert len(set(kept.values())) == len(kept), "a message was stored twice"
        assert set(kept.values()) <= set(range(1, self.sent + 1)), "messages nobody sent"
        for place, deliveries in self.consumed.items():
            counts = [count for count, _ in deliveries]
            assert {number for _, number in deliveries} == {kept[place]}
            assert len(set(counts)) == len(counts), f"{place} came twice as the same delivery"
            assert len(counts) == 1 or max(counts) > 1
        assert set(kept) == set(self.consumed), "something was never handed out"
        for client in self.clients:
            await client.close()

    def repeated(self):
        return sum(len(each) > 1 for each in self.consumed.values())


async def assert_replicas_equal(processes, *, seconds=20):
    """Chains and machine digests of all groups are the same on every node."""
    outside = real_outside()
    routers = {
        name: Router(outside, parse_url(processes.url_of(name)), "test") for name in processes.names
    }
    try:
        async with asyncio.timeout(seconds):
            status = await next(iter(routers.values())).call({"do": "status"}, seconds)
            groups = [group["group"] for group in status["groups"]]
            assert len(groups) == 1 + len(processes.names)
            for group in groups:
                while True:
                    found = [
                        await router.call({"do": "digest", "group": group}, seconds)
                        for router in routers.values()
                    ]
                    if all(each == found[0] for each in found):
                        break
                    await asyncio.sleep(0.1)
            for router in routers.values():
                status = await router.call({"do": "status"}, seconds)
                assert [each["quarantined"] for each in status["groups"]] == [None] * len(groups)
                assert status["lost"] == []
    finally:
        for router in routers.values():
            await router.close()
