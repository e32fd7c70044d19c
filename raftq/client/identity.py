"""Under which number a producer writes to one partition.

The server keeps, per partition, the epoch and the last sequence of each producer id. A name is an
id that stays the same: opening it raises the epoch, which fences whoever used it before. Without a
name the id is drawn by chance, so that nobody else has it.
"""

from typing import Any

from xxhash import xxh3_64_intdigest

from raftq.client.ports import Outside
from raftq.client.routing import QueueInfo, Router
from raftq.ids import Partition, ProducerId


class AnonymousIdentity:
    """A random producer id for one partition, at epoch 0 and from sequence 0."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self.producer = ProducerId(outside.entropy.bits(64))
        self.epoch = 0
        self.next_sequence = 0

    async def renew(self, seconds: float) -> None:  # noqa: ARG002 - nothing is asked of a server.
        self.producer = ProducerId(self._outside.entropy.bits(64))
        self.next_sequence = 0


class NamedIdentity:
    """The identity that a name has in one partition; `renew` opens it there."""

    def __init__(self, router: Router, info: QueueInfo, partition: Partition, name: str) -> None:
        self._router = router
        self._group = info.groups[partition]
        self.producer = ProducerId(xxh3_64_intdigest(name.encode()) or 1)
        self.epoch = 0
        self.next_sequence = 0
        self._request: dict[str, Any] = {
            "do": "open_producer",
            "queue": info.id,
            "partition": partition,
            "producer": self.producer,
            "name": name,
        }

    async def renew(self, seconds: float) -> None:
        connection = await self._router.to_leader(self._group)
        reply = await connection.control(self._request, seconds)
        self.epoch = int(reply["epoch"])
        self.next_sequence = int(reply["last_sequence"]) + 1
