"""The simulated network: hosts, links that can be blocked one way, and the network port of each.

Rules

1. A link from one host to another is open or blocked; blocking is silent. Connections over a
   blocked link stall like TCP, and go on when it heals, unless an end has given up before.
2. A killed process' kernel goes on: it refuses connections and ends streams. A machine without
   power is silent, and when it is back it answers what it does not know with a reset.
3. All delays are drawn from the fabric's own generator: who draws is decided by the order of
   events, and that by the seed.
"""

import asyncio
import errno
import random
from collections.abc import Iterable
from typing import NamedTuple

from raftq.env import Buffer, Listener, ProtocolFactory
from raftq.ids import Micros
from raftq.sim.entropy import generator
from raftq.sim.loop import MICROS, SimLoop
from raftq.sim.process import Process
from raftq.sim.stream import SimTransport

ANY_ADDRESS = frozenset({"", "0.0.0.0", "::", "localhost", "127.0.0.1"})  # noqa: S104 - simulated.

EPHEMERAL_PORT_FIRST = 32_768

CONNECT_WAITS_SECONDS = (0, 1, 2, 4, 8)
"""A connect whose first packet is lost tries again after these, then times out."""


class Latency(NamedTuple):
    """How long a piece is on its way; one in `spike_one_in` takes up to `spike_micros` longer."""

    micros_min: int = 60
    micros_max: int = 300
    spike_one_in: int = 1_000
    spike_micros: int = 20_000
    bytes_per_micro: int = 1_000


class Fabric:
    """The network as a whole: what joins the hosts, and what the nemesis tears at."""

    def __init__(self, loop: SimLoop, *, seed: int, latency: Latency | None = None) -> None:
        self.loop = loop
        self.random: random.Random = generator(seed, "network")
        self._latency = latency or Latency()
        self._draw = self.random.random
        self._serials = 0
        self._blocked: dict[tuple[str, str], bool] = {}
        self._without_power: dict[str, bool] = {}
        self._ports: dict[str, int] = {}
        self._listeners: dict[tuple[str, int], SimListener] = {}
        # By serial, so that whatever walks over them does so in the order of their making.
        self._ends: dict[int, SimTransport] = {}

    def network(self, host: str, process: Process) -> "SimNetwork":
        """The network port of one process on `host`."""
        self._ports.setdefault(host, EPHEMERAL_PORT_FIRST)
        return SimNetwork(self, host, process)

    # --- Faults --------------------------------------------------------------------------------

    def set_latency(self, latency: Latency) -> None:
        self._latency = latency

    def block(self, source: str, target: str) -> None:
        """Nothing gets from `source` to `target` any more; the other way is left as it is."""
        self._blocked[source, target] = True
        self._link_changed(source, target)

    def unblock(self, source: str, target: str) -> None:
        if self._blocked.pop((source, target), False):
            self._link_changed(source, target)

    def partition(self, one_side: Iterable[str], other_side: Iterable[str]) -> None:
        """Block every link between the two sides, both ways."""
        others = tuple(other_side)
        for one in one_side:
            for other in others:
                assert one != other, "a host on both sides"
                self.block(one, other)
                self.block(other, one)

    def heal(self) -> None:
        """Unblock everything."""
        for source, target in tuple(self._blocked):
            self.unblock(source, target)

    def reset_connections(self, one: str, other: str) -> int:
        """Something between the two hosts resets all their connections; how many ends there were."""
        ends = self._ends_between(one, other)
        for end in ends:
            self.loop.call_at_micros(
                Micros(self.loop.now + self.latency()), end.reset, context=end.context
            )
        return len(ends)

    def process_killed(self, process: Process) -> None:
        """Call it with Process.kill: the kernel cleans up after it."""
        for address, listener in tuple(self._listeners.items()):
            if listener.process is process:
                del self._listeners[address]
        for end in tuple(self._ends.values()):
            if end.process is process:
                end.killed()

    def power_off(self, host: str) -> None:
        """The machine falls silent. Its processes are killed by the caller."""
        self._without_power[host] = True
        ends = [end for end in self._ends.values() if host in {end.local[0], end.remote[0]}]
        for end in ends:
            if end.local[0] == host:
                end.power_lost()
        for address in [address for address in self._listeners if address[0] == host]:
            del self._listeners[address]
        for end in ends:
            end.link_changed()

    def power_on(self, host: str) -> None:
        """The machine is back and remembers no connection: it resets those that still ask."""
        self._without_power.pop(host, None)
        for end in tuple(self._ends.values()):
            if end.remote[0] == host:
                end.link_changed()

    # --- What the ends ask ---------------------------------------------------------------------

    def is_open(self, source: str, target: str) -> bool:
        return not (
            (self._blocked and (source, target) in self._blocked)
            or (self._without_power and self._has_no_power(source, target))
        )

    def is_open_both_ways(self, one: str, other: str) -> bool:
        return self.is_open(one, other) and self.is_open(other, one)

    def latency(self) -> int:
        """How long the next piece is on its way."""
        micros_min, micros_max, spike_one_in, spike_micros, _ = self._latency
        draw = self._draw
        micros = micros_min + int(draw() * (micros_max - micros_min))
        if draw() * spike_one_in < 1.0:
            micros += int(draw() * spike_micros)
        return micros

    def one_in(self, many: int) -> bool:
        return self._draw() * many < 1.0

    def schedule(self, length: int, free_at: int) -> tuple[int, int]:
        """When `length` bytes arrive over a line free at `free_at`, and when it is free again."""
        now = self.loop.now
        sent_at = max(free_at, now) + length // self._latency.bytes_per_micro
        return sent_at + self.latency(), sent_at

    def next_serial(self) -> int:
        self._serials += 1
        return self._serials

    def delivered(self, end: SimTransport, data: Buffer) -> None:
        self.loop.trace.mix(self.loop.now, end.serial, len(data), data)

    def end_lost(self, end: SimTransport) -> None:
        self._ends.pop(end.serial, None)
        self.loop.trace.mix(self.loop.now, end.serial, -1)

    # --- What the ports ask --------------------------------------------------------------------

    def add_listener(self, listener: "SimListener") -> None:
        if listener.address in self._listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use", str(listener.address))
        self._listeners[listener.address] = listener

    def drop_listener(self, listener: "SimListener") -> None:
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    def listener(self, host: str, port: int) -> "SimListener | None":
        return self._listeners.get((host, port))

    def knows(self, host: str) -> bool:
        return host in self._ports

    def next_port(self, host: str) -> int:
        self._ports[host] += 1
        return self._ports[host]

    def join(
        self, process: Process, local: tuple[str, int], listener: "SimListener"
    ) -> SimTransport:
        """Make both ends of a connection to a listener; the near one is returned."""
        near = SimTransport(self, process, local, listener.address)
        far = SimTransport(self, listener.process, listener.address, local)
        near.peer, far.peer = far, near
        for end in (near, far):
            self._ends[end.serial] = end
            self.loop.trace.mix(self.loop.now, end.serial, 0)
        self.loop.call_soon(listener.accept, far, context=far.context)
        return near

    def _ends_between(self, one: str, other: str) -> list[SimTransport]:
        pair = {(one, other), (other, one)}
        return [end for end in self._ends.values() if (end.local[0], end.remote[0]) in pair]

    def _link_changed(self, source: str, target: str) -> None:
        # An end that is lost may still have pieces on the wire: it is reached through its peer.
        for end in self._ends_between(source, target):
            end.link_changed()
            if end.peer.is_lost:
                end.peer.link_changed()

    def _has_no_power(self, source: str, target: str) -> bool:
        return source in self._without_power or target in self._without_power


