"""Malformed input on both ports: refused, in one log line, and nobody else notices."""

import logging
import random
import tracemalloc

import pytest
from hostile_bytes import CBOR_BOMBS, PORTS, frame, strangers
from server_world import Wire, World

from raftq import batch
from raftq.errors import Corrupted, InvalidArgument, ProtocolError, RaftqError
from raftq.limits import KIB, MAX_FRAME_BYTES, MAX_STREAMS, MIB
from raftq.observability.repeats import Repeats
from raftq.wire import cbor, handshake, requests
from raftq.wire.frames import FrameKind, encode_frame


@pytest.fixture(scope="module")
def world():
    with World() as world:
        world.witness = world.connect("n2")
        world.queue = world.witness.create("witness", partitions=3)
        yield world


@pytest.fixture(autouse=True)
def others_are_served(world):
    """Whatever a test does to n1: n1 and the others go on serving, and nothing is broken."""
    node = world.nodes["n1"]
    node.port._refusals = Repeats()  # For each test what is said is said anew.
    node.host.links._refusals_said = Repeats()
    yield
    assert world.failures == []
    for name in world.names:
        client = world.connect(name)
        for partition in range(3):
            body = name.encode()
            published = client.publish(world.queue, [body], partition=partition)
            group = world.queue["partitions"][partition]["group"]
            assert published.group == group
            assert not world.group(name, group).quarantined
        client.transport.abort()
    assert world.witness.ping()


def warnings_of(caplog):
    return [each for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("port", "data"),
    [pytest.param(port, data, id=f"{port}: {name}") for port, name, data in strangers()],
)
def test_what_is_not_raftq_is_refused(world, caplog, port, data):
    raw = world.raw("n1", PORTS[port][0])
    raw.send(data)
    world.until(lambda: raw.lost, 6)
    # What it sent meanwhile may have reset the connection before the answer was read.
    assert raw.error() is None or isinstance(raw.error(), ProtocolError)
    assert len(warnings_of(caplog)) == 1
    assert data[:40] not in str(warnings_of(caplog)[0].msg).encode("latin-1", "replace")


@pytest.mark.parametrize("port", PORTS)
def test_a_stranger_that_comes_again_and_again_is_said_once(world, caplog, port):
    for _ in range(10):
        raw = world.raw("n1", PORTS[port][0])
        raw.send(b"GET / HTTP/1.1\r\n\r\n")
        world.until(lambda raw=raw: raw.lost, 6)
    assert len(warnings_of(caplog)) == 1


def test_a_client_at_the_peer_port_is_told_where_clients_go(world):
    raw = world.raw("n1", PORTS["peer"][0])
    raw.send(frame(FrameKind.HELLO, handshake.encode_hello(handshake.Hello((1,), (), "x"))))
    world.until(lambda: raw.lost, 6)
    assert "port for the other nodes; clients use the port of --listen" in str(raw.error())


@pytest.mark.parametrize("port", PORTS)
def test_a_greeting_cut_anywhere_ends_by_the_close_or_in_time(world, caplog, port):
    number, kind = PORTS[port]
    greeting = frame(kind, handshake.encode_hello(handshake.Hello((1,), (), "x")))
    for cut in range(0, len(greeting), 7):
        silent, closed = world.raw("n1", number), world.raw("n1", number)
        silent.send(greeting[:cut])
        closed.send(greeting[:cut])
        closed.transport.close()
        world.run(0.01)
        assert closed.lost
        assert not silent.lost
        world.until(lambda silent=silent: silent.lost, 6)
    assert len(world.nodes["n1"].port.connections) < 10


@pytest.mark.parametrize("port", PORTS)
def test_a_slow_drip_does_not_hold_a_greeting_open(world, port):
    raw = world.raw("n1", PORTS[port][0])
    for byte in frame(PORTS[port][1], bytes(100)):
        if raw.lost:
            break
        raw.send(bytes([byte]))
        world.run(0.4)
    assert raw.lost


def test_a_slow_drip_does_not_hold_a_frame_open(world):
    client = world.connect("n1")
    begun = world.loop.now
    for byte in frame(FrameKind.CONTROL, bytes(100)):
        if client.lost:
            break
        client.transport.write(bytes([byte]))
        world.run(1)
    assert client.lost
    assert 29 < (world.loop.now - begun) / 1_000_000 < 33
    assert isinstance(client.last_words, ProtocolError)


def test_a_client_that_idles_between_frames_stays(world):
    client = world.connect("n1")
    world.run(100)
    assert client.ping()


