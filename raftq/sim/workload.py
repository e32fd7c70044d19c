"""A run's workload: client processes at work, what they heard, and how it is told to the ledger.

Theory of operation. Each client host runs a process with a client and some workers (`workers.py`):
tasks that use the client library as any program would. Workers pace themselves, so that the wanted
operations spread over the time of the faults. Some client processes are killed on the way, with
messages in hand and in flight, and begin anew.

    set up: create the queues -> work, under faults -> end: producers stop -> consumers drain

Rules

1. A payload is made once and never sent twice by the workload; what the library repeats is its own
   business. A payload names its producer's run and its number there, so that order can be told.
2. An error that faults can cause ends an operation; its outcome decides what is known. Any other
   error is a violation, any other exception fails the run.
3. An operation is one call of the client library that was answered, with success or with an error.
"""

import collections
import random
from collections.abc import Sequence
from typing import NamedTuple

from raftq.client.client import AsyncClient
from raftq.client.message import Message
from raftq.client.receipts import Receipt
from raftq.env import Environment
from raftq.errors import (
    Busy,
    ConnectionFailed,
    NoQuorum,
    RaftqError,
    SessionExpired,
    StaleReceipt,
    StorageFull,
    Timeout,
)
from raftq.ids import Micros, Offset
from raftq.sim.checkers import ViolationError
from raftq.sim.cluster import SimCluster
from raftq.sim.entropy import generator
from raftq.sim.ledger import Availability, Delivery, Ledger, Place
from raftq.sim.loop import MICROS

SUBSCRIPTION = "default"
SEPARATOR = b" "

CLIENT_SECONDS = (4.0, 8.0, 20.0)
"""Patience of clients: some give up within a fault, some outlive it."""

AUDIT_SECONDS = (0.0, 0.0, 2.0, 10.0, 86_400.0)

HURRY = 0.25
"""How much shorter pauses are while the run is behind with its operations."""

EXPECTED = (Timeout, ConnectionFailed, NoQuorum, Busy, StorageFull)
"""What the library may say under the faults that the nemesis knows."""

EXPECTED_OF_CONSUMERS = (*EXPECTED, StaleReceipt, SessionExpired)
CONSUMING = frozenset({"ack", "extend", "flush", "iterate", "nack", "receive"})


class QueuePlan(NamedTuple):
    """A queue of the run."""

    name: str
    partitions: int
    visibility_seconds: float
    audit_seconds: float = 86_400.0
    """How long settled messages are kept; 0: they may go at once."""


def draw_queues(choose: random.Random) -> tuple[QueuePlan, ...]:
    """One queue with several partitions, one with a single one."""
    return (
        QueuePlan(
            "orders", choose.randint(2, 4), choose.choice((1.0, 3.0)), choose.choice(AUDIT_SECONDS)
        ),
        QueuePlan("jobs", 1, choose.choice((1.0, 3.0)), choose.choice(AUDIT_SECONDS)),
    )


