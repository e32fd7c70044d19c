"""Every message: there and back, golden bytes, and nothing but typed errors for anything else."""

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_samples import (
    ALL,
    CODECS,
    HANDSHAKES,
    HEARTBEAT_REPLIES,
    HEARTBEATS,
    MESSAGES,
    REPAIRS,
    REQUESTS,
    joined,
    plain,
)

from raftq.errors import (
    TABLE,
    Busy,
    Corrupted,
    InvalidArgument,
    InvalidQueueName,
    ProtocolError,
    RaftqError,
    StaleReceipt,
    UnsupportedVersion,
)
from raftq.raft import entry
from raftq.wire import errors as wire_errors
from raftq.wire import forwarding, handshake, raft_messages, repair_messages, requests

GOLDEN = Path(__file__).parent.parent / "golden" / "wire" / "messages.txt"
REFUSALS = (ProtocolError, UnsupportedVersion, Corrupted)
BY_NAME = {name: (encoded, decoder) for name, encoded, decoder in ALL}


def refusals(name):
    """Fields of a control request are arguments; all else is protocol."""
    return (*REFUSALS, InvalidArgument, InvalidQueueName) if name == "control" else REFUSALS


@pytest.mark.parametrize("name", REQUESTS)
def test_requests_there_and_back(name):
    encoder, decoder = CODECS[name]
    assert REQUESTS[name] == plain(decoder(memoryview(joined(encoder(REQUESTS[name])))))


@pytest.mark.parametrize("name", [name for name in MESSAGES if name != "append"])
def test_raft_messages_there_and_back(name):
    encoded = joined(raft_messages.encode_raft(9, MESSAGES[name]))
    assert (9, MESSAGES[name]) == raft_messages.decode_raft(memoryview(encoded))


@pytest.mark.parametrize("name", REPAIRS)
def test_repair_messages_there_and_back(name):
    encoded = joined(repair_messages.encode_repair(9, REPAIRS[name]))
    group, message = repair_messages.decode_repair(memoryview(encoded))
    assert (group, type(message)) == (9, type(REPAIRS[name]))
    assert joined(repair_messages.encode_repair(9, message)) == encoded
    assert message[:4] == REPAIRS[name][:4]


def test_append_carries_its_entries_uncopied():
    message = MESSAGES["append"]
    vectors = raft_messages.encode(message)
    assert vectors[1] is message.entries[0].vectors[0]
    assert vectors[3] is message.entries[1].vectors[1]
    encoded = joined(vectors)
    decoded = raft_messages.decode(memoryview(encoded))
    assert message._replace(entries=()) == decoded._replace(entries=())
    assert all(each.vectors[0].obj is encoded for each in decoded.entries)
    assert entry.verify(decoded.entries[0], entry.GENESIS)
    assert entry.verify(decoded.entries[1], decoded.entries[0].chain)


def test_heartbeat_rows_there_and_back():
    encoded = raft_messages.encode_heartbeats(HEARTBEATS)
    assert len(HEARTBEATS) * raft_messages.HEARTBEAT_BYTES == len(encoded)
    assert raft_messages.decode_heartbeats(memoryview(encoded)) == HEARTBEATS
    replies = raft_messages.encode_heartbeat_replies(HEARTBEAT_REPLIES)
    assert raft_messages.decode_heartbeat_replies(memoryview(replies)) == HEARTBEAT_REPLIES


@pytest.mark.parametrize("name", HANDSHAKES)
def test_handshakes_there_and_back(name):
    value, encoder, decoder = HANDSHAKES[name]
    assert value == decoder(encoder(value))


def test_handshakes_of_strangers_are_refused():
    hello, encode, _ = HANDSHAKES["hello"]
    with pytest.raises(ProtocolError, match="right port"):
        handshake.decode_peer_hello(encode(hello))
    with pytest.raises(UnsupportedVersion):
        handshake.choose_version((2, 3))
    assert handshake.choose_version((7, 1)) == 1
    welcome, encode_welcome, _ = HANDSHAKES["welcome"]
    with pytest.raises(UnsupportedVersion):
        handshake.decode_welcome(encode_welcome(welcome._replace(version=9)))


@pytest.mark.parametrize("code", TABLE)
def test_every_error_travels(code):
    sent = TABLE[code]("what happened", outcome="unknown", retry_after=0.5, failed=(3, "b"))
    got = wire_errors.decode_error(wire_errors.encode_error(sent))
    assert type(sent) is type(got)
    assert (
        str(got), got.outcome, got.retry_after, got.failed,
    ) == ("what happened", "unknown", 0.5, (3, "b"))  # fmt: skip