def greeted_cases():
    control = cbor.encode({"do": "status"})
    yield "length 2^32 - 1", frame(FrameKind.CONTROL, length=(1 << 32) - 1)
    yield "length over the bound", frame(FrameKind.PUBLISH, length=MAX_FRAME_BYTES)
    yield "length 0", frame(FrameKind.CONTROL, length=0)
    yield "stream 0", frame(FrameKind.CONTROL, control, stream=0)
    yield "future version", frame(FrameKind.CONTROL, control, version=2)
    yield "downgraded version", frame(FrameKind.CONTROL, control, version=0)
    yield "flags", frame(FrameKind.CONTROL, control, flags=0x8000)
    yield "a stream twice", frame(FrameKind.RECEIVE, bytes(80), stream=9) * 2 + b""
    yield "a greeting again", frame(FrameKind.HELLO, b"\xa0", stream=7)
    yield "a ping with a body", frame(FrameKind.PING, b"x")
    yield "a cancel with a body", frame(FrameKind.CANCEL, b"x")
    yield "a goodbye with a body", frame(FrameKind.GOODBYE, b"x")
    for kind in (FrameKind.WELCOME, FrameKind.PUBLISHED, FrameKind.ERROR, FrameKind.READY):
        yield f"a reply of kind {kind}", frame(kind, b"x")
    for kind in range(FrameKind.PEER_HELLO, FrameKind.REPAIR + 1):
        yield f"a peer's frame of kind {kind}", frame(kind, b"x")
    for kind in (0, 6, 30, 100, 255):
        yield f"unknown kind {kind}", frame(kind, b"x")
    yield "noise", random.Random(1).randbytes(5_000)


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in greeted_cases()])
def test_a_greeted_client_that_breaks_the_protocol_is_closed(world, caplog, data):
    if data[5] == FrameKind.RECEIVE:
        # The first of the two must still be waiting: it is a watch on an empty queue.
        client = world.connect("n1")
        data = b"".join(waiting_watch(world, 9)) * 2
    else:
        client = world.connect("n1")
    client.transport.write(data)
    world.until(lambda: client.lost)
    assert isinstance(client.last_words, ProtocolError)
    assert len(warnings_of(caplog)) == 1


def waiting_watch(world, stream):
    group = world.queue["partitions"][0]["group"]
    wanted = requests.Receive(
        group, 0, 0, 0, 0, 9_999, "nobody", 1, 1, 0, 60_000_000, notify_only=True
    )
    return encode_frame(FrameKind.RECEIVE, stream, *requests.encode_receive(wanted))


def test_two_greetings_in_one_segment_are_one_too_many(world, caplog):
    hello = handshake.encode_hello(handshake.Hello((1,), (), "x"))
    raw = world.raw("n1")
    raw.send(frame(FrameKind.HELLO, hello, stream=1) + frame(FrameKind.HELLO, hello, stream=2))
    world.until(lambda: raw.lost)
    assert isinstance(raw.error(), ProtocolError)
    assert len(warnings_of(caplog)) == 1


@pytest.mark.parametrize("name", CBOR_BOMBS)
def test_a_control_bomb_is_refused_and_the_connection_goes_on(world, name):
    client = world.connect("n1")
    with pytest.raises(RaftqError) as refused:
        client.answer(FrameKind.CONTROL, CBOR_BOMBS[name])
    assert "internal" not in str(refused.value)
    assert client.ping()


