"""Frames: whole, byte by byte, many at once, too long, foreign; and what becomes of the chunks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftq.errors import ProtocolError, UnsupportedVersion
from raftq.limits import MAX_FRAME_BYTES
from raftq.wire.frames import (
    CHUNK_BYTES_MAX,
    CHUNK_BYTES_MIN,
    HEADER,
    FrameKind,
    FrameReader,
    encode_frame,
)


def feed(reader, data, step=None):
    """Give `data` to the reader, `step` bytes at a time; the frames as plain values."""
    frames = []
    position = 0
    while position < len(data):
        buffer = reader.get_buffer(-1)
        assert len(buffer) > 0
        count = min(len(buffer), step or len(buffer), len(data) - position)
        buffer[:count] = data[position : position + count]
        position += count
        frames += [(kind, stream, bytes(body)) for kind, _, stream, body in reader.received(count)]
    return frames


def frame(kind, stream, body=b""):
    return b"".join(encode_frame(kind, stream, body))


def opened():
    reader = FrameReader()
    reader.authenticated()
    return reader


def test_one_frame_at_a_time_is_judged_by_the_limit_of_its_time():
    reader = FrameReader()
    data = frame(FrameKind.PEER_HELLO, 0, b"h") + frame(FrameKind.RAFT, 0, bytes(5_000))
    buffer = reader.get_buffer()
    first = len(buffer)
    buffer[:] = data[:first]
    assert [each.kind for each in reader.received(first, one=True)] == [FrameKind.PEER_HELLO]
    reader.authenticated()
    assert reader.received(0) == []
    assert [len(body) for _, _, body in feed(reader, data[first:])] == [5_000]


def test_header_is_golden():
    assert frame(FrameKind.PUBLISH, 0x01020304, b"xy").hex() == "0a000000011000000403020178" + "79"
    assert frame(FrameKind.PING, 0).hex() == "080000000109000000000000"


def test_parts_are_not_copied():
    part = bytearray(b"abc")
    vectors = encode_frame(FrameKind.PUBLISH, 1, b"head", part)
    assert vectors[2] is part
    assert vectors[0] == HEADER.pack(8 + 7, 1, FrameKind.PUBLISH, 0, 1)


@pytest.mark.parametrize("step", [1, 2, 3, 11, 12, 13, 100, 5_000, None])
def test_any_cut_gives_the_same_frames(step):
    expected = [
        (FrameKind.PUBLISH, 1, b""),
        (FrameKind.PUBLISH, 2, b"x" * 100),
        (FrameKind.PING, 0, b""),
        (FrameKind.PUBLISH, 4, bytes(range(256)) * 40),
        (FrameKind.PUBLISH, 5, b"z"),
    ]
    data = b"".join(frame(*each) for each in expected)
    reader = opened()
    assert expected == feed(reader, data, step)
    assert not reader.mid_frame


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    sizes=st.lists(st.integers(0, 20_000), max_size=12),
    steps=st.lists(st.integers(1, 30_000), min_size=1, max_size=8),
    hold=st.booleans(),
)
def test_random_streams(sizes, steps, hold):
    """Whatever the sizes and reads, and whether slices are held or not: the frames are right."""
    expected = [
        (FrameKind.PUBLISH, number, bytes([number % 256]) * size)
        for number, size in enumerate(sizes)
    ]
    data = b"".join(frame(*each) for each in expected)
    reader = opened()
    held, got = [], []
    position = turn = 0
    while position < len(data):
        buffer = reader.get_buffer(-1)
        count = min(len(buffer), steps[turn % len(steps)], len(data) - position)
        turn += 1
        buffer[:count] = data[position : position + count]
        position += count
        frames = reader.received(count)
        if hold:
            held += frames
        else:
            got += [(kind, stream, bytes(body)) for kind, _, stream, body in frames]
    if hold:
        got = [(kind, stream, bytes(body)) for kind, _, stream, body in held]
    assert expected == got


def test_ten_thousand_frames_in_one_read():
    reader = opened()
    data = frame(FrameKind.PING, 0) * 10_000
    assert len(feed(reader, data)) == 10_000


@pytest.mark.parametrize("length", [0, 1, 7, 4_093, 4_097, 1 << 31, (1 << 32) - 1])
def test_bad_lengths_are_refused_at_the_fourth_byte(length):
    reader = FrameReader()
    with pytest.raises(ProtocolError, match="announces"):
        feed(reader, length.to_bytes(4, "little"), step=1)


def test_the_limit_counts_the_whole_frame():
    exact = frame(FrameKind.HELLO, 1, bytes(4_096 - 12))
    assert len(feed(FrameReader(), exact)) == 1
    with pytest.raises(ProtocolError):
        feed(FrameReader(), frame(FrameKind.HELLO, 1, bytes(4_096 - 11)))
    with pytest.raises(ProtocolError):
        feed(opened(), (MAX_FRAME_BYTES - 3).to_bytes(4, "little"))


@pytest.mark.parametrize(
    "opening",
    [
        b"GET / HTTP/1.1\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        bytes.fromhex("16030100f6010000f20303"),
        b"\xffSMB",
        b"POST /",
        b"*1\r\n",
    ],
)
def test_foreign_protocols_are_refused_at_once(opening):
    with pytest.raises(ProtocolError, match="TLS"):
        feed(FrameReader(), opening[:4], step=1)


def test_versions_and_flags_are_refused():
    with pytest.raises(UnsupportedVersion):
        feed(opened(), HEADER.pack(8, 2, FrameKind.PING, 0, 0))
    with pytest.raises(ProtocolError, match="flags"):
        feed(opened(), HEADER.pack(8, 1, FrameKind.PING, 0x8000, 0))


def test_mid_frame():
    reader = opened()
    assert not reader.mid_frame
    feed(reader, frame(FrameKind.PUBLISH, 1, b"abc")[:-1])
    assert reader.mid_frame
    feed(reader, b"c")
    assert not reader.mid_frame


def test_an_announced_length_allocates_nothing():
    reader = opened()
    feed(reader, HEADER.pack(MAX_FRAME_BYTES - 4, 1, FrameKind.PUBLISH, 0, 1), step=1)
    assert len(reader.get_buffer(-1)) <= CHUNK_BYTES_MIN
    feed(reader, bytes(CHUNK_BYTES_MIN))
    assert len(reader.get_buffer(-1)) <= 4 * (CHUNK_BYTES_MIN + 12)


def test_a_long_frame_arrives_whole():
    body = bytes(range(256)) * 20_000
    assert feed(opened(), frame(FrameKind.PUBLISH, 7, body)) == [(FrameKind.PUBLISH, 7, body)]


def test_held_slices_keep_their_bytes():
    """A body that is still held must never change, whatever arrives afterwards."""
    reader = opened()
    held = []
    for number in range(2_000):
        data = frame(FrameKind.PUBLISH, number, number.to_bytes(4, "little") * 50)
        buffer = reader.get_buffer(-1)
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        got = reader.received(count)
        if count < len(data):
            buffer = reader.get_buffer(-1)
            buffer[: len(data) - count] = data[count:]
            got += reader.received(len(data) - count)
        held += got
    assert all(each.body == each.stream.to_bytes(4, "little") * 50 for each in held)


def test_a_chunk_is_used_again_only_when_free():
    reader = opened()
    feed(reader, frame(FrameKind.PING, 0))
    first = reader.get_buffer(-1).obj
    feed(reader, frame(FrameKind.PING, 0))
    assert reader.get_buffer(-1).obj is first
    assert len(reader.get_buffer(-1)) == CHUNK_BYTES_MIN


def test_chunks_grow_with_traffic_and_shrink_again():
    reader = opened()
    feed(reader, frame(FrameKind.PUBLISH, 1, bytes(60_000)) * 40)
    assert len(reader.get_buffer(-1).obj) == CHUNK_BYTES_MAX
    held = []
    for number in range(6_000):
        data = frame(FrameKind.PUBLISH, number, bytes(100))
        position = 0
        while position < len(data):
            buffer = reader.get_buffer(-1)
            count = min(len(buffer), len(data) - position)
            # A read that leaves one byte free is one that did not fill the chunk.
            count = max(1, min(count, len(buffer) - 1))
            buffer[:count] = data[position : position + count]
            position += count
            held = reader.received(count)
    assert held
    assert len(reader.get_buffer(-1).obj) < CHUNK_BYTES_MAX


def test_the_answer_of_an_http_server_is_named():
    reader = FrameReader()
    data = b"HTTP/1.1 400 Bad Request\r\n"
    reader.get_buffer()[: len(data)] = data
    with pytest.raises(ProtocolError, match="port for health and metrics"):
        reader.received(len(data))
