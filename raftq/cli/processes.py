"""A cluster of processes on this machine: `raftq dev`, the demo and the tests kill nodes with it.

    async with Processes(3, data=directory) as processes, processes.client() as client:
        processes.kill("n2")
        processes.start_node("n2")

Rules

1. Each node is `python -m raftq node` in a process and a session of its own: Ctrl-C in a terminal
   reaches whoever started them, who stops them in order.
2. None outlives this process, however it ends (`parent.py`).
3. What a node says goes to `DATA/NAME.log`, appended; its data is below `DATA/NAME`.
4. Ready is what the nodes themselves say at /health/ready, once our own process has opened its ports:
   nobody else answers in its name.
5. What runs already is not touched: a directory or a port of somebody else is refused before the
   first log is opened.
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

from raftq.cli import local_data
from raftq.client.client import AsyncClient
from raftq.embedded.address import Address, format_address, free_addresses, parse_address
from raftq.env.entropy import RealEntropy
from raftq.env.network import RealNetwork
from raftq.errors import ConnectionFailed, InvalidArgument, NoQuorum

READY_SECONDS: Final = 30.0
STOP_SECONDS: Final = 15.0
_LOOK_SECONDS: Final = 0.02
_ANSWER_SECONDS: Final = 1.0
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
        self._listening: set[str] = set()
        self._log_begin: dict[str, int] = {}
        self._is_alone = False
        """The cluster was recovered, and some nodes are still to be replaced: one may be all."""

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

    async def _choose_addresses(self, founders: dict[str, Address]) -> None:
        """Founders listen for their peers where their data says."""
        count = len(self.names)
        if self._port:
            rows = [
                [Address("127.0.0.1", self._port + above + position) for position in range(count)]
                for above in (0, _PEER_PORTS, _ADMIN_PORTS)
            ]
        else:
            free = await free_addresses(RealNetwork(), RealEntropy(), 3 * count)
            rows = [free[:count], free[count : 2 * count], free[2 * count :]]
        rows[1] = [
            founders.get(name, address) for name, address in zip(self.names, rows[1], strict=True)
        ]
        self._check_ports([address for row in rows for address in row], peers=bool(founders))
        texts = [[format_address(address) for address in row] for row in rows]
        self.addresses = {
            name: NodeAddresses(*columns)
            for name, columns in zip(self.names, zip(*texts, strict=True), strict=True)
        }

    def _check_ports(self, addresses: list[Address], *, peers: bool) -> None:
        """Raises: InvalidArgument when somebody listens at one of them."""
        used = local_data.in_use(addresses)
        if not used:
            return
        advice = f"--port {self._port + 1_000 if self._port < 60_000 else 7400}"
        if peers:
            # Another --port moves all but these.
            advice += " with another --data (the peers' ports belong to the data)"
        by = local_data.who_listens(used[0])
        raise InvalidArgument(
            f"port{'s' * (len(used) > 1)} {', '.join(map(str, used))} in use"
            f"{f', {used[0]} by {by}' if by else ''}; stop who has them, or choose others: {advice}"
        )

    # --- Starting and stopping -----------------------------------------------------------------

    async def start(self, *, patience: float | None = None) -> None:
        """Start every node and wait until all are ready; with `patience`, after so many seconds
        until a majority is.

        Raises: ConnectionFailed when a node ends instead (with `patience`: too many of them), with
        what it said last; NoQuorum; InvalidArgument when directory or ports are somebody else's.
        """
        try:
            self.data.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidArgument(
                f"cannot make the data directory {self.data} ({error.strerror}); "
                "choose another one with --data"
            ) from error
        found = local_data.look(self.data)
        self._check_nodes(found)
        for name in self.names:
            local_data.check_is_free(self.directory(name))
        await self._choose_addresses(found.founders)
        try:
            for name in self.names:
                self.start_node(name)
            await self._wait(list(self.names), READY_SECONDS, patience)
        except BaseException:
            self.kill_all()
            raise

    def _check_nodes(self, found: local_data.Found) -> None:
        """Compare whom the directory knows with who is to be started.

        Raises: InvalidArgument.
        """
        there, founders = found.there, sorted(found.founders)
        if len(there) < 2 and not founders:
            return  # One may be all that an interrupted first start has left.
        founders = founders or [f"n{number}" for number in range(1, int(there[-1][1:]) + 1)]
        cluster = f"{self.data} holds a cluster of the nodes {', '.join(founders)}"
        if founders != list(self.names):
            raise InvalidArgument(
                f"{cluster}; start it with --nodes {len(founders)}, or use another directory"
            )
        gone = [name for name in founders if name not in there]
        if found.given_up:
            names = ", ".join(found.given_up)
            raise InvalidArgument(
                f"{cluster}, which was recovered without {names}: together they would be the cluster "
                f"that was given up; remove the directories of {names} and start again"
            )
        self._is_alone = bool(gone) and found.is_recovered
        if 2 * len(gone) >= len(founders) and not found.is_recovered:
            raise InvalidArgument(
                f"{cluster}, but the data of {', '.join(gone)} is gone, and without a majority "
                "nothing can be served: restore what is gone, go on from what is left (raftq cluster "
                "recover), or use another directory"
            )

    def start_node(self, name: str) -> None:
        """Start a node, or start it again after it was killed or stopped. Returns at once."""
        assert not self.is_running(name), f"{name} is running"
        own = {key: value for key, value in os.environ.items() if not key.startswith("RAFTQ_")}
        with self.log_path(name).open("ab") as log:
            self._log_begin[name] = log.seek(0, os.SEEK_END)
            process = subprocess.Popen(  # noqa: S603 - our own program.
                self.command(name),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=own,
                start_new_session=True,
            )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._listening.discard(name)
        self._running[name] = process

    def command(self, name: str) -> list[str]:
        """What starts that node."""
        addresses = self.addresses[name]
        members = ",".join(f"{each}={self.addresses[each].peers}" for each in self.names)
        return [
            *(sys.executable, "-m", "raftq", "node", "--exit-with-parent", "--name", name),
            *("--data", str(self.directory(name)), "--cluster", members),
            *("--listen", addresses.clients, "--admin-listen", addresses.admin),
            *("--groups", str(self._groups), "--log-level", self._log_level),
        ]

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
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    # --- Readiness -----------------------------------------------------------------------------

    async def ready(self, *, seconds: float = READY_SECONDS) -> None:
        """Wait until every running node is ready.

        Raises: ConnectionFailed when one of them ends meanwhile; NoQuorum with what is missing.
        """
        await self._wait([name for name in self.names if self.is_running(name)], seconds, None)

    async def _wait(self, names: list[str], seconds: float, patience: float | None) -> None:
        """Until all of `names` are ready, or a majority when `patience` is over."""
        begun = asyncio.get_running_loop().time()
        majority = 1 if self._is_alone else len(names) // 2 + 1
        while True:
            running = [name for name in names if self.is_running(name)]
            if len(running) < (len(names) if patience is None else majority):
                ended = next(name for name in names if name not in running)
                raise ConnectionFailed(self.last_words(ended))
            missing = {name: await self.not_ready(name) for name in running}
            missing = {name: reasons for name, reasons in missing.items() if reasons}
            passed = asyncio.get_running_loop().time() - begun
            if not missing:
                return
            enough = len(running) - len(missing) >= majority
            if enough and patience is not None and passed >= patience:
                return
            if passed >= seconds:
                name, reasons = next(iter(missing.items()))
                raise NoQuorum(
                    f"{name} was not ready within {seconds:g} s: {'; '.join(reasons)}; "
                    f"see {self.log_path(name)}",
                    outcome="not_applied",
                )
            await asyncio.sleep(_LOOK_SECONDS)

    def last_words(self, name: str) -> str:
        """How a node ended."""
        status = self._running[name].returncode
        if status < 0:
            # Whatever it said last, somebody else ended it.
            return f"{name} was ended by signal {_signal_name(-status)}; see {self.log_path(name)}"
        with self.log_path(name).open("rb") as log:
            log.seek(self._log_begin[name])
            lines = log.read().decode("utf-8", "replace").strip().splitlines()
        return f"{name} ended with status {status}: {lines[-1] if lines else 'it said nothing'}"

    async def not_ready(self, name: str) -> list[str]:
        """What the node itself says against being ready; empty when it is."""
        if not self._listens(name):
            return ["it has not opened its ports yet"]
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                status, body = await self.ask(name, "/health/ready")
        except TimeoutError:
            return ["it does not answer"]
        except (OSError, EOFError, ValueError) as error:
            return [f"it does not answer yet ({type(error).__name__})"]
        if status == 200:
            return []
        found: dict[str, Any] = msgspec.json.decode(body)
        return [str(reason) for reason in found.get("reasons", [])] or [f"status {status}"]

    def _listens(self, name: str) -> bool:
        """Whether our process has said that its ports are open; else another's may answer there."""
        output = self._running[name].stdout
        if name not in self._listening and output is not None and not output.closed:
            try:
                if os.read(output.fileno(), 4_096):
                    self._listening.add(name)
            except BlockingIOError:
                return False
        return name in self._listening

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


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
