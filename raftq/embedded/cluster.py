"""A whole cluster inside the running loop: for tests of services, and for trying things out.

    async with Cluster(3, data="data") as cluster, cluster.client() as client:
        await client.create_queue("orders")

Rules

1. The nodes are real: real disks below `data`, real sockets on the loopback interface. Only the
   process is shared, so one blocking call of the user's stalls all of them.
2. Nothing global is touched; several clusters may run in one loop.
3. A data directory may be used again: each node finds its own directory `data/n1`, `data/n2`, ….
   Peer addresses are those of the first time.
"""

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Self

from raftq.client.client import AsyncClient
from raftq.embedded.address import format_address, free_addresses
from raftq.embedded.node import Node
from raftq.env.entropy import RealEntropy
from raftq.env.network import RealNetwork
from raftq.errors import InvalidArgument, NoQuorum

READY_SECONDS = 30.0
_LOOK_SECONDS = 0.02


class Cluster:
    """`nodes` nodes named n1, n2, … on the loopback interface.

    `port` is where n1 listens for clients and the others follow; 0 takes any free ones. `groups` is
    how many groups a new cluster gets (0: as many as nodes).
    """

    def __init__(self, nodes: int = 3, *, data: str | Path, port: int = 0, groups: int = 0) -> None:
        if not 1 <= nodes <= 9:
            raise InvalidArgument(f"a local cluster has 1 to 9 nodes, not {nodes}")
        self.data = Path(data)
        self.names = tuple(f"n{number}" for number in range(1, nodes + 1))
        self.nodes: dict[str, Node] = {}
        self._port = port
        self._groups = groups
        self._listen: dict[str, str] = {}
        self._members: dict[str, str] = {}

    @property
    def url(self) -> str:
        """What clients connect to."""
        return f"raftq://{','.join(self._listen[name] for name in self.names)}"

    def client(self) -> AsyncClient:
        """A client of this cluster; enter it with `async with`."""
        return AsyncClient(self.url)

    async def start(self) -> None:
        """Start all nodes and wait until every group has a leader.

        Raises: OSError, InvalidArgument, ClusterMismatch, Corrupted, NoQuorum.
        """
        count = len(self.names)
        free = await free_addresses(RealNetwork(), RealEntropy(), 2 * count)
        for position, name in enumerate(self.names):
            own = (
                free[position]._replace(port=self._port + position)
                if self._port
                else free[position]
            )
            self._listen[name] = format_address(own)
            self._members[name] = format_address(free[count + position])
        try:
            for name in self.names:
                await self.start_node(name)
            await self.ready()
        except BaseException:
            await self.stop()
            raise

    async def start_node(self, name: str) -> Node:
        """Start a node, or start it again after `stop_node` or `kill_node`; raises as `start`."""
        running = self.nodes.get(name)
        assert running is None or not running.is_running, f"{name} is running"
        node = Node(
            name,
            data=self.data / name,
            listen=self._listen[name],
            members=self._members,
            groups=self._groups,
        )
        await node.start()
        self.nodes[name] = node
        return node

    async def stop_node(self, name: str) -> None:
        """Stop one node in order: it hands its leaderships over first."""
        await self.nodes[name].stop()

    def kill_node(self, name: str) -> None:
        """Stop one node at once, as if its process had been killed."""
        self.nodes[name].kill()

    async def ready(self, *, seconds: float = READY_SECONDS) -> None:
        """Wait until every running node is ready.

        Raises: NoQuorum, which names what is missing.
        """
        reasons: list[str] = []
        try:
            async with asyncio.timeout(seconds):
                # What is waited for is a state of several nodes; no single event says it.
                while reasons := self.not_ready():  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError as error:
            raise NoQuorum(
                f"the cluster was not ready within {seconds:g} s: {'; '.join(reasons)}",
                outcome="not_applied",
            ) from error

    def not_ready(self) -> list[str]:
        """What the running nodes are waiting for; empty when they are ready."""
        return [
            f"{node.name}: {reason}"
            for node in self.nodes.values()
            if node.is_running
            for reason in node.not_ready()
        ]

    async def stop(self) -> None:
        """Stop every node. Twice is fine."""
        # Nobody is left to whom a leadership could be handed over: they need not wait for that.
        for node in self.nodes.values():
            node.kill()

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
