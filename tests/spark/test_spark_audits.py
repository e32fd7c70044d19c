"""Each audit finds the violation that was made for it, and nothing in a log that is right.

The logs are real: written by the storage, then rewritten or damaged. They are read by the data
source's reader without Spark, and handed to the audits, which are functions on tables.
"""

import json

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

import pyarrow as pa
from spark_replicas import QUEUE, Author, flip, read, segments, write_cluster, write_replica
from xxhash import xxh3_64_intdigest

from raftq.errors import InvalidArgument
from raftq.raft import Membership
from raftq.raft.entry import MEMBERSHIP, Command
from raftq.raft.membership import encode
from raftq.spark.audits.acknowledged import acknowledged
from raftq.spark.audits.duplicates import duplicates
from raftq.spark.audits.integrity import integrity
from raftq.spark.audits.offsets import offsets
from raftq.spark.audits.order import order, suspicions
from raftq.spark.audits.replicas import replicas
from raftq.spark.ledger import read_ledger
from raftq.spark.tables import columns_of, signed
from raftq.storage.recovered import encode_recovered

PRODUCER = (1 << 64) - 2
KEYS = [b"a", b"b", b"a"]


def build_author():
    """Five entries of two batches each, by a producer and by nobody, with keys."""
    author = Author()
    author.noop()
    for number in range(5):
        author.publish(
            {
                "bodies": [b"%d-%d" % (number, n) for n in range(3)],
                "keys": KEYS,
                "producer": PRODUCER,
                "sequence": 3 * number,
            },
            {"bodies": [b"plain"], "partition": 1},
        )
    return author


def ledger_rows(author, count=5):
    """What the producer was told, one row an entry."""
    return [
        {
            "queue": QUEUE,
            "partition": 0,
            "base_offset": 3 * number,
            "count": 3,
            "group": 1,
            "term": 1,
            "index": number + 2,
            "chain": author.entries[number + 1].chain.hex(),
            "digest": signed(xxh3_64_intdigest(b"".join(b"%d-%d" % (number, n) for n in range(3)))),
            "bytes": 9,
            "producer": PRODUCER,
            "epoch": 0,
            "sequence": 3 * number,
        }
        for number in range(count)
    ]


def write_ledger(path, rows):
    head = {"format": "raftq-ledger", "version": 1, "cluster": ""}
    path.write_text("".join(json.dumps(row) + "\n" for row in [head, *rows]))
    return path


class Tables:
    """The tables of a directory, in Spark."""

    def __init__(self, spark, root, rows=None):
        def table(name):
            return spark.createDataFrame(read(root, name, columns_of(name), onError="row"))

        self.replicas, self.entries = table("replicas"), table("entries")
        self.batches, self.messages = table("batches"), table("messages")
        self.ledger = None
        if rows is not None:
            self.ledger = spark.createDataFrame(read_ledger(write_ledger(root / "ledger", rows)))

    def order(self):
        suspects = suspicions(self.batches)
        return order(self.batches, suspects, self.messages)

    def acknowledged(self, *, is_complete=False):
        return acknowledged(self.batches, self.ledger, is_complete=is_complete)


def told(answer):
    """(violations, notes) as (node, partition, offset, detail), sorted."""
    found = [
        (row.is_note, (row.node, row.partition, row.offset, row.detail))
        for row in answer.findings.collect()
    ]
    found.sort(key=str)
    return tuple([row for is_note, row in found if is_note is wanted] for wanted in (False, True))


def figures(answer):
    (row,) = answer.summary.collect()
    return row.checked, dict(row.figures)


@pytest.fixture(scope="module")
def clean(spark, tmp_path_factory):
    root = tmp_path_factory.mktemp("clean")
    author = build_author()
    write_cluster(root, author)
    return Tables(spark, root, ledger_rows(author))


