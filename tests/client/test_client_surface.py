"""The public face: urls, the blocking client, administration, connections, names."""

import asyncio
import contextlib
import inspect
import subprocess
import sys
import threading

import pytest
from fake_server import FakeCluster, K, run

import raftq
from raftq.client import blocking
from raftq.client.client import AsyncClient
from raftq.client.connection import open_connection
from raftq.client.consumer import Consumer
from raftq.client.message import Message
from raftq.client.options import LATER, MessageOptions, check_names
from raftq.client.ports import real_outside
from raftq.client.producer import Producer
from raftq.client.reader import Reader
from raftq.client.url import Address, parse_url
from raftq.errors import (
    TABLE,
    ConnectionFailed,
    InvalidArgument,
    InvalidQueueName,
    ProtocolError,
    QueueNotFound,
    UnsupportedVersion,
)
from raftq.queue.config import _OPTIONS
from raftq.wire.frames import HEADER
from raftq.wire.handshake import Hello


@pytest.mark.parametrize(
    ("url", "addresses", "user", "secret"),
    [
        ("raftq://a", [("a", 7400)], None, None),
        ("raftq://a:1,b:2,c", [("a", 1), ("b", 2), ("c", 7400)], None, None),
        ("raftq://u:swordfish@a:1/", [("a", 1)], "u", "swordfish"),
        ("raftq://u%40x:s%2C%3A@a:1", [("a", 1)], "u@x", "s,:"),
        ("raftq://u@a", [("a", 7400)], "u", None),
        ("raftq://[::1]:5,[fe80::2]", [("::1", 5), ("fe80::2", 7400)], None, None),
    ],
)
def test_urls(url, addresses, user, secret):
    servers = parse_url(url)
    assert list(servers.addresses) == addresses
    assert (servers.user, servers.secret) == (user, secret)
    assert secret is None or secret not in repr(servers)


@pytest.mark.parametrize(
    "url",
    ["", "http://a", "raftq://", "raftq://a:0", "raftq://a:99999", "raftq://a:x", "raftq://a,,b",
     "raftq://[::1", "raftq://[::1]x", "raftq://:5"],
)  # fmt: skip
def test_bad_urls(url):
    with pytest.raises(InvalidArgument):
        parse_url(url)


def test_the_url_of_the_environment(monkeypatch):
    monkeypatch.setenv("RAFTQ_URL", "raftq://there:5")
    assert parse_url(None).addresses == (Address("there", 5),)
    monkeypatch.delenv("RAFTQ_URL")
    with pytest.raises(InvalidArgument, match="RAFTQ_URL"):
        parse_url(None)


def public(kind):
    return {
        name: value
        for name, value in inspect.getmembers(kind)
        if not name.startswith("_") and callable(value)
    }


def arguments(function):
    return list(inspect.signature(function).parameters.values())


ASYNC_ONLY = {"ended", "settle_ack", "settle_nack", "settle_extend", "stop", "open", "batch_done"}


@pytest.mark.parametrize(
    ("asynchronous", "blocked"),
    [
        (AsyncClient, raftq.Client),
        (Producer, blocking.BlockingProducer),
        (Consumer, blocking.BlockingConsumer),
        (Reader, blocking.BlockingReader),
        (Message, blocking.BlockingMessage),
    ],
)
def test_both_clients_have_the_same_names_and_arguments(asynchronous, blocked):
    ours, theirs = public(asynchronous), public(blocked)
    assert ours.keys() - ASYNC_ONLY == theirs.keys()
    for name in theirs:
        assert arguments(ours[name]) == arguments(theirs[name]), name
        assert not inspect.iscoroutinefunction(theirs[name])
    if asynchronous is AsyncClient:
        assert arguments(asynchronous) == arguments(blocked)


def test_every_error_is_public():
    for error in TABLE.values():
        assert getattr(raftq, error.__name__) is error
    assert sorted(raftq.__all__) == raftq.__all__


