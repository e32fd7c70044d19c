"""Nothing damaged, cut short or made up gets through, and no length is believed unseen."""

from itertools import product

import pytest

from raftq.batch import Batch, encode, read_header, verify, verify_checksum
from raftq.batch_format import CHECKED_BYTES, HEADER_BYTES, HEADER_STRUCT, Header, checksum
from raftq.errors import Corrupted, ProtocolError, RaftqError, UnsupportedVersion
from raftq.limits import DELAY_MICROS_MAX, MAX_BATCH_MESSAGES, MAX_HEADERS_BYTES, MAX_KEY_BYTES

TARGET = {"queue": 7, "partition": 3}
FULL = encode(
    [b"alpha", b"beta", b"gamma"],
    **TARGET,
    keys=[b"k1", None, b"k3"],
    headers=[{"a": 1}, None, {"b": "c"}],
    times=[5, 6, 7],
    due=[0, 8, 9],
    expire=[20, 0, 30],
    priorities=[1, 2, 3],
    dedup_hashes=[bytes(range(16)), None, None],
)
PLAIN = encode([b"alpha", b"beta"], **TARGET)
CHECKS = (read_header, verify_checksum, verify)


def forged(data: bytes, payload: bytes | None = None, **fields: object) -> bytes:
    """The batch with other header fields or payload, and a checksum that fits."""
    payload = data[HEADER_BYTES:] if payload is None else payload
    header = Header._make(HEADER_STRUCT.unpack_from(data))
    head = HEADER_STRUCT.pack(*header._replace(**fields))[:CHECKED_BYTES]
    return head + checksum(head, payload).to_bytes(8, "little") + payload


def test_forging_nothing_gives_a_good_batch():
    assert forged(FULL) == FULL
    assert verify(forged(FULL, sequence=99)).sequence == 99


@pytest.mark.parametrize("batch", [PLAIN, FULL], ids=["plain", "full"])
def test_every_flip_of_a_byte_or_bit_is_detected(batch):
    for position, mask in product(range(len(batch)), (0xFF, 1, 2, 4, 8, 16, 32, 64, 128)):
        damaged = bytearray(batch)
        damaged[position] ^= mask
        for check in (verify_checksum, verify):
            with pytest.raises((Corrupted, UnsupportedVersion)):
                check(damaged)


@pytest.mark.parametrize("batch", [PLAIN, FULL], ids=["plain", "full"])
@pytest.mark.parametrize("check", CHECKS)
def test_every_cut_is_detected(batch, check):
    for size in range(len(batch)):
        with pytest.raises(Corrupted):
            check(batch[:size])
    with pytest.raises(Corrupted):
        check(batch + b"\0")


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    "fields",
    [
        {"count": 0},
        {"count": 5},
        {"count": MAX_BATCH_MESSAGES + 1},
        {"count": 2**32 - 1},
        {"body_bytes": 14 + 9 + 1},
        {"body_bytes": 2**32 - 1},
        {"key_bytes": 2**32 - 1},
        {"flags": 128},
        {"flags": 0xFFFF},
        {"flags": 0},
        {"delay": -1},
        {"delay": DELAY_MICROS_MAX + 1},
        {"ttl": -1},
        {"ttl": 2**63 - 1},
        {"base_time": -1},
        {"base_time": 8},
        {"max_time": 2**63 - 1},
        {"min_due": 10},
        {"max_due": 2**63 - 1},
        {"min_expire": -1},
        {"max_expire": 2**63 - 1},
    ],
    ids=str,
)
def test_hostile_header_fields_are_refused_before_any_column_is_read(check, fields):
    with pytest.raises(ProtocolError):
        check(forged(FULL, **fields))


def test_a_hostile_payload_length_is_refused():
    with pytest.raises(Corrupted, match="payload"):
        read_header(forged(FULL, payload_bytes=2**32 - 1))


@pytest.mark.parametrize("fields", [{"max_time": 1}, {"max_due": 1}, {"max_expire": 1}], ids=str)
def test_bounds_without_their_column_are_refused(fields):
    with pytest.raises(ProtocolError, match="times"):
        read_header(forged(PLAIN, **fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"count": 1},
        {"body_bytes": 13, "key_bytes": 5},
        {"body_bytes": 15, "key_bytes": 3},
        {"body_bytes": 13},
        {"key_bytes": 5},
        {"base_time": 4},
        {"max_time": 8},
        {"min_due": 7},
        {"max_due": 10},
        {"min_expire": 19},
        {"max_expire": 31},
        {"priority": 2},
        {"priority": 4},
    ],
    ids=str,
)
def test_columns_that_disagree_with_the_header_are_refused(fields):
    hostile = forged(FULL, **fields)
    assert read_header(hostile)
    assert verify_checksum(hostile)
    with pytest.raises(ProtocolError, match="disagree"):
        verify(hostile)


@pytest.mark.parametrize(
    "lengths", [(2**32 - 1, 10), (4, 4), (9, 1), (2**32 - 1, 2**32 - 1)], ids=str
)
def test_hostile_body_lengths_are_refused(lengths):
    column = b"".join(length.to_bytes(4, "little") for length in lengths)
    hostile = forged(PLAIN, payload=column + PLAIN[HEADER_BYTES + 8 :])
    with pytest.raises(ProtocolError, match="disagree"):
        verify(hostile)


def test_keys_and_headers_over_their_limit_are_refused():
    """The lengths add up, but one item is longer than a reader must expect."""
    batch = encode([b"", b""], **TARGET, keys=[b"k" * MAX_KEY_BYTES, b"j"])
    moved = bytearray(batch[HEADER_BYTES:])
    moved[8:16] = (MAX_KEY_BYTES + 1).to_bytes(4, "little") + bytes(4)
    with pytest.raises(ProtocolError, match="disagree"):
        verify(forged(batch, payload=bytes(moved)))
    headers = [{"": b"h" * (MAX_HEADERS_BYTES - 6)}, {"": 1}]
    batch = encode([b"", b""], **TARGET, headers=headers)
    total = sum(Batch(batch).column("header_length"))
    assert total > MAX_HEADERS_BYTES
    moved = bytearray(batch[HEADER_BYTES:])
    moved[8:16] = total.to_bytes(4, "little") + bytes(4)
    with pytest.raises(ProtocolError, match="disagree"):
        verify(forged(batch, payload=bytes(moved)))


@pytest.mark.parametrize(("codec", "name"), [(1, "lz4"), (2, "zstd"), (3, "codec 3")])
def test_other_codecs_are_refused_and_named(codec, name):
    with pytest.raises(UnsupportedVersion, match=name) as caught:
        read_header(forged(PLAIN, codec=codec))
    assert ("raftq[compression]" in str(caught.value)) == (codec < 3)


def test_another_version_is_refused_and_named():
    with pytest.raises(UnsupportedVersion, match="batch format 2"):
        read_header(forged(PLAIN, version=2))


def test_a_batch_cannot_land_in_another_queue():
    """Queue and partition are under the checksum, whoever changes them on the way."""
    for field in ("queue", "partition"):
        moved = bytearray(PLAIN)
        moved[16 if field == "queue" else 20] += 1
        with pytest.raises(Corrupted, match=r"queue \d+, partition \d+ fails its checksum"):
            verify_checksum(moved)


def test_a_reader_of_unverified_bytes_verifies_them():
    with pytest.raises(RaftqError):
        Batch(PLAIN[:-1])
    with pytest.raises(ProtocolError):
        Batch(forged(FULL, priority=4))
