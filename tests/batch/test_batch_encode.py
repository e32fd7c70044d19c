"""What goes in comes out, for every combination of columns; what a broker would refuse fails here."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftq import batch as format_names
from raftq.batch import NO_DEDUP, Batch, encode, key_hash, read_header, verify
from raftq.batch_format import MICROS_MAX, columns_bytes
from raftq.errors import InvalidArgument, MessageTooLarge
from raftq.limits import (
    DELAY_MICROS_MAX,
    MAX_BATCH_BYTES,
    MAX_BATCH_MESSAGES,
    MAX_KEY_BYTES,
    MAX_MESSAGE_BYTES,
)

TARGET = {"queue": 7, "partition": 3}
MICROS = st.integers(0, MICROS_MAX)
HEADER_VALUES = st.one_of(
    st.text(max_size=8),
    st.binary(max_size=8),
    st.integers(-(2**64), 2**64 - 1),
    st.booleans(),
    st.none(),
)
OPTIONAL_COLUMNS = {
    "keys": st.one_of(st.none(), st.binary(max_size=20)),
    "headers": st.one_of(
        st.none(), st.dictionaries(st.text(max_size=4), HEADER_VALUES, max_size=3)
    ),
    "times": MICROS,
    "due": MICROS,
    "expire": MICROS,
    "priorities": st.integers(0, 255),
    "dedup_hashes": st.one_of(st.none(), st.binary(min_size=16, max_size=16)),
}


@st.composite
def batches(draw):
    """Keyword arguments of encode: any columns, any values."""
    bodies = draw(st.lists(st.binary(max_size=40), min_size=1, max_size=12))
    chosen = draw(st.sets(st.sampled_from(sorted(OPTIONAL_COLUMNS))))
    size = {"min_size": len(bodies), "max_size": len(bodies)}
    columns = {name: draw(st.lists(OPTIONAL_COLUMNS[name], **size)) for name in sorted(chosen)}
    return {
        "bodies": bodies,
        "queue": draw(st.integers(0, 2**32 - 1)),
        "partition": draw(st.integers(0, 2**32 - 1)),
        "producer": draw(st.integers(0, 2**64 - 1)),
        "epoch": draw(st.integers(0, 2**32 - 1)),
        "sequence": draw(st.integers(0, 2**64 - 1)),
        "delay_us": draw(st.integers(0, DELAY_MICROS_MAX)),
        "ttl_us": draw(MICROS),
        **({} if "times" in columns else {"times": draw(st.one_of(st.none(), MICROS))}),
        **({} if "priorities" in columns else {"priority": draw(st.integers(0, 255))}),
        **columns,
    }


def expected_of(given_fields):
    """What a reader must see of each message, as plain lists."""
    count = len(given_fields["bodies"])
    times = given_fields["times"]
    keys = [key or None for key in given_fields.get("keys") or [None] * count]
    return {
        "bodies": given_fields["bodies"],
        "keys": keys,
        "key_hashes": [key_hash(key) if key else 0 for key in keys],
        "headers": [headers or {} for headers in given_fields.get("headers") or [{}] * count],
        "times": times if isinstance(times, list) else [times or 0] * count,
        "due": given_fields.get("due") or [0] * count,
        "expire": given_fields.get("expire") or [0] * count,
        "priorities": given_fields.get("priorities") or [given_fields.get("priority", 0)] * count,
        "dedup_hashes": [d or NO_DEDUP for d in given_fields.get("dedup_hashes") or [None] * count],
    }


def seen_in(batch):
    return {
        "bodies": batch.bodies(),
        "keys": batch.keys(),
        "key_hashes": list(batch.key_hashes),
        "headers": batch.headers(),
        "times": list(batch.times),
        "due": list(batch.due),
        "expire": list(batch.expire),
        "priorities": list(batch.priorities),
        "dedup_hashes": batch.dedup_hashes,
    }


@given(batches(), st.sampled_from([bytes, bytearray, memoryview]))
@settings(deadline=None, max_examples=200, derandomize=True)
def test_what_goes_in_comes_out(fields, buffer):
    data = encode(**fields)
    header = verify(data)
    assert header == read_header(data)
    for name in ("queue", "partition", "producer", "epoch", "sequence"):
        assert getattr(header, name) == fields[name]
    assert (header.count, header.delay, header.ttl) == (
        len(fields["bodies"]),
        fields["delay_us"],
        fields["ttl_us"],
    )
    assert seen_in(Batch(buffer(data))) == expected_of(fields)


@given(batches(), st.data())
@settings(deadline=None, max_examples=100, derandomize=True)
def test_a_range_is_a_slice(fields, data):
    encoded = encode(**fields)
    expected = expected_of(fields)
    count = len(fields["bodies"])
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, count))
    for buffer in (encoded, memoryview(encoded)):
        batch = Batch(buffer)
        for name in ("bodies", "keys", "headers"):
            assert getattr(batch, name)(start, stop) == expected[name][start:stop]
            assert getattr(batch, name)(start) == expected[name][start:]


@given(batches())
@settings(deadline=None, max_examples=50, derandomize=True)
def test_columns_lie_at_multiples_of_eight_and_fill_with_zeros(fields):
    data = encode(**fields)
    header = verify(data)
    assert columns_bytes(header.flags, header.count) % 8 == 0
    batch = Batch(data)
    names = [
        "body_length", "key_length", "key_hash", "header_length",
        "time", "due", "expire", "priority", "dedup_hash",
    ]  # fmt: skip
    position = 128
    for name in names:
        column = batch.column(name)
        if column is not None:
            assert data[position : position + column.nbytes] == column.tobytes()
            padding = -column.nbytes % 8
            assert data[position + column.nbytes :][:padding] == bytes(padding)
            position += column.nbytes + padding
    assert position == 128 + columns_bytes(header.flags, header.count)


@pytest.mark.parametrize(
    "says_nothing",
    [
        {"keys": [None, b""]},
        {"headers": [None, {}]},
        {"times": [5, 5]},
        {"due": [0, 0]},
        {"expire": [0, 0]},
        {"priorities": [3, 3]},
        {"dedup_hashes": [None, None]},
    ],
    ids=str,
)
def test_a_column_that_says_nothing_is_left_out(says_nothing):
    fields = {"bodies": [b"a", b"b"], "times": None, **says_nothing}
    data = encode(**fields, **TARGET)
    assert read_header(data).flags == 0
    assert seen_in(Batch(data)) == expected_of(fields)


def test_each_flag_stands_for_its_column():
    columns = {
        "KEYS": {"keys": [b"k", None]},
        "HEADERS": {"headers": [{"a": 1}, None]},
        "TIMES": {"times": [1, 2]},
        "DUE": {"due": [1, 0]},
        "EXPIRE": {"expire": [1, 0]},
        "PRIORITIES": {"priorities": [1, 0]},
        "DEDUP": {"dedup_hashes": [b"d" * 16, None]},
    }
    for name, column in columns.items():
        flags = read_header(encode([b"a", b"b"], **TARGET, **column)).flags
        assert flags == getattr(format_names, name)


def test_bodies_may_be_empty_look_like_batches_or_be_views():
    inner = encode([b"inside"], **TARGET)
    data = encode([b"", inner, memoryview(inner), bytearray(b"x")], **TARGET)
    assert Batch(data).bodies() == [b"", inner, inner, b"x"]
    assert Batch(data).largest_body() == len(inner)


def test_the_largest_batch_fits():
    data = encode([b""] * MAX_BATCH_MESSAGES, **TARGET)
    assert verify(data).count == MAX_BATCH_MESSAGES
    data = encode([bytes(MAX_MESSAGE_BYTES)], **TARGET)
    assert verify(data).body_bytes == MAX_MESSAGE_BYTES


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"bodies": []}, "1 to 65536 messages, not 0"),
        ({"bodies": [b""] * (MAX_BATCH_MESSAGES + 1)}, "not 65537"),
        ({"bodies": [memoryview(b"12345678").cast("I")]}, "views of single bytes"),
        ({"keys": [b"a"]}, "keys has 1 items for 2"),
        ({"keys": [b"a", b"k" * (MAX_KEY_BYTES + 1)]}, "a key has at most 1024 bytes"),
        ({"headers": [{}]}, "headers has 1 items"),
        ({"times": [1]}, "times has 1 items"),
        ({"times": [1, 2**63]}, "times is out of range"),
        ({"times": [1, -1]}, "times are"),
        ({"times": -1}, "times are"),
        ({"times": 2**62 + 1}, "times are"),
        ({"due": [1, -1]}, "due is"),
        ({"due": [1, 2**62 + 1]}, "due is"),
        ({"expire": [1]}, "expire has 1 items"),
        ({"priorities": [0, 256]}, "priorities is out of range"),
        ({"priority": 256}, "does not fit"),
        ({"dedup_hashes": [b"short", None]}, "16 bytes"),
        ({"delay_us": -1}, "delay is"),
        ({"delay_us": DELAY_MICROS_MAX + 1}, "delay is"),
        ({"ttl_us": -1}, "ttl"),
        ({"queue": 2**32}, "does not fit"),
        ({"sequence": 2**64}, "does not fit"),
        ({"producer": -1}, "does not fit"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_what_a_broker_would_refuse_fails_with_its_name(arguments, words):
    with pytest.raises(InvalidArgument, match=words):
        encode(**{"bodies": [b"a", b"b"], **TARGET, **arguments})


def test_a_body_or_a_batch_over_the_limit_is_too_large():
    with pytest.raises(MessageTooLarge, match=f"{MAX_MESSAGE_BYTES}"):
        encode([bytes(MAX_MESSAGE_BYTES + 1)], **TARGET)
    with pytest.raises(MessageTooLarge, match=f"{MAX_BATCH_BYTES}"):
        encode([bytes(MAX_MESSAGE_BYTES // 2)] * 3, **TARGET)


def test_many_keys_and_one_hot_key_read_back():
    keys = [f"key-{number}".encode() for number in range(5_000)] + [b"hot"] * 5_000
    data = encode([b""] * 10_000, **TARGET, keys=keys)
    assert Batch(data).keys() == keys
    assert list(Batch(data).key_hashes) == list(map(key_hash, keys))
