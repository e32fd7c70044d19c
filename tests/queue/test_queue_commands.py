"""Headers read back as they were meant, and whatever strangers write is refused with a type."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_world import NOON, Client, World

from raftq.errors import InvalidArgument, ProtocolError, RaftqError, UnsupportedVersion
from raftq.limits import MAX_RECEIVE_BYTES, MAX_RECEIVE_MESSAGES, VISIBILITY_MICROS_MAX
from raftq.machine import Admitted, Bound, Meta
from raftq.queue import command_layout, commands
from raftq.queue.command_reader import check, decode
from raftq.queue.commands import By
from raftq.queue.config import QueueConfig
from raftq.queue.retention_commands import (
    Expire,
    Outcome,
    ReleasedRange,
    ReleaseHistory,
    encode_expire,
    encode_release_history,
)

GOLDEN = Path(__file__).parent.parent / "golden" / "queue"
WHERE = {"queue": 7, "partition": 3, "subscription": "billing"}
BY = (2**40, 2, 9, 4)
ITEMS = [
    (7, 3, "default", 5, 0, 10),
    (7, 2, "billing", 6, 2**40, 2**41),
    (8, 0, "billing", 7, 1, 2),
]
TAKERS = [
    commands.Taker(*BY, 7, "default", 100),
    commands.Taker(9, 0, 1, 1, 7, "billing", 1, 1_000, 5_000_000, (0, 3)),
    commands.Taker(10, 1, 2, 1, 8, "billing", 5, 64, 0, (1,)),
]
LIMITED = QueueConfig.from_user(
    {"partitions": 4, "max_messages": 100, "visibility_timeout": 1.5, "labels": {"team": "ä"}}
)
OUTCOMES = (
    Outcome("default", "settled", 2**33),
    Outcome("default", "purged", 3),
    Outcome("billing", "settled_before", 2),
)
RELEASE = ReleaseHistory(
    after=2**40,
    chain_after=bytes(range(16)),
    through=2**40 + 9,
    chain=b"\xff" * 16,
    ranges=(
        ReleasedRange(7, 2, 0, 2**41, OUTCOMES),
        ReleasedRange(7, 3, 5, 5, ()),
        ReleasedRange(8, 0, 5, 7, OUTCOMES[2:]),
    ),
)
BOUNDS = (Bound(7, 2, 2**41), Bound(7, 3, 0), Bound(8, 0, 7))

HEADERS = {
    "tick": commands.encode_tick(),
    "configure": commands.encode_configure(7, 3, 2**33, LIMITED),
    "drop": commands.encode_drop(7, 3, force=True),
    "subscribe_earliest": commands.encode_subscribe(*BY, **WHERE),
    "subscribe_latest": commands.encode_subscribe(*BY, **WHERE, start="latest"),
    "subscribe_offset": commands.encode_subscribe(*BY, **WHERE, start=2**40),
    "unsubscribe": commands.encode_unsubscribe(*BY, **WHERE),
    "open_session": commands.encode_open_session(),
    "attach": commands.encode_attach(2**40, 3, 2**33),
    "release": commands.encode_release(2**40, 3, goodbye=True),
    "open_producer": commands.encode_open_producer(7, 3, 2**64 - 1, epoch=6, opener=11),
    "deliver": commands.encode_deliver(TAKERS),
    "ack": commands.encode_ack(*BY, ITEMS),
    "nack": commands.encode_nack(*BY, ITEMS, delay_us=5_000_000, reason="näh", count=False),
    "nack_reject": commands.encode_nack(*BY, ITEMS[:1], reject=True),
    "extend": commands.encode_extend(*BY, ITEMS, visibility_us=60_000_000),
    "purge": commands.encode_purge(*BY, **WHERE),
    "purge_dead": commands.encode_purge(*BY, **WHERE, dead=True),
    "redrive": commands.encode_redrive(*BY, **WHERE),
    "redrive_filtered": commands.encode_redrive(
        *BY, **WHERE, reason="delivery_limit", ranges=[(5, 6), (1, 3)], limit=10, dry_run=True
    ),
    "release_history": encode_release_history(RELEASE),
    "expire": encode_expire(BOUNDS),
}
MEANINGS = {
    "tick": commands.Tick(),
    "configure": commands.Configure(7, 3, 2**33, LIMITED),
    "drop": commands.Drop(7, 3, force=True),
    "subscribe_earliest": commands.Subscribe(By(*BY), 7, 3, "billing", "earliest"),
    "subscribe_latest": commands.Subscribe(By(*BY), 7, 3, "billing", "latest"),
    "subscribe_offset": commands.Subscribe(By(*BY), 7, 3, "billing", 2**40),
    "unsubscribe": commands.Unsubscribe(By(*BY), 7, 3, "billing"),
    "open_session": commands.OpenSession(),
    "attach": commands.Attach(2**40, 3, 2**33),
    "release": commands.Release(2**40, 3, goodbye=True),
    "open_producer": commands.OpenProducer(7, 3, 2**64 - 1, 6, 11),
    "deliver": commands.Deliver(tuple(TAKERS)),
    "ack": commands.Ack(By(*BY), ITEMS),
    "nack": commands.Nack(By(*BY), ITEMS, 5_000_000, counts=False, reject=False, reason="näh"),
    "nack_reject": commands.Nack(By(*BY), ITEMS[:1], 0, counts=True, reject=True, reason=""),
    "extend": commands.Extend(By(*BY), ITEMS, 60_000_000),
    "purge": commands.Purge(By(*BY), 7, 3, "billing"),
    "purge_dead": commands.PurgeDead(By(*BY), 7, 3, "billing"),
    "redrive": commands.Redrive(By(*BY), 7, 3, "billing", "", (), 0, dry_run=False),
    "redrive_filtered": commands.Redrive(
        By(*BY), 7, 3, "billing", "delivery_limit", ((5, 6), (1, 3)), 10, dry_run=True
    ),
    "release_history": RELEASE,
    "expire": Expire(BOUNDS),
}
named = pytest.mark.parametrize("name", HEADERS)


@named
def test_a_header_reads_back(name):
    assert MEANINGS[name] == decode(HEADERS[name])
    checked = check(HEADERS[name])
    assert checked is None or MEANINGS[name] == checked


def test_every_kind_is_shown():
    kinds = {value for name, value in vars(command_layout).items() if type(value) is int}
    assert kinds == {header[0] for header in HEADERS.values()}


@named
def test_the_bytes_of_a_header_never_change(name):
    path = GOLDEN / f"{name}.bin"
    if os.environ.get("RAFTQ_REWRITE_GOLDEN"):
        path.write_bytes(HEADERS[name])
    assert path.read_bytes() == HEADERS[name]


@named
def test_a_header_cut_anywhere_is_refused(name):
    header = HEADERS[name]
    for length in range(len(header)):
        # A cut at the border of two ranges or of the whole map leaves a complete command.
        complete = (name == "configure" and length == 20) or (
            name == "redrive_filtered"
            and (len(header) - length) % 16 == 0
            and length > len(header) - 33
        )
        if not complete:
            with pytest.raises(ProtocolError):
                decode(header[:length])
    if name not in {"configure", "redrive", "redrive_filtered"}:
        with pytest.raises(ProtocolError):
            decode(header + b"\x00")


@named
def test_another_version_is_refused(name):
    header = HEADERS[name]
    with pytest.raises(UnsupportedVersion):
        decode(header[:1] + b"\x02" + header[2:])


def busy_world():
    world = World()
    client = Client(world)
    world.publish(20, producer=5)
    client.ack(client.take(5), (1, 3))
    return world


@settings(deadline=None, max_examples=400, derandomize=True)
@given(
    st.one_of(
        st.binary(max_size=80),
        st.binary(max_size=120).map(lambda tail: bytes([tail[0] % 22 if tail else 1, 1]) + tail),
        st.tuples(st.sampled_from(sorted(HEADERS)), st.integers(0, 10**6), st.integers(1, 255)).map(
            lambda change: flipped(*change)
        ),
    ),
    st.binary(max_size=200),
)
def test_hostile_headers_never_break_the_machine(header, body):
    """Admission and decoding refuse with a type; what decodes applies without an exception."""
    world = WORLDS[0]
    verdict = world.admission.admit(header, body, world.index + 1, NOON)
    assert isinstance(verdict, Admitted | RaftqError)
    if isinstance(verdict, Admitted) and header[0] != commands.layout.TICK:
        assert header == verdict.header
    world.apply(header, body)


def flipped(name, at, bits):
    header = bytearray(HEADERS[name])
    header[at % len(header)] ^= bits
    return bytes(header)


WORLDS = [busy_world()]


@pytest.mark.parametrize(
    "items",
    [
        [],
        [(1, 0, "default", 1, 5, 5)],
        [(1, 0, "default", 1, 6, 5)],
        [(1, 0, "default", 1, 0, 2**63)],
    ],
)
def test_ranges_that_mean_nothing_are_refused(items):
    with pytest.raises((InvalidArgument, ProtocolError)):
        decode(commands.encode_ack(*BY, items))


def test_a_count_larger_than_the_header_is_refused_before_it_is_read():
    header = bytearray(HEADERS["ack"])
    header[4:8] = (2**32 - 1).to_bytes(4, "little")
    for judge in (decode, check):
        with pytest.raises(ProtocolError):
            judge(bytes(header))


@pytest.mark.parametrize(
    "bounds", [BOUNDS[::-1], BOUNDS[:1] * 2, [Bound(7, 3, 1), Bound(7, 3, 2)], [Bound(7, 3, 2**63)]]
)
def test_partitions_of_a_release_or_expiry_are_named_once_ascending_and_with_possible_offsets(
    bounds,
):
    ranges = tuple(ReleasedRange(*bound[:2], 0, bound.offset, ()) for bound in bounds)
    for header in (
        encode_expire(bounds),
        encode_release_history(RELEASE._replace(ranges=ranges)),
    ):
        with pytest.raises(InvalidArgument):
            decode(header)


@pytest.mark.parametrize("at", [4, 56 + 24, 56 + 3 * 28])
def test_a_release_that_claims_more_than_it_holds_is_refused(at):
    header = bytearray(HEADERS["release_history"])
    header[at : at + 4] = (2**32 - 1).to_bytes(4, "little")
    with pytest.raises((ProtocolError, InvalidArgument)):
        decode(bytes(header))


def test_wanting_more_than_was_asked_is_refused():
    with pytest.raises(InvalidArgument):
        decode(commands.encode_ack(1, 0, 5, 6, ITEMS))


@pytest.mark.parametrize("delay", [-1, 2**62])
def test_a_delay_is_in_its_range(delay):
    with pytest.raises(InvalidArgument):
        decode(commands.encode_nack(*BY, ITEMS, delay_us=delay))


@pytest.mark.parametrize("visibility", [0, -1, VISIBILITY_MICROS_MAX + 1, 2**62])
def test_a_visibility_is_in_its_range(visibility):
    with pytest.raises(InvalidArgument):
        decode(commands.encode_extend(*BY, ITEMS, visibility_us=visibility))


def test_what_a_receive_exaggerates_is_cut_to_its_bound():
    greedy = commands.Taker(*BY, 7, "default", 2**32 - 1, 2**64 - 1, 2**62)
    modest = commands.Taker(*BY, 7, "default", 0, 0, 0)
    first, second = decode(commands.encode_deliver([greedy, modest])).takers
    assert (first.max_messages, first.max_bytes, first.visibility_us) == (
        MAX_RECEIVE_MESSAGES,
        MAX_RECEIVE_BYTES,
        VISIBILITY_MICROS_MAX,
    )
    assert (second.max_messages, second.max_bytes) == (1, 1)


def test_numbers_that_do_not_fit_are_refused_when_encoding():
    with pytest.raises(InvalidArgument):
        commands.encode_ack(-1, 0, 1, 1, ITEMS)
    with pytest.raises(InvalidArgument):
        commands.encode_subscribe(*BY, **WHERE, start="sometime")
    with pytest.raises(InvalidArgument):
        commands.encode_unsubscribe(*BY, **WHERE | {"subscription": "x" * 256})


def test_a_long_reason_is_cut_and_still_read():
    command = decode(commands.encode_nack(*BY, ITEMS, reason="ä" * 2_000))
    assert command.reason == "ä" * 512
    command = decode(commands.encode_nack(*BY, ITEMS, reason="x" + "ä" * 2_000))
    assert command.reason == "x" + "ä" * 511 + "\N{REPLACEMENT CHARACTER}"


def test_a_configuration_of_another_shape_is_refused():
    head = HEADERS["configure"][:20]
    for encoded in (b"", b"[1]", b'{"partitions": 1.5}', b'{"a": {"b": 1}}', b"{" * 9_999, b"\xff"):
        with pytest.raises(ProtocolError):
            decode(head + encoded)
    for encoded in (b'{"partitions": 9999}', b'{"colour": "red"}', b'{"partitions": 3}'):
        with pytest.raises(InvalidArgument):
            decode(head + encoded)


def test_apply_answers_bytes_that_are_no_command_with_a_refusal():
    world = World()
    meta = Meta(99, 1, NOON, 0)
    for header in (b"", b"\x00", b"\x01", b"\x01" * 32, b"\xff\x01", HEADERS["ack"][:30]):
        reply = world.machine.apply(meta, header, b"").reply
        assert isinstance(reply, RaftqError)
