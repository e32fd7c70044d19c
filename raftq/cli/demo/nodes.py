"""The demo's nodes: the leader that is killed, and the replicas compared in the end."""

import asyncio
import time
from typing import Any, Final

from raftq.cli.processes import Processes
from raftq.client.client import AsyncClient
from raftq.client.ports import real_outside
from raftq.client.routing import Router
from raftq.client.url import parse_url
from raftq.errors import NoQuorum, RaftqError

DOWN_SECONDS: Final = 2.0
"""How long the killed node stays away: others have long taken over, and it must catch up after."""

COMPARE_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.1


async def kill_leader(
    processes: Processes, client: AsyncClient, queue: str, partition: int
) -> tuple[str, float]:
    """SIGKILL to the node that leads the partition; its name, and when (monotonic seconds)."""
    while True:
        found = await client.describe_queue(queue)
        leader = found.partitions[partition].leader
        if leader is not None:
            killed_at = time.monotonic()
            processes.kill(leader)
            return leader, killed_at
        await asyncio.sleep(_LOOK_SECONDS)


async def restart_later(processes: Processes, name: str) -> None:
    """Start the killed node again, after a while."""
    await asyncio.sleep(DOWN_SECONDS)
    processes.start_node(name)


class Digests:
    """Asks every node, not any node, for the digests of its replicas."""

    def __init__(self, processes: Processes) -> None:
        outside = real_outside()
        self._routers = {
            name: Router(outside, parse_url(processes.url_of(name)), "raftq-demo")
            for name in processes.names
        }

    async def are_equal(self) -> bool:
        """Whether all replicas of all groups reach the same state; waits for those that lag."""
        try:
            async with asyncio.timeout(COMPARE_SECONDS):
                groups = await self._groups()
                for group in groups:
                    while not await self._agree(group):  # noqa: ASYNC110
                        await asyncio.sleep(_LOOK_SECONDS)
        except (TimeoutError, RaftqError):
            return False
        finally:
            for router in self._routers.values():
                await router.close()
        return True

    async def _groups(self) -> list[int]:
        first = next(iter(self._routers.values()))
        groups = (await first.call({"do": "status"}, COMPARE_SECONDS))["groups"]
        if not groups:
            raise NoQuorum("the node has no groups")
        return [group["group"] for group in groups]

    async def _agree(self, group: int) -> bool:
        found: list[dict[str, Any]] = [
            await router.call({"do": "digest", "group": group}, COMPARE_SECONDS)
            for router in self._routers.values()
        ]
        return all(each == found[0] for each in found[1:])