def test_nothing_is_found_in_a_log_that_is_right(clean):
    answers = {
        "integrity": integrity(clean.replicas, clean.entries, clean.batches),
        "offsets": offsets(clean.replicas, clean.batches, clean.ledger),
        "replicas": replicas(clean.replicas, clean.entries),
        "duplicates": duplicates(clean.batches),
        "order": clean.order(),
        "acknowledged": clean.acknowledged(is_complete=True),
    }
    assert {name: told(answer) for name, answer in answers.items()} == {
        name: ([], []) for name in answers
    }
    assert figures(answers["integrity"]) == (18, {"bodies_released": 0})
    assert figures(answers["offsets"]) == (30, {"partitions": 2})
    assert figures(answers["replicas"]) == (6, {"copies": 18})
    assert figures(answers["duplicates"]) == (15, {"messages": 45, "without_body": 0})
    assert figures(answers["acknowledged"]) == (
        15,
        {
            "present": 15,
            "unmarked": 0,
            "released": 0,
            "missing": 0,
            "bodies_compared": 15,
        },
    )


# --- Integrity -------------------------------------------------------------------------------------


def test_integrity_finds_a_flipped_byte_and_the_hole_it_leaves(spark, tmp_path):
    author = build_author()
    write_cluster(tmp_path, author, unit=1)
    flip(segments(tmp_path / "n2")[0], b"2-1")
    tables = Tables(spark, tmp_path)
    violations, _ = told(integrity(tables.replicas, tables.entries, tables.batches))
    assert {node for node, *_ in violations} == {"n2"}
    details = [detail for *_, detail in violations]
    assert any("damaged: units" in detail for detail in details)
    assert any(detail.startswith("entries 3 to 4 are missing") for detail in details)


def test_integrity_finds_a_batch_that_was_stored_with_wrong_bytes(spark, tmp_path):
    author = build_author()
    author.publish({"bodies": [b"bad"], "partition": 1, "damage": -1})
    write_cluster(tmp_path, author, nodes=1)
    tables = Tables(spark, tmp_path)
    violations, _ = told(integrity(tables.replicas, tables.entries, tables.batches))
    assert [violation[:3] for violation in violations] == [("n1", 1, 5)]
    assert "fails its checksum" in violations[0][3]


def test_integrity_finds_an_entry_that_follows_another_one_than_is_before_it(spark, tmp_path):
    """Two chains spliced together inside right units: only the chain can tell."""
    author, other = build_author(), build_author()
    other.entries[2:] = []
    other.publish({"bodies": [b"elsewhere"]})
    other.publish({"bodies": [b"elsewhere too"]})
    spliced = [*author.entries[:3], *other.entries[3:]]
    write_replica(tmp_path / "n1", spliced)
    tables = Tables(spark, tmp_path)
    violations, _ = told(integrity(tables.replicas, tables.entries, tables.batches))
    assert [detail for *_, detail in violations] == [
        "entry 4: its chain value does not follow from its bytes"
    ]


# --- Offsets ---------------------------------------------------------------------------------------


def test_offsets_finds_gaps_repetitions_and_a_wrong_beginning(spark, tmp_path):
    author = Author()
    author.publish({"bodies": [b"x"] * 2}, {"bodies": [b"x"], "partition": 1, "offset": 4})
    author.publish({"bodies": [b"x"] * 2, "offset": 5})
    author.publish({"bodies": [b"x"] * 2, "offset": 6})
    write_cluster(tmp_path, author, nodes=1)
    tables = Tables(spark, tmp_path)
    violations, _ = told(offsets(tables.replicas, tables.batches, None))
    assert violations == [
        ("n1", 0, 5, "offsets 2 to 4 are missing"),
        ("n1", 0, 6, "entry 3 gives offset 6 again; 7 was next"),
        ("n1", 1, 4, "offsets 0 to 3 are missing"),
    ]