class SimListener:
    """A listening port of one process."""

    def __init__(
        self, fabric: Fabric, process: Process, address: tuple[str, int], factory: ProtocolFactory
    ) -> None:
        self.process = process
        self._fabric = fabric
        self._address = address
        self._factory = factory

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    def accept(self, end: SimTransport) -> None:
        """The process takes a connection from its kernel; it may be broken already."""
        if self._fabric.listener(*self._address) is not self:
            end.abort()
        elif not end.is_lost:
            end.begin(self._factory())

    def close(self) -> None:
        self._fabric.drop_listener(self)


class SimNetwork:
    """The network port of one process."""

    def __init__(self, fabric: Fabric, host: str, process: Process) -> None:
        self._fabric = fabric
        self._host = host
        self._process = process

    async def connect(self, host: str, port: int, factory: ProtocolFactory) -> None:
        target = self._host if host in ANY_ADDRESS else host
        fabric = self._fabric
        if not fabric.knows(target):
            raise OSError(errno.EHOSTUNREACH, "No route to host", host)
        for wait in CONNECT_WAITS_SECONDS:
            await asyncio.sleep(wait + fabric.latency() / MICROS)
            if fabric.is_open_both_ways(self._host, target):
                break
        else:
            raise TimeoutError(errno.ETIMEDOUT, "Connection timed out", f"{host}:{port}")
        listener = fabric.listener(target, port)
        if listener is None:
            await asyncio.sleep(fabric.latency() / MICROS)
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused", f"{host}:{port}")
        end = fabric.join(self._process, (self._host, fabric.next_port(self._host)), listener)
        try:
            await asyncio.sleep(fabric.latency() / MICROS)
        except asyncio.CancelledError:
            end.abort()
            raise
        if end.is_lost:
            raise ConnectionResetError(
                errno.ECONNRESET, "Connection reset by peer", f"{host}:{port}"
            )
        end.begin(factory())

    async def listen(self, host: str, port: int, factory: ProtocolFactory) -> Listener:
        if host != self._host and host not in ANY_ADDRESS:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address", host)
        address = (self._host, port or self._fabric.next_port(self._host))
        listener = SimListener(self._fabric, self._process, address, factory)
        self._fabric.add_listener(listener)
        return listener
