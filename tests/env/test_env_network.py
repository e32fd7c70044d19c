"""The real network, under asyncio's loop and uvloop: buffered protocols, tuning, addresses."""

import asyncio
import socket

import pytest
import uvloop

from raftq.env.clock import RealClock
from raftq.env.entropy import RealEntropy
from raftq.env.loop import SERVER_GC_THRESHOLDS, loop_factory, run
from raftq.env.network import RealNetwork


class Echo(asyncio.BufferedProtocol):
    """Collects what arrives, sends it back if asked to."""

    def __init__(self, *, echoes):
        self.echoes = echoes
        self.received = bytearray()
        self.lost = asyncio.get_running_loop().create_future()
        self.wake = asyncio.Event()
        self._buffer = bytearray(1000)

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, sizehint):
        return self._buffer

    def buffer_updated(self, count):
        self.received += self._buffer[:count]
        if self.echoes:
            self.transport.writelines([bytes(self._buffer[:count])])
        self.wake.set()

    def connection_lost(self, error):
        self.lost.set_result(error)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop])
def runner(request):
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner


def test_bytes_go_both_ways(runner):
    async def main():
        network = RealNetwork()
        accepted = []
        listener = await network.listen(
            "127.0.0.1", 0, lambda: accepted.append(Echo(echoes=True)) or accepted[-1]
        )
        host, port = listener.address
        assert host == "127.0.0.1"
        assert port > 0
        made = []
        await network.connect(host, port, lambda: made.append(Echo(echoes=False)) or made[-1])
        client = made[0]
        assert client.transport.get_extra_info("peername") == (host, port)
        client.transport.writelines([b"a" * 5000, b"b" * 3000])
        async with asyncio.timeout(5):
            while len(client.received) < 8000:
                client.wake.clear()
                await client.wake.wait()
        assert client.received == b"a" * 5000 + b"b" * 3000
        for protocol in (client, accepted[0]):
            connection = protocol.transport.get_extra_info("socket")
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        client.transport.abort()
        async with asyncio.timeout(5):
            assert await client.lost is None
            await accepted[0].lost
        listener.close()
        with pytest.raises(OSError):
            await network.connect(host, port, lambda: Echo(echoes=False))

    runner.run(main())


def test_a_taken_address_is_refused(runner):
    async def main():
        network = RealNetwork()
        listener = await network.listen("127.0.0.1", 0, lambda: Echo(echoes=False))
        with pytest.raises(OSError):
            await network.listen(*listener.address, lambda: Echo(echoes=False))
        listener.close()

    runner.run(main())


def test_run_uses_uvloop_and_leaves_the_collector_alone_unless_a_server(monkeypatch):
    import gc

    asked = []
    monkeypatch.setattr(gc, "freeze", lambda: asked.append("freeze"))
    monkeypatch.setattr(gc, "set_threshold", lambda *numbers: asked.append(numbers))

    async def main():
        return type(asyncio.get_running_loop()).__module__

    assert run(main()).startswith("uvloop")
    assert asked == []
    assert run(main(), server=True).startswith("uvloop")
    assert asked == ["freeze", SERVER_GC_THRESHOLDS]


def test_without_uvloop_asyncio_serves(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert loop_factory() is asyncio.new_event_loop


def test_clock_and_entropy():
    clock = RealClock()
    first = clock.monotonic()
    assert isinstance(first, int)
    assert clock.monotonic() >= first
    assert clock.wall() > 1_700_000_000_000_000
    entropy = RealEntropy()
    assert {entropy.below(3) for _ in range(200)} == {0, 1, 2}
    assert {entropy.bits(1) for _ in range(50)} == {1}
    assert 0 < entropy.bits(64) < 1 << 64
    assert RealEntropy().bits(64) != RealEntropy().bits(64)