def test_offsets_finds_a_log_that_ends_before_the_ledger(spark, tmp_path):
    author = build_author()
    rows = ledger_rows(author)
    author.entries.pop()
    write_cluster(tmp_path, author)
    tables = Tables(spark, tmp_path, rows)
    violations, _ = told(offsets(tables.replicas, tables.batches, tables.ledger))
    detail = "acknowledged up to offset 14, but the log ends before 12"
    assert violations == [(None, 0, 12, detail)]


# --- Replicas --------------------------------------------------------------------------------------


def test_replicas_finds_where_they_part(spark, tmp_path):
    author = build_author()
    other = author.copy()
    del other.entries[-2:]
    other.offsets[QUEUE, 0] = 9
    for number in (7, 8):
        other.publish({"bodies": [b"other %d" % number]})
    write_cluster(tmp_path, author, nodes=2)
    write_replica(tmp_path / "n3", other.entries)
    tables = Tables(spark, tmp_path)
    violations, notes = told(replicas(tables.replicas, tables.entries))
    chains = [author.entries[4].chain.hex().upper()] * 2 + [other.entries[4].chain.hex().upper()]
    held = ", ".join(f"n{n} has {chain}" for n, chain in enumerate(chains, 1))
    detail = f"the replicas differ from entry 5 on, in 2 entries: {held}"
    assert (violations, notes) == ([(None, None, None, detail)], [])


def test_replicas_does_not_call_an_uncommitted_tail_divergence(spark, tmp_path):
    author = build_author()
    other = author.copy()
    other.entries.pop()
    committed = other.last
    other.publish({"bodies": [b"never committed"]})
    write_cluster(tmp_path, author, nodes=2)
    write_replica(tmp_path / "n3", other.entries, commit=committed)
    tables = Tables(spark, tmp_path)
    violations, notes = told(replicas(tables.replicas, tables.entries))
    assert violations == []
    detail = "is behind: holds what was committed up to entry 5 of 6"
    assert notes == [("n3", None, None, detail)]


def test_replicas_finds_other_bytes_under_the_same_chain_value(spark, tmp_path):
    """One replica's entry was changed before its unit was sealed: it states the old chain value."""
    author = build_author()
    bad = author.copy()
    entry = bad.entries[3]
    changed = b"".join(entry.vectors).replace(b"2-1", b"2-X")
    bad.entries[3] = entry._replace(vectors=(changed,))
    write_cluster(tmp_path, author, nodes=2)
    write_replica(tmp_path / "n3", bad.entries)
    tables = Tables(spark, tmp_path)
    violations, _ = told(replicas(tables.replicas, tables.entries))
    detail = "1 entries, the first at 4, have other bytes than on the other replicas"
    assert violations == [("n3", None, None, detail)]


def test_replicas_names_who_is_behind_and_what_a_minority_holds(spark, tmp_path):
    author = build_author()
    write_replica(tmp_path / "n1", author.entries)
    write_replica(tmp_path / "n2", author.entries[:4])
    write_replica(tmp_path / "n3", author.entries[:3])
    write_replica(tmp_path / "n3", author.entries, group=2)
    tables = Tables(spark, tmp_path)
    violations, notes = told(replicas(tables.replicas, tables.entries))
    detail = "entries 5 to 6 are committed, but fewer than 2 of 3 replicas hold them"
    assert violations == [(None, None, None, detail)]
    assert notes == [
        ("n1", None, None, "has no replica of this group"),
        ("n2", None, None, "has no replica of this group"),
        ("n2", None, None, "is behind: holds what was committed up to entry 4 of 6"),
        ("n3", None, None, "is behind: holds what was committed up to entry 3 of 6"),
    ]


def test_replicas_tells_where_a_majority_was_given_up(spark, tmp_path):
    author = build_author()
    members = Command(encode(Membership((9,), retired=3)))
    author.add(members, kind=MEMBERSHIP)
    author.add(members, encode_recovered({"node": "n1", "replica": 9}), kind=MEMBERSHIP)
    write_cluster(tmp_path, author)
    tables = Tables(spark, tmp_path)
    violations, notes = told(replicas(tables.replicas, tables.entries))
    assert violations == []
    assert notes[0][-1].startswith("the majority was given up behind entry 7,")
    assert len(notes) == 1