def test_administration():
    async def scenario(cluster):
        async with cluster.client() as client:
            made = await client.create_queue("orders", partitions=3, visibility_timeout=5.0)
            assert (made.name, made.partitions, made.state) == ("orders", 3, "active")
            assert made.config["visibility_timeout_us"] == 5_000_000
            await client.send_many("orders", [b"x"] * 10, keys=[b"%d" % n for n in range(10)])
            await client.receive("orders", max_messages=4)
            described = await client.describe_queue("orders")
            assert (described.depth, described.in_flight, described.ready) == (10, 4, 6)
            assert (described.delayed, described.dead) == (0, 0)
            assert [each.leader for each in described.partitions] == ["n1", "n1", "n1"]
            assert sum(each.next_offset for each in described.partitions) == 10
            assert (await client.describe_queue("orders", subscription="x")).depth == 0
            assert [queue.name for queue in await client.list_queues()] == ["orders"]
            letters = await client.dead_letters("orders", partition=0, after_offset=3)
            assert (letters[0].body, letters[0].reason, letters[0].timestamp) == (
                b"x", "delivery_limit", 5.0,
            )  # fmt: skip
            redriven = await client.redrive("orders", reason="expired", offsets=[(0, 4)])
            assert (redriven.count, redriven.by_reason) == (2, {"delivery_limit": 2})
            assert await client.purge_dead("orders") == 2
            assert await client.purge_queue("orders") == 3
            await client.subscribe("orders", "billing", start="latest")
            await client.unsubscribe("orders", "billing")
            assert (await client.update_queue("orders", delivery_limit=2)).name == "orders"
            assert (await client.status())["node"] == "n1"
            with pytest.raises(InvalidArgument, match="visability"):
                await client.create_queue("b", visability_timeout=5.0)
            with pytest.raises(InvalidArgument):
                await client.create_queue("b", partitions=0)
            with pytest.raises(InvalidQueueName):
                await client.create_queue("a b")
            await client.delete_queue("orders", force=True)
            with pytest.raises(QueueNotFound):
                await client.describe_queue("orders")

    run(scenario)


def test_a_delete_whose_answer_is_lost_succeeds():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            cluster.n1.swallow[K.CONTROL] = 1
            await client.delete_queue("orders", force=True)
            with pytest.raises(QueueNotFound):
                await client.delete_queue("orders")

    run(scenario)


def test_idle_connections_are_pinged_and_silent_ones_closed():
    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            await client.send("orders", b"1")
            cluster.n1.heard.clear()
            await asyncio.sleep(60)
            assert 25 <= cluster.n1.heard.count(K.PING) <= 61
            assert cluster.n1.heard.count(K.HELLO) == 0
            cluster.n1.silent = True
            await asyncio.sleep(6)
            assert not cluster.n1.connections

    run(scenario)


class Stranger(asyncio.BufferedProtocol):
    """Says what it is told to, whatever it hears."""

    def __init__(self, says):
        self.says = says
        self.buffer = bytearray(1_000)

    def connection_made(self, transport):
        transport.write(self.says)

    def get_buffer(self, sizehint):
        return self.buffer

    def buffer_updated(self, count):
        pass


@pytest.mark.parametrize(
    ("says", "error"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ProtocolError),
        (HEADER.pack(8, 9, 2, 0, 1), UnsupportedVersion),
        (HEADER.pack(8, 1, 17, 0, 1), ProtocolError),
        (b"", ConnectionFailed),
    ],
)
def test_servers_that_are_none(says, error):
    async def scenario(cluster):
        network = cluster.outside().network
        await network.listen("client1", 80, lambda: Stranger(says))
        loop = asyncio.get_running_loop()
        begun = loop.time()
        with pytest.raises(error):
            await open_connection(
                cluster.outside(), Address("client1", 80), Hello((1,), (), "t"), lambda: None
            )
        assert loop.time() - begun < 5.1

    run(scenario)


def test_a_server_that_breaks_the_protocol_later():
    """What was asked fails with an unknown outcome, or is asked again; nothing hangs."""

    async def scenario(cluster):
        cluster.create_queue("orders")
        async with cluster.client() as client:
            await client.send("orders", b"1")
            cluster.n1.connections[0].transport.write(b"\xff" * 100)
            assert (await client.send("orders", b"2")).offset == 1

    run(scenario)


# --- The blocking client, over real sockets and a thread of its own -------------------------------


@contextlib.contextmanager
def real_cluster():
    """A fake cluster on a thread of its own, listening on a real port."""
    ready = threading.Event()
    state = {}

    async def serve():
        loop = asyncio.get_running_loop()
        cluster = FakeCluster.__new__(FakeCluster)
        outside = real_outside()
        cluster.loop, cluster.clock = loop, outside.clock
        cluster.fill(nodes=1, groups=2)
        node = cluster.n1
        listener = await node.listen_on(outside.network, "127.0.0.1", 0)
        cluster.addresses["n1"] = listener.address
        state.update(cluster=cluster, url=f"raftq://127.0.0.1:{listener.address[1]}", loop=loop)
        state["stop"] = loop.create_future()
        ready.set()
        await state["stop"]
        listener.close()
        node.break_connections()
        await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(5)
    try:
        yield state
    finally:
        state["loop"].call_soon_threadsafe(state["stop"].set_result, None)
        thread.join()


