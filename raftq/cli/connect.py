"""A client for the time of one command."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from raftq.cli.options import Servers
from raftq.client.client import AsyncClient
from raftq.env import loop

Result = TypeVar("Result")


def open_client(servers: Servers) -> AsyncClient:
    """The client that a command uses; enter it with `async with`."""
    return AsyncClient(servers.url, timeout=servers.timeout)


def with_client(servers: Servers, work: Callable[[AsyncClient], Awaitable[Result]]) -> Result:
    """Run `work` with a client, on a loop of its own.

    Raises: RaftqError.
    """

    async def main() -> Result:
        async with open_client(servers) as client:
            return await work(client)

    return loop.run(main())
