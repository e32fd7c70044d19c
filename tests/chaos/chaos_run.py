"""One run: a cluster, its clients, one fault after the other, and the judgement.

    start nodes and clients -> episodes until the time is over -> producers stop, consumers drain
    -> read the log, compare replicas -> stop, verify the files -> judge

Rules

1. The seed decides which faults come in which order, and all that chance decides within them.
2. Every episode ends well or the run ends with it: a fault on top of a wound would prove nothing.
3. Whatever happens, the processes that were started here are ended here.
"""

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos_clients import JOBS, ORDERS, ORDERS_PARTITIONS, PROBES, QUEUES, VISIBILITY_SECONDS
from chaos_faults import Fault
from chaos_history import Probes
from chaos_judge import Times, Verdict, judge_histories, judge_replicas, read_log, verify_files
from chaos_network import CLIENTS, Network
from chaos_nodes import Nodes, environment
from chaos_stage import Stage, ViolationError

from raftq.client.client import AsyncClient
from raftq.errors import RaftqError
from raftq.placement import partition_for

PROBE_PARTITIONS_PER_GROUP = 4
CALM_SECONDS = 1.0
LAST_FAULT_SECONDS = 10.0
DRAIN_SECONDS = 25.0
CLIENT_STOP_SECONDS = 10.0
PROGRESS = Callable[[str], None]


@dataclass(slots=True)
class Episode:
    """What came of one fault."""

    fault: str
    begun: float
    ended: float
    gap: float
    done: list[str]


@dataclass(slots=True)
class Outcome:
    """Everything that a report needs."""

    verdict: Verdict = field(default_factory=Verdict)
    episodes: list[Episode] = field(default_factory=list)
    damaged: str = ""
    began: float = 0.0


def order_of(faults: list[str], choose: random.Random) -> Iterator[str]:
    """All faults in an order of chance, again and again."""
    while True:
        turn = list(faults)
        choose.shuffle(turn)
        yield from turn


