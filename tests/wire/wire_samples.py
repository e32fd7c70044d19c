"""One of every message, with fixed values: for round trips, golden bytes and mutations."""

from raftq import errors
from raftq.ids import ClusterId, GroupId, Index, Micros, NodeIncarnation, ReplicaId, Term
from raftq.raft import entry
from raftq.raft.messages import (
    Amnesiac,
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    SnapshotChunk,
    SnapshotReply,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from raftq.wire import (
    cbor,
    control,
    forwarding,
    handshake,
    raft_messages,
    repair_messages,
    requests,
)
from raftq.wire import errors as wire_errors

CHAIN = bytes(range(16))


def entries():
    first = entry.build(
        previous_chain=entry.GENESIS,
        index=Index(1),
        term=Term(2),
        kind=entry.NOOP,
        log_time=Micros(5),
    )
    second = entry.build(
        previous_chain=first.chain,
        index=Index(2),
        term=Term(2),
        kind=entry.COMMANDS,
        log_time=Micros(6),
        commands=[entry.Command(b"\x01head", b"body of it"), entry.Command(b"\x02tick")],
    )
    return first, second


def joined(vectors):
    return b"".join(bytes(vector) for vector in vectors)


MESSAGES = {
    "vote_request": VoteRequest(ReplicaId(1), ReplicaId(2), Term(7), Index(9), Term(6), True, True),
    "vote_reply": VoteReply(ReplicaId(2), ReplicaId(1), Term(7), True, False, Micros(-5)),
    "append": Append(
        ReplicaId(1), ReplicaId(2), Term(2), Index(0), Term(0), entry.GENESIS, Index(1), entries()
    ),
    "probe": Append(ReplicaId(1), ReplicaId(2), Term(2), Index(4), Term(2), CHAIN, Index(1), ()),
    "append_reply": AppendReply(
        ReplicaId(2), ReplicaId(1), Term(2), False, Index(0), Index(9), Index(4), Term(1), Index(12),
        Micros(1_700_000_000_000_000), True,
    ),
    "snapshot_chunk": SnapshotChunk(
        ReplicaId(1), ReplicaId(2), Term(3), Index(40), Term(2), CHAIN, Micros(77), b"members", 4096,
        b"state" * 9, True,
    ),
    "snapshot_chunk_anew": SnapshotChunk(
        ReplicaId(1), ReplicaId(2), Term(3), Index(40), Term(2), CHAIN, Micros(77), b"members", 0,
        b"state" * 9, False, True,
    ),
    "snapshot_reply": SnapshotReply(
        ReplicaId(2), ReplicaId(1), Term(3), Index(40), CHAIN, 4141, True
    ),
    "timeout_now": TimeoutNow(ReplicaId(1), ReplicaId(2), Term(3)),
    "amnesiac": Amnesiac(ReplicaId(1), ReplicaId(2), Term(3)),
}  # fmt: skip

REPAIRS = {
    "entries_wanted": repair_messages.EntriesWanted(
        ReplicaId(1), ReplicaId(2), 7, Index(10), Index(99)
    ),
    "entries_given": repair_messages.EntriesGiven(
        ReplicaId(2), ReplicaId(1), 7, Index(2), entry.GENESIS, entries()
    ),
    "entries_not_given": repair_messages.EntriesGiven(
        ReplicaId(2), ReplicaId(1), 7, Index(2), b"", ()
    ),
    "snapshot_wanted": repair_messages.SnapshotWanted(
        ReplicaId(1), ReplicaId(2), 8, Index(40), 4096
    ),
    "snapshot_given": repair_messages.SnapshotGiven(
        ReplicaId(2), ReplicaId(1), 8, Index(40), Term(2), Micros(77), CHAIN, 4096, b"members",
        b"state" * 9, True,
    ),
}  # fmt: skip

HEARTBEATS = [
    (
        GroupId(4),
        Heartbeat(ReplicaId(1), ReplicaId(2), Term(3), 17, Index(9), CHAIN, Index(8), CHAIN[::-1]),
    ),
    (
        GroupId(5),
        Heartbeat(
            ReplicaId(6), ReplicaId(7), Term(1), 18, Index(0), bytes(16), Index(0), bytes(16)
        ),
    ),
]
HEARTBEAT_REPLIES = [
    (
        GroupId(4),
        HeartbeatReply(ReplicaId(2), ReplicaId(1), Term(3), 17, Index(11), Micros(99), True),
    )
]

BATCHES = (
    requests.StoredBatch(1, 100, 5_000, b"first batch"),
    requests.StoredBatch(2, 7, 6_000, b"second"),
)
ITEMS = (requests.Item(1, 55, 100, 101), requests.Item(2, 56, 7, 19))
REQUESTS = {
    "publish": requests.Publish(requests.ACKS_QUORUM, 30_000, b"a batch"),
    "published": requests.Published(3, 1, 500, 64, 2, True, 8, 1234, CHAIN),
    "receive": requests.Receive(
        3, 99, 2, 17, 15, 6, "billing", 100, 1 << 20, 30_000_000, 5_000_000, False, (0, 3)
    ),
    "watch": requests.Receive(3, 0, 0, 0, 0, 6, "default", 1, 0, 0, 5_000_000, True),
    "delivered": requests.Delivered(
        (
            requests.Delivery(
                1, 55, 9_000, (requests.Range(100, 101, 1), requests.Range(104, 110, 2))
            ),
            requests.Delivery(2, 56, 9_001, (requests.Range(7, 19, 1),)),
        ),
        BATCHES,
    ),
    "nothing_delivered": requests.Delivered((), ()),
    "settle": requests.Settle(
        3, 99, 2, 18, 15, 6, "billing", requests.NACK, ITEMS, 5_000_000, False, "später"
    ),
    "reject": requests.Settle(
        3, 99, 2, 19, 15, 6, "billing", requests.NACK, ITEMS, reason="no use", reject=True
    ),
    "settled": requests.Settled(ITEMS[:1]),
    "read": requests.Read(6, 1, 100, 1 << 20, 1_000_000),
    "batches": requests.Batches(90, 500, BATCHES),
}
CODECS = {
    "publish": (requests.encode_publish, requests.decode_publish),
    "published": (requests.encode_published, requests.decode_published),
    "receive": (requests.encode_receive, requests.decode_receive),
    "watch": (requests.encode_receive, requests.decode_receive),
    "delivered": (requests.encode_delivered, requests.decode_delivered),
    "nothing_delivered": (requests.encode_delivered, requests.decode_delivered),
    "settle": (requests.encode_settle, requests.decode_settle),
    "reject": (requests.encode_settle, requests.decode_settle),
    "settled": (requests.encode_settled, requests.decode_settled),
    "read": (requests.encode_read, requests.decode_read),
    "batches": (requests.encode_batches, requests.decode_batches),
}

HANDSHAKES = {
    "hello": (
        handshake.Hello((1,), ("a",), "raftq-python/1", "ada"),
        handshake.encode_hello,
        handshake.decode_hello,
    ),
    "welcome": (
        handshake.Welcome(1, (), ClusterId(1 << 100), "n1", dict(handshake.LIMITS)),
        handshake.encode_welcome,
        handshake.decode_welcome,
    ),
    "peer_hello": (
        handshake.PeerHello((1,), (), ClusterId(1 << 100), "n1", NodeIncarnation((1 << 64) - 1), 9),
        handshake.encode_peer_hello,
        handshake.decode_peer_hello,
    ),
    "peer_welcome": (
        handshake.PeerWelcome(1, ("b",), ClusterId(0), "n2", NodeIncarnation(3), 8),
        handshake.encode_peer_welcome,
        handshake.decode_peer_welcome,
    ),
}

CONTROL = {
    "do": "redrive",
    "name": "orders",
    "subscription": "default",
    "reason": "expired",
    "offsets": [[0, 5], [1, 7]],
    "dry_run": True,
}


def plain(value):
    """The same value with every view turned into bytes, so that values compare."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, tuple):
        return tuple(plain(each) for each in value)
    return value


def decoded_error(body):
    error = wire_errors.decode_error(body)
    return type(error), str(error)


def _control(body):
    return control.check_request(cbor.decode(body))


def samples():
    """Name, bytes and decoder of everything that has a form on the wire."""
    for name, value in REQUESTS.items():
        encoder, decoder = CODECS[name]
        yield name, joined(encoder(value)), decoder
    for name, message in MESSAGES.items():
        encoded = raft_messages.encode_raft(GroupId(9), message)
        yield name, joined(encoded), raft_messages.decode_raft
    for name, message in REPAIRS.items():
        encoded = repair_messages.encode_repair(GroupId(9), message)
        yield name, joined(encoded), repair_messages.decode_repair
    yield "heartbeats", raft_messages.encode_heartbeats(HEARTBEATS), raft_messages.decode_heartbeats
    yield (
        "heartbeat_replies",
        raft_messages.encode_heartbeat_replies(HEARTBEAT_REPLIES),
        raft_messages.decode_heartbeat_replies,
    )
    for name, (value, encoder, decoder) in HANDSHAKES.items():
        yield name, encoder(value), decoder
    busy = errors.Busy("full of work", retry_after=0.25)
    yield "error", wire_errors.encode_error(busy), decoded_error
    yield "not_leader", wire_errors.encode_error(wire_errors.NotLeader("n3")), decoded_error
    yield "control", cbor.encode(CONTROL), _control
    yield "forward", joined(forwarding.encode_forward(16, b"rest")), forwarding.decode_forward


ALL = list(samples())
