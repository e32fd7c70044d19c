"""Under which numbers a producer writes to one partition.

The server keeps, per partition, the epoch and the last sequence of each producer id. A name is an
id that stays the same: to open it is to take it over from whoever used it before. Without a name the
id is drawn by chance, so that nobody else has it, and needs no opening.

Either begins anew (`renew`) when its numbers have a hole: that raises the epoch, so that nothing sent
before enters the log any more, and says how far it did.
"""

from typing import Any

from xxhash import xxh3_64_intdigest

from raftq.client.ports import SECOND_US
from raftq.client.routing import QueueInfo, Router
from raftq.errors import ProducerFenced, ProtocolError
from raftq.ids import Partition, ProducerId


class Identity:
    """A producer's id, epoch and next number in one partition."""

    def __init__(
        self, router: Router, info: QueueInfo, partition: Partition, name: str | None
    ) -> None:
        entropy = router.outside.entropy
        number = entropy.bits(64) if name is None else xxh3_64_intdigest(name.encode())
        self.producer = ProducerId(number or 1)
        self.epoch = 0
        self.next_sequence = 0
        self._router = router
        self._group = info.groups[partition]
        self._whose = "this producer" if name is None else f"producer {name!r}"
        self._request: dict[str, Any] = {
            "do": "open_producer",
            "queue": info.id,
            "partition": partition,
            "producer": self.producer,
            "opener": entropy.bits(64) or 1,
        }

    async def take_over(self, seconds: float) -> None:
        """Become the one who has the name. May be tried again whatever became of it.

        Raises: RaftqError, NotLeader, Moved.
        """
        epoch = 0
        while True:
            reply = await self._open(epoch, seconds)
            if reply["opened"]:
                return
            epoch = int(reply["epoch"])

    async def renew(self, seconds: float) -> None:
        """Begin anew behind all that was published: nothing sent before enters the log any more.

        May be tried again whatever became of it.

        Raises: ProducerFenced, other RaftqError, NotLeader, Moved.
        """
        reply = await self._open(self.epoch, seconds)
        if not reply["opened"]:
            raise ProducerFenced(f"{self._whose} was opened by somebody else; this one must stop")

    async def _open(self, epoch: int, seconds: float) -> dict[str, Any]:
        clock = self._router.outside.clock
        until = clock.monotonic() + int(seconds * SECOND_US)
        connection = await self._router.to_leader(self._group, seconds)
        left = max(until - clock.monotonic(), 0) / SECOND_US
        reply = await connection.control({**self._request, "epoch": epoch}, left)
        try:
            if reply["opened"]:
                self.epoch = int(reply["epoch"])
                self.next_sequence = int(reply["last_sequence"]) + 1
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"an opening was answered with {reply!r}") from error
        return reply
