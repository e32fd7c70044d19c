"""The nodes of the run: real processes on machines of their own, with a fault layer below them.

Rules

1. What starts, kills, pauses and asks nodes is `raftq.cli.processes`; here they only live elsewhere.
2. The fault layer is a file that the harness and the node map: a fault takes effect at once, and is
   in no way visible to the node but by what its disk and clock do.
3. The observer asks nodes one by one and never routes through another.
"""

import asyncio
import collections
import mmap
import os
import struct
import uuid
from pathlib import Path
from typing import Any

from chaos_network import Network

import raftq
from raftq.cli.processes import NodeAddresses, Processes
from raftq.client.ports import real_outside
from raftq.client.routing import Router
from raftq.client.url import parse_url
from raftq.errors import RaftqError

ASK_SECONDS = 1.0
_PORT_CLIENTS, _PORT_PEERS, _PORT_ADMIN = 7400, 7500, 7600
_FIELDS = (
    "sync_errors",
    "write_errors",
    "sync_stall_until",
    "write_stall_until",
    "clock_offset",
    "recording",
    "sync_errors_given",
    "syncs",
    "spares",
)
_FIELD = struct.Struct("<q")


class Layer:
    """The fault layer's control block of one node; its names are those of the C file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(mmap.PAGESIZE))
        with path.open("r+b") as file:
            self._block = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def get(self, name: str) -> int:
        value: int = _FIELD.unpack_from(self._block, 8 * _FIELDS.index(name))[0]
        return value

    def set(self, **values: int) -> None:
        for name, value in values.items():
            _FIELD.pack_into(self._block, 8 * _FIELDS.index(name), value)

    def heal(self) -> None:
        """No errors, no stalls, the right time."""
        self.set(
            sync_errors=0,
            write_errors=0,
            sync_stall_until=0,
            write_stall_until=0,
            clock_offset=0,
            spares=0,
        )


class Nodes(Processes):
    """A cluster of node processes, each on its own machine of the network."""

    def __init__(
        self, count: int, *, data: Path, network: Network, layer: Path | None, recording: bool
    ) -> None:
        super().__init__(count, data=data)
        self._network = network
        self._library = layer
        self._lives: collections.Counter[str] = collections.Counter()
        self.layers: dict[str, Layer] = {}
        self._routers: dict[str, Router] = {}
        for name in self.names:
            self.layers[name] = Layer(data / f"{name}.control")
            self.layers[name].set(recording=recording)
            self.boot_path(name).write_text(str(uuid.uuid4()))

    async def _choose_addresses(self, founders: object) -> None:
        for name in self.names:
            address = self._network.addresses[name]
            self.addresses[name] = NodeAddresses(
                f"{address}:{_PORT_CLIENTS}", f"{address}:{_PORT_PEERS}", f"{address}:{_PORT_ADMIN}"
            )

    def undo_path(self, name: str) -> Path:
        """The node's undo log since its last power loss."""
        return self.data / f"{name}.undo"

    def saved_path(self, name: str) -> Path:
        """Where files that it removed or replaced are kept for a power loss."""
        return self.data / f"{name}.undo.saved"

    def boot_path(self, name: str) -> Path:
        """The file that says which run of its machine this is."""
        return self.data / f"{name}.boot"

    def command(self, name: str) -> list[str]:
        prefix = [*self._network.inside(name), "env"]
        if self._library is not None:
            self.saved_path(name).mkdir(exist_ok=True)
            self._lives[name] += 1
            prefix += [
                f"LD_PRELOAD={self._library}",
                f"RAFTQ_CHAOS_CONTROL={self.layers[name].path}",
                f"RAFTQ_CHAOS_ROOT={self.directory(name)}",
                f"RAFTQ_CHAOS_UNDO={self.undo_path(name)}",
                f"RAFTQ_CHAOS_LIFE={self._lives[name]}",
                f"RAFTQ_CHAOS_BOOT={self.boot_path(name)}",
            ]
        return [*prefix, *super().command(name)]

    def exit_status(self, name: str) -> int | None:
        """How the node's process ended; None while it runs."""
        return self._running[name].poll()

    def heal(self) -> None:
        """Disks and clocks are well again, nobody is paused; who is dead stays dead."""
        for name, layer in self.layers.items():
            layer.heal()
            if self.is_running(name):
                self.resume(name)

    # --- Questions -----------------------------------------------------------------------------

    async def ask_node(self, name: str, question: dict[str, Any]) -> dict[str, Any] | None:
        """A control operation that the node answers itself; None if it does not answer."""
        router = self._routers.get(name)
        if router is None:
            url = parse_url(self.url_of(name))
            router = self._routers[name] = Router(real_outside(), url, "raftq-chaos")
        try:
            async with asyncio.timeout(ASK_SECONDS):
                answer: dict[str, Any] = await router.call(question, ASK_SECONDS)
                return answer
        except (RaftqError, TimeoutError):
            return None

    async def statuses(self) -> dict[str, dict[str, Any]]:
        """What each node that answers says of itself."""
        running = [name for name in self.names if self.is_running(name)]
        found = await asyncio.gather(*(self.ask_node(name, {"do": "status"}) for name in running))
        return {name: each for name, each in zip(running, found, strict=True) if each is not None}

    async def leaders(self) -> dict[int, str]:
        """The leader of each group: who says so of himself, in the newest term."""
        newest: dict[int, tuple[int, str]] = {}
        for name, status in (await self.statuses()).items():
            for group in status["groups"]:
                if group["role"] == "leader":
                    newest[group["group"]] = max(
                        newest.get(group["group"], (0, "")), (group["term"], name)
                    )
        return {group: name for group, (_, name) in sorted(newest.items())}

    async def close(self) -> None:
        for router in self._routers.values():
            await router.close()


def environment() -> dict[str, str]:
    """What children of the harness get: the same raftq, and nothing that configures it."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("RAFTQ_")}
    return own | {"PYTHONPATH": str(Path(raftq.__file__).parents[1])}
