"""The bytes of every format, as they lie in tests/golden/storage; an intended change is a new version.

To make new ones: RAFTQ_GOLDEN=write pytest tests/storage/test_storage_formats.py
"""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_world import INCARNATION, MEMBERS, VirtualTime, World, Writer, publish

from raftq import batch
from raftq.errors import Corrupted
from raftq.ids import Index
from raftq.raft.entry import GENESIS, Command, build, without_bodies
from raftq.raft.membership import Membership
from raftq.raft.ready import SnapshotMeta
from raftq.storage import horizon, patch, small_file
from raftq.storage.group_log import Sizes
from raftq.storage.horizon import Packed
from raftq.storage.segment import (
    SEGMENT_HEADER_BYTES,
    SEGMENT_MAGIC,
    Scanner,
    SegmentHeader,
    encode_segment_header,
    is_segment,
    is_spare,
    read_segment_header,
    segment_name,
    sequence_of,
    spare_name,
)
from raftq.storage.unit import (
    MAGIC,
    UNIT_HEADER_BYTES,
    UnitHeader,
    body_checksum,
    decode_reset,
    decode_truncate,
    encode_reset,
    encode_truncate,
    read_unit_header,
    records,
    seal,
    seed_of,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "storage"
META = SnapshotMeta(41, 7, bytes(range(16)), 1_700_000_000_000_000, Membership((1, 2, 3), (4,)))


def golden(name: str, data: bytes) -> None:
    path = GOLDEN / name
    if os.environ.get("RAFTQ_GOLDEN") == "write":
        path.write_text(data.hex("\n", -32) + "\n")
    assert bytes.fromhex(path.read_text()) == data, f"the bytes of {name} have changed"


def segment_header() -> SegmentHeader:
    return SegmentHeader(
        SEGMENT_MAGIC, 1, 0, 0, INCARNATION, 9, 77, 8, 4_321, 55, 0xABCDEF, 40, 6, b"c" * 16, 54, 0
    )


def unit(position: int = SEGMENT_HEADER_BYTES) -> tuple[UnitHeader, bytes, bytes]:
    entry = build(
        previous_chain=GENESIS,
        index=41,
        term=7,
        kind=1,
        log_time=1_000,
        commands=[Command(b"header", b"body")],
    )
    vectors = (encode_truncate(41), *entry.vectors)
    body = b"".join(map(bytes, vectors))
    seed = seed_of(INCARNATION, 9)
    header = UnitHeader(
        MAGIC,
        1,
        0,
        0,
        len(body),
        2,
        position,
        56,
        55,
        0xABCDEF,
        77,
        54,
        39,
        b"m" * 16,
        7,
        2,
        41,
        7,
        entry.chain,
        body_checksum(vectors, seed),
        0,
    )
    sealed, checksum = seal(header, seed)
    return header._replace(checksum=checksum), sealed, body


class Bytes:
    """Bytes as a file."""

    path = "bytes"

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, position: int, length: int) -> bytes:
        return self.data[position : position + length]

    def size(self) -> int:
        return len(self.data)


def test_the_bytes_of_a_segment_header():
    data = encode_segment_header(segment_header())
    golden("segment_header.hex", data)
    found = read_segment_header(Bytes(data), sequence=9, incarnation=INCARNATION)
    assert found == segment_header()._replace(checksum=found.checksum)
    assert read_segment_header(Bytes(data), sequence=8, incarnation=INCARNATION) is None
    assert read_segment_header(Bytes(data), sequence=9, incarnation=1) is None
    assert read_segment_header(Bytes(data), sequence=9, incarnation=None) == found


def test_the_bytes_of_a_unit():
    header, sealed, body = unit()
    golden("unit.hex", sealed + body)
    seed = seed_of(INCARNATION, 9)
    assert read_unit_header(sealed, 0, SEGMENT_HEADER_BYTES, seed) == header
    assert [(record.kind, len(record.data)) for record in records(memoryview(body))] == [
        (0x80, 16),
        (1, 74),
    ]


def test_the_bytes_of_truncate_and_reset():
    golden("truncate.hex", encode_truncate(0x0102030405060708))
    golden("reset.hex", encode_reset(META))
    assert decode_truncate(memoryview(encode_truncate(99))) == 99
    assert decode_reset(memoryview(encode_reset(META))) == META


def test_the_bytes_of_a_small_file():
    data = small_file.encode(b"payload of a small file")
    golden("small_file.hex", data)
    assert small_file.decode(data, "x") == b"payload of a small file"


