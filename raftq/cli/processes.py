"""A cluster of processes on this machine: `raftq dev`, the demo and the tests kill nodes with it.

    async with Processes(3, data=directory) as processes, processes.client() as client:
        processes.kill("n2")
        processes.start_node("n2")

Rules

1. Each node is `python -m raftq node` in a process and a session of its own: Ctrl-C in a terminal
   reaches whoever started them, who stops them in order.
2. None outlives this process, however it ends (`parent.py`).
3. What a node says goes to `DATA/NAME.log`, appended; its data is below `DATA/NAME`.
4. Ready is what the nodes themselves say at /health/ready.
"""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import msgspec

from raftq.client.client import AsyncClient
from raftq.embedded.address import Address, format_address, free_addresses, parse_address
from raftq.env.entropy import RealEntropy
from raftq.env.network import RealNetwork
from raftq.errors import ConnectionFailed, InvalidArgument, NoQuorum

READY_SECONDS: Final = 30.0
STOP_SECONDS: Final = 15.0
_LOOK_SECONDS: Final = 0.02
_PEER_PORTS: Final = 100
_ADMIN_PORTS: Final = 200
"""With a fixed port, the peers' and the admin ports lie this much above the clients'."""


class NodeAddresses(NamedTuple):
    """Where one node listens."""

    clients: str
    peers: str
    admin: str


