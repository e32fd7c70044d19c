"""Bytes that must never change: data on disk was written with them.

Run with RAFTQ_REWRITE_GOLDEN=1 to write the files anew after a deliberate change of format.
"""

import os
from pathlib import Path

import pytest

from raftq.batch import Batch, dedup_hash, encode, encode_stamp, key_hash, verify

GOLDEN = Path(__file__).parent.parent / "golden" / "batch"
NOON = 1_760_000_000_000_000

BATCHES = {
    "one_empty_body": {"bodies": [b""], "queue": 1, "partition": 0},
    "plain": {"bodies": [b"alpha", b"", b"gamma-gamma"], "queue": 7, "partition": 3},
    "idempotent": {
        "bodies": [b"a", b"b"],
        "queue": 2**32 - 1,
        "partition": 1023,
        "producer": 2**64 - 1,
        "epoch": 2**32 - 1,
        "sequence": 2**64 - 1,
        "times": NOON,
        "priority": 9,
        "delay_us": 5_000_000,
        "ttl_us": 60_000_000,
    },
    "every_column": {
        "bodies": [b"alpha", b"beta", b"gamma"],
        "queue": 7,
        "partition": 3,
        "producer": 11,
        "epoch": 2,
        "sequence": 40,
        "keys": [b"customer-7", None, b"k"],
        "headers": [
            {"kind": "new", "n": -1, "raw": b"\x00\xff", "yes": True, "nothing": None},
            None,
            {"grün": 2**64 - 1},
        ],
        "times": [NOON, NOON + 1, NOON - 1],
        "due": [0, NOON + 1_000_000, NOON + 2_000_000],
        "expire": [NOON + 9_000_000, 0, NOON + 8_000_000],
        "priorities": [0, 9, 4],
        "dedup_hashes": [None, dedup_hash(b"id-1"), dedup_hash(b"id-2")],
    },
}


def same_as_golden(name: str, made: bytes) -> bytes:
    path = GOLDEN / f"{name}.bin"
    if os.environ.get("RAFTQ_REWRITE_GOLDEN") == "1":
        path.write_bytes(made)
    golden = path.read_bytes()
    assert golden == made
    return golden


@pytest.mark.parametrize("name", BATCHES)
def test_encoding_gives_the_golden_bytes(name):
    same_as_golden(name, encode(**BATCHES[name]))


def test_the_golden_batch_with_every_column_reads_back():
    golden = (GOLDEN / "every_column.bin").read_bytes()
    given = BATCHES["every_column"]
    batch = Batch(golden, verify(golden))
    assert batch.header.flags == 127
    assert (batch.header.queue, batch.header.partition) == (7, 3)
    assert (batch.header.producer, batch.header.epoch, batch.header.sequence) == (11, 2, 40)
    assert (batch.header.base_time, batch.header.max_time) == (NOON - 1, NOON + 1)
    assert (batch.header.min_due, batch.header.max_due) == (NOON + 1_000_000, NOON + 2_000_000)
    assert (batch.header.min_expire, batch.header.max_expire) == (
        NOON + 8_000_000,
        NOON + 9_000_000,
    )
    assert batch.header.priority == 9
    assert batch.bodies() == given["bodies"]
    assert batch.keys() == given["keys"]
    assert batch.headers() == [headers or {} for headers in given["headers"]]
    assert list(batch.key_hashes) == [key_hash(b"customer-7"), 0, key_hash(b"k")]
    assert list(batch.times) == given["times"]
    assert list(batch.due) == given["due"]
    assert list(batch.expire) == given["expire"]
    assert list(batch.priorities) == given["priorities"]
    assert batch.dedup_hashes == [bytes(16), *given["dedup_hashes"][1:]]


def test_the_stamp_gives_the_golden_bytes():
    stamp = encode_stamp(queue=7, partition=3, base_offset=2**40 + 5, count=630, flags=1)
    same_as_golden("stamp", stamp)


def test_hashes_are_those_that_other_clients_compute():
    assert key_hash(b"customer-7") == 0xFBEA082C2997EE28
    assert key_hash(b"") == 0x2D06800538D394C2
    assert dedup_hash(b"id-1").hex() == "0872206abd9ecc64b28971197e1c75f9"
