"""Addresses as people write them: HOST:PORT, with IPv6 literals in brackets."""

import asyncio
from typing import Final

from raftq.env import Entropy, Listener, Network
from raftq.errors import InvalidArgument
from raftq.server import Address

__all__ = ["Address", "format_address", "free_addresses", "parse_address"]

_PORTS_FIRST: Final = 20_000
_PORTS_COUNT: Final = 12_000
"""Below the range from which systems take the source ports of connections: a node that was stopped
must find its port free when it starts again, and nobody who tries to reach it meanwhile may be
connected to himself."""

_TRIES: Final = 200


def parse_address(text: str) -> Address:
    """`HOST:PORT`; port 0 stands for any free one.

    Raises: InvalidArgument.
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidArgument(f"{text!r}: write an IPv6 address in brackets, like [::1]:7400")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) >= 1 << 16:
        raise InvalidArgument(f"{text!r} is not an address like 127.0.0.1:7400")
    return Address(host, int(port))


def format_address(address: Address) -> str:
    """What `parse_address` reads."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{host}:{address.port}"


async def free_addresses(
    network: Network, entropy: Entropy, count: int, *, host: str = "127.0.0.1"
) -> list[Address]:
    """Addresses at which nobody listens now. Somebody else may take one before its owner does.

    Raises: OSError when none is found.
    """
    listeners: list[Listener] = []
    failure: OSError | None = None
    try:
        for _ in range(_TRIES):
            if len(listeners) == count:
                return [Address(*listener.address) for listener in listeners]
            port = _PORTS_FIRST + entropy.below(_PORTS_COUNT)
            try:
                listeners.append(await network.listen(host, port, _Unknown))
            except OSError as error:
                failure = error
        raise OSError(f"no {count} free ports on {host}") from failure
    finally:
        for listener in listeners:
            listener.close()


class _Unknown(asyncio.BufferedProtocol):
    """Nobody can know these ports yet; whoever connects all the same is turned away."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()

    def get_buffer(self, sizehint: int) -> bytearray:
        return bytearray(max(sizehint, 1))
