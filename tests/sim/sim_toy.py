"""A toy cluster on the simulated ports: nodes that greet each other, under the nemesis.

`python sim_toy.py SEED` prints the trace hash of a run. It restarts itself with fixed hashes first,
and puts the order of a set of str into the trace, so that without this no two runs would be equal.
"""

import asyncio
import sys

from raftq.sim.entropy import generator
from raftq.sim.fault_plan import KINDS, draw_plan
from raftq.sim.hardware import Hardware
from raftq.sim.loop import SimLoop
from raftq.sim.nemesis import Nemesis
from raftq.sim.network import Fabric, Latency
from raftq.sim.reexec import fix_hashes, has_fixed_hashes
from raftq.sim.trace import Trace

SECOND = 1_000_000
OF_DISKS = {"sync_error", "sync_error_of_all", "disk_full", "rot", "lose_disk"}
ITS_KINDS = [kind for kind in KINDS if kind not in OF_DISKS]
"""A toy stops for good when its disk does."""

NODES = ("n1", "n2", "n3", "n4", "n5")
PORT = 7


class Greeter(asyncio.BufferedProtocol):
    """Lines come and go; each is answered by what the node makes of it."""

    def __init__(self, node):
        self.node = node
        self.line = bytearray()
        self.buffer = bytearray(64)

    def connection_made(self, transport):
        self.transport = transport
        self.node.greeters[self] = True

    def get_buffer(self, sizehint):
        return self.buffer

    def buffer_updated(self, count):
        self.line += self.buffer[:count]
        while (end := self.line.find(b"\n")) >= 0:
            line = bytes(self.line[:end])
            del self.line[: end + 1]
            self.node.heard(self, line)

    def connection_lost(self, error):
        self.node.greeters.pop(self, None)


class Node:
    """One process: dials all others, greets whom it knows, counts what it hears, durably."""

    def __init__(self, toy, name):
        self.toy = toy
        self.name = name
        self.greeters = {}
        self.count = 0
        self.synced = True

    async def run(self, environment):
        self.entropy, self.clock = environment.entropy, environment.clock
        network, disk = environment.network, environment.disk
        self.file = disk.open("count", create="count" not in disk.names(""))
        self.count = int.from_bytes(self.file.read(0, 8), "big")
        disk.sync_directory("")
        self.file.sync_now()
        await network.listen(self.name, PORT, lambda: Greeter(self))
        async with asyncio.TaskGroup() as group:
            for other in {name for name in NODES if name != self.name}:
                group.create_task(self.dial(network, other))
            group.create_task(self.greet())

    async def dial(self, network, other):
        while True:
            try:
                async with asyncio.timeout(1.5):
                    await network.connect(other, PORT, lambda: Greeter(self))
            except OSError as error:
                self.toy.trace.event(self.toy.loop.now, self.name, f"{other}: {error!r}")
            await asyncio.sleep(0.5 + self.entropy.below(1_000) / 1_000)

    async def greet(self):
        while True:
            for greeter in tuple(self.greeters):
                greeter.transport.write(f"{self.clock.wall()} {self.entropy.bits(64)}\n".encode())
            await asyncio.sleep(0.05)

    def heard(self, greeter, line):
        self.count += 1
        if not line.startswith(b"+"):
            greeter.transport.writelines([b"+", str(self.count).encode(), b"\n"])
        if self.synced:
            self.synced = False
            self.file.write(0, [self.count.to_bytes(8, "big")])
            self.file.sync(self.saved)
        if len(self.greeters) > 6:
            next(iter(self.greeters)).transport.close()

    def saved(self, error):
        assert error is None
        self.synced = True
        if self.count % 100 == 0:
            self.toy.trace.event(self.toy.loop.now, self.name, f"count {self.count}")


class Toy:
    """The cluster, as the nemesis sees it."""

    nodes = NODES
    clients = ()

    def __init__(self, loop, seed):
        self.loop = loop
        self.trace = loop.trace
        self.fabric = Fabric(loop, seed=seed)
        self.machines = {name: Hardware(loop, self.fabric, name, seed=seed) for name in NODES}
        for name in NODES:
            self.restart(name)

    def leader(self):
        return None

    def restart(self, name):
        process, environment = self.machines[name].start()
        process.spawn(Node(self, name).run(environment))

    def kill(self, name):
        self.machines[name].kill()

    def power_loss(self, name):
        self.machines[name].power_loss()

    def pause(self, name):
        self.machines[name].pause()

    def resume(self, name):
        self.machines[name].resume()

    def block(self, source, target):
        self.fabric.block(source, target)

    def unblock(self, source, target):
        self.fabric.unblock(source, target)

    def reset_connections(self, one, other):
        self.fabric.reset_connections(one, other)

    def stall_syncs(self, name, duration):
        self.machines[name].disk.stall(duration)

    def slow_network(self, latency):
        self.fabric.set_latency(latency or Latency())

    def jump_wall(self, name, by):
        self.machines[name].clock.jump_wall(by)

    def set_clock_rate(self, name, rate):
        self.machines[name].clock.set_rate(rate)


def simulate(seed, *, seconds=30, faults=10):
    """The trace, and how many callbacks ran."""
    trace = Trace(keeps_events=True)
    with SimLoop(seed=seed, timer_slack=200, trace=trace) as loop:
        toy = Toy(loop, seed)
        choose = generator(seed, "nemesis")
        nemesis = Nemesis(loop, toy, choose)
        nemesis.start(draw_plan(choose, seconds * SECOND, faults=faults, kinds=ITS_KINDS))
        loop.run_until(seconds * SECOND)
        for name in NODES:
            trace.event(loop.now, name, f"starts {toy.machines[name].starts}")
        return trace, loop.callbacks


if __name__ == "__main__":
    fix_hashes()
    assert has_fixed_hashes()
    result, _ = simulate(int(sys.argv[1]))
    print(result.digest(), len(result.events), ",".join({"n1", "n2", "n3", "n4", "n5"}))