def test_redirects_and_unknown_codes():
    leader = wire_errors.decode_error(wire_errors.encode_error(wire_errors.NotLeader("n2")))
    assert isinstance(leader, wire_errors.NotLeader)
    assert leader.leader == "n2"
    moved = wire_errors.decode_error(wire_errors.encode_error(wire_errors.Moved()))
    assert isinstance(moved, wire_errors.Moved)

    class FromTheFuture(StaleReceipt):
        code = 999

    got = wire_errors.decode_error(wire_errors.encode_error(FromTheFuture("new")))
    assert type(got) is RaftqError
    long = wire_errors.encode_error(Busy("x" * 100_000))
    assert len(long) < 4_000


def test_a_forwarded_request_may_not_travel_for_ever():
    encoded = joined(forwarding.encode_forward(16, b"a", b"b", hops=2))
    assert forwarding.decode_forward(memoryview(encoded))[:2] == (16, 2)
    assert bytes(forwarding.decode_forward(memoryview(encoded)).body) == b"ab"
    with pytest.raises(ProtocolError):
        forwarding.decode_forward(memoryview(joined(forwarding.encode_forward(16, hops=3))))


def test_golden_bytes():
    """A format that changes by accident breaks every client: compare with the recorded bytes.

    After a change that is meant, write the printed lines into the file.
    """
    lines = [f"{name} {encoded.hex()}" for name, encoded, _ in ALL]
    assert GOLDEN.read_text().splitlines() == lines, "\n".join(lines)


@pytest.mark.parametrize("name", BY_NAME)
def test_cut_anywhere(name):
    encoded, decoder = BY_NAME[name]
    decoder(memoryview(encoded))
    for length in range(len(encoded)):
        try:
            decoder(memoryview(encoded[:length]))
        except refusals(name):
            continue
        assert name in CUT_IS_VALID, f"{length} of {len(encoded)} bytes are accepted"


CUT_IS_VALID = {
    "publish",  # What is cut is the batch, whose own checksum is verified by the server.
    "forward",  # What is cut is the inner body.
    "snapshot_given",
    "snapshot_chunk_anew",
    "snapshot_chunk",  # The data has no length of its own: the frame's is enough.
    "heartbeats",  # Fewer whole rows.
    "heartbeat_replies",
}


@pytest.mark.parametrize("name", BY_NAME)
def test_bytes_behind_the_end(name):
    encoded, decoder = BY_NAME[name]
    if name in {"publish", "forward", "snapshot_chunk", "snapshot_chunk_anew", "snapshot_given"}:
        return
    with pytest.raises(refusals(name)):
        decoder(memoryview(encoded + b"\x00"))


@settings(deadline=None, max_examples=400, derandomize=True)
@given(data=st.data())
def test_mutations_raise_typed_errors_only(data):
    name = data.draw(st.sampled_from(sorted(BY_NAME)))
    encoded, decoder = BY_NAME[name]
    mutated = bytearray(encoded)
    for _ in range(data.draw(st.integers(1, 6))):
        position = data.draw(st.integers(0, len(mutated) - 1))
        width = data.draw(st.sampled_from([1, 1, 2, 4, 8]))
        value = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
        mutated[position : position + width] = bytes([value]) * len(
            mutated[position : position + width]
        )
    try:
        decoder(memoryview(mutated))
    except refusals(name):
        pass


@settings(deadline=None, max_examples=200, derandomize=True)
@given(name=st.sampled_from(sorted(BY_NAME)), body=st.binary(max_size=200))
def test_random_bytes_raise_typed_errors_only(name, body):
    try:
        BY_NAME[name][1](memoryview(body))
    except refusals(name):
        pass


@pytest.mark.parametrize(
    "name", ["delivered", "batches", "settled", "settle", "receive", "append", "entries_given"]
)
def test_claims_allocate_nothing(name):
    """Counts of four billion in a short body must not be believed."""
    encoded, decoder = BY_NAME[name]
    tracemalloc.start()
    for position in range(len(encoded) - 4):
        mutated = bytearray(encoded)
        mutated[position : position + 4] = b"\xff\xff\xff\x7f"
        try:
            decoder(memoryview(mutated))
        except refusals(name):
            pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_numbers_beyond_all_use_are_refused():
    bomb = MESSAGES["probe"]._replace(term=(1 << 63) - 1)
    with pytest.raises(ProtocolError, match="beyond all use"):
        raft_messages.decode(memoryview(joined(raft_messages.encode(bomb))))
    group, beat = HEARTBEATS[0]
    rows = raft_messages.encode_heartbeats([(group, beat._replace(term=(1 << 63) - 1))])
    with pytest.raises(ProtocolError, match="beyond all use"):
        raft_messages.decode_heartbeats(memoryview(rows))


@pytest.mark.parametrize(
    "broken",
    [
        REQUESTS["settle"]._replace(items=(requests.Item(0, 1, 5, 5),)),
        REQUESTS["settle"]._replace(action=4),
        REQUESTS["settle"]._replace(action=requests.ACK, reject=True),
        REQUESTS["settle"]._replace(time_us=-1),
    ],
)
def test_settles_that_mean_nothing(broken):
    with pytest.raises(ProtocolError):
        requests.decode_settle(memoryview(joined(requests.encode_settle(broken))))