def test_the_bytes_of_a_snapshot():
    world = World(1)
    world.create()
    writer = world.log.begin_snapshot(META, lambda: None)
    writer.write(b"first slice")
    writer.write(b"second")
    writer.finish()
    world.time.run()
    golden("snapshot.hex", world.disk.contents(f"group-1/snapshot-{41:020d}"))


def test_the_bytes_of_a_patch():
    writer = Writer()
    writer.write([[Command(b"header", b"body %d" % n)] for n in range(4)])
    made = patch.Patch(writer.chain_at(1), tuple(writer.entries[1:4]))
    data = b"".join(map(bytes, patch.encode(made, INCARNATION)))
    golden("patch.hex", data)
    world = World(1)
    file = world.disk.open("patch", create=True)
    file.write(0, [data])
    found = patch.read(file, incarnation=INCARNATION)
    assert (found.first, found.last, found.previous_chain) == (2, 4, writer.chain_at(1))
    assert [entry.chain for entry in found.entries] == [e.chain for e in writer.entries[1:]]
    name = patch.patch_name(2, 4)
    assert patch.range_of(name) == (2, 4)
    assert patch.range_of(name + ".1.tmp") is None
    for position in range(0, len(data), 3):
        world.disk.flip_bit("patch", position)
        with pytest.raises(Corrupted):
            patch.read(file, incarnation=INCARNATION)
        world.disk.flip_bit("patch", position)


def test_the_bytes_of_a_whole_segment():
    """A creation, two writes, a mark, an orderly end: what a running log leaves."""
    world = World(1)
    world.create()
    world.write_and_sync(2, 20)
    world.writer.term, world.writer.vote, world.writer.commit = 2, 3, 1
    world.write_and_sync(1, 10, truncate_from=2)
    world.idle()
    world.log.close()
    golden("segment.hex", world.disk.contents(world.segments()[0]).rstrip(b"\0"))
    assert isinstance(world.time, VirtualTime)


def test_the_bytes_of_an_index():
    """One segment with a reset, truncated entries, two terms, batches of two partitions."""
    world = World(1, sizes=Sizes(2_048, 4_096, 0))
    world.create()
    world.write_and_sync(3, 20)
    world.writer.term = 2
    for base in (0, 2):
        data = batch.encode([b"one", b"two"], queue=5, partition=base)
        commands = [publish(5, base, base, data, 2)]
        world.log.write(world.writer.write([commands], truncate_from=3 if not base else 0))
    world.write(1, 1_500)
    world.time.run()
    golden("index.hex", world.disk.contents("group-1/segment-00000001.index"))


def test_a_segment_written_by_version_1_is_still_read():
    world = World(1)
    world.disk.make_directory("group-1")
    file = world.disk.open("group-1/segment-00000001.log", create=True)
    file.write(0, [bytes.fromhex((GOLDEN / "segment.hex").read_text())])
    log = world.open()
    assert (log.condition.value, log.damage, log.tail_cut) == ("ok", (), False)
    assert (log.state.term, log.state.vote, log.last_index) == (2, 3, 2)
    assert (log.snapshot.membership, log.state.commit_index) == (MEMBERS, 1)
    assert len(log.entries(1, 3, 1 << 20)) == 2


def test_a_header_and_its_first_unit_lie_in_one_sector():
    assert SEGMENT_HEADER_BYTES + UNIT_HEADER_BYTES <= 512


def test_foreign_recycled_and_copied_bytes_never_verify():
    _, sealed, body = unit()
    at = SEGMENT_HEADER_BYTES
    assert read_unit_header(sealed, 0, at, seed_of(INCARNATION, 9)) is not None
    assert read_unit_header(sealed, 0, at, seed_of(INCARNATION, 10)) is None
    assert read_unit_header(sealed, 0, at, seed_of(INCARNATION + 1, 9)) is None
    assert read_unit_header(sealed, 0, at + 8, seed_of(INCARNATION, 9)) is None
    assert body


def test_the_hash_over_vectors_is_that_over_their_bytes():
    vectors = (b"a" * 1_000, bytearray(b"b" * 70_000), memoryview(b"c" * 3), b"")
    joined = (b"".join(map(bytes, vectors)),)
    assert body_checksum(vectors, 5) == body_checksum(joined, 5) != body_checksum(joined, 6)