def test_a_large_control_bomb_costs_little(world):
    """The largest map a client may send, of the items that cost most."""
    client = world.connect("n1")
    body = b"\xa1\x61\x61\x9a" + (900_000).to_bytes(4, "big") + b"\x80" * 900_000
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            client.answer(FrameKind.CONTROL, body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40 * MIB
    assert client.ping()


def test_bad_batches_are_refused_whole_and_the_connection_goes_on(world):
    client = world.connect("n1")
    good = batch.encode([b"x" * 50] * 20, queue=world.queue["id"], partition=0)
    before = client.read(world.queue, 1 << 40).end_offset
    choose = random.Random(3)
    for _ in range(300):
        bad = bytearray(good)
        bad[choose.randrange(len(bad))] ^= 1 << choose.randrange(8)
        with pytest.raises((RaftqError,)) as refused:
            client.answer(FrameKind.PUBLISH, *requests.encode_publish(requests.Publish(2, 0, bad)))
        assert "internal" not in str(refused.value)
    for cut in range(0, len(good), 41):
        with pytest.raises((Corrupted, ProtocolError, InvalidArgument)):
            client.answer(
                FrameKind.PUBLISH, *requests.encode_publish(requests.Publish(2, 0, good[:cut]))
            )
    assert client.read(world.queue, 1 << 40).end_offset == before, "nothing of them is stored"


NUMBERS = [0, 1, 2, 255, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
LONG_NUMBERS = [*NUMBERS, 1 << 53, (1 << 62) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]


def draw_request(choose, queue):
    """A well-formed request with numbers from the edges."""
    short, long = (lambda: choose.choice(NUMBERS)), (lambda: choose.choice(LONG_NUMBERS))
    group = choose.choice([0, 1, 2, 3, short()])
    number = choose.choice([queue["id"], short()])
    positive = choose.choice([0, 1, 1_000, (1 << 63) - 1])
    kind = choose.randrange(4)
    if kind == 0:
        wanted = requests.Receive(
            group, long(), short(), long(), long(), number, choose.choice(["default", "", "x" * 80]),
            short(), short(), positive, choose.choice([0, 0, positive]), choose.random() < 0.3,
            tuple(short() for _ in range(choose.randrange(3))),
        )  # fmt: skip
        return FrameKind.RECEIVE, requests.encode_receive(wanted)
    if kind == 1:
        items = []
        for _ in range(choose.randrange(4)):
            start, stop = sorted((long(), long()))
            items.append(requests.Item(short(), long(), start, max(stop, start + 1) % (1 << 64)))
        items = tuple(item for item in items if item.start < item.stop)
        settle = requests.Settle(
            group, long(), short(), long(), long(), number, "default", choose.choice([1, 2, 3]),
            items, positive, choose.random() < 0.5, choose.choice(["", "why"]),
        )  # fmt: skip
        return FrameKind.SETTLE, requests.encode_settle(settle)
    if kind == 2:
        read = requests.Read(number, short(), long(), short(), choose.choice([0, 1]))
        return FrameKind.READ, requests.encode_read(read)
    options = {"producer": long(), "epoch": short(), "sequence": long()}
    return FrameKind.PUBLISH, publish_parts(choose, number, options)


def publish_parts(choose, queue, options):
    try:
        data = batch.encode(
            [b"edge"], queue=queue, partition=choose.choice([0, 1, 2, 7]), **options
        )
    except (RaftqError, OverflowError, ValueError, AssertionError, TypeError):
        data = batch.encode([b"edge"], queue=queue, partition=0)
    return requests.encode_publish(requests.Publish(2, choose.choice(NUMBERS), data))


@pytest.mark.parametrize("seed", range(4))
def test_numbers_from_the_edges_break_nothing(world, caplog, seed):
    choose = random.Random(seed)
    clients = [world.connect(name) for name in world.names]
    for _ in range(300):
        client = choose.choice(clients)
        kind, parts = draw_request(choose, world.queue)
        heard = client.ask(kind, *parts)
        world.until(lambda heard=heard, client=client: heard or client.lost or is_waiting(world), 5)
        assert not client.lost
    for record in warnings_of(caplog):
        assert "request failed" not in str(record.msg), record.msg
    for client in clients:
        client.transport.abort()


def is_waiting(world):
    return any(node.receiving._watches for node in world.nodes.values())


def control_requests(choose):
    from raftq.wire.control import OPERATIONS

    values = [
        None, True, -1, 0, 1, 7, 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 0.5, "", "witness",
        "default", "x" * 200, "..", "a/b", "%2e", "\x00", "nul\u202e", b"", b"x", [], [1], [[0, 1]],
        [[0, 1 << 63]], {}, {"partitions": 0}, {"partitions": 1 << 40}, {"visibility_timeout": -1},
        {"max_bytes": 1}, {"labels": {"a": "b"}}, {"partitions": True}, {"labels": 7},
        "earliest", "latest",
    ]  # fmt: skip
    operations = sorted(set(OPERATIONS) - {"delete_queue", "purge_queue"})
    name = choose.choice(operations)
    request = {"do": name}
    for field in OPERATIONS[name].fields:
        if choose.random() < 0.9:
            request[field] = choose.choice(values)
    if choose.random() < 0.05:
        request["another"] = 1
    return request


@pytest.mark.parametrize("seed", range(4))
def test_odd_administration_is_answered_and_never_an_internal_error(world, caplog, seed):
    choose = random.Random(seed)
    client = world.connect("n1")
    for _ in range(400):
        request = control_requests(choose)
        if request.get("name") == "witness" and request["do"] in {"update_queue", "subscribe"}:
            request["name"] = "other"
        heard = client.ask(FrameKind.CONTROL, cbor.encode(request))
        world.until(lambda heard=heard, client=client: heard or client.lost)
        assert b"internal" not in heard[0][1], request
        if client.lost:
            client = world.connect("n1")
    assert not [each for each in warnings_of(caplog) if "request failed" in str(each.msg)]


def recorded_session(world):
    """The bytes of a real session, from the greeting to the goodbye."""
    sent = []

    class Recorder(Wire):
        def connection_made(self, transport):
            super().connection_made(transport)
            writelines = transport.writelines

            def record(vectors):
                sent.append(b"".join(vectors))
                writelines(vectors)

            transport.writelines = record

    client = world.connect("n1", protocol=Recorder(world))
    group = world.queue["partitions"][0]["group"]
    session = client.open_session(group)
    client.publish(world.queue, [b"one", b"two"])
    delivered = client.receive(session, world.queue)
    client.settle(session, world.queue, delivered)
    client.read(world.queue)
    client.control(do="describe_queue", name="witness")
    client.transport.abort()
    return sent


def test_mutated_captures_of_a_real_session_break_nothing(world, caplog):
    caplog.set_level(logging.ERROR)
    sent = recorded_session(world)
    choose = random.Random(5)
    for _ in range(150):
        frames = list(sent)
        for _ in range(choose.randrange(1, 4)):
            at = choose.randrange(len(frames))
            data = bytearray(frames[at])
            event = choose.randrange(4)
            if event == 0:
                data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
            elif event == 1:
                del data[choose.randrange(len(data)) :]
            elif event == 2:
                data[choose.randrange(len(data)) : 0] = choose.randbytes(choose.randrange(1, 20))
            else:
                choose.shuffle(frames)
                continue
            frames[at] = bytes(data)
        raw = world.raw(choose.choice(world.names))
        for data in frames:
            if not raw.lost:
                raw.send(data)
                world.run(0.002)
        raw.transport.close()
    world.run(1)
    assert [each for each in caplog.records if "request failed" in str(each.msg)] == []


def test_announced_bytes_are_not_allocated(world):
    """A hundred clients announce the largest frame and send a little of it."""
    world.connect("n1").transport.abort()
    clients = [world.connect("n1") for _ in range(100)]
    tracemalloc.start()
    try:
        for client in clients:
            data = frame(FrameKind.PUBLISH, bytes(100), length=MAX_FRAME_BYTES - 4)
            client.transport.write(data)
        world.run(1)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 100 * 32 * KIB
    for client in clients:
        client.transport.abort()


def test_a_client_that_asks_for_more_than_it_reads_is_closed(world):
    """Thousands of reads in one segment, of a megabyte each: answers are bounded, not collected."""
    client = world.connect("n1")
    queue = client.create("large", partitions=1)
    leader = world.leader(queue["partitions"][0]["group"])
    client = world.connect(leader)
    client.publish(queue, [bytes(MIB)])
    read = requests.encode_read(requests.Read(queue["id"], 0, 0, 8 * MIB, 0))
    frames = [b"".join(encode_frame(FrameKind.READ, 1 + n, *read)) for n in range(1_500)]
    client.transport.pause_reading()
    tracemalloc.start()
    try:
        client.transport.write(b"".join(frames))
        world.until(lambda: client.lost, 30)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200 * MIB, f"{peak / MIB:.0f} MiB for one client"


def test_more_requests_than_may_be_in_flight_end_the_connection(world):
    client = world.connect("n1")
    data = b"".join(b"".join(waiting_watch(world, n + 1)) for n in range(MAX_STREAMS + 1))
    client.transport.write(data)
    world.until(lambda: client.lost)
    assert str(MAX_STREAMS) in str(client.last_words)
    world.run(0.1)
    assert not is_waiting(world), "its watches are gone with it"


def test_many_tiny_frames_in_one_segment_are_all_answered(world):
    client = world.connect("n1")
    client.transport.write(b"".join(encode_frame(FrameKind.PING, 0)) * 10_000)
    assert client.ping()


def test_cancels_of_nothing_are_nothing(world):
    client = world.connect("n1")
    for stream in (0, 1, 77, (1 << 32) - 1):
        client.transport.writelines(encode_frame(FrameKind.CANCEL, stream))
    assert client.ping()
