"""What a client may ask of a cluster, and the named errors where it may not."""

import pytest
from server_world import NAMES, World, bodies_of, read_bodies

from raftq import batch
from raftq.errors import (
    InvalidArgument,
    InvalidQueueName,
    MessageTooLarge,
    ProtocolError,
    QueueExists,
    QueueFull,
    QueueNotEmpty,
    QueueNotFound,
    RaftqError,
    SessionExpired,
    Timeout,
)
from raftq.storage.group_log import GroupLog
from raftq.wire import requests
from raftq.wire.errors import NotLeader
from raftq.wire.frames import FrameKind


@pytest.fixture(scope="module")
def world():
    with World() as world:
        yield world
        assert world.failures == []


@pytest.fixture
def client(world):
    client = world.connect("n1")
    yield client
    client.transport.abort()


@pytest.fixture
def queue(client, request):
    name = request.node.name[-60:].replace("[", ".").replace("]", "")
    return client.create(name, partitions=1)


def described(client, queue):
    (partition,) = client.control(do="describe_queue", name=queue["name"])["partitions"]
    return partition


@pytest.mark.parametrize("partitions", [1, 2, 7, 64])
def test_a_queue_is_created_with_all_its_partitions(client, partitions):
    queue = client.create(f"with-{partitions}", partitions=partitions)
    assert queue["state"] == "active"
    assert [row["partition"] for row in queue["partitions"]] == list(range(partitions))
    for partition in range(partitions):
        published = client.publish(queue, [b"x"], partition=partition)
        assert published.base_offset == 0
    found = client.control(do="describe_queue", name=queue["name"])["partitions"]
    assert [row["next_offset"] for row in found] == [1] * partitions
    assert {row["leader"] for row in found} <= set(NAMES)


def test_partitions_spread_over_the_groups(client):
    queue = client.create("spread", partitions=30)
    assert {row["group"] for row in queue["partitions"]} == {1, 2, 3}


def test_creating_it_again_is_the_same_queue_and_otherwise_is_refused(client, queue):
    assert client.create(queue["name"], partitions=1)["id"] == queue["id"]
    with pytest.raises(QueueExists, match="another configuration"):
        client.create(queue["name"], partitions=2)


@pytest.mark.parametrize(
    "name", ["", ".hidden", "__audit", "a/b", "a" * 81, "ä", "a b", "..", "a\n"]
)
def test_a_bad_name_is_named(client, name):
    with pytest.raises(InvalidQueueName):
        client.control(do="create_queue", name=name, config={})


@pytest.mark.parametrize(
    "config",
    [{"partitions": 0}, {"partitons": 1}, {"visibility_timeout": "long"}, {"ordering": "?"}],
)
def test_a_bad_configuration_is_named(client, config):
    with pytest.raises(InvalidArgument):
        client.control(do="create_queue", name="bad-config", config=config)


def test_what_is_published_is_read_and_received_in_order(world, client, queue):
    bodies = [b"%d" % number for number in range(100)]
    for start in range(0, 100, 7):
        published = client.publish(queue, bodies[start : start + 7])
        assert published.base_offset == start
        assert published.acks == requests.ACKS_QUORUM
        assert not published.duplicate
    assert read_bodies(client.read(queue)) == bodies
    session = client.open_session(queue["partitions"][0]["group"])
    delivered = client.receive(session, queue)
    assert bodies_of(delivered) == bodies
    assert client.settle(session, queue, delivered) == ()
    assert described(client, queue)["subscriptions"]["default"]["settled"] == 100


def test_any_node_answers_for_the_leader(world, client, queue):
    offsets = [world.connect(name).publish(queue, [b"x"]).base_offset for name in NAMES]
    assert offsets == [0, 1, 2]
    for name in NAMES:
        other = world.connect(name)
        assert len(read_bodies(other.read(queue))) == 3
        session = other.open_session(queue["partitions"][0]["group"])
        delivered = other.receive(session, queue, max_messages=1)
        assert len(bodies_of(delivered)) == 1
        assert other.settle(session, queue, delivered) == ()
        assert described(other, queue)["next_offset"] == 3


def test_a_batch_for_no_queue_is_refused(client):
    with pytest.raises(QueueNotFound):
        client.publish({"id": 4_000_000}, [b"x"])


def test_a_batch_for_no_partition_is_refused(client, queue):
    with pytest.raises(QueueNotFound):
        client.publish(queue, [b"x"], partition=1)