class Processes:
    """Nodes n1, n2, … as processes. `port` is n1's for clients, the others follow; 0: free ones."""

    def __init__(
        self,
        nodes: int = 3,
        *,
        data: str | Path,
        port: int = 0,
        groups: int = 0,
        log_level: str = "INFO",
    ) -> None:
        if not 1 <= nodes <= 9:
            raise InvalidArgument(f"a local cluster has 1 to 9 nodes, not {nodes}")
        self.data = Path(data).resolve()
        self.names = tuple(f"n{number}" for number in range(1, nodes + 1))
        self.addresses: dict[str, NodeAddresses] = {}
        self._port = port
        self._groups = groups
        self._log_level = log_level
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    # --- Addresses -----------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """What clients connect to: every node."""
        return f"raftq://{','.join(self.addresses[name].clients for name in self.names)}"

    def url_of(self, name: str) -> str:
        """One node."""
        return f"raftq://{self.addresses[name].clients}"

    def client(self) -> AsyncClient:
        """A client of all nodes; enter it with `async with`."""
        return AsyncClient(self.url)

    def directory(self, name: str) -> Path:
        """A node's data directory."""
        return self.data / name

    def log_path(self, name: str) -> Path:
        """What the node has said."""
        return self.data / f"{name}.log"

    async def _choose_addresses(self) -> None:
        count = len(self.names)
        if self._port:
            rows = [
                [Address("127.0.0.1", self._port + above + position) for position in range(count)]
                for above in (0, _PEER_PORTS, _ADMIN_PORTS)
            ]
        else:
            free = await free_addresses(RealNetwork(), RealEntropy(), 3 * count)
            rows = [free[:count], free[count : 2 * count], free[2 * count :]]
        texts = [[format_address(address) for address in row] for row in rows]
        self.addresses = {
            name: NodeAddresses(*columns)
            for name, columns in zip(self.names, zip(*texts, strict=True), strict=True)
        }

    # --- Starting and stopping -----------------------------------------------------------------

    async def start(self) -> None:
        """Start every node and wait until all are ready.

        Raises: ConnectionFailed when a node ends instead, with what it said last; NoQuorum, OSError.
        """
        self.data.mkdir(parents=True, exist_ok=True)
        there = sorted(each.name for each in self.data.glob("n[0-9]") if (each / "node").exists())
        self._check_nodes(there)
        await self._choose_addresses()
        try:
            for name in self.names:
                self.start_node(name)
            await self.ready()
        except BaseException:
            self.kill_all()
            raise

    def _check_nodes(self, there: list[str]) -> None:
        """Compare whom the directory knows with who is to be started.

        Raises: InvalidArgument.
        """
        if len(there) < 2 or set(there) == set(self.names):
            return  # One may be all that an interrupted first start has left.
        count = int(max(there)[1:])
        advice = f"start it with --nodes {count}, or use another directory"
        gone = [f"n{number}" for number in range(1, count + 1) if f"n{number}" not in there]
        gone += [name for name in self.names if int(name[1:]) > count]
        if gone:
            lost = (
                f"if the data of {', '.join(gone)} was removed, restore it, or use another "
                "directory: a node cannot be replaced in this version"
            )
            advice = lost if count >= len(self.names) else f"start it with --nodes {count}; {lost}"
        raise InvalidArgument(
            f"{self.data} holds a cluster of the nodes {', '.join(there)}; {advice}"
        )

    def start_node(self, name: str) -> None:
        """Start a node, or start it again after it was killed or stopped. Returns at once."""
        assert not self.is_running(name), f"{name} is running"
        addresses = self.addresses[name]
        members = ",".join(f"{each}={self.addresses[each].peers}" for each in self.names)
        command = [sys.executable, "-m", "raftq", "node", "--exit-with-parent", "--name", name]
        command += ["--data", str(self.directory(name)), "--cluster", members]
        command += ["--listen", addresses.clients, "--admin-listen", addresses.admin]
        command += ["--groups", str(self._groups), "--log-level", self._log_level]
        own = {key: value for key, value in os.environ.items() if not key.startswith("RAFTQ_")}
        with self.log_path(name).open("ab") as log:
            self._running[name] = subprocess.Popen(  # noqa: S603 - our own program.
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=own,
                start_new_session=True,
            )

    def is_running(self, name: str) -> bool:
        process = self._running.get(name)
        return process is not None and process.poll() is None

    def process_id(self, name: str) -> int:
        """Of a node that was started."""
        return self._running[name].pid

    def kill(self, name: str) -> None:
        """SIGKILL; returns when the process is gone."""
        process = self._running[name]
        process.kill()
        self._reap(process)

    def kill_all(self) -> None:
        """SIGKILL to all that run; returns when they are gone."""
        for name in self._running:
            self.kill(name)

    def pause(self, name: str) -> None:
        """SIGSTOP: the node falls silent, its connections stay."""
        self._running[name].send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """SIGCONT."""
        self._running[name].send_signal(signal.SIGCONT)

    async def terminate(self, *names: str, seconds: float = STOP_SECONDS) -> None:
        """SIGTERM, upon which a node hands its leaderships over; returns when they are gone.

        Raises: ConnectionFailed when one of them had to be killed, or failed at the end.
        """
        processes = {name: self._running[name] for name in names}
        for process in processes.values():
            process.terminate()
        try:
            async with asyncio.timeout(seconds):
                # Popen has no event to wait for, but works in any loop.
                while any(process.poll() is None for process in processes.values()):  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            pass  # Judged below: who still runs is killed and named.
        failed = [name for name, process in processes.items() if process.poll() != 0]
        for name in names:
            self.kill(name)
        if failed:
            raise ConnectionFailed(
                f"{', '.join(failed)} did not stop within {seconds:g} s of SIGTERM, or failed; "
                f"see {self.log_path(failed[0])}"
            )

    async def stop(self) -> None:
        """SIGTERM to every node; whoever does not stop is killed. Twice is fine."""
        running = [name for name in self.names if self.is_running(name)]
        try:
            for name in running:
                self.resume(name)
            await self.terminate(*running)
        finally:
            self.kill_all()

    @staticmethod
    def _reap(process: subprocess.Popen[bytes]) -> None:
        process.wait()
        if process.stdin is not None:
            process.stdin.close()

    # --- Readiness -----------------------------------------------------------------------------

    async def ready(self, *, seconds: float = READY_SECONDS) -> None:
        """Wait until every running node is ready.

        Raises: ConnectionFailed when one of them ends meanwhile; NoQuorum with what is missing.
        """
        reasons: list[str] = []
        waiting = [name for name in self.names if self.is_running(name)]
        try:
            async with asyncio.timeout(seconds):
                while waiting:
                    name = waiting[0]
                    reasons = await self.not_ready(name)
                    if not reasons:
                        waiting.pop(0)
                    elif not self.is_running(name):
                        raise ConnectionFailed(self.last_words(name))
                    else:
                        await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError as error:
            raise NoQuorum(
                f"{waiting[0]} was not ready within {seconds:g} s: {'; '.join(reasons)}; "
                f"see {self.log_path(waiting[0])}",
                outcome="not_applied",
            ) from error

    def last_words(self, name: str) -> str:
        """How a node ended."""
        status = self._running[name].returncode
        lines = self.log_path(name).read_text("utf-8", "replace").strip().splitlines()
        return f"{name} ended with status {status}: {lines[-1] if lines else 'it said nothing'}"

    async def not_ready(self, name: str) -> list[str]:
        """What the node itself says against being ready; empty when it is."""
        try:
            status, body = await self.ask(name, "/health/ready")
        except (OSError, EOFError, ValueError) as error:
            return [f"it does not answer yet ({type(error).__name__})"]
        if status == 200:
            return []
        found: dict[str, Any] = msgspec.json.decode(body)
        return [str(reason) for reason in found.get("reasons", [])] or [f"status {status}"]

    async def ask(self, name: str, path: str) -> tuple[int, bytes]:
        """One page of a node's admin port: status and body.

        Raises: OSError, EOFError, ValueError.
        """
        address = parse_address(self.addresses[name].admin)
        reader, writer = await asyncio.open_connection(address.host, address.port)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {address.host}\r\n\r\n".encode("ascii"))
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
        status = head.split(b" ", 2)
        if len(status) < 2:
            raise EOFError("an empty answer")
        return int(status[1]), body

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()