# --- Acknowledged ----------------------------------------------------------------------------------


def test_acknowledged_finds_each_outcome(spark, tmp_path):
    """Of the ledger's rows one was never written, one is in another entry, one has another body;
    of the log's batches one is by the ledger's producer and in no row.
    """
    author = build_author()
    good, gone, elsewhere, altered, _ = ledger_rows(author)
    never = gone | {"base_offset": 40, "index": 99}
    gone = gone | {"base_offset": 30}
    elsewhere = elsewhere | {"chain": "00" * 16}
    altered = altered | {"digest": 1}
    write_cluster(tmp_path, author)
    tables = Tables(spark, tmp_path, [good, gone, never, elsewhere, altered])
    answer = tables.acknowledged(is_complete=True)
    start = "missing: 3 messages from here on were acknowledged in entry"
    phantom = "phantom: 3 of 3 messages of producer -2 in entry {} were never acknowledged"
    assert told(answer) == (
        [
            (None, 0, 12, phantom.format(6)),
            (None, 0, 3, phantom.format(3)),
            (None, 0, 30, f"{start} 3: 0 are there"),
            (None, 0, 40, f"{start} 99: 0 are there"),
            (None, 0, 6, f"{start} 4: the entry has another chain value than was acknowledged"),
            (None, 0, 9, f"{start} 5: the bodies are not those that were sent"),
        ],
        [],
    )
    assert figures(answer) == (
        15,
        {"present": 3, "unmarked": 0, "released": 0, "missing": 12, "bodies_compared": 3},
    )
    violations, notes = told(tables.acknowledged())
    assert len(violations) == 4
    assert notes[0][:3] == (None, 0, 3)
    assert notes[0][3].startswith("6 messages are in the log without being in the ledger")


def test_acknowledged_counts_what_lies_behind_the_mark_as_present(spark, tmp_path):
    """All nodes were killed: the newest entry is marked nowhere, and one replica alone holds it."""
    author = build_author()
    marked = author.entries[4]
    write_replica(tmp_path / "n1", author.entries, commit=marked)
    write_replica(tmp_path / "n2", author.entries[:5])
    tables = Tables(spark, tmp_path, ledger_rows(author))
    answer = tables.acknowledged(is_complete=True)
    assert told(answer) == ([], [])
    assert figures(answer)[1] | {"bodies_compared": 0} == {
        "present": 15,
        "unmarked": 3,
        "released": 0,
        "missing": 0,
        "bodies_compared": 0,
    }


def test_acknowledged_joins_rows_of_several_batches_and_parts_of_one(spark, tmp_path):
    author = Author()
    author.publish({"bodies": [b"a", b"b"]}, {"bodies": [b"c", b"d"]})
    entry = author.last
    row = {"queue": QUEUE, "partition": 0, "index": 1, "chain": entry.chain.hex(), "group": 1}
    whole = row | {"base_offset": 0, "count": 4, "digest": signed(xxh3_64_intdigest(b"abcd"))}
    write_cluster(tmp_path, author, nodes=1)
    tables = Tables(spark, tmp_path, [whole])
    assert told(tables.acknowledged(is_complete=True)) == ([], [])
    assert figures(tables.acknowledged())[1]["bodies_compared"] == 4
    tables = Tables(spark, tmp_path, [row | {"base_offset": 1, "count": 2, "digest": 0}])
    assert figures(tables.acknowledged())[1]["bodies_compared"] == 0
    violations, _ = told(tables.acknowledged(is_complete=True))
    assert [detail[:27] for *_, detail in violations] == ["phantom: 1 of 2 messages of"] * 2
    tables = Tables(spark, tmp_path, [whole | {"count": 5}])
    assert told(tables.acknowledged())[0][0][3].endswith("in entry 1: 4 are there")