@pytest.mark.parametrize(
    "operation",
    [
        {"do": "describe_queue"},
        {"do": "purge_queue"},
        {"do": "metadata"},
        {"do": "delete_queue", "force": True},
        {"do": "update_queue", "config": {}},
        {"do": "dead_letters", "subscription": "default", "limit": 10},
        {"do": "redrive", "subscription": "default", "dry_run": True},
        {"do": "subscribe", "subscription": "other", "start": "earliest"},
    ],
    ids=lambda operation: operation["do"],
)
def test_a_missing_queue_is_named(client, operation):
    field = "queue" if operation["do"] == "metadata" else "name"
    with pytest.raises(QueueNotFound, match="missing"):
        client.try_control(**operation | {field: "missing"})


def test_a_body_over_the_limit_is_refused_and_one_at_it_is_not(client):
    queue = client.create("small", partitions=1, max_message_bytes=1_000)
    client.publish(queue, [bytes(1_000)] * 5)
    with pytest.raises(MessageTooLarge, match="1001 bytes"):
        client.publish(queue, [b"x", bytes(1_001)])
    assert described(client, queue)["next_offset"] == 5


def test_a_full_queue_refuses_until_there_is_room(client):
    queue = client.create("bounded", partitions=1, max_messages=3)
    client.publish(queue, [b"x"] * 3)
    with pytest.raises(QueueFull):
        client.publish(queue, [b"x"])
    client.control(do="purge_queue", name="bounded")
    client.publish(queue, [b"x"])


def test_weaker_acks_are_refused_by_name(client, queue):
    data = batch.encode([b"x"], queue=queue["id"], partition=0)
    for acks in (requests.ACKS_NONE, requests.ACKS_LEADER):
        with pytest.raises(InvalidArgument, match="acks"):
            client.answer(
                FrameKind.PUBLISH, *requests.encode_publish(requests.Publish(acks, 0, data))
            )


def test_a_publish_that_waits_for_its_place_longer_than_it_may_is_refused(
    world, client, queue, monkeypatch
):
    def ask(timeout_ms):
        data = batch.encode([b"%d" % timeout_ms], queue=queue["id"], partition=0)
        publish = requests.Publish(requests.ACKS_QUORUM, timeout_ms, data)
        return client.ask(FrameKind.PUBLISH, *requests.encode_publish(publish))

    with monkeypatch.context() as patch:
        patch.setattr(GroupLog, "is_busy", property(lambda log: True))
        heard = [ask(timeout_ms) for timeout_ms in (0, 200, 5_000)]
        world.run(0.15)
        assert not any(heard)
        world.run(0.15)
        assert [bool(each) for each in heard] == [False, True, False]
    with pytest.raises(Timeout) as late:
        client.reply(heard[1])
    assert late.value.outcome == "not_applied"
    client.reply(heard[0])
    client.reply(heard[2])
    assert read_bodies(client.read(queue)) == [b"0", b"5000"]


def test_an_idempotent_producer_repeats_without_doubling(client, queue):
    opened = client.control(
        do="open_producer", queue=queue["id"], partition=0, producer=77, epoch=0, opener=1
    )
    options = {"producer": 77, "epoch": opened["epoch"], "sequence": opened["last_sequence"] + 1}
    heard = [client.ask_publish(queue, [b"a", b"b"], **options) for _ in range(3)]
    replies = [requests.decode_published(client.reply(each)[1]) for each in heard]
    assert [reply.base_offset for reply in replies] == [0, 0, 0]
    assert [reply.duplicate for reply in replies] == [False, True, True]
    again = client.publish(queue, [b"a", b"b"], **options)
    assert (again.base_offset, again.duplicate) == (0, True)
    assert read_bodies(client.read(queue)) == [b"a", b"b"]
    client.control(
        do="open_producer",
        queue=queue["id"],
        partition=0,
        producer=77,
        epoch=opened["epoch"],
        opener=2,
    )
    with pytest.raises(RaftqError) as fenced:
        client.publish(queue, [b"c"], **options | {"sequence": options["sequence"] + 2})
    assert type(fenced.value).__name__ == "ProducerFenced"


def test_an_unknown_session_is_refused_as_expired(client, queue):
    session = client.open_session(queue["partitions"][0]["group"])
    session.id = 1 << 40
    with pytest.raises(SessionExpired):
        client.receive(session, queue)