def test_names():
    assert segment_name(12) == "segment-00000012.log"
    assert spare_name(12) == "spare-00000012.log"
    assert [
        sequence_of(name)
        for name in (
            "segment-00000012.log",
            "spare-00000013.log",
            "segment-00000014.log.tmp",
            "segment-00000015.index",
            "snapshot-00000000000000000007",
            "segment-x.log",
            "replica",
        )
    ] == [12, 13, 14, 15, None, None, None]
    assert is_segment("segment-00000012.log")
    assert not is_segment("segment-00000012.log.tmp")
    assert is_spare("spare-00000012.log")


@settings(deadline=None, max_examples=200, derandomize=True)
@given(st.data())
def test_a_scan_finds_the_units_that_are_whole_whatever_lies_between(data):
    seed = seed_of(INCARNATION, 9)
    parts, expected, position = [], [], 0
    for _ in range(data.draw(st.integers(0, 6))):
        junk = data.draw(
            st.one_of(
                st.just(b""),
                st.binary(max_size=40),
                st.just(bytes(700)),
                st.just(MAGIC),
                st.just(MAGIC[:3]),
                st.just(unit(3)[1] + unit(3)[2]),
            )
        )
        parts.append(junk)
        position += len(junk)
        header, sealed, body = unit(position)
        if data.draw(st.booleans()):
            expected.append((header.position, True))
        else:
            body = b"?" + body[1:]
            expected.append((header.position, False))
        parts += [sealed, body]
        position += len(sealed) + len(body)
    tail = data.draw(st.sampled_from([b"", bytes(300), b"\0" * 9 + b"x", MAGIC * 3]))
    scanner = Scanner(Bytes(b"".join([*parts, tail])), seed, start=0, stop=None)
    assert [(found.header.position, found.body is not None) for found in scanner] == expected


@pytest.mark.parametrize("size", [0, 1, 15, 23])
def test_a_small_file_that_is_cut_is_corrupted(size):
    with pytest.raises(Corrupted):
        small_file.decode(small_file.encode(b"")[:size], "x")


@pytest.mark.parametrize("position", range(0, 40, 3))
def test_a_small_file_that_rots_is_corrupted(position):
    data = bytearray(small_file.encode(b"p" * 20))
    data[position] ^= 16
    # Bytes 5 to 7 and 12 to 15 are zeros that nobody reads, but they are under the checksum.
    with pytest.raises(Corrupted):
        small_file.decode(bytes(data), "x")


def test_records_that_do_not_add_up_are_corrupted():
    for body in (b"\x07", encode_truncate(1)[:-1], b"\x02" + encode_truncate(1)[1:], bytes(16)):
        with pytest.raises(Corrupted):
            list(records(memoryview(body)))


def test_the_bytes_of_a_horizon():
    items = (Packed(7, 3, 4_096, Index(20), Index(90)), Packed(12, 9, 512, Index(2), Index(1)))
    made = horizon.Horizon(META, Index(300), items)
    data = horizon.encode(made)
    golden("horizon.hex", data)
    assert horizon.decode(data) == made


def test_the_bytes_of_a_patch_without_bodies():
    writer = Writer()
    writer.write([[Command(b"header", b"a longer body %d" % n)] for n in range(4)])
    entries = [without_bodies(entry, lambda _: True) for entry in writer.entries[1:4]]
    made = patch.Patch(writer.chain_at(1), tuple(entries))
    data = b"".join(map(bytes, patch.encode(made, INCARNATION)))
    golden("patch_without_bodies.hex", data)
    world = World(1)
    file = world.disk.open("patch", create=True)
    file.write(0, [data])
    found = patch.read(file, incarnation=INCARNATION)
    assert [entry.chain for entry in found.entries] == [e.chain for e in writer.entries[1:4]]


def test_neighbours_that_are_packed_become_one():
    base = SnapshotMeta(9, 2, b"9" * 16, 77, MEMBERS)
    made = horizon.Horizon(base, 40, ())
    for item in (
        Packed(3, 0, 0, 10, 20),
        Packed(5, 4, 900, 30, 44),
        Packed(4, 3, 800, 21, 29),
    ):
        made = made.with_packed(item)
        assert horizon.decode(horizon.encode(made)) == made
    assert made.packed == (Packed(5, 0, 0, 10, 44),)
    assert made.with_base(base._replace(index=40)).reset_index == 0
    payload = horizon.encode(made)
    for cut in (0, 3, 30, len(payload) - 1):
        with pytest.raises(Corrupted):
            horizon.decode(payload[:cut])
