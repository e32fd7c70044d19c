"""A client process: what it does with the public client library, and the history it writes.

    python chaos_clients.py '{"role": ..., "url": ..., "seed": ..., "history": ..., "probes": ...,
                              "keys": {"0": "key", ...}, "partitions": ...}'

Two roles: "producers" (one after the other, many in flight under a name, lists, many at once, and
one prober for each chosen partition) and "consumers" (lists that are acknowledged, given back, held
longer or let go; the prefetching consumer; readers). The workers are those of the simulator: here
they meet real processes. Commands come as lines: `end` (producers stop, consumers drain),
`drained`, and `explain` (say where every task waits).

Rule: the process knows nothing of nodes and faults, and judges nothing.
"""

import asyncio
import collections
import json
import random
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import raftq
from raftq.client.client import AsyncClient
from raftq.client.message import Message
from raftq.client.receipts import Receipt
from raftq.env import loop
from raftq.errors import RaftqError, StaleReceipt
from raftq.sim.workers import (
    Bulk,
    Iterator,
    Parallel,
    Receiver,
    Replayer,
    Synchronous,
    Windowed,
    Worker,
)
from raftq.sim.workload import Payloads, QueuePlan, payload_of

sys.path.insert(0, str(Path(__file__).parent))
from chaos_history import History, ProbeWriter

ORDERS, JOBS, PROBES = "orders", "jobs", "probes"
ORDERS_PARTITIONS = 6
VISIBILITY_SECONDS = 3.0
TIMEOUT_SECONDS = 20.0
OPERATIONS_PER_SECOND = 120
MESSAGE_BYTES = 400
PROBE_PAUSE_SECONDS = 0.008
DRAIN_MESSAGES = 1_000
PAUSE_SECONDS_MAX = 1.5
"""A worker that rests cannot be told that the end has come."""

QUEUES = (
    QueuePlan(ORDERS, ORDERS_PARTITIONS, VISIBILITY_SECONDS),
    QueuePlan(JOBS, 1, VISIBILITY_SECONDS),
)