@pytest.mark.parametrize("operation", ["open_session", "attach", "close_session"])
def test_the_metadata_group_takes_no_sessions(client, operation):
    fields = {"session": 1, "attachment": 1} if operation != "open_session" else {}
    fields |= {"last_seen": 0} if operation == "attach" else {}
    with pytest.raises(InvalidArgument, match="group 0"):
        client.try_control(do=operation, group=0, **fields)


def test_a_settle_for_the_metadata_group_enters_no_log(world, client, queue):
    session = client.open_session(queue["partitions"][0]["group"])
    client.publish(queue, [b"x"])
    delivered = client.receive(session, queue)
    before = world.group("n1", 0).raft.last_index
    with pytest.raises(InvalidArgument, match="group 0"):
        client.settle(session, queue, delivered, group=0)
    with pytest.raises(InvalidArgument, match="group 0"):
        client.receive(session, queue, group=0)
    assert world.group("n1", 0).raft.last_index == before


def test_internal_operations_are_not_for_clients(client):
    for operation in ("propose_metadata", "release", "group_propose", "group_describe"):
        with pytest.raises(ProtocolError, match="no operation"):
            client.try_control(do=operation, command=b"x", group=1)


def test_an_empty_queue_is_deleted_and_a_full_one_is_not(world, client, queue):
    name = queue["name"]
    client.publish(queue, [b"keep me"])
    with pytest.raises(QueueNotEmpty, match="force"):
        client.try_control(do="delete_queue", name=name, force=False)
    assert read_bodies(client.read(queue)) == [b"keep me"]
    client.publish(queue, [b"still open"])
    client.control(do="delete_queue", name=name, force=True)
    world.run(0.1)
    with pytest.raises(QueueNotFound):
        client.publish(queue, [b"x"])
    assert name not in [each["name"] for each in client.control(do="list_queues")["queues"]]


def test_an_empty_queue_needs_no_force(world, client, queue):
    client.control(do="delete_queue", name=queue["name"], force=False)
    # A node's copy of the metadata may lag by a heartbeat.
    world.run(0.1)
    with pytest.raises(QueueNotFound):
        client.try_control(do="describe_queue", name=queue["name"])


def test_a_queue_made_again_has_another_id_and_no_old_messages(world, client, queue):
    client.publish(queue, [b"old"])
    client.control(do="delete_queue", name=queue["name"], force=True)
    again = client.create(queue["name"], partitions=1)
    assert again["id"] != queue["id"]
    session = client.open_session(again["partitions"][0]["group"])
    assert bodies_of(client.receive(session, again)) == []
    assert read_bodies(client.read(again)) == []
    assert client.publish(again, [b"new"]).base_offset == 0
    assert bodies_of(client.receive(session, again)) == [b"new"]


def test_an_update_reaches_the_machine(client, queue):
    client.control(do="update_queue", name=queue["name"], config={"max_messages": 2})
    client.publish(queue, [b"x"] * 2)
    with pytest.raises(QueueFull):
        client.publish(queue, [b"x"])


def test_an_update_of_the_number_of_partitions_is_refused(client, queue):
    with pytest.raises(InvalidArgument, match="partitions"):
        client.try_control(do="update_queue", name=queue["name"], config={"partitions": 5})


def test_dead_letters_of_no_subscription_are_an_error(client):
    client.create("plain", partitions=2)
    with pytest.raises(InvalidArgument, match="no subscription 'nosub'"):
        client.control(do="dead_letters", name="plain", subscription="nosub", limit=10)


def test_dead_letters_are_listed_and_redriven(client):
    queue = client.create("poison", partitions=1, delivery_limit=1)
    client.publish(queue, [b"bad", b"good"])
    session = client.open_session(queue["partitions"][0]["group"])
    delivered = client.receive(session, queue)
    client.settle(session, queue, delivered, requests.NACK, reason="no use")
    found = client.control(do="dead_letters", name="poison", subscription="default", limit=10)[
        "letters"
    ]
    assert [(each["body"], each["error"]) for each in found] == [
        (b"bad", "no use"),
        (b"good", "no use"),
    ]
    asked = {"do": "redrive", "name": "poison", "subscription": "default"}
    assert client.control(**asked, dry_run=True)["redriven"] == 2
    assert client.control(**asked, dry_run=False, offsets=[[0, 1]])["redriven"] == 1
    assert bodies_of(client.receive(session, queue)) == [b"good"]
    purge = client.control(do="purge_dead", name="poison", subscription="default")
    assert purge == {"purged": 1}


