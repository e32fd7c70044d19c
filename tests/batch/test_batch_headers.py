"""Headers are one flat map; whatever else strangers write is refused, and quickly."""

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftq.batch import Batch, encode
from raftq.batch_headers import decode_headers, encode_headers
from raftq.errors import InvalidArgument, ProtocolError
from raftq.limits import MAX_HEADERS_BYTES

VALUES = st.one_of(
    st.text(), st.binary(), st.integers(-(2**64), 2**64 - 1), st.booleans(), st.none()
)


@given(st.dictionaries(st.text(), VALUES, max_size=30))
@settings(deadline=None, max_examples=200, derandomize=True)
def test_headers_read_back_with_their_types(headers):
    decoded = decode_headers(encode_headers(headers))
    assert decoded == headers
    assert [type(value) for value in decoded.values()] == [type(v) for v in headers.values()]


@given(st.binary(max_size=60))
@settings(deadline=None, max_examples=500, derandomize=True)
def test_any_bytes_decode_as_cbor_would_or_are_refused(encoded):
    try:
        decoded = decode_headers(encoded)
    except ProtocolError:
        return
    assert decoded == (cbor2.loads(encoded) if encoded else {})


@given(st.dictionaries(st.text(max_size=5), VALUES, min_size=1, max_size=5), st.data())
@settings(deadline=None, max_examples=200, derandomize=True)
def test_headers_cut_short_are_refused(headers, data):
    encoded = encode_headers(headers)
    with pytest.raises(ProtocolError):
        decode_headers(encoded[: data.draw(st.integers(1, len(encoded) - 1))])


@pytest.mark.parametrize(
    "hostile",
    [
        cbor2.dumps([1]),
        cbor2.dumps("text"),
        cbor2.dumps({1: 2}),
        cbor2.dumps({b"a": 2}),
        cbor2.dumps({"a": [1]}),
        cbor2.dumps({"a": {"b": 1}}),
        cbor2.dumps({"a": 1.5}),
        cbor2.dumps({"a": 2**64}),
        cbor2.dumps({"a": cbor2.CBORTag(28, 1)}),
        cbor2.dumps({"a": cbor2.undefined}),
        cbor2.dumps({"a": 1}) + b"\0",
        bytes.fromhex("a261610161 6102".replace(" ", "")),  # {"a": 1, "a": 2}
        bytes.fromhex("bf616101ff"),  # a map of indefinite length
        bytes.fromhex("a161617f6161ff"),  # text of indefinite length
        bytes.fromhex("bbffffffffffffffff"),  # 2**64 - 1 pairs
        bytes.fromhex("a161615bffffffffffffffff"),  # 2**64 - 1 bytes
        bytes.fromhex("a1617f62c328"),  # not UTF-8
        bytes.fromhex("a1616119"),  # an integer without its bytes
        bytes.fromhex("a16161"),
        bytes.fromhex("ff"),
    ],
    ids=bytes.hex,
)
def test_anything_but_a_flat_map_is_refused(hostile):
    with pytest.raises(ProtocolError):
        decode_headers(hostile)


def test_headers_over_the_limit_are_refused_on_both_sides():
    fitting = {"": b"h" * (MAX_HEADERS_BYTES - 5)}
    assert decode_headers(encode_headers(fitting)) == fitting
    over = {"": b"h" * MAX_HEADERS_BYTES}
    with pytest.raises(InvalidArgument, match=f"{MAX_HEADERS_BYTES}"):
        encode_headers(over)
    with pytest.raises(ProtocolError, match=f"{MAX_HEADERS_BYTES}"):
        decode_headers(cbor2.dumps(over))


@pytest.mark.parametrize(
    "wrong",
    [{1: "a"}, {b"a": 1}, {"a": 1.0}, {"a": [1]}, {"a": {}}, {"a": 2**64}, {"a": -(2**64) - 1}],
    ids=str,
)
def test_other_types_cannot_be_sent(wrong):
    with pytest.raises(InvalidArgument, match="header"):
        encode_headers(wrong)


def test_text_that_is_not_unicode_cannot_be_sent():
    with pytest.raises(InvalidArgument, match="Unicode"):
        encode_headers({"a": "\ud800"})


def test_messages_that_share_headers_do_not_share_the_dictionary():
    shared = {"kind": "new"}
    batch = Batch(encode([b"a", b"b"], queue=1, partition=0, headers=[shared, shared]))
    first, second = batch.headers()
    first["kind"] = "changed"
    assert second == {"kind": "new"}
    assert batch.headers() == [shared, shared]


def test_hostile_headers_of_one_message_do_not_hide_the_bodies():
    """Brokers do not read headers, so a consumer can meet bad ones; it still gets the rest."""
    good = encode([b"a", b"b"], queue=1, partition=0, headers=[{"a": 1}, {"b": 1}])
    batch = Batch(bytearray(good))
    batch.data[-4] = 0xFF
    assert batch.bodies() == [b"a", b"b"]
    assert batch.headers(0, 1) == [{"a": 1}]
    with pytest.raises(ProtocolError):
        batch.headers(1, 2)
