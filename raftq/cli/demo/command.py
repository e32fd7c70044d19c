"""The command and its phases: start, publish, kill, restart, drain, compare, audit, say.

Everything runs in this process but the nodes: the producer and each consumer are clients of their
own, and know nothing of each other but the queue's name.
"""

import asyncio
import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from raftq.cli.demo import input as inputs
from raftq.cli.demo.audit import run_audit
from raftq.cli.demo.nodes import Digests, kill_leader, restart_later
from raftq.cli.demo.publish import PORTION_MESSAGES, Publisher
from raftq.cli.demo.rebuild import Rebuild, consume
from raftq.cli.demo.verdict import Verdict
from raftq.cli.options import JsonOption
from raftq.cli.output import print_error, print_json, print_note, print_table, print_text
from raftq.cli.processes import Processes
from raftq.cli.progress import Progress
from raftq.embedded.ledger import write_ledger
from raftq.env import loop

QUEUE: Final = "stdlib"
PARTITIONS: Final = 4
NODES: Final = 3
CONSUMERS: Final = 2
STALL_SECONDS: Final = 45.0
"""Longer than a visibility timeout: after this much time without a new message, what is missing is
lost."""

LEDGER_NAME: Final = "ledger.jsonl"


def demo(
    given: Annotated[
        Path | None,
        typer.Option(
            "--input", help="A directory or file instead of Python's own standard library."
        ),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", help="Keep data, logs and ledger in this new or empty directory."),
    ] = None,
    audit: Annotated[
        bool, typer.Option("--audit/--no-audit", help="Let Spark read all replicas in the end.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Prove it: send real files through a cluster, kill a leader half way, count everything.

    Three node processes, one producer, two consumers. Each line of the input is a message; the
    consumers build every file anew. Half way the leader of the busiest partition is killed with
    SIGKILL, and started again later. In the end every file must be identical, nothing lost, handed
    out twice or out of order, the replicas equal, and an audit by Spark must find no fault in what
    they wrote. Ends with status 0 only if all is right.

    ```
    raftq demo
    raftq demo --input ~/src/project --keep ./demo-data
    raftq demo --json | tail -1 | jq .failover_ms
    ```
    """
    begun = time.monotonic()
    files = inputs.find_files(given)
    directory = _directory(keep)
    # What went wrong is there to be looked at: only after a good end is anything removed.
    try:
        with Progress() as progress:
            verdict = loop.run(_Demo(directory, files, progress).run())
            if audit:
                progress.phase("auditing all replicas with Spark")
                verdict.add_audit(run_audit(directory, directory / LEDGER_NAME, progress))
    except BaseException:
        print_note(f"data and logs are in {directory}")
        raise
    faults = verdict.faults()
    if keep is not None or faults:
        verdict.data = str(directory)
    else:
        shutil.rmtree(directory)
    verdict.total_seconds = round(time.monotonic() - begun, 1)
    _say(verdict, as_json=as_json)
    raise typer.Exit(1 if faults else 0)


def _directory(keep: Path | None) -> Path:
    """A new directory, or the one that was asked for."""
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="raftq-demo-"))
    if keep.exists() and any(keep.iterdir()):
        raise typer.BadParameter(f"--keep {keep}: the directory is not empty")
    keep.mkdir(parents=True, exist_ok=True)
    return keep.resolve()


def _say(verdict: Verdict, *, as_json: bool) -> None:
    if as_json:
        print_json(verdict.to_map())
    else:
        print_table(("", ""), verdict.rows())
        if verdict.data is not None:
            print_text(f"data, logs and ledger are in {verdict.data}")
    faults = verdict.faults()
    if faults:
        print_error("DemoFailed", "; ".join(faults))
    elif not as_json:
        print_text("all is right")


class _Demo:
    """One run."""

    def __init__(self, directory: Path, files: list[inputs.SourceFile], progress: Progress) -> None:
        self._directory = directory
        self._files = files
        self._progress = progress
        self._processes = Processes(NODES, data=directory)
        self._rebuild = Rebuild()
        self._killed = ""
        self._killed_at = 0.0
        self._restart: asyncio.Task[None] | None = None

    async def run(self) -> Verdict:
        progress = self._progress
        expected = inputs.count_messages(self._files)
        progress.phase(f"starting {NODES} nodes")
        async with self._processes as processes, processes.client() as client:
            made = await client.create_queue(QUEUE, partitions=PARTITIONS)
            publisher = Publisher(client, QUEUE, made.id)
            progress.phase("publishing and consuming", total=expected)
            consumers = [asyncio.create_task(self._consumer()) for _ in range(CONSUMERS)]
            await publisher.run(
                inputs.portions(self._files, min(PORTION_MESSAGES, 1 + expected // 16)),
                half=expected // 2,
                half_way=lambda: self._kill(publisher),
                progress=lambda: self._show(publisher),
            )
            published_at = time.monotonic()
            await self._drain(publisher, consumers)
            drain_seconds = time.monotonic() - published_at
            for consumer in consumers:
                consumer.cancel()
            await asyncio.gather(*consumers, return_exceptions=True)
            assert self._restart is not None, "half of the input is part of it"
            await self._restart
            progress.phase("waiting for the killed node to catch up, comparing replicas")
            await processes.ready()
            identical = await Digests(processes).are_equal()
            status = await client.status()
        write_ledger(self._directory / LEDGER_NAME, publisher.rows, cluster=status["cluster"])
        verdict = self._judge(publisher, identical=identical)
        verdict.killed = self._killed
        gap = publisher.longest_gap(self._killed_at)
        verdict.failover_ms = None if gap is None else round(1_000 * gap)
        verdict.drain_seconds = round(drain_seconds, 2)
        return verdict

    async def _consumer(self) -> None:
        async with self._processes.client() as client:
            await consume(client, QUEUE, self._rebuild)

    def _show(self, publisher: Publisher) -> None:
        acknowledged, consumed = publisher.record.count, self._rebuild.record.count
        self._progress.advance(acknowledged, f"{consumed:,} consumed")

    async def _kill(self, publisher: Publisher) -> None:
        partition = publisher.busiest_partition()
        # A client of its own: it finds out who leads while the producer's is busy.
        async with self._processes.client() as client:
            killed, killed_at = await kill_leader(self._processes, client, QUEUE, partition)
        self._killed, self._killed_at = killed, killed_at
        self._progress.note(f"killed {killed}, the leader of partition {partition}")
        self._restart = asyncio.create_task(restart_later(self._processes, killed))

    async def _drain(self, publisher: Publisher, consumers: list[asyncio.Task[None]]) -> None:
        """Until everything acknowledged has been consumed, or nothing new comes any more."""
        self._progress.phase("draining", total=publisher.record.count)
        last, changed_at = -1, time.monotonic()
        while not any(consumer.done() for consumer in consumers):
            consumed = self._rebuild.record.count
            self._progress.advance(consumed, "")
            if consumed >= publisher.record.count:
                return
            if consumed != last:
                last, changed_at = consumed, time.monotonic()
            elif time.monotonic() - changed_at > STALL_SECONDS:
                return
            await asyncio.sleep(0.02)
        for consumer in consumers:
            if consumer.done():
                consumer.result()

    def _judge(self, publisher: Publisher, *, identical: bool) -> Verdict:
        rebuild = self._rebuild
        acknowledged, consumed = publisher.record, rebuild.record
        for error in publisher.failures:
            self._progress.note(f"{type(error).__name__}: {error}")
        manifests = publisher.manifests
        return Verdict(
            messages=publisher.messages,
            acknowledged=acknowledged.count,
            consumed=consumed.count,
            lost=sum(1 for _ in acknowledged.missing_in(consumed)),
            phantom=sum(1 for _ in consumed.missing_in(acknowledged)) + consumed.contradictions,
            duplicated=rebuild.duplicated,
            redelivered=rebuild.redelivered,
            out_of_order=rebuild.out_of_order(),
            files=len(manifests),
            files_identical=rebuild.identical(manifests),
            lines=sum(manifest.lines for manifest in manifests.values()),
            bytes=sum(manifest.size for manifest in manifests.values()),
            replicas_identical=identical,
            failover_ms=None,
            publish_per_second=round(acknowledged.count / max(publisher.seconds, 0.001)),
            publish_seconds=round(publisher.seconds, 2),
            audit_seconds=None,
        )
