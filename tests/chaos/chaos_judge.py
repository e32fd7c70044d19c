"""What a run proves: the clients' histories against the log, and the replicas against each other.

Rules

1. The rules about messages are the simulator's (`raftq.sim.ledger`); here they are told what real
   clients saw. Every broken rule is kept, not only the first.
2. Lost and doubled messages are also counted by comparison of plain sets, so that the figures do not
   depend on the ledger; each is put to the fault that was on when it was sent.
3. A node that was damaged on purpose may be quarantined. It may never serve what is wrong, and what
   is wrong with it must be found by `raftq log verify`.
"""

import asyncio
import bisect
import collections
import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos_clients import PROBES, QUEUES
from chaos_history import read_history
from chaos_nodes import Nodes, environment

from raftq.client.client import AsyncClient
from raftq.ids import Offset, Partition
from raftq.sim.checkers import ViolationError as LedgerViolationError
from raftq.sim.ledger import Delivery, Ledger, Place
from raftq.sim.workload import SUBSCRIPTION, payload_of

EQUAL_SECONDS = 20.0
VERIFY_SECONDS = 60.0
EXPECTED = frozenset({"Busy", "ConnectionFailed", "Expected", "NoQuorum", "Timeout"})
EXPECTED_OF_CONSUMERS = frozenset({"SessionExpired", "StaleReceipt"})
CONSUMING = frozenset({"ack", "extend", "flush", "iterate", "nack", "receive"})
_KEPT = 50
"""Sentences that are kept of one kind of violation; more of the same help nobody."""

Log = dict[tuple[str, int], list[tuple[int, str]]]


@dataclass(slots=True)
class Counts:
    """Of the messages that were sent while one fault was on, or in its wake."""

    acked: int = 0
    lost: int = 0
    duplicated: int = 0


@dataclass(slots=True)
class Verdict:
    """All that is wrong, in sentences; and the figures."""

    violations: list[str] = field(default_factory=list)
    counts: dict[str, Counts] = field(default_factory=dict)
    delivered: int = 0
    failed: collections.Counter[str] = field(default_factory=collections.Counter)

    def add(self, text: str) -> None:
        if len(self.violations) < _KEPT:
            self.violations.append(text)


class Times:
    """Which fault a moment belongs to."""

    def __init__(self, episodes: list[tuple[float, str]]) -> None:
        self._moments = [at for at, _ in episodes]
        self._names = ["(none)", *(name for _, name in episodes)]

    def fault_at(self, moment: float) -> str:
        return self._names[bisect.bisect_right(self._moments, moment)]


def judge_histories(
    verdict: Verdict, paths: list[Path], log: Log, times: Times, *, may_be_full: bool
) -> None:
    """Everything that clients did and saw, against what the log holds in the end."""
    events = [event for path in paths for event in read_history(path)]
    # What one process is given another one sent: attempts come first.
    events.sort(key=lambda event: (event[0] != "attempt", event[1]))
    ledger = Ledger()
    sent: dict[str, float] = {}
    acked: dict[str, tuple[str, int, int]] = {}
    expected = EXPECTED | ({"StorageFull"} if may_be_full else frozenset())
    for event in events:
        kind, moment, *facts = event
        if kind == "attempt":
            sent[facts[1]] = moment
        elif kind == "ack":
            queue, partition, offset, payload = facts
            acked[payload] = (queue, partition, offset)
        elif kind == "failed":
            _judge_failure(verdict, facts, expected)
        elif kind == "broken":
            verdict.add(f"a client broke: {facts[0]}")
        _told(verdict, ledger, kind, facts)
    verdict.delivered = ledger.delivered_count
    _judge_log(verdict, ledger, log)
    _count(verdict, times, sent, acked, log)


def _judge_failure(verdict: Verdict, facts: list[Any], expected: frozenset[str]) -> None:
    call, error, outcome, text = facts
    verdict.failed[f"{call} {error} {outcome}"] += 1
    if error not in expected and not (error in EXPECTED_OF_CONSUMERS and call in CONSUMING):
        verdict.add(f"{call} failed with {error}, which no fault explains: {text}")


def _told(verdict: Verdict, ledger: Ledger, kind: str, facts: list[Any]) -> None:
    try:
        if kind == "attempt":
            ledger.attempted(facts[0], facts[1])
        elif kind == "refused":
            ledger.refused(facts[0])
        elif kind in {"ack", "read"}:
            place = Place(facts[0], Partition(facts[1]), Offset(facts[2]))
            (ledger.acknowledged if kind == "ack" else ledger.read)(place, facts[3])
        elif kind in {"delivered", "settled"}:
            place = Place(facts[0], Partition(facts[1]), Offset(facts[2]))
            delivery = Delivery(SUBSCRIPTION, place, facts[3], facts[4])
            (ledger.delivered if kind == "delivered" else ledger.settled)(delivery)
    except LedgerViolationError as error:
        verdict.add(str(error))