class Run:
    """One run of `seconds` of faults."""

    def __init__(
        self,
        *,
        seed: int,
        seconds: float,
        faults: dict[str, Fault],
        nodes: Nodes,
        network: Network,
        work: Path,
        progress: PROGRESS,
    ) -> None:
        self.outcome = Outcome(began=time.monotonic())
        self._seed = seed
        self._seconds = seconds
        self._faults = faults
        self._nodes = nodes
        self._network = network
        self._work = work
        self._progress = progress
        self._clients: dict[str, subprocess.Popen[bytes]] = {}
        self._damaged: dict[str, str] = {}
        self._probes = Probes(work / "probes.jsonl", [])
        self._probe_keys: dict[int, str] = {}
        self._probe_groups: dict[int, int] = {}
        self._voters: dict[int, list[str]] = {}

    async def run(self) -> Outcome:
        """Raises: RaftqError, OSError when the cluster cannot even be started."""
        nodes, verdict = self._nodes, self.outcome.verdict
        try:
            await nodes.start()
            async with AsyncClient(nodes.url) as client:
                await self._set_up(client)
                self._start_clients()
                try:
                    await self._all_episodes()
                except ViolationError as error:
                    verdict.add(str(error))
                self._network.heal()
                nodes.heal()
                await self._end(client)
        finally:
            for process in self._clients.values():
                process.kill()
                process.wait()
            await nodes.close()
            nodes.kill_all()
        return self.outcome

    def _say(self, text: str) -> None:
        self._progress(f"{time.monotonic() - self.outcome.began:6.1f} s  {text}")

    # --- Before --------------------------------------------------------------------------------

    async def _set_up(self, client: AsyncClient) -> None:
        options: dict[str, Any] = {"visibility_timeout": VISIBILITY_SECONDS, "delivery_limit": None}
        await client.create_queue(ORDERS, partitions=ORDERS_PARTITIONS, **options)
        await client.create_queue(JOBS, partitions=1, **options)
        count = PROBE_PARTITIONS_PER_GROUP * len(self._nodes.names)
        await client.create_queue(PROBES, partitions=count, **options)
        for each in (await client.describe_queue(PROBES)).partitions:
            if each.group not in self._probe_groups:
                self._probe_groups[each.group] = each.partition
                self._probe_keys[each.partition] = key_of(each.partition, count)
        for status in (await self._nodes.statuses()).values():
            for group in status["groups"]:
                self._voters[group["group"]] = [replica["node"] for replica in group["replicas"]]
        self._probes.close()
        self._probes = Probes(self._work / "probes.jsonl", list(self._probe_keys))

    def _start_clients(self) -> None:
        here = Path(__file__).parent
        for number, role in enumerate(("producers", "consumers")):
            wanted = {
                "role": role,
                "url": self._nodes.url,
                "seed": self._seed * 2 + number,
                "history": str(self._history(role)),
                "probes": str(self._work / "probes.jsonl"),
                "keys": self._probe_keys if role == "producers" else {},
            }
            command = [*self._network.inside(CLIENTS), sys.executable, "chaos_clients.py"]
            with (self._work / f"{role}.log").open("ab") as log:
                self._clients[role] = subprocess.Popen(
                    [*command, json.dumps(wanted)],
                    cwd=here,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env=environment(),
                )

    def _history(self, role: str) -> Path:
        return self._work / f"{role}.jsonl"

    # --- Faults --------------------------------------------------------------------------------

    async def _all_episodes(self) -> None:
        begun = time.monotonic()
        async with asyncio.timeout(20):
            while not self._probes.all_since(begun, 20):  # noqa: ASYNC110 - other processes.
                await asyncio.sleep(0.05)
        begun = time.monotonic()
        choose = random.Random(f"{self._seed} order")
        repeated = [name for name, fault in self._faults.items() if not fault.is_last]
        last = [name for name, fault in self._faults.items() if fault.is_last]
        end = begun + self._seconds - (LAST_FAULT_SECONDS if last else 0)
        number = 0
        for name in order_of(repeated, choose) if repeated else ():
            if time.monotonic() >= end:
                break
            number += 1
            await self._episode(number, name)
        for name in last:
            number += 1
            await self._episode(number, name)

    async def _episode(self, number: int, name: str) -> None:
        choose = random.Random(f"{self._seed} {number} {name}")
        stage = Stage(
            nodes=self._nodes,
            network=self._network,
            probes=self._probes,
            choose=choose,
            groups=self._probe_groups,
            voters=self._voters,
            work=self._work,
            damaged=self._damaged,
        )
        try:
            await self._faults[name].act(stage)
            await stage.recover()
        except (RaftqError, OSError) as error:
            raise ViolationError(f"{name}: {type(error).__name__}: {error}") from error
        finally:
            ended = time.monotonic()
            begun = stage.injected_at or ended
            gap = stage.gap(ended)
            self.outcome.episodes.append(Episode(name, begun, ended, gap, stage.done))
            self._say(
                f"{name:<14} gap {gap * 1e3:5.0f} ms, well after {ended - begun:4.1f} s  "
                f"({'; '.join(stage.done)})"
            )
        for role, process in self._clients.items():
            if process.poll() is not None:
                raise ViolationError(f"the client process of {role} ended; see {role}.log")
        await asyncio.sleep(CALM_SECONDS * choose.uniform(0.3, 1.0))

    # --- After ---------------------------------------------------------------------------------

    async def _end(self, client: AsyncClient) -> None:
        verdict = self.outcome.verdict
        self._say("draining the queues")
        try:
            await self._drain(client)
            self._say("reading the log, comparing replicas")
            await judge_replicas(verdict, self._nodes, self._damaged)
            log = await read_log(client, PROBE_PARTITIONS_PER_GROUP * len(self._nodes.names))
        except (RaftqError, ViolationError, OSError) as error:
            verdict.add(f"after the last fault: {type(error).__name__}: {error}")
            return
        self._say("stopping the nodes, checking their files")
        running = [name for name in self._nodes.names if self._nodes.is_running(name)]
        try:
            await self._nodes.terminate(*running)
        except RaftqError as error:
            verdict.add(str(error))
        self.outcome.damaged = verify_files(verdict, self._nodes, self._damaged)
        times = Times([(each.begun, each.fault) for each in self.outcome.episodes])
        paths = [self._history(role) for role in self._clients]
        judge_histories(verdict, paths, log, times, may_be_full="disk_full" in self._faults)

    async def _drain(self, client: AsyncClient) -> None:
        self._tell("end")
        await self._wait_for_client("producers", DRAIN_SECONDS)
        deadline = time.monotonic() + DRAIN_SECONDS
        while (depth := await self._depth(client)) and self._is_alive("consumers"):
            if time.monotonic() > deadline:
                self.outcome.verdict.add(
                    f"{depth} messages were not consumed within {DRAIN_SECONDS:g} s of the end"
                )
                break
            await asyncio.sleep(0.1)
        self._tell("drained")
        await self._wait_for_client("consumers", CLIENT_STOP_SECONDS)

    async def _depth(self, client: AsyncClient) -> int:
        return sum([(await client.describe_queue(plan.name)).depth for plan in QUEUES])

    def _is_alive(self, role: str) -> bool:
        return self._clients[role].poll() is None

    def _tell(self, command: str) -> None:
        for process in self._clients.values():
            if process.poll() is None and process.stdin is not None:
                process.stdin.write(command.encode() + b"\n")
                process.stdin.flush()

    async def _wait_for_client(self, role: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._is_alive(role):
            if time.monotonic() > deadline:
                self._tell("explain")
                await asyncio.sleep(1.0)
                raise ViolationError(
                    f"the {role} did not end within {seconds:g} s; {role}.log says where they wait"
                )
            await asyncio.sleep(0.02)
        if self._clients[role].returncode:
            raise ViolationError(f"the client process of {role} failed; see {role}.log")


def key_of(partition: int, partitions: int) -> str:
    """A key whose messages go to that partition."""
    number = 0
    while partition_for(f"key-{number}".encode(), partitions) != partition:
        number += 1
    return f"key-{number}"
