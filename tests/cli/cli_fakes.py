"""A client that remembers what it was asked, and answers what it was told to."""

from raftq.batch import Batch, encode
from raftq.client.admin import (
    DeadLetter,
    PartitionDescription,
    QueueDescription,
    QueueSummary,
    Redriven,
    SubscriptionCounts,
)
from raftq.client.message import Message, Source, Target, messages_of
from raftq.client.receipts import Receipt
from raftq.errors import QueueNotFound
from raftq.wire.requests import StoredBatch

SUMMARY = QueueSummary("orders", 3, {"partitions": 2}, 2, "active")
DESCRIPTION = QueueDescription(
    "orders",
    3,
    {"partitions": 1},
    "default",
    (PartitionDescription(0, 1, "n2", 5, 9, {"default": SubscriptionCounts(ready=3, settled=1)}),),
)
LETTER = DeadLetter(
    "orders",
    0,
    7,
    b"\xff",
    b"key",
    {"a": 1},
    1.5,
    6,
    "delivery_limit",
    "boom",
    1_700_000_032.0,
    (
        [40, 9, 1_700_000_000_000_000, 1_700_000_030_500_000, "expired", ""],
        [41, 9, 1_700_000_031_000_000, 1_700_000_032_000_000, "nacked", "boom"],
    ),
)
STATUS = {
    "cluster": "ab" * 16,
    "node": "n1",
    "version": "1",
    "queues": 1,
    "problem": None,
    "nodes": [{"name": "n1", "peer": "h:1", "client": None, "up": True}],
    "groups": [
        {
            "group": 0,
            "leader": "n1",
            "role": "leader",
            "term": 2,
            "commit_index": 5,
            "applied_index": 5,
            "quarantined": None,
            "health": "",
            "last_index": 6,
            "replicas": [{"node": "n2", "replica": 2, "match_index": 4, "silent_us": 1}],
        }
    ],
}


class Settler:
    async def settle_ack(self, messages):
        raise AssertionError("the commands settle through the client")


def make_messages(bodies, *, keys=None, headers=None):
    data = encode(bodies, queue=3, partition=0, keys=keys, headers=headers, times=2_000_000)
    stored = StoredBatch(0, 10, 1, data)
    target = Target("orders", 3, "default", 1, 1)
    source = Source(target, Settler(), Batch(data), stored, 1, 1, 10, 10 + len(bodies))
    return messages_of(source, Message)


class FakeClient:
    """`calls` is what was asked: name, arguments, options."""

    def __init__(self, messages=()):
        self.calls = []
        self.messages = list(messages)
        self.acked = []
        self.servers = None

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        return None

    def _asked(self, name, *arguments, **options):
        self.calls.append((name, arguments, options))
        if "missing" in arguments:
            raise QueueNotFound("no queue is called 'missing'; create it first")

    async def create_queue(self, name, **options):
        self._asked("create_queue", name, **options)
        return SUMMARY

    async def update_queue(self, name, **options):
        self._asked("update_queue", name, **options)
        return SUMMARY

    async def list_queues(self):
        self._asked("list_queues")
        return [SUMMARY, QueueSummary("a", 4, {}, 1, "creating")]

    async def describe_queue(self, name, *, subscription="default"):
        self._asked("describe_queue", name, subscription=subscription)
        return DESCRIPTION

    async def delete_queue(self, name, *, force):
        self._asked("delete_queue", name, force=force)

    async def purge_queue(self, name):
        self._asked("purge_queue", name)
        return 12

    async def dead_letters(self, name, *, subscription, limit):
        self._asked("dead_letters", name, subscription=subscription, limit=limit)
        return [LETTER]

    async def redrive(self, name, *, subscription, reason, dry_run):
        self._asked("redrive", name, subscription=subscription, reason=reason, dry_run=dry_run)
        return Redriven(2, {"delivery_limit": 2})

    async def purge_dead(self, name, *, subscription):
        self._asked("purge_dead", name, subscription=subscription)
        return 4

    async def status(self):
        self._asked("status")
        return STATUS

    async def replace_node(self, name):
        self._asked("replace_node", name)
        return [0, 4]

    async def send_many(self, queue, bodies, *, keys, headers):
        self._asked("send_many", queue, bodies=bodies, keys=keys, headers=headers)
        return [
            Receipt(0, offset, 1, 2, b"\x01" * 16, "quorum", False) for offset in range(len(bodies))
        ]

    async def receive(self, queue, *, max_messages, **options):
        self._asked("receive", queue, max_messages=max_messages, **options)
        taken, self.messages = self.messages[:max_messages], self.messages[max_messages:]
        return taken

    async def ack(self, messages):
        self.acked += messages

    async def reader(self, queue, *, partition, start, follow):
        self._asked("reader", queue, partition=partition, start=start, follow=follow)
        for message in self.messages:
            yield message