def _judge_log(verdict: Verdict, ledger: Ledger, log: Log) -> None:
    for (queue, partition), found in sorted(log.items()):
        records = [(Offset(offset), payload) for offset, payload in found]
        try:
            ledger.log("the cluster", queue, Partition(partition), records)
        except LedgerViolationError as error:
            verdict.add(str(error))
    for plan in QUEUES:
        try:
            ledger.drained(SUBSCRIPTION, plan.name)
        except LedgerViolationError as error:
            verdict.add(str(error))


def _count(
    verdict: Verdict,
    times: Times,
    sent: dict[str, float],
    acked: dict[str, tuple[str, int, int]],
    log: Log,
) -> None:
    counts: dict[str, Counts] = collections.defaultdict(Counts)
    places: dict[str, list[tuple[str, int, int]]] = collections.defaultdict(list)
    for (queue, partition), found in log.items():
        for offset, payload in found:
            places[payload].append((queue, partition, offset))
    for payload, place in acked.items():
        row = counts[times.fault_at(sent[payload])]
        row.acked += 1
        row.lost += place not in places[payload]
    for payload, where in places.items():
        if len(where) > 1:
            counts[times.fault_at(sent.get(payload, 0.0))].duplicated += len(where) - 1
    verdict.counts = dict(counts)
    lost = sum(row.lost for row in counts.values())
    doubled = sum(row.duplicated for row in counts.values())
    if lost or doubled:
        verdict.add(f"{lost} acknowledged messages lost, {doubled} stored twice")


async def read_log(client: AsyncClient, probed: int) -> Log:
    """What the cluster holds in the end, read with the public client."""
    log: Log = {}
    partitions = [(plan.name, each) for plan in QUEUES for each in range(plan.partitions)]
    partitions += [(PROBES, each) for each in range(probed)]
    for queue, partition in partitions:
        found = log[queue, partition] = []
        async for message in client.reader(queue, partition=partition, follow=False):
            found.append((int(message.offset), payload_of(message.body)))
    return log


async def judge_replicas(verdict: Verdict, nodes: Nodes, damaged: dict[str, str]) -> None:
    """Chains and machine digests of each group are equal on all nodes, but for damaged ones."""
    deadline = time.monotonic() + EQUAL_SECONDS
    different: list[str] = []
    while time.monotonic() < deadline:
        different = await _differences(nodes, damaged)
        if not different:
            return
        await asyncio.sleep(0.1)
    for text in different:
        verdict.add(text)


async def _differences(nodes: Nodes, damaged: dict[str, str]) -> list[str]:
    statuses = await nodes.statuses()
    found = [f"{name} does not answer" for name in nodes.names if name not in statuses | damaged]
    digests: dict[int, dict[str, Any]] = collections.defaultdict(dict)
    for name, status in statuses.items():
        if status["lost"]:
            found.append(f"{name} lost its replicas of the groups {status['lost']}")
        for group in status["groups"]:
            if group["quarantined"]:
                if name not in damaged:
                    found.append(
                        f"{name} quarantined group {group['group']}: {group['quarantined']}"
                    )
                continue
            if name in damaged and await nodes.not_ready(name):
                continue  # It says itself that it is not to be relied on.
            question = {"do": "digest", "group": group["group"]}
            digests[group["group"]][name] = await nodes.ask_node(name, question)
    for group, each in sorted(digests.items()):
        values = list(each.values())
        if None in values or any(value != values[0] for value in values):
            stands = ", ".join(
                f"{name} at {value['applied_index']} with {value['digest'].hex()}"
                + (f" (damaged on purpose: {damaged[name]})" if name in damaged else "")
                if value is not None
                else f"{name} does not say"
                for name, value in each.items()
            )
            found.append(
                f"the replicas of group {group} differ, and say that all is well: {stands}"
            )
    return found


def verify_files(verdict: Verdict, nodes: Nodes, damaged: dict[str, str]) -> str:
    """`raftq log verify` over the data of the stopped nodes; what it says of the damaged ones."""
    sound = [str(nodes.directory(name)) for name in nodes.names if name not in damaged]
    report = _verify(sound)
    if report is None or not report["sound"]:
        problems = [] if report is None else [*report["differences"]]
        for replica in report["replicas"] if report else ():
            problems += [f"{replica['path']}: {problem}" for problem in replica["problems"]]
        verdict.add(f"raftq log verify: {'; '.join(problems) or 'it failed'}")
    said = []
    for name, what in damaged.items():
        found = _verify([str(nodes.directory(name))])
        count = sum(len(each["problems"]) for each in found["replicas"]) if found else 0
        said.append(f"{name} ({what}): raftq log verify names {count} problems")
    return "; ".join(said)


def _verify(directories: list[str]) -> dict[str, Any] | None:
    command = [sys.executable, "-m", "raftq", "log", "verify", "--json", *directories]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=VERIFY_SECONDS,
        env=environment(),
        stdin=subprocess.DEVNULL,
    )
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            report: dict[str, Any] = json.loads(line)
            return report
    return None