class Workload:
    """What all workers of a run share."""

    def __init__(
        self,
        cluster: SimCluster,
        seed: int,
        *,
        operations: int,
        duration: Micros,
        message_bytes: int,
        availability: Availability,
    ) -> None:
        self.cluster = cluster
        self.loop = cluster.loop
        self.ledger = Ledger()
        self.availability = availability
        self.operations = 0
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.queues = draw_queues(generator(seed, "queues"))
        self.producing: collections.Counter[str] = collections.Counter()
        """Producers at work, by host."""
        self.is_ending = False
        """No new messages from now on; what is there gets drained."""
        self.is_drained = False
        self.message_bytes = message_bytes
        """Bodies are up to so much longer than their payload's name."""
        self._seed = seed
        self._wanted = operations
        self._begun = cluster.loop.now
        self._duration = duration
        self._runs: collections.Counter[tuple[str, str]] = collections.Counter()
        self._payloads: dict[str, Payloads] = {}
        self._violations = cluster.watch

    # --- Time ----------------------------------------------------------------------------------

    def begin(self) -> None:
        """The faults, and with them the time over which to spread the work, begin now."""
        self._begun = self.loop.now

    @property
    def is_enough(self) -> bool:
        return self.operations >= self._wanted

    def pause_seconds(self, choose: random.Random, done: int, share: float) -> float:
        """How long a worker rests that has just `done` some of its `share` of all operations."""
        expected = self._wanted * (self.loop.now - self._begun) / self._duration
        hurry = HURRY if self.operations < expected else 1.0
        part = done / (share * self._wanted)
        return hurry * part * choose.random() * 2 * self._duration / MICROS

    # --- Clients -------------------------------------------------------------------------------

    def generator(self, name: str) -> random.Random:
        """A generator for the next run of the worker of that name."""
        self._runs["worker", name] += 1
        return generator(self._seed, "worker", name, str(self._runs["worker", name]))

    def payloads(
        self, name: str, choose: random.Random, *, ordered: bool = True, lasting: bool = False
    ) -> "Payloads":
        """Payloads for the next run of the producer of that name; `lasting`: they outlive the run."""
        self._runs["payloads", name] += not lasting
        run = f"{name}.{self._runs['payloads', name]}"
        made = self._payloads.get(run)
        if made is None:
            made = self._payloads[run] = Payloads(self, run, choose, ordered=ordered)
        return made

    def client(self, environment: Environment, choose: random.Random) -> AsyncClient:
        return AsyncClient(
            self.cluster.url, outside=environment, timeout=choose.choice(CLIENT_SECONDS)
        )

    # --- What is told --------------------------------------------------------------------------

    def succeeded(self, kind: str) -> None:
        self.operations += 1
        self.outcomes[f"{kind} ok"] += 1
        self.availability.succeeded(self.loop.now)

    def failed(self, kind: str, error: RaftqError, also: tuple[type[RaftqError], ...] = ()) -> None:
        """An operation ended with an error; there is a reason why it may be one of `also`, too."""
        self.operations += 1
        self.outcomes[f"{kind} {type(error).__name__} {error.outcome}"] += 1
        self.loop.trace.note(self.loop.now, "", f"{kind}: {error}")
        expected = EXPECTED_OF_CONSUMERS if kind in CONSUMING else EXPECTED
        if not isinstance(error, expected + also):
            with self._violations.kept():
                raise ViolationError(f"{kind} failed with {type(error).__name__}: {error}")

    def acknowledged(self, queue: str, receipt: Receipt, body: bytes) -> None:
        with self._violations.kept():
            place = Place(queue, receipt.partition, receipt.offset)
            self.ledger.acknowledged(place, payload_of(body))

    def refused(self, body: bytes) -> None:
        with self._violations.kept():
            self.ledger.refused(payload_of(body))

    def delivered(self, messages: Sequence[Message]) -> None:
        with self._violations.kept():
            for message in messages:
                self.ledger.delivered(delivery_of(message))

    def read(self, message: Message) -> None:
        with self._violations.kept():
            place = Place(message.queue, message.partition, Offset(message.offset))
            self.ledger.read(place, payload_of(message.body))

    def settled(self, messages: Sequence[Message], stale: StaleReceipt | None = None) -> None:
        """These were acknowledged, but for the stale ones."""
        failed = stale.failed if stale is not None else ()
        with self._violations.kept():
            for message in messages:
                if message.receipt not in failed:
                    self.ledger.settled(delivery_of(message))


class Payloads:
    """Makes the payloads of one run of one producer; `ordered` if it sends them in their order."""

    def __init__(
        self, workload: Workload, run: str, choose: random.Random, *, ordered: bool
    ) -> None:
        self._ordered = ordered
        self._workload = workload
        self._run = run
        self._choose = choose
        self._made = 0

    def next(self, queue: str) -> bytes:
        """A body that nobody else makes; the ledger knows that it is about to be sent."""
        self._made += 1
        payload = f"{self._run}{'-' if self._ordered else '/'}{self._made}"
        self._workload.ledger.attempted(queue, payload)
        padding = self._choose.randrange(self._workload.message_bytes)
        return payload.encode() + SEPARATOR + bytes(padding)


def payload_of(body: bytes) -> str:
    return body.partition(SEPARATOR)[0].decode()


def delivery_of(message: Message) -> Delivery:
    place = Place(message.queue, message.partition, Offset(message.offset))
    return Delivery(SUBSCRIPTION, place, payload_of(message.body), message.delivery_count)
