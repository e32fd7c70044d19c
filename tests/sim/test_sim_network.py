"""The simulated network: streams, back pressure, blocked links, resets, kills and power."""

import asyncio

import pytest

from raftq.ids import Micros
from raftq.sim.loop import SimLoop, SimulationError
from raftq.sim.network import Fabric, Latency
from raftq.sim.process import Process
from raftq.sim.stream import SILENCE_JITTER_MICROS, SILENCE_MICROS

SECOND = 1_000_000


class Peer(asyncio.BufferedProtocol):
    """Collects what happens to it; sends back what it gets if `echoes`."""

    def __init__(self, *, echoes=False, buffer_bytes=50):
        self.echoes = echoes
        self.received = bytearray()
        self.updates = 0
        self.events = []
        self._buffer = bytearray(buffer_bytes)

    def connection_made(self, transport):
        self.transport = transport
        self.events.append("made")

    def get_buffer(self, sizehint):
        return self._buffer

    def buffer_updated(self, count):
        assert "lost" not in self.events
        self.updates += 1
        self.received += self._buffer[:count]
        if self.echoes:
            self.transport.write(memoryview(self._buffer)[:count])

    def eof_received(self):
        self.events.append("eof")

    def pause_writing(self):
        self.events.append("pause")

    def resume_writing(self):
        self.events.append("resume")

    def connection_lost(self, error):
        self.events.append("lost")
        self.error = error


class World:
    """Three hosts, each with a process; `connect` gives both protocols of a new connection."""

    def __init__(self, loop, seed=1, latency=None):
        self.loop = loop
        self.fabric = Fabric(loop, seed=seed, latency=latency)
        self.processes = {name: Process(loop, name) for name in ("n1", "n2", "n3")}
        self.networks = {
            name: self.fabric.network(name, process) for name, process in self.processes.items()
        }

    def run(self, name, work):
        task = self.processes[name].spawn(work)
        self.loop.run_until_true(task.done, limit=60 * SECOND)
        return task.result()

    def connect(self, source="n1", target="n2", port=7, **options):
        accepted, made = [], []

        def accept():
            accepted.append(Peer(**options))
            return accepted[-1]

        def make():
            made.append(Peer())
            return made[-1]

        listener = self.run(target, self.networks[target].listen("0.0.0.0", port, accept))
        self.run(source, self.networks[source].connect(target, port, make))
        self.run(target, asyncio.sleep(0))
        listener.close()
        return made[0], accepted[0]


@pytest.fixture
def world():
    with SimLoop() as loop:
        yield World(loop)


def sent(world, protocol, data, name="n1"):
    world.processes[name].call(protocol.transport.write, data)


def test_bytes_arrive_in_order_whole_and_back(world):
    near, far = world.connect(echoes=True)
    data = bytes(range(256)) * 40
    for first in range(0, len(data), 97):
        sent(world, near, data[first : first + 97])
        if first % 3 == 0:
            world.loop.run_for(50)
    world.loop.run_for(SECOND)
    assert far.received == data
    assert near.received == data
    assert far.updates > len(data) // 97, "some pieces should have been cut"
    assert near.events == far.events == ["made"]
    assert near.transport.get_extra_info("peername") == ("n2", 7)
    assert far.transport.get_extra_info("peername") == near.transport.get_extra_info("sockname")


def test_latency_is_within_its_bounds():
    with SimLoop() as loop:
        world = World(loop, latency=Latency(1_000, 2_000, spike_one_in=10**9))
        near, far = world.connect()
        for _ in range(50):
            begun = loop.now
            sent(world, near, b"x")
            loop.run_until_true(lambda: bool(far.received), limit=SECOND)
            assert 1_000 <= loop.now - begun <= 2_000
            far.received.clear()


def test_a_port_is_taken_once_and_refuses_when_nobody_listens(world):
    listener = world.run("n1", world.networks["n1"].listen("n1", 5, Peer))
    assert listener.address == ("n1", 5)
    with pytest.raises(OSError, match="in use"):
        world.run("n1", world.networks["n1"].listen("127.0.0.1", 5, Peer))
    with pytest.raises(OSError, match="assign"):
        world.run("n1", world.networks["n1"].listen("n2", 6, Peer))
    other = world.run("n1", world.networks["n1"].listen("n1", 0, Peer))
    assert other.address[1] > 0
    made = []
    world.run("n1", world.networks["n1"].connect("127.0.0.1", 5, lambda: made.append(1) or Peer()))
    assert made == [1]
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        world.run("n2", world.networks["n2"].connect("n1", 5, Peer))
    with pytest.raises(OSError, match="No route"):
        world.run("n2", world.networks["n2"].connect("unknown", 5, Peer))


