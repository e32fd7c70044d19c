"""One node inside the running loop: what `raftq node` runs, and what a service may hold itself.

    async with Node("n1", data="data/n1", listen="127.0.0.1:7400",
                    members={"n1": "127.0.0.1:7500"}) as node:
        ...

Rules

1. Nothing global: no logging is configured, no signal handled, no collector tuned, no metrics
   registry shared. Records go to the standard library's loggers named ``raftq.*``.
2. A node belongs to the loop it was started on, and all of it runs there.
3. A node whose disk fails stops by itself and says nothing more; `failed()` returns then.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from raftq.embedded.address import format_address, parse_address
from raftq.embedded.metrics import metrics_page, not_ready
from raftq.embedded.outside import environment_of
from raftq.env import Environment, Listener
from raftq.env.disk import RealDisk
from raftq.errors import InvalidArgument
from raftq.limits import MAX_NODE_NAME
from raftq.observability.admin_port import AdminPort, health_pages
from raftq.server import Member, NodeConfig
from raftq.server import Node as ServerNode


class Node:
    """A node from `start()` to `stop()`; as a context manager, from entering to leaving.

    `members` names the founding nodes and their peer addresses, the same on every node; its own
    entry is where it listens for its peers. A data directory that belongs to a cluster already
    ignores it. `groups` is how many groups a new cluster gets (0: as many as members).
    """

    def __init__(
        self,
        name: str,
        *,
        data: str | Path,
        listen: str,
        members: Mapping[str, str],
        admin_listen: str | None = None,
        groups: int = 0,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        if not 1 <= len(name) <= MAX_NODE_NAME:
            raise InvalidArgument(f"a node's name has 1 to {MAX_NODE_NAME} characters")
        if name not in members:
            raise InvalidArgument(
                f"node {name!r} is not one of the members {', '.join(members) or '(none)'}; "
                "its own peer address belongs in the list"
            )
        self.name = name
        self.data = Path(data)
        self._config = NodeConfig(
            name=name,
            listen=parse_address(listen),
            members=tuple(
                Member(member, *parse_address(address)) for member, address in members.items()
            ),
            groups=groups,
            labels=dict(labels or {}),
        )
        self._admin_address = parse_address(admin_listen) if admin_listen is not None else None
        self._admin_port: AdminPort | None = None
        self._admin_listener: Listener | None = None
        self._node: ServerNode | None = None
        self._failed: asyncio.Future[BaseException] | None = None

    async def start(self) -> None:
        """Listen; returns once all ports are open. The cluster may still have to begin.

        Raises: OSError when an address is taken; InvalidArgument when another process has the data
        directory; ClusterMismatch, Corrupted.
        """
        assert self._node is None, "a node is started once; make another one"
        self._failed = asyncio.get_running_loop().create_future()
        environment = environment_of(RealDisk(str(self.data)))
        self._node = ServerNode(environment, self._config, on_failure=self._on_failure)
        try:
            await self._node.start()
            await self._open_admin_port(environment)
        except BaseException:
            self.kill()
            raise

    async def _open_admin_port(self, environment: Environment) -> None:
        if self._admin_address is None:
            return
        node = self.server
        pages = health_pages(lambda: not_ready(node))
        self._admin_port = AdminPort({**pages, "/metrics": metrics_page(node)})
        address = self._admin_address
        self._admin_listener = await environment.network.listen(
            address.host, address.port, self._admin_port
        )

    def _on_failure(self, error: BaseException) -> None:
        assert self._failed is not None
        self._close_admin_port()
        if not self._failed.done():
            self._failed.set_result(error)

    @property
    def server(self) -> ServerNode:
        """The node itself, for what is not offered here."""
        assert self._node is not None, "the node has not been started"
        return self._node

    @property
    def client_address(self) -> str:
        """Where clients find it; the real port if 0 was asked for."""
        return format_address(self.server.client_address)

    @property
    def admin_address(self) -> str | None:
        """Where health and metrics are; None if they were not asked for."""
        if self._admin_listener is None:
            return None
        host, port = self._admin_listener.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def is_running(self) -> bool:
        return self._node is not None and not self._node.stopped

    def not_ready(self) -> list[str]:
        """Why this node cannot serve everything now; empty when it can."""
        return not_ready(self.server)

    async def failed(self) -> BaseException:
        """Wait until the node has stopped because something failed, and learn what."""
        assert self._failed is not None, "the node has not been started"
        return await asyncio.shield(self._failed)

    async def stop(self) -> None:
        """Hand leaderships over, close the logs, leave. Twice is fine."""
        self._close_admin_port()
        if self._node is not None:
            await self._node.stop()

    def kill(self) -> None:
        """Stop at once and hand nothing over; the others notice by the broken links."""
        self._close_admin_port()
        if self._node is not None:
            self._node.close()

    def _close_admin_port(self) -> None:
        if self._admin_listener is not None:
            self._admin_listener.close()
            self._admin_listener = None
        if self._admin_port is not None:
            self._admin_port.close()
            self._admin_port = None

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
