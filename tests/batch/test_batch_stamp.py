"""The stamp reads back exactly, or not at all."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftq.batch import PUBLISH, STAMP_BYTES, Stamp, encode_stamp, read_stamp
from raftq.errors import Corrupted, RaftqError, UnsupportedVersion

GOOD = encode_stamp(queue=1, partition=2, base_offset=3, count=4)


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(1, 65_536),
    st.integers(0, 2**16 - 1),
)
@settings(deadline=None, max_examples=100, derandomize=True)
def test_a_stamp_reads_back(queue, partition, base_offset, count, flags):
    stamp = encode_stamp(queue, partition, base_offset, count, flags)
    assert (len(stamp), stamp[0]) == (STAMP_BYTES, PUBLISH)
    assert read_stamp(stamp) == Stamp(queue, partition, base_offset, count, flags)


def test_a_stamp_of_another_length_is_refused():
    for wrong in (b"", GOOD[:-1], GOOD + b"\0"):
        with pytest.raises(Corrupted, match="32 bytes"):
            read_stamp(wrong)


@pytest.mark.parametrize(
    ("position", "value", "error"),
    [
        (0, 2, Corrupted),
        (1, 2, UnsupportedVersion),
        (31, 1, Corrupted),
        (12, 0, Corrupted),
        (14, 2, Corrupted),
    ],
)
def test_another_kind_version_or_count_is_refused(position, value, error):
    wrong = bytearray(GOOD)
    wrong[position] = value
    with pytest.raises(error):
        read_stamp(bytes(wrong))
    assert issubclass(error, RaftqError)
