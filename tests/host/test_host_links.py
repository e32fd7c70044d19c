"""Links between nodes: who may have one, what breaks with one, and what one write carries."""

import asyncio
import itertools

import pytest
from host_world import NAMES, PORT, QUIET, SECOND, World

from raftq.errors import ClusterMismatch, ConnectionFailed, UnsupportedVersion
from raftq.host import links as links_module
from raftq.limits import MAX_FRAME_BYTES_BEFORE_AUTH
from raftq.raft.messages import Heartbeat
from raftq.sim.hardware import Hardware
from raftq.wire import errors, forwarding, raft_messages
from raftq.wire.frames import FrameKind, FrameReader, encode_frame
from raftq.wire.handshake import PeerHello, encode_peer_hello


class Stranger(asyncio.BufferedProtocol):
    """Speaks the peer protocol by hand."""

    def __init__(self):
        self.reader = FrameReader()
        self.reader.authenticated()
        self.frames = []
        self.lost = False

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, sizehint):
        return self.reader.get_buffer(sizehint)

    def buffer_updated(self, count):
        self.frames += [(f.kind, f.stream, bytes(f.body)) for f in self.reader.received(count)]

    def connection_lost(self, error):
        self.lost = True

    def send(self, kind, *parts, stream=0):
        self.transport.writelines(encode_frame(kind, stream, *parts))

    def error(self):
        assert self.frames[-1][0] == FrameKind.ERROR
        return errors.decode_error(self.frames[-1][2])


@pytest.fixture
def world():
    with World() as world:
        world.start()
        world.led()
        yield world


def visit(world, name, **changes):
    """Connect to a node's peer port as a node would, with something changed."""
    if "stranger" not in world.machines:
        world.machines["stranger"] = Hardware(world.loop, world.fabric, "stranger", seed=9)
        world.visitor = world.machines["stranger"].start()
    process, environment = world.visitor
    stranger = Stranger()
    task = process.spawn(environment.network.connect(name, PORT, lambda: stranger))
    world.until(task.done)
    if changes.pop("silent", False):
        return stranger
    identity = world.nodes[name].host.identity
    node = changes.get("node", "n1" if name != "n1" else "n2")
    member = identity.member(node)
    facts = {
        "versions": (1,),
        "features": (),
        "cluster": identity.cluster,
        "node": node,
        "incarnation": member.incarnation if member else 77,
        "boot": 1,
    }
    stranger.send(FrameKind.PEER_HELLO, encode_peer_hello(PeerHello(**facts | changes)))
    return stranger


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"cluster": 12345}, ClusterMismatch, "another cluster"),
        ({"incarnation": 12345}, ClusterMismatch, "wiped or replaced"),
        ({"node": "n9"}, ClusterMismatch, "'n9' is not a member"),
        ({"node": "n2"}, ClusterMismatch, "'n2' is not a member"),
        ({"versions": (7, 8)}, UnsupportedVersion, "7, 8"),
    ],
)
def test_who_does_not_belong_is_told_and_gets_no_link(world, changes, kind, words):
    before = world.nodes["n2"].host.links.up()
    stranger = visit(world, "n2", **changes)
    world.until(lambda: stranger.lost)
    assert isinstance(stranger.error(), kind)
    assert words in str(stranger.error())
    assert world.nodes["n2"].host.links.up() == before
    assert world.nodes["n2"].lost_links == []


def test_silence_before_the_greeting_ends_in_time(world):
    stranger = visit(world, "n2", silent=True)
    world.run(4)
    assert not stranger.lost
    world.run(2)
    assert stranger.lost


def test_a_frame_that_is_no_greeting_is_refused(world):
    stranger = visit(world, "n2", silent=True)
    stranger.send(FrameKind.RAFT, bytes(64))
    world.until(lambda: stranger.lost)
    assert "greeting" in str(stranger.error())


def test_a_node_that_speaks_for_anothers_replica_loses_its_link(world):
    stranger = visit(world, "n2")
    world.until(lambda: stranger.frames)
    own, other = 2, 3
    beat = Heartbeat(other, own, 99, 1, 0, bytes(16), 0, bytes(16))
    stranger.send(FrameKind.HEARTBEATS, raft_messages.encode_heartbeats([(1, beat)]))
    world.until(lambda: stranger.lost)
    assert world.group("n2").raft.term < 99


