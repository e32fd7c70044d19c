"""The path of one batch, measured before anything is built on it.

    python -m bench.path [--seconds S] [--rounds N] [--json FILE]

Three node processes on loopback with data in a temporary directory, and one load process that
speaks the wire protocol directly, so that it is the path that is measured, not the client library:
frame, verify, admit, write and sync, replicate, commit, apply, reply; everything synced on a majority
before it is acknowledged. Rounds run all cases in turn; medians are printed.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raftq import batch
from raftq.env import Environment
from raftq.env.boot import boot_number
from raftq.env.clock import RealClock
from raftq.env.disk import RealDisk
from raftq.env.entropy import RealEntropy
from raftq.env.loop import run
from raftq.env.network import RealNetwork
from raftq.host import Member
from raftq.ids import Partition, QueueId
from raftq.server import Address, Node, NodeConfig
from raftq.wire import cbor, errors, handshake, requests
from raftq.wire.connection import ClientConnection
from raftq.wire.frames import FrameKind

HOST = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports: list[int] = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


async def run_node(name: str, data: str, port: int, members: list[Member]) -> None:
    entropy = RealEntropy()
    environment = Environment(
        RealClock(), RealDisk(data), RealNetwork(), entropy, boot_number(entropy)
    )
    node = Node(environment, NodeConfig(name, Address(HOST, port), tuple(members)))
    await node.start()
    await asyncio.get_running_loop().create_future()


class Load(asyncio.BufferedProtocol):
    """One connection that keeps `window` requests in flight, or runs cold requests one by one."""

    def __init__(self) -> None:
        self.wire = ClientConnection()
        self.transport: Any = None
        self.waiting: dict[int, Callable[[int, memoryview], None]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.wire.reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        for frame in self.wire.received(nbytes):
            heard = self.waiting.pop(frame.stream, None)
            if heard is not None:
                heard(frame.kind, frame.body)

    def send(self, kind: int, heard: Callable[[int, memoryview], None], *parts: Any) -> None:
        stream, vectors = self.wire.request(kind, *parts)
        self.waiting[stream] = heard
        self.transport.writelines(vectors)

    async def ask(self, kind: int, *parts: Any) -> tuple[int, bytes]:
        future: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self.send(kind, lambda kind, body: future.set_result((kind, bytes(body))), *parts)
        return await future

    async def control(self, **fields: Any) -> dict[str, Any]:
        while True:
            kind, body = await self.ask(FrameKind.CONTROL, cbor.encode(fields))
            if kind == FrameKind.CONTROLLED:
                return cbor.decode(memoryview(body))
            print("  waiting:", errors.decode_error(body), file=sys.stderr)
            await asyncio.sleep(0.2)


async def connect(port: int) -> Load:
    loop = asyncio.get_running_loop()
    _, load = await loop.create_connection(Load, HOST, port)
    hello = handshake.Hello(handshake.VERSIONS, (), "bench.path")
    kind, _ = await load.ask(FrameKind.HELLO, handshake.encode_hello(hello))
    assert kind == FrameKind.WELCOME
    load.wire.welcomed()
    return load


class Case:
    """Connections that each keep `window` batches of `count` messages of `size` bytes in flight."""

    def __init__(self, name: str, *, connections: int, window: int, count: int, size: int) -> None:
        self.name = name
        self.connections = connections
        self.window = window
        self.count = count
        self.size = size


CASES = (
    Case("saturated 100 B", connections=1, window=32, count=655, size=100),
    Case("saturated 1 KiB", connections=1, window=32, count=64, size=1024),
    Case("64 synchronous 100 B", connections=64, window=1, count=1, size=100),
    Case("one synchronous 100 B", connections=1, window=1, count=1, size=100),
)


async def measure(
    case: Case, port: int, queue: QueueId, partition: Partition, seconds: float
) -> dict[str, Any]:
    loads = [await connect(port) for _ in range(case.connections)]
    bodies = [os.urandom(case.size)] * case.count
    data = batch.encode(bodies, queue=queue, partition=partition)
    parts = requests.encode_publish(requests.Publish(requests.ACKS_QUORUM, 0, data))
    latencies: list[float] = []
    outstanding = 0
    finished = asyncio.get_running_loop().create_future()
    begin = time.perf_counter()
    warm = begin + seconds * 0.1
    end = begin + seconds

    def publish(load: Load) -> None:
        nonlocal outstanding
        outstanding += 1
        asked = time.perf_counter()

        def heard(kind: int, body: memoryview) -> None:
            nonlocal outstanding
            outstanding -= 1
            now = time.perf_counter()
            if kind != FrameKind.PUBLISHED:
                finished.set_exception(RuntimeError(str(errors.decode_error(body))))
                return
            if warm <= now <= end:
                latencies.append(now - asked)
            if now < end:
                publish(load)
            elif not outstanding and not finished.done():
                finished.set_result(None)

        load.send(FrameKind.PUBLISH, heard, *parts)

    for load in loads:
        for _ in range(case.window):
            publish(load)
    await finished
    for load in loads:
        load.transport.close()
    latencies.sort()
    return {
        "case": case.name,
        "messages_per_second": len(latencies) * case.count / (seconds * 0.9),
        "p50_ms": latencies[len(latencies) // 2] * 1e3,
        "p99_ms": latencies[len(latencies) * 99 // 100] * 1e3,
        "batches": len(latencies),
    }


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def run_cases(
    ports: list[int], pids: list[int], seconds: float, rounds: int
) -> list[dict[str, Any]]:
    while True:
        try:
            first = await connect(ports[0])
            break
        except OSError:
            await asyncio.sleep(0.1)
    await first.control(do="create_queue", name="path", config={"partitions": 1})
    found = await first.control(do="metadata", queue="path")
    queue = found["queues"][0]
    group = queue["partitions"][0]["group"]
    leader = next(each["leader"] for each in found["groups"] if each["group"] == group)
    position = int(leader[1:]) - 1
    rows = []
    for number in range(rounds):
        for case in CASES:
            before = [cpu_seconds(pid) for pid in pids]
            syncs = (await first.control(do="status"))["groups"]
            row = await measure(case, ports[position], QueueId(queue["id"]), Partition(0), seconds)
            after = [cpu_seconds(pid) for pid in pids]
            used = [late - early for early, late in zip(before, after, strict=True)]
            row["round"] = number
            row["leader_us_per_batch"] = used[position] * 1e6 * 0.9 / row["batches"]
            others = [each for place, each in enumerate(used) if place != position]
            row["follower_us_per_batch"] = sum(others) / 2 * 1e6 * 0.9 / row["batches"]
            row["groups_seen"] = len(syncs)
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--node", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--members", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.node:
        name, data, port = options.node
        members = [
            Member(each.split("=")[0], HOST, int(each.split("=")[1]))
            for each in options.members.split(",")
        ]
        run(run_node(name, data, int(port), members))
        return
    ports, peers = free_ports(3), free_ports(3)
    listed = ",".join(f"n{i + 1}={port}" for i, port in enumerate(peers))
    with tempfile.TemporaryDirectory(prefix="raftq-path-") as directory:
        command = [sys.executable, "-m", "bench.path", "--members", listed, "--node"]
        nodes = [
            subprocess.Popen([*command, f"n{i + 1}", f"{directory}/n{i + 1}", str(port)])
            for i, port in enumerate(ports)
        ]
        try:
            rows = asyncio.run(
                run_cases(ports, [node.pid for node in nodes], options.seconds, options.rounds)
            )
        finally:
            for node in nodes:
                node.terminate()
            for node in nodes:
                node.wait()
    print(
        f"{'case':24} {'msg/s':>12} {'p50 ms':>8} {'p99 ms':>8} {'leader us':>10} {'follower us':>11}"
    )
    for case in CASES:
        mine = [row for row in rows if row["case"] == case.name]
        middle = {
            key: statistics.median(row[key] for row in mine)
            for key in mine[0]
            if key not in {"case", "round"}
        }
        print(
            f"{case.name:24} {middle['messages_per_second']:12,.0f} {middle['p50_ms']:8.2f} "
            f"{middle['p99_ms']:8.2f} {middle['leader_us_per_batch']:10.0f} "
            f"{middle['follower_us_per_batch']:11.0f}"
        )
    if options.json:
        options.json.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
