"""CBOR: what fits comes back, bombs do nothing, and only typed errors come out."""

import struct
import tracemalloc

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftq.errors import InvalidArgument, InvalidQueueName, ProtocolError
from raftq.wire import cbor, control

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 64), (1 << 64) - 1)
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | st.floats(allow_nan=False, allow_infinity=False)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
maps = st.dictionaries(st.text(max_size=8), values, max_size=5)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(maps)
def test_there_and_back(value):
    assert value == cbor.decode(cbor.encode(value))


@settings(deadline=None, max_examples=200, derandomize=True)
@given(maps, st.data())
def test_mutations(value, data):
    encoded = bytearray(cbor.encode(value))
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] = data.draw(st.integers(0, 255))
    try:
        cbor.decode(encoded)
    except ProtocolError:
        pass


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.binary(max_size=64))
def test_random_bytes(data):
    try:
        cbor.decode(data)
    except ProtocolError:
        pass


def one(item):
    """A map of one item, which is given as its bytes."""
    return b"\xa1\x61k" + item


NINES = (1 << 63).to_bytes(8, "big")
BOMBS = {
    "deep lists": one(b"\x81" * 100_000 + b"\x00"),
    "deep maps": b"\xa1\x61k" * 100_000 + b"\x00",
    "list of 2**63": one(b"\x9b" + NINES),
    "map of 2**63": b"\xbb" + NINES,
    "text of 2**63": one(b"\x7b" + NINES),
    "bytes of 2**32": one(b"\x5a\xff\xff\xff\xff"),
    "list of 2**32": one(b"\x9a\xff\xff\xff\xff" + bytes(100)),
    "indefinite list": one(b"\x9f\x00\xff"),
    "indefinite map": b"\xbf\x61k\x00\xff",
    "indefinite text": one(b"\x7f\x61a\xff"),
    "bignum": one(b"\xc2\x5a\x00\x0f\x42\x40" + b"\xff" * 1_000_000),
    "regular expression": one(b"\xd8\x23\x61a"),
    "shared reference": one(b"\xd8\x1d\x00"),
    "date": one(b"\xc0\x74" + b"2013-03-21T20:04:00Z"),
    "key twice": b"\xa2\x61k\x00\x61k\x01",
    "integer key": b"\xa1\x01\x00",
    "list key": b"\xa1\x80\x00",
    "nan": one(b"\xfb\x7f\xf8" + bytes(6)),
    "half float": one(b"\xf9\x00\x00"),
    "undefined": one(b"\xf7"),
    "break alone": one(b"\xff"),
    "reserved length": one(b"\x1c"),
    "not UTF-8": one(b"\x61\xff"),
    "bytes behind": b"\xa0\x00",
    "empty": b"",
    "not a map": b"\x80",
    "too long": one(b"\x5a\x00\x20\x00\x00" + bytes(1 << 21)),
    "many small lists": one(b"\x9a\x00\x0f\x00\x00" + b"\x80" * 0xF0000),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(name):
    tracemalloc.start()
    with pytest.raises(ProtocolError):
        cbor.decode(BOMBS[name])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 30_000_000


def test_depth_is_counted_in_maps_and_lists():
    sixteen = {"a": 1}
    for _ in range(15):
        sixteen = {"a": sixteen}
    assert sixteen == cbor.decode(cbor.encode(sixteen))
    with pytest.raises(ProtocolError, match="nested"):
        cbor.decode(cbor.encode({"a": sixteen}))


def test_longer_heads_than_needed_are_fine():
    assert cbor.decode(one(b"\x1b" + struct.pack(">Q", 5))) == {"k": 5}


def test_what_has_no_place_is_refused_when_encoding():
    with pytest.raises(InvalidArgument):
        cbor.encode({"a": object()})
    with pytest.raises(InvalidArgument, match="are allowed"):
        cbor.encode({"a": bytes(2 << 20)})
    with pytest.raises(ProtocolError):
        cbor.decode(cbor2.dumps({"a": 1 << 70}))


@pytest.mark.parametrize(
    "request_map",
    [
        {},
        {"do": "make_coffee"},
        {"do": ["metadata"]},
    ],
)
def test_unknown_operations(request_map):
    with pytest.raises(ProtocolError, match="no operation"):
        control.check_request(request_map)


@pytest.mark.parametrize(
    ("request_map", "message"),
    [
        ({"do": "metadata", "quue": "a"}, "no field 'quue'"),
        ({"do": "delete_queue", "name": "a"}, "needs force"),
        ({"do": "delete_queue", "name": "a", "force": 1}, "'boolean'"),
        ({"do": "digest", "group": True}, "'integer'"),
        ({"do": "digest", "group": -1}, "not -1"),
        ({"do": "subscribe", "name": "a", "subscription": "b/c", "start": 0}, "subscription name"),
        ({"do": "subscribe", "name": "a", "subscription": "b", "start": "now"}, "'earliest'"),
        ({"do": "dead_letters", "name": "a", "subscription": "b", "limit": 0}, "1 to 1000"),
        (
            {"do": "redrive", "name": "a", "subscription": "b", "dry_run": True, "offsets": [[1]]},
            "list of",
        ),
    ],
)
def test_wrong_fields(request_map, message):
    with pytest.raises(InvalidArgument, match=message):
        control.check_request(request_map)


@pytest.mark.parametrize(
    "name",
    ["", ".a", "__a", "a" * 81, "a/b", "ä", "a\n", "a\x00", "..", "a b", "\uff052e", "\uff21"],
)
def test_bad_queue_names(name):
    with pytest.raises(InvalidQueueName):
        control.check_queue_name(name)


@pytest.mark.parametrize("name", ["a", "_a", "a" * 80, "Orders-2024_v1.x", "-a"])
def test_good_queue_names(name):
    assert name == control.check_queue_name(name)


def test_optional_fields_may_be_null():
    operation = control.check_request({"do": "metadata", "queue": None})
    assert operation is control.OPERATIONS["metadata"]