class RealWorkload:
    """What the workers share, told to a history in the place of a checker."""

    def __init__(self, history: History, seed: int) -> None:
        self.queues = QUEUES
        self.message_bytes = MESSAGE_BYTES
        self.ledger = self
        self.producing: collections.Counter[str] = collections.Counter()
        self.is_ending = False
        self.is_drained = False
        self.write = history.write
        self._seed = seed
        self._runs: collections.Counter[str] = collections.Counter()
        self._payloads: dict[str, Payloads] = {}

    def generator(self, name: str) -> random.Random:
        self._runs[name] += 1
        return random.Random(f"{self._seed} {name} {self._runs[name]}")

    def payloads(
        self, name: str, choose: random.Random, *, ordered: bool = True, lasting: bool = False
    ) -> Payloads:
        run = f"{name}.{0 if lasting else self._runs[name]}"
        if run not in self._payloads:
            self._payloads[run] = Payloads(self, run, choose, ordered=ordered)  # type: ignore[arg-type]
        return self._payloads[run]

    def pause_seconds(self, choose: random.Random, done: int, share: float) -> float:
        if self.is_ending:
            return 0.005
        pause = done / (share * OPERATIONS_PER_SECOND) * 2 * choose.random()
        return min(pause, PAUSE_SECONDS_MAX)

    # --- What is told --------------------------------------------------------------------------

    def attempted(self, queue: str, payload: str) -> None:
        self.write("attempt", queue, payload)

    def succeeded(self, kind: str) -> None:
        self.write("ok", kind)

    def failed(self, kind: str, error: RaftqError, also: tuple[type[RaftqError], ...] = ()) -> None:
        name = "Expected" if also and isinstance(error, also) else type(error).__name__
        self.write("failed", kind, name, error.outcome, str(error))

    def acknowledged(self, queue: str, receipt: Receipt, body: bytes) -> None:
        self.write("ack", queue, receipt.partition, receipt.offset, payload_of(body))

    def refused(self, body: bytes) -> None:
        self.write("refused", payload_of(body))

    def delivered(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self.write("delivered", *facts_of(message), message.delivery_count)

    def read(self, message: Message) -> None:
        self.write("read", *facts_of(message))

    def settled(self, messages: Sequence[Message], stale: StaleReceipt | None = None) -> None:
        failed = stale.failed if stale is not None else ()
        for message in messages:
            if message.receipt not in failed:
                self.write("settled", *facts_of(message), message.delivery_count)


def facts_of(message: Message) -> tuple[str, int, int, str]:
    return message.queue, message.partition, message.offset, payload_of(message.body)


class Prober(Worker):
    """One small message after the other to one partition: when does it accept them?"""

    produces = True

    def __init__(
        self,
        workload: Any,
        client: AsyncClient,
        host: str,
        acknowledged: Callable[[], None],
        partition: int,
        key: bytes,
    ) -> None:
        self.name = f"probe{partition}"
        super().__init__(workload, client, host)
        self._acknowledged = acknowledged
        self._key = key

    async def work(self) -> None:
        body = self.payloads.next(PROBES)
        await self.send("probe", PROBES, body, self._sent(body))

    async def _sent(self, body: bytes) -> Receipt:
        receipt = await self.client.send(PROBES, body, key=self._key)
        self._acknowledged()
        return receipt

    async def rest(self, operations: int) -> None:
        await asyncio.sleep(PROBE_PAUSE_SECONDS)


class Drainer(Receiver):
    """In the end takes whatever is there, from every queue, without pauses."""

    async def work(self) -> None:
        if not self.workload.is_ending:
            await super().work()
            return
        for plan in self.workload.queues:
            messages = await self.call(
                "receive", self.client.receive(plan.name, max_messages=DRAIN_MESSAGES, wait=0.1)
            )
            if messages:
                self.workload.delivered(messages)
                await self._ack(messages)


class Auditor(Replayer):
    """A reader; in the end it leaves the nodes to those who drain."""

    async def rest(self, operations: int) -> None:
        await (asyncio.sleep(1.0) if self.workload.is_ending else super().rest(operations))


ROLES: dict[str, tuple[type[Worker], ...]] = {
    "producers": (Synchronous, Windowed, Bulk, Parallel),
    "consumers": (Drainer, Drainer, Iterator, Auditor),
}


async def until_it_ends(workload: RealWorkload, worker: Worker) -> None:
    """Whatever a worker trips over, besides errors that faults explain, is part of the history."""
    try:
        await worker.run()
    except Exception:
        workload.write("broken", traceback.format_exc(limit=-6))


def explain() -> None:
    """Where every task waits, down to the innermost call."""
    for task in asyncio.all_tasks():
        lines, waits_for = [], task.get_coro()
        while (frame := getattr(waits_for, "cr_frame", None)) is not None:
            lines.append(f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}")
            waits_for = getattr(waits_for, "cr_await", None)
        print(task.get_name(), f"waits for {waits_for!r}", *lines, sep="\n", file=sys.stderr)
    sys.stderr.flush()


async def listen(workload: RealWorkload) -> None:
    running = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await running.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while command := (await reader.readline()).strip():
        if command == b"explain":
            explain()
            continue
        workload.is_ending = True
        workload.is_drained = workload.is_drained or command == b"drained"
    # The harness is gone: nobody will say more.
    workload.is_ending = workload.is_drained = True


async def main(wanted: dict[str, Any]) -> None:
    role = wanted["role"]
    history = History(Path(wanted["history"]))
    workload: Any = RealWorkload(history, wanted["seed"])
    probes = ProbeWriter(Path(wanted["probes"])) if wanted["keys"] else None
    background = [
        asyncio.ensure_future(each) for each in (history.keep_flushing(), listen(workload))
    ]
    async with raftq.AsyncClient(wanted["url"], timeout=TIMEOUT_SECONDS) as client:
        workers = [kind(workload, client, role) for kind in ROLES[role]]
        for partition, key in wanted["keys"].items():
            assert probes is not None

            def acknowledged(partition: int = int(partition)) -> None:
                probes.acknowledged(partition)

            workers.append(
                Prober(workload, client, role, acknowledged, int(partition), key.encode())
            )
        work: list[Awaitable[None]] = [until_it_ends(workload, worker) for worker in workers]
        history.write("ok", "begin")
        await asyncio.gather(*work)
    history.write("ok", "end")
    for task in background:
        task.cancel()
    history.close()
    print(f"{role} ended at {time.monotonic():.3f}", flush=True)


if __name__ == "__main__":
    loop.run(main(json.loads(sys.argv[1])))