def test_the_blocking_client():
    with real_cluster() as state, raftq.Client(state["url"]) as client:
        client.create_queue("orders", partitions=2)
        assert client.send("orders", b"a", key=b"k").offset == 0
        receipts = client.send_many("orders", [b"b"] * 100)
        assert len(receipts) == 100
        with client.producer("orders") as producer:
            pending = producer.submit(b"c", key=b"k")
            assert pending.result().partition == producer.send(b"d", key=b"k").partition
            assert pending.done()
        messages = client.receive("orders", max_messages=1, wait=1.0)
        messages[0].extend(30.0)
        messages[0].ack()
        client.ack(client.receive("orders", max_messages=2))
        with client.consumer("orders", prefetch=10) as consumer:
            for number, message in enumerate(consumer):
                message.ack()
                if number == 49:
                    break
            consumer.flush()
        assert client.describe_queue("orders").depth == 50
        client.nack(client.receive("orders"), delay=10.0)
        client.nack(client.receive("orders"), reject=True)
        client.receive("orders")[0].nack(reject=True)
        assert client.describe_queue("orders").counts.dead == 2
        bodies = [
            message.body
            for partition in range(2)
            for message in client.reader("orders", partition=partition, follow=False)
        ]
        assert sorted(bodies) == [b"a", *[b"b"] * 100, b"c", b"d"]
        with pytest.raises(QueueNotFound):
            client.send("nothing", b"x")
        threads = [threading.Thread(target=lambda: client.send("orders", b"t")) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.describe_queue("orders").depth == 56
        client.delete_queue("orders", force=True)
    with pytest.raises(InvalidArgument, match="closed"):
        client.list_queues()
    client.close()


def test_a_blocking_client_that_cannot_connect():
    with pytest.raises(ConnectionFailed):
        raftq.Client("raftq://127.0.0.1:1", timeout=0.3).__enter__()
    with pytest.raises(InvalidArgument):
        raftq.Client("nowhere")
    assert not [each for each in threading.enumerate() if each.name == "raftq-client"]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda client: client.create_queue(5), InvalidQueueName, "5 is not a queue name"),
        (lambda client: client.send(5, b""), InvalidQueueName, "5 is not a queue name"),
        (lambda client: client.send("q", b"", headers=[1]), InvalidArgument, "headers are a map"),
        (lambda client: client.send("q", b"", dedup_id=5), InvalidArgument, "dedup_id is text"),
        (lambda client: client.ack([None]), InvalidArgument, "None is no message"),
        (lambda client: client.ack(5), InvalidArgument, "received messages, not 5"),
        (lambda client: client.redrive("q", offsets=5), InvalidArgument, "list of pairs"),
        (lambda client: client.redrive("q", offsets=[5]), InvalidArgument, "pairs"),
        (lambda client: client.dead_letters("q", limit="x"), InvalidArgument, "limit is 1 to"),
        (
            lambda client: client.create_queue("a", visibility_timeout=float("nan")),
            InvalidArgument,
            "visibility_timeout is at most 86400 seconds, not nan",
        ),
        (
            lambda client: client.create_queue("a", retain_seconds=float("inf")),
            InvalidArgument,
            "retain_seconds is at most 315360000 seconds, not inf",
        ),
        (
            lambda client: client.receive("q", visibility_timeout=float("nan")),
            InvalidArgument,
            "visibility_timeout is 0 to 86400 seconds, not nan",
        ),
    ],
)
def test_a_wrong_argument_is_an_error_with_a_type_and_says_what_is_right(call, error, words):
    async def scenario(cluster):
        cluster.create_queue("q")
        async with cluster.client() as client:
            with pytest.raises(error, match=words):
                await call(client)

    run(scenario)


def test_only_options_that_this_version_takes_are_advised():
    """Those that are refused with any value but the one that holds anyway are left out."""
    only = {name for name, option in _OPTIONS.items() if type(option).__name__ == "_Only"}
    messages = {"delay", "deliver_at", "ttl", "priority", "dedup_id"}
    assert only | messages == LATER
    with pytest.raises(InvalidArgument, match=r"no option 'prio'; there are timestamp, acks$"):
        check_names({"prio": 1}, MessageOptions)


def test_the_public_names_load_when_they_are_asked_for():
    """Whoever only wants the command line can be interrupted at once, and waits for nothing."""
    code = (
        "import sys, raftq, raftq.cli\n"
        "def loaded(): return [name for name in sys.modules if name.startswith('raftq.client')]\n"
        "assert not loaded() and 'asyncio' not in sys.modules\n"
        "from raftq import Timeout\n"
        "assert not loaded()\n"
        "from raftq import *\n"
        "for name in raftq.__all__: assert getattr(raftq, name) is globals()[name]\n"
        "assert set(raftq.__all__) <= set(dir(raftq))\n"
        "assert 'raftq.server' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=30)


def test_a_name_that_there_is_not():
    with pytest.raises(AttributeError, match="has no attribute 'Brocker'"):
        raftq.Brocker  # noqa: B018
