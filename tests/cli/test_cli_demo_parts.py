"""Goal: the demo's judgement sees each fault it exists for.

Method: small inputs and records, with one thing wrong at a time.
"""

import pytest
from cli_fakes import make_messages

from raftq.cli.demo import input as inputs
from raftq.cli.demo.publish import Publisher
from raftq.cli.demo.rebuild import Rebuild
from raftq.cli.demo.record import NOTHING, Record, digest
from raftq.cli.demo.verdict import Verdict
from raftq.client.receipts import Receipt
from raftq.embedded.ledger import digest_of
from raftq.errors import InvalidArgument


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").write_bytes(b"one\ntwo\r\nthree")
    (tmp_path / "sub" / "b").write_bytes(b"")
    return tmp_path


def test_files_are_found_and_named(tree):
    assert [file.name for file in inputs.find_files(tree)] == [b"a", b"sub/b"]
    assert [file.name for file in inputs.find_files(tree / "a")] == [b"a"]
    with pytest.raises(InvalidArgument):
        inputs.find_files(tree / "nothing")
    (tree / "empty").mkdir()
    with pytest.raises(InvalidArgument):
        inputs.find_files(tree / "empty")


def test_the_standard_library_is_large_and_has_no_packages_of_others():
    files = inputs.find_files(None)
    assert len(files) > 500
    assert not any(b"site-packages" in file.name for file in files)


def test_long_lines_are_cut(monkeypatch):
    monkeypatch.setattr(inputs, "PIECE_BYTES", 4)
    assert inputs.split_lines(b"123456789\nx\n") == [b"1234", b"5678", b"9\n", b"x\n"]


@pytest.mark.parametrize("size", [1, 2, 100])
def test_portions_hold_every_line_and_a_manifest_for_each_file(tree, size):
    files = inputs.find_files(tree)
    portions = list(inputs.portions(files, size))
    assert all(len(portion.bodies) == size for portion in portions[:-1])
    bodies = [body for portion in portions for body in portion.bodies]
    headers = [header for portion in portions for header in portion.headers]
    keys = [key for portion in portions for key in portion.keys]
    assert bodies[:3] == [b"one\n", b"two\r\n", b"three"]
    assert headers == [
        {"line": 1},
        {"line": 2},
        {"line": 3},
        {"manifest": True},
        {"manifest": True},
    ]
    assert keys == [b"a"] * 4 + [b"sub/b"]
    manifests = [manifest for portion in portions for manifest in portion.manifests]
    assert [inputs.decode_manifest(bodies[3]), inputs.decode_manifest(bodies[4])] == manifests
    assert [(manifest.lines, manifest.size) for manifest in manifests] == [(3, 14), (0, 0)]
    assert inputs.count_messages(files) >= 1


def received(tree):
    """A rebuild of all files, and what they should be."""
    rebuild = Rebuild()
    originals = {}
    (portion,) = inputs.portions(inputs.find_files(tree), 100)
    originals |= {manifest.name: manifest for manifest in portion.manifests}
    rebuild.take(make_messages(portion.bodies, keys=portion.keys, headers=portion.headers))
    return rebuild, originals


def test_files_are_rebuilt(tree):
    rebuild, originals = received(tree)
    assert (rebuild.identical(originals), rebuild.out_of_order(), rebuild.duplicated) == (2, 0, 0)
    assert rebuild.record.count == 5


@pytest.mark.parametrize("line", [None, b"other\n"])
def test_a_file_with_a_wrong_line_is_not_identical(tree, line):
    rebuild, originals = received(tree)
    rebuild.files[b"a"].lines[1] = line
    assert rebuild.identical(originals) == 1


def test_a_file_that_lacks_its_manifest_or_its_end_is_not_identical(tree):
    rebuild, originals = received(tree)
    rebuild.files[b"sub/b"].manifest = None
    rebuild.files[b"a"].lines.pop()
    assert rebuild.identical(originals) == 0


def test_lines_in_the_wrong_order_are_seen(tree):
    rebuild, _ = received(tree)
    rebuild.files[b"a"].offsets[1] = 5
    assert rebuild.out_of_order() == 1


def test_the_same_message_twice_is_a_duplicate_unless_it_was_handed_out_again(tree):
    messages = make_messages([b"x"], keys=[b"f"], headers=[{"line": 1}])
    rebuild = Rebuild()
    rebuild.take(messages)
    rebuild.take(messages)
    assert (rebuild.duplicated, rebuild.redelivered) == (1, 0)
    messages[0].source.delivery_count = 2
    rebuild.take(messages)
    assert (rebuild.duplicated, rebuild.redelivered) == (1, 1)


def test_a_record_knows_what_is_missing_elsewhere():
    first, second = Record(), Record()
    for offset in range(3):
        assert first.note(1, offset, digest(b"%d" % offset))
    assert not first.note(1, 2, digest(b"2"))
    assert first.contradictions == 0
    first.note(1, 2, digest(b"other"))
    assert (first.count, first.contradictions) == (3, 1)
    second.note(1, 0, digest(b"0"))
    second.note(1, 1, digest(b"changed"))
    assert list(first.missing_in(second)) == [(1, 1), (1, 2)]
    assert (first.at(1, 7), first.at(9, 0)) == (NOTHING, NOTHING)
    assert first.partitions() == {1: 3}


def test_receipts_become_rows_of_neighbours_in_one_entry():
    publisher = Publisher(None, "q", 3)
    chain = b"\x02" * 16
    places = [(0, 5, 9), (0, 6, 9), (0, 7, 10), (1, 8, 11), (0, 9, 10)]
    receipts = [Receipt(p, o, 1, index, chain, "quorum", False) for p, o, index in places]
    bodies = [b"a", b"b", b"c", b"d", b"e"]
    publisher._note(receipts, bodies, 1.0)
    assert [(row.partition, row.base_offset, row.count) for row in publisher.rows] == [
        (0, 5, 2),
        (0, 7, 1),
        (1, 8, 1),
        (0, 9, 1),
    ]
    assert publisher.rows[0].digest == digest_of([b"a", b"b"])
    assert publisher.record.count == 5
    assert publisher.busiest_partition() == 0


def test_the_gap_is_the_longest_of_any_partition_after_the_kill():
    publisher = Publisher(None, "q", 3)
    publisher.acknowledged_at = {0: [0.0, 5.0, 5.1, 5.6], 1: [5.0, 5.2], 2: [9.0]}
    assert publisher.longest_gap(5.05) == pytest.approx(0.5)
    assert publisher.longest_gap(9.5) is None


RIGHT = {
    "messages": 5,
    "acknowledged": 5,
    "consumed": 5,
    "lost": 0,
    "duplicated": 0,
    "out_of_order": 0,
    "files": 2,
    "files_identical": 2,
    "replicas_identical": True,
    "failover_ms": 200,
    "publish_per_second": 10,
    "audit_seconds": None,
}


def test_a_verdict_is_right_only_when_everything_is():
    verdict = Verdict(**RIGHT)
    assert verdict.faults() == []
    assert verdict.to_map()["right"] is True
    assert len(verdict.rows()) > 10


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("acknowledged", 4),
        ("consumed", 4),
        ("lost", 1),
        ("duplicated", 1),
        ("out_of_order", 1),
        ("phantom", 1),
        ("files_identical", 1),
        ("replicas_identical", False),
        ("replicas_identical", None),
        ("failover_ms", None),
        ("audit", "failed"),
    ],
)
def test_one_fault_is_enough(field, value):
    verdict = Verdict(**{**RIGHT, field: value})
    assert len(verdict.faults()) == 1
    assert verdict.to_map()["right"] is False
