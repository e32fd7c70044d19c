"""Goal: what is written into a ledger is read again, and what is no ledger is refused."""

import pytest
from xxhash import xxh3_64_intdigest

from raftq.embedded.ledger import LedgerRow, digest_of, read_ledger, write_ledger
from raftq.errors import Corrupted

ROWS = [
    LedgerRow(3, 0, 1200, 480, 2, 4, 97, "00" * 16, -5, 65540),
    LedgerRow(3, 1, 0, 1, -1, 4, 98, "ff" * 16, 7, 0, producer=9, epoch=1, sequence=12),
]


def test_rows_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "ledger"
    assert write_ledger(path, ROWS, cluster="ab" * 16) == 2
    assert list(read_ledger(path)) == ROWS


def test_a_line_that_was_cut_off_is_no_row(tmp_path):
    path = tmp_path / "ledger"
    write_ledger(path, ROWS)
    path.write_bytes(path.read_bytes()[:-1])
    assert list(read_ledger(path)) == ROWS[:1]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "hello\n",
        "[]\n",
        '{"format": "other"}\n',
        '{"format": "raftq-ledger", "version": 2}\n',
        '{"format": "raftq-ledger", "version": 1}\n{"queue": 1}\n',
        '{"format": "raftq-ledger", "version": 1}\n{"unknown": 1}\n',
    ],
)
def test_what_is_no_ledger_is_refused(tmp_path, content):
    path = tmp_path / "ledger"
    path.write_text(content)
    with pytest.raises(Corrupted, match="ledger"):
        list(read_ledger(path))


def test_the_digest_is_signed_and_of_the_joined_bodies():
    digests = [digest_of([bytes([number]), b"x"]) for number in range(64)]
    assert min(digests) < 0 < max(digests)
    assert digest_of([b"a", b"b"]) % (1 << 64) == xxh3_64_intdigest(b"ab")