def test_close_flushes_and_ends_the_stream_on_both_sides(world):
    near, far = world.connect()

    def say_goodbye():
        near.transport.writelines([b"good", bytearray(b"bye")])
        near.transport.close()
        near.transport.write(b"dropped")
        assert near.transport.is_closing()

    world.processes["n1"].call(say_goodbye)
    world.loop.run_for(SECOND)
    assert far.received == b"goodbye"
    assert near.events == ["made", "lost"]
    assert far.events == ["made", "eof", "lost"]
    assert near.error is None
    assert far.error is None
    far.transport.write(b"dropped")
    world.loop.run_for(SECOND)
    assert world.fabric._ends == {}


def test_abort_resets_the_peer(world):
    near, far = world.connect()
    near.transport.abort()
    world.loop.run_for(SECOND)
    assert near.events == ["made", "lost"]
    assert far.events == ["made", "lost"]
    assert near.error is None
    assert isinstance(far.error, ConnectionResetError)


def test_a_reader_that_pauses_pauses_the_writer(world):
    near, far = world.connect(buffer_bytes=10_000)
    far.transport.pause_reading()
    for _ in range(10):
        sent(world, near, b"x" * 100_000)
    world.loop.run_for(SECOND)
    assert far.received == b""
    assert near.events == ["made", "pause"]
    assert near.transport.get_write_buffer_size() > 700_000
    far.transport.resume_reading()
    world.loop.run_for(SECOND)
    assert near.events == ["made", "pause", "resume"]
    assert far.received == b"x" * 1_000_000
    assert near.transport.get_write_buffer_size() == 0


def test_pausing_within_an_update_stops_at_once(world):
    near, far = world.connect()
    update = far.buffer_updated

    def pause_after(count):
        update(count)
        far.transport.pause_reading()

    far.buffer_updated = pause_after
    sent(world, near, b"x" * 120)
    world.loop.run_for(SECOND)
    assert len(far.received) <= 50
    for _ in range(5):
        far.transport.resume_reading()
        world.loop.run_for(SECOND)
    assert len(far.received) == 120


def test_a_blocked_link_stalls_and_goes_on(world):
    near, far = world.connect(echoes=True)
    sent(world, near, b"before")
    world.loop.run_for(SECOND)
    world.fabric.partition(["n1"], ["n2", "n3"])
    sent(world, near, b", during")
    world.loop.run_for(3 * SECOND)
    assert far.received == b"before"
    world.fabric.heal()
    world.loop.run_for(SECOND)
    sent(world, near, b", after")
    world.loop.run_for(SECOND)
    assert far.received == near.received == b"before, during, after"
    assert near.events == far.events == ["made"]


def test_what_was_in_flight_when_the_link_broke_stalls_too():
    with SimLoop() as loop:
        world = World(loop, latency=Latency(10_000, 10_001, spike_one_in=10**9))
        near, far = world.connect()
        sent(world, near, b"x")
        loop.run_for(5_000)
        world.fabric.block("n1", "n2")
        loop.run_for(SECOND)
        assert far.received == b""
        world.fabric.unblock("n1", "n2")
        loop.run_for(SECOND)
        assert far.received == b"x"


def test_one_way_blocks_leave_the_other_way_until_its_window_is_full(world):
    near, far = world.connect(buffer_bytes=100_000)
    world.fabric.block("n2", "n1")
    sent(world, far, b"unheard", name="n2")
    for _ in range(10):
        sent(world, near, b"x" * 100_000)
    world.loop.run_for(SECOND)
    # Data flows, but no acknowledgement comes back: a window's worth and no more.
    assert len(far.received) == 256 * 1_024
    assert near.received == b""
    world.fabric.unblock("n2", "n1")
    world.loop.run_for(SECOND)
    assert len(far.received) == 1_000_000
    assert near.received == b"unheard"


def test_a_long_silence_breaks_both_ends(world):
    near, far = world.connect()
    world.fabric.block("n1", "n2")
    world.loop.run_for(Micros(SILENCE_MICROS - 1))
    assert near.events == far.events == ["made"]
    world.loop.run_for(Micros(SILENCE_JITTER_MICROS + 1))
    assert near.events == far.events == ["made", "lost"]
    assert isinstance(near.error, TimeoutError)
    assert isinstance(far.error, TimeoutError)
    assert world.fabric._ends == {}


def test_an_end_whose_peer_gave_up_learns_it_after_the_link_heals(world):
    near, far = world.connect()
    idle, gone = world.connect(port=8)
    world.fabric.partition(["n1"], ["n2"])
    world.loop.run_for(SECOND)
    far.transport.abort()
    gone.transport.abort()
    # The resets are lost with the link's memory in this test: only the ends themselves are left.
    far.transport._wire.clear()
    gone.transport._wire.clear()
    sent(world, near, b"anybody?")
    world.loop.run_for(SECOND)
    world.fabric.heal()
    world.loop.run_for(SECOND)
    assert isinstance(near.error, ConnectionResetError)
    world.loop.run_for(5 * SECOND)
    assert isinstance(idle.error, ConnectionResetError)


