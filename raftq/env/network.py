"""The real network: TCP through the running loop's own sockets.

Rules

1. Every connection, asked for or accepted, is made equal: no Nagle delay, a bounded wait for a
   silent peer, write buffer limits. A peer that is gone without a word breaks the connection after
   `SILENCE_SECONDS`, so that no descriptor is kept for ever.
2. The protocol that the factory makes is installed before its first byte arrives.
"""

import asyncio
import contextlib
import socket
from typing import cast

from raftq.env import Listener, ProtocolFactory

SILENCE_SECONDS = 10
"""How long what was sent may stay unacknowledged, or an idle peer unheard, before giving up."""

KEEPALIVE_PROBES = 3
LISTEN_BACKLOG = 1_024
"""Clients that reconnect all at once after a failover must find room."""

WRITE_BUFFER_HIGH_BYTES = 256 * 1_024
"""pause_writing at this much: about one large append, so that a link is never starved."""


class _Arrival(asyncio.BufferedProtocol):
    """Prepares a new connection's socket, then hands the transport to the real protocol."""

    def __init__(self, factory: ProtocolFactory) -> None:
        self._factory = factory

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)
        _tune(stream.get_extra_info("socket"))
        stream.set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES)
        protocol = self._factory()
        stream.set_protocol(protocol)
        protocol.connection_made(stream)


def _tune(connection: socket.socket | None) -> None:
    if connection is None:
        return
    options = [
        (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", SILENCE_SECONDS // 2),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", SILENCE_SECONDS // 2 // KEEPALIVE_PROBES),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", KEEPALIVE_PROBES),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", SILENCE_SECONDS * 1_000),
    ]
    # The peer may have reset the connection already: its protocol will learn that from the loop.
    with contextlib.suppress(OSError):
        for level, name, value in options:
            option = getattr(socket, name, None)  # Not every platform has every one.
            if option is not None:
                connection.setsockopt(level, option, value)


class RealListener:
    """A listening socket of the loop."""

    __slots__ = ("_address", "_server")

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        host, port = server.sockets[0].getsockname()[:2]
        self._address = (str(host), int(port))

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    def close(self) -> None:
        self._server.close()


class RealNetwork:
    """TCP. Addresses are host names or IP literals."""

    __slots__ = ()

    async def connect(self, host: str, port: int, factory: ProtocolFactory) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: _Arrival(factory), host, port)

    async def listen(self, host: str, port: int, factory: ProtocolFactory) -> Listener:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: _Arrival(factory),
            host,
            port,
            backlog=LISTEN_BACKLOG,
            reuse_address=True,
        )
        return RealListener(server)