def test_a_link_carries_nothing_that_has_no_place_on_it(world):
    stranger = visit(world, "n2")
    world.until(lambda: stranger.frames)
    stranger.send(FrameKind.PUBLISH, b"x", stream=1)
    world.until(lambda: stranger.lost)


def test_a_newer_connection_replaces_the_older_and_its_askers_hear(world):
    """The other side lost the connection and dialled anew before this side noticed."""
    node = world.nodes["n2"]
    link = node.host.links.link("n1")
    heard = []
    process = world.machines["n2"].process
    process.call(
        link.request, FrameKind.CONTROL, 1, b"x", lambda kind, body: heard.append((kind, body))
    )
    stranger = visit(world, "n2")
    world.until(lambda: stranger.frames)
    world.run(0.01)
    assert [kind for kind, _ in heard] == [FrameKind.ERROR]
    assert isinstance(heard[0][1], ConnectionFailed)
    assert heard[0][1].outcome == "unknown"
    assert link.is_up
    assert link.epoch == 2
    assert node.lost_links == ["n1"], "once: not again when the older one has closed"


def test_a_request_over_no_link_was_not_applied(world):
    world.kill("n3")
    world.run(0.1)
    heard = []
    link = world.nodes["n1"].host.links.link("n3")
    assert not link.is_up
    world.machines["n1"].process.call(
        link.request, FrameKind.CONTROL, 1, b"x", lambda *answer: heard.append(answer)
    )
    assert heard[0][1].outcome == "not_applied"
    assert world.nodes["n1"].lost_links == ["n3"]


def test_a_broken_link_tells_every_asker_once_and_late_answers_go_nowhere(world):
    link = world.nodes["n1"].host.links.link("n2")
    heard = []
    ask = world.machines["n1"].process.call
    for number in range(3):
        ask(link.request, 4, 1, b"x", lambda *answer, number=number: heard.append((number, answer)))
    world.fabric.reset_connections("n1", "n2")
    world.until(lambda: len(heard) == 3)
    world.run(1)
    assert [number for number, _ in heard] == [0, 1, 2]
    assert link.is_up, "it was dialled again"
    body = b"".join(forwarding.encode_forward(5, b"late"))
    link.answered(1, memoryview(body))
    assert len(heard) == 3


def test_heartbeats_of_many_groups_leave_as_one_frame(monkeypatch):
    frames = []
    decode = raft_messages.decode_heartbeats

    def counted(body):
        rows = decode(body)
        frames.append(len(rows))
        return rows

    monkeypatch.setattr(links_module.raft_messages, "decode_heartbeats", counted)
    with World(groups=30) as world:
        world.start()
        world.led()
        world.run(1)
        frames.clear()
        world.run(1)
    # Thirty leaders with two followers each and twenty rounds a second.
    assert sum(frames) == pytest.approx(1_200, rel=0.1)
    assert len(frames) <= 150, f"{len(frames)} frames for {sum(frames)} rows"


def test_a_node_that_stays_away_is_dialled_less_and_less(world):
    dials = []
    network = world.nodes["n1"].environment.network
    connect = network.connect

    async def counted(host, port, factory):
        dials.append((world.loop.now, host))
        await connect(host, port, factory)

    network.connect = counted
    world.kill("n3")
    world.run(30)
    times = [now for now, host in dials if host == "n3"]
    pauses = [late - early for early, late in itertools.pairwise(times)]
    assert times[0] < 0.1 * SECOND + world.loop.now - 30 * SECOND
    assert 20 < len(times) < 50
    assert pauses[0] < 0.1 * SECOND
    assert 1.0 * SECOND <= pauses[-1] < 1.4 * SECOND
    world.start("n3")
    world.until(lambda: "n3" in world.nodes["n1"].host.links.up(), 2)


def test_a_peer_that_does_not_read_is_cut_off(world, monkeypatch):
    monkeypatch.setattr(links_module, "LINK_BUFFER_MAX", 1_000_000)
    link = world.nodes["n2"].host.links.link("n1")
    stranger = visit(world, "n2")
    world.until(lambda: stranger.frames)
    stranger.transport.pause_reading()
    for _ in range(40):
        world.machines["n2"].process.call(link.send, FrameKind.FORWARDED, bytes(100_000), stream=9)
        world.run(0.01)
    world.until(lambda: stranger.lost)