def test_what_is_rejected_is_a_dead_letter_at_once(client, queue):
    client.publish(queue, [b"bad"])
    session = client.open_session(queue["partitions"][0]["group"])
    delivered = client.receive(session, queue)
    client.settle(session, queue, delivered, requests.NACK, reason="no use", reject=True)
    asked = {"name": queue["name"], "subscription": "default"}
    (letter,) = client.control(do="dead_letters", limit=10, **asked)["letters"]
    assert (letter["body"], letter["reason"], letter["error"]) == (b"bad", "rejected", "no use")
    assert letter["history"][0][4] == "rejected"
    with pytest.raises(InvalidArgument, match="purge_dead has no field"):
        client.try_control(do="purge_dead", reason="rejected", **asked)
    redriven = client.control(do="redrive", reason="rejected", dry_run=False, **asked)
    assert redriven == {"redriven": 1, "by_reason": {"rejected": 1}}


def test_a_new_subscription_sees_what_it_should(client, queue):
    client.publish(queue, [b"a", b"b"])
    base = {"do": "subscribe", "name": queue["name"]}
    client.control(**base, subscription="all", start="earliest")
    client.control(**base, subscription="new", start="latest")
    client.control(**base, subscription="from-one", start=1)
    client.publish(queue, [b"c"])
    session = client.open_session(queue["partitions"][0]["group"])
    for subscription, expected in (("all", b"abc"), ("new", b"c"), ("from-one", b"bc")):
        delivered = client.receive(session, queue, subscription=subscription)
        assert b"".join(bodies_of(delivered)) == expected


def test_a_reader_at_the_end_waits_for_the_next_publish(world, client, queue):
    reader = world.connect("n2")
    read = requests.Read(queue["id"], 0, 0, 1_000_000, 20_000_000)
    heard = reader.ask(FrameKind.READ, *requests.encode_read(read))
    world.run(1)
    assert heard == []
    client.publish(queue, [b"x"])
    found = requests.decode_batches(reader.reply(heard)[1])
    assert read_bodies(found) == [b"x"]
    behind = client.read(queue, requests.LATEST)
    assert (behind.end_offset, behind.batches) == (1, ())
    begun = world.loop.now
    assert client.read(queue, 1, wait_us=2_000_000).batches == ()
    assert 1.9 < (world.loop.now - begun) / 1_000_000 < 2.2


def test_status_names_nodes_groups_and_problems(world, client):
    status = client.control(do="status")
    assert status["state"] == "active"
    assert status["problem"] is None
    assert [(node["name"], node["up"]) for node in status["nodes"]] == [(n, True) for n in NAMES]
    assert [group["group"] for group in status["groups"]] == [0, 1, 2, 3]
    assert all(group["quarantined"] is None for group in status["groups"])


def test_a_node_alone_acknowledges_nothing():
    with World() as world:
        client = world.connect("n1")
        queue = client.create("q", partitions=1)
        group = queue["partitions"][0]["group"]
        leader = world.leader(group)
        client = world.connect(leader)
        world.isolate(leader)
        world.fabric.unblock("client", leader)
        heard = client.ask_publish(queue, [b"lost?"])
        world.until(lambda: heard, 5)
        with pytest.raises(RaftqError) as failed:
            client.reply(heard)
        assert failed.value.outcome == "unknown"
        with pytest.raises((NotLeader, RaftqError)) as later:
            client.publish(queue, [b"refused"])
        assert getattr(later.value, "outcome", "not_applied") == "not_applied"
        with pytest.raises((NotLeader, RaftqError)):
            client.try_control(do="describe_queue", name="q")
        world.fabric.heal()
        world.run(3)
        assert read_bodies(world.connect("n1").read(queue)) in ([], [b"lost?"])
        world.until(lambda: all(world.digests_agree(number) for number in range(4)))


def test_a_protected_queue_is_not_deleted_until_it_is_unprotected(world):
    client = world.connect("n1")
    client.create("precious", protected=True)
    for force in (False, True):
        with pytest.raises(InvalidArgument, match="protected"):
            client.control(do="delete_queue", name="precious", force=force)
    client.control(do="update_queue", name="precious", config={"protected": False})
    client.control(do="delete_queue", name="precious", force=False)