# --- Duplicates and order --------------------------------------------------------------------------


def test_duplicates_finds_a_retry_that_was_taken_for_new(spark, tmp_path):
    author = build_author()
    author.publish({"bodies": [b"4-1", b"4-2"], "producer": PRODUCER, "sequence": 13})
    author.publish({"bodies": [b"fresh"], "producer": PRODUCER, "epoch": 1, "sequence": 0})
    write_cluster(tmp_path, author, nodes=1)
    tables = Tables(spark, tmp_path)
    detail = "sequence 13 of producer -2, epoch 0, is also in the batch at offset 12"
    assert told(duplicates(tables.batches)) == ([("n1", 0, 15, detail)], [])


def test_order_finds_a_key_whose_messages_changed_places(spark, tmp_path):
    author = Author()
    author.publish({"bodies": [b"x"], "keys": [b"a"], "producer": 5, "sequence": 0})
    author.publish({"bodies": [b"x"] * 2, "keys": [b"a", b"b"], "producer": 5, "sequence": 3})
    author.publish({"bodies": [b"x"] * 2, "keys": [b"c", b"b"], "producer": 5, "sequence": 1})
    write_cluster(tmp_path, author, nodes=1)
    tables = Tables(spark, tmp_path)
    assert suspicions(tables.batches).count() == 1
    detail = "sequence 2 of producer 5, epoch 0, comes behind 4, epoch 0, of the same key"
    assert told(tables.order()) == ([("n1", 0, 4, detail)], [])


def test_order_allows_batches_of_different_keys_to_change_places(spark, tmp_path):
    author = Author()
    author.publish({"bodies": [b"x"], "keys": [b"a"], "producer": 5, "sequence": 1})
    author.publish({"bodies": [b"x"], "keys": [b"b"], "producer": 5, "sequence": 0})
    author.publish({"bodies": [b"x"], "keys": [b"a"], "producer": 6, "epoch": 2, "sequence": 9})
    author.publish({"bodies": [b"x"], "keys": [b"a"], "producer": 6, "epoch": 3, "sequence": 0})
    write_cluster(tmp_path, author, nodes=1)
    tables = Tables(spark, tmp_path)
    assert suspicions(tables.batches).count() == 1
    assert told(tables.order()) == ([], [])


# --- The ledger ------------------------------------------------------------------------------------


def test_a_ledger_is_read_with_unsigned_numbers_and_without_a_cut_line(tmp_path):
    rows = ledger_rows(build_author(), 2)
    path = write_ledger(tmp_path / "ledger", rows)
    with path.open("a") as file:
        file.write('{"queue": 7, "part')
    table = read_ledger(path)
    assert table["base_offset"].to_pylist() == [0, 3]
    assert table["producer"].to_pylist() == [-2, -2]
    assert table["chain"].to_pylist()[0] == bytes.fromhex(rows[0]["chain"])
    from pyarrow import parquet

    columns = {name: [row[name] for row in rows] for name in rows[0]}
    columns["producer"] = pa.array(columns["producer"], pa.uint64())
    parquet.write_table(pa.table(columns), tmp_path / "ledger.parquet")
    assert read_ledger(tmp_path / "ledger.parquet").equals(table)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "first line"),
        ("{}\n", "first line"),
        ("no json\n", "line 1"),
        ('{"format": "raftq-ledger", "version": 9}\n', "another version"),
        ('{"format": "raftq-ledger", "version": 1}\nnonsense\n', "line 2"),
        ('{"format": "raftq-ledger", "version": 1}\n{"queue": 1}\n', "row 1"),
    ],
)
def test_what_is_no_ledger_is_refused(tmp_path, lines, message):
    (tmp_path / "ledger").write_text(lines)
    with pytest.raises(InvalidArgument, match=message):
        read_ledger(tmp_path / "ledger")
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read_ledger(tmp_path / "nowhere")