def test_frames_cut_anywhere_still_greet():
    for seed in range(5):
        with World(seed=seed) as world:
            world.fabric.set_latency(QUIET._replace(micros_max=3_000))
            world.start()
            assert world.led() in NAMES


def test_what_comes_in_one_read_with_the_greeting_may_have_its_full_size(world):
    """A follower under load is sent entries at once: they must not be judged like a stranger's."""
    stranger = visit(world, "n2", silent=True)
    identity = world.nodes["n2"].host.identity
    member = identity.member("n1")
    hello = PeerHello((1,), (), identity.cluster, "n1", member.incarnation, 1)
    request = forwarding.encode_forward(
        FrameKind.PUBLISH, bytes(MAX_FRAME_BYTES_BEFORE_AUTH), hops=1
    )
    stranger.transport.write(
        b"".join(
            [
                *encode_frame(FrameKind.PEER_HELLO, 0, encode_peer_hello(hello)),
                *encode_frame(FrameKind.FORWARD, 1, *request),
            ]
        )
    )
    world.run(0.005)
    assert stranger.frames[0][0] == FrameKind.PEER_WELCOME
    assert not stranger.lost
    ((_, stream, body),) = world.nodes["n2"].frames
    assert (stream, len(body)) == (1, sum(map(len, request)))


def test_an_idle_link_stays(world):
    """Nothing passes but what shows that the other end lives."""
    for name in NAMES:
        world.machines[name].process.call(world.group(name).quarantine, "to keep it silent")
    world.run(10)
    for node in world.nodes.values():
        assert len(node.host.links.up()) == 2
        assert node.lost_links == []


@pytest.mark.parametrize("way", ["both", "n1 to n2", "n2 to n1"])
def test_a_silent_link_is_broken_at_both_ends_and_made_anew(world, way):
    pairs = {"both": [("n1", "n2"), ("n2", "n1")], "n1 to n2": [("n1", "n2")]}
    cut = pairs.get(way, [("n2", "n1")])
    for pair in cut:
        world.fabric.block(*pair)
    ends = [world.nodes["n1"].host.links.link("n2"), world.nodes["n2"].host.links.link("n1")]
    world.run(0.4)
    assert all(end.is_up for end in ends), "not at the first pause"
    world.run(0.6)
    assert not any(end.is_up for end in ends)
    for pair in cut:
        world.fabric.unblock(*pair)
    world.run(3)
    assert all(end.is_up for end in ends)
    assert world.nodes["n3"].lost_links == []


def test_a_short_pause_costs_no_link(world):
    world.machines["n2"].pause()
    world.run(0.5)
    world.machines["n2"].resume()
    world.run(3)
    assert all(node.lost_links == [] for node in world.nodes.values())


def test_a_connection_that_is_closing_already_can_be_aborted(world):
    """What a peer does not read would otherwise keep it for ever."""
    stranger = visit(world, "n2")
    world.until(lambda: stranger.frames)
    link = world.nodes["n2"].host.links.link("n1")
    connection = link._connection
    stranger.transport.pause_reading()
    call = world.machines["n2"].process.call
    call(link.send, FrameKind.FORWARDED, bytes(4_000_000), stream=9)
    world.run(0.001)
    transport = connection._transport
    call(transport.close)
    assert transport.is_closing()
    assert not transport.is_lost, "it waits for the peer to read"
    call(connection.abort, "enough")
    assert transport.is_lost


def test_a_peer_that_breaks_the_protocol_and_does_not_read_is_got_rid_of_at_once(world):
    stranger = visit(world, "n2")
    world.until(lambda: stranger.frames)
    link = world.nodes["n2"].host.links.link("n1")
    transport = link._connection._transport
    stranger.transport.pause_reading()
    world.machines["n2"].process.call(link.send, FrameKind.FORWARDED, bytes(4_000_000), stream=9)
    world.run(0.01)
    stranger.send(FrameKind.PUBLISH, b"x", stream=1)
    world.run(0.05)
    assert transport.is_lost