def test_connecting_waits_for_a_short_block_and_gives_up_on_a_long_one(world):
    world.run("n2", world.networks["n2"].listen("n2", 7, Peer))
    world.fabric.block("n2", "n1")
    world.loop.call_later(2.5, world.fabric.heal)
    begun = world.loop.now
    world.run("n1", world.networks["n1"].connect("n2", 7, Peer))
    assert 2.5 * SECOND < world.loop.now - begun < 4 * SECOND
    world.fabric.block("n1", "n2")
    with pytest.raises(TimeoutError):
        world.run("n1", world.networks["n1"].connect("n2", 7, Peer))


def test_reset_connections_hits_the_pair_and_no_other(world):
    near, far = world.connect()
    other, other_far = world.connect(target="n3")
    assert world.fabric.reset_connections("n2", "n1") == 2
    world.loop.run_for(SECOND)
    assert isinstance(near.error, ConnectionResetError)
    assert isinstance(far.error, ConnectionResetError)
    assert other.events == other_far.events == ["made"]


def kill(world, name):
    world.processes[name].kill()
    world.fabric.process_killed(world.processes[name])


def test_a_killed_process_ends_its_streams_after_what_its_kernel_had(world):
    near, far = world.connect(target="n2")
    sent(world, far, b"last words", name="n2")
    kill(world, "n2")
    world.loop.run_for(SECOND)
    assert near.received == b"last words"
    assert near.events == ["made", "eof", "lost"]
    assert far.events == ["made"]
    with pytest.raises(ConnectionRefusedError):
        world.run("n1", world.networks["n1"].connect("n2", 7, Peer))


def test_a_restarted_process_listens_on_its_old_port(world):
    world.run("n2", world.networks["n2"].listen("n2", 7, Peer))
    kill(world, "n2")
    again = world.processes["n2"] = Process(world.loop, "n2")
    world.networks["n2"] = world.fabric.network("n2", again)
    near, far = world.connect()
    sent(world, near, b"hello")
    world.loop.run_for(SECOND)
    assert far.received == b"hello"


def test_a_kill_during_a_partition_is_heard_of_when_it_heals(world):
    near, _ = world.connect()
    world.fabric.partition(["n1"], ["n2"])
    world.loop.run_for(SECOND)
    kill(world, "n2")
    world.loop.run_for(2 * SECOND)
    assert near.events == ["made"]
    world.fabric.heal()
    world.loop.run_for(SECOND)
    assert near.events == ["made", "eof", "lost"]


def test_power_loss_is_silent_until_the_machine_is_back(world):
    near, far = world.connect()
    idle, _ = world.connect(port=8)
    world.loop.run_for(SECOND)
    sent(world, far, b"in its kernel only", name="n2")
    world.processes["n2"].kill()
    world.fabric.power_off("n2")
    sent(world, near, b"anybody?")
    world.loop.run_for(5 * SECOND)
    assert near.events == ["made"]
    assert near.received == b""
    world.fabric.power_on("n2")
    world.loop.run_for(SECOND)
    assert isinstance(near.error, ConnectionResetError)
    world.loop.run_for(5 * SECOND)
    assert isinstance(idle.error, ConnectionResetError)
    assert world.fabric._ends == {}


def test_power_that_stays_off_breaks_connections_by_silence(world):
    near, _ = world.connect()
    world.processes["n2"].kill()
    world.fabric.power_off("n2")
    world.loop.run_for(Micros(SILENCE_MICROS + SILENCE_JITTER_MICROS))
    assert isinstance(near.error, TimeoutError)
    with pytest.raises(TimeoutError):
        world.run("n1", world.networks["n1"].connect("n2", 7, Peer))


def test_a_paused_process_is_connected_to_but_does_not_answer(world):
    accepted = []

    def accept():
        accepted.append(Peer(echoes=True))
        return accepted[-1]

    world.run("n2", world.networks["n2"].listen("n2", 7, accept))
    world.processes["n2"].pause()
    made = []
    world.run("n1", world.networks["n1"].connect("n2", 7, lambda: made.append(Peer()) or made[0]))
    sent(world, made[0], b"hello")
    world.loop.run_for(60 * SECOND)
    assert accepted == []
    world.processes["n2"].resume()
    world.loop.run_for(SECOND)
    assert made[0].received == b"hello"
    assert made[0].events == ["made"]


def test_a_protocol_that_raises_fails_the_run(world):
    near, far = world.connect()
    far.buffer_updated = lambda count: 1 // 0
    sent(world, near, b"x")
    with pytest.raises(SimulationError):
        world.loop.run_for(SECOND)


def test_a_cancelled_connect_leaves_no_end_behind():
    with SimLoop() as loop:
        world = World(loop, latency=Latency(10_000, 10_001))
        world.run("n2", world.networks["n2"].listen("n2", 7, Peer))
        task = world.processes["n1"].spawn(world.networks["n1"].connect("n2", 7, Peer))
        loop.run_for(15_000)
        assert len(world.fabric._ends) == 2
        task.cancel()
        loop.run_for(SECOND)
        assert task.cancelled()
        assert world.fabric._ends == {}
