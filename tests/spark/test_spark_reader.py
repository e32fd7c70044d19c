"""The data source's reader as plain Python: what is in the log is in the tables, and nothing else.

Nothing here starts a JVM; the reader is driven as Spark drives it, through pickle.
"""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

import pyarrow as pa
from pyspark.sql.datasource import EqualTo, GreaterThan, In, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StructField, StructType
from spark_replicas import (
    LOG_TIME,
    QUEUE,
    Author,
    Writer,
    flip,
    read,
    reopened,
    rows,
    segments,
    write_cluster,
    write_replica,
)
from xxhash import xxh3_64_intdigest

from raftq.batch import key_hash
from raftq.errors import Corrupted, InvalidArgument
from raftq.spark import plan
from raftq.spark.source import RaftqDataSource, RaftqReader
from raftq.spark.tables import TABLES, columns_of, schema_of, signed
from raftq.storage.patch import Patch

BIG = (1 << 64) - 7


@pytest.fixture(scope="module")
def author():
    author = Author()
    author.noop()
    author.publish(
        {"bodies": [b"one", b"", b"three"], "producer": BIG, "sequence": 0, "times": 5},
        {"bodies": [b"x"], "partition": 1, "headers": [{"kind": "new", "n": 3, "ok": True}]},
        {"bodies": [b"four"], "producer": BIG, "sequence": 3, "times": 9},
    )
    author.publish({"bodies": [b"k1", b"k2"], "keys": [b"a", None], "times": [10, 20]})
    author.publish({"bodies": [b"other"], "queue": 8})
    return author


@pytest.fixture(scope="module")
def cluster(author, tmp_path_factory):
    root = tmp_path_factory.mktemp("cluster")
    write_cluster(root, author, nodes=2)
    return root


def test_entries_are_given_as_they_were_written(cluster, author):
    columns = ["node", "group", "index", "term", "kind", "commands", "size", "chain"]
    kinds = ("noop", "commands", "commands", "commands")
    expected = [
        (node, 1, entry.index, 1, kind, commands, entry.size, entry.chain)
        for node in ("n1", "n2")
        for entry, kind, commands in zip(author.entries, kinds, (0, 3, 1, 1), strict=True)
    ]
    assert rows(cluster, "entries", columns) == expected
    assert set(rows(cluster, "entries", ["chain_ok", "marked", "error"])) == {(True, True, None)}
    first = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=LOG_TIME + 1_000)
    assert rows(cluster, "entries", ["log_time"])[0] == first


def test_entries_name_the_place_of_their_bytes(cluster, author):
    places = rows(cluster, "entries", ["node", "segment", "position", "size"])
    for (node, segment, position, size), entry in zip(places, author.entries * 2, strict=True):
        path = cluster / node / "group-1" / f"segment-{segment:08d}.log"
        assert path.read_bytes()[position : position + size] == b"".join(entry.vectors)


def test_batches_are_the_publishes_of_the_log(cluster):
    columns = ["index", "queue", "partition", "base_offset", "count", "producer", "sequence"]
    assert rows(cluster / "n1", "batches", columns) == [
        (2, QUEUE, 0, 0, 3, signed(BIG), 0),
        (2, QUEUE, 1, 0, 1, 0, 0),
        (2, QUEUE, 0, 3, 1, signed(BIG), 3),
        (3, QUEUE, 0, 4, 2, 0, 0),
        (4, 8, 0, 0, 1, 0, 0),
    ]
    assert set(rows(cluster, "batches", ["checksum_ok", "marked", "error"])) == {(True, True, None)}


def test_digests_cover_a_batch_and_the_run_of_neighbours_in_its_entry(cluster):
    columns = ["base_offset", "digest", "run_offset", "run_count", "run_digest"]
    found = rows(cluster / "n1", "batches", columns)
    first, alone, second = (signed(xxh3_64_intdigest(b)) for b in (b"onethree", b"x", b"four"))
    both = signed(xxh3_64_intdigest(b"onethreefour"))
    assert found[:3] == [(0, first, 0, 4, both), (0, alone, 0, 1, alone), (3, second, 0, 4, both)]


def test_batches_nested_in_entries_are_the_table_of_batches(cluster):
    names = [field.name for field in schema_of("entries", ["batches"])[0].dataType.elementType]
    nested = rows(cluster, "entries", ["batches"])
    flat = [tuple(batch[name] for name in names) for batches in nested for batch in batches]
    assert flat == rows(cluster, "batches", names)


def test_messages_are_taken_apart_without_a_loss(cluster):
    found = rows(cluster / "n1", "messages", ["partition", "offset", "sequence", "time_us", "body"])
    assert found == [
        (0, 0, 0, 5, b"one"),
        (0, 1, 1, 5, b""),
        (0, 2, 2, 5, b"three"),
        (1, 0, 0, 0, b"x"),
        (0, 3, 3, 9, b"four"),
        (0, 4, 0, 10, b"k1"),
        (0, 5, 1, 20, b"k2"),
        (0, 0, 0, 0, b"other"),
    ]
    some = rows(cluster / "n1", "messages", ["offset", "key", "key_hash", "size", "body_hash"])
    assert some[5] == (4, b"a", signed(key_hash(b"a")), 2, signed(xxh3_64_intdigest(b"k1")))
    assert some[6] == (5, None, None, 2, signed(xxh3_64_intdigest(b"k2")))
    headers = rows(cluster / "n1", "messages", ["headers"])
    assert dict(headers[3]) == {"kind": "new", "n": "3", "ok": "true"}
    assert headers[0] == []


@pytest.mark.parametrize("rows_at_once", [1, 3, 1000])
def test_portions_of_any_size_give_the_same_messages(cluster, rows_at_once):
    expected = read(cluster, "messages")
    assert read(cluster, "messages", batchRows=str(rows_at_once)).equals(expected)


@pytest.mark.parametrize("table", TABLES)
def test_every_subset_of_columns_is_the_projection_of_all(cluster, table):
    """Singles and neighbours: what one needs may not depend on another's being asked for."""
    names = columns_of(table)
    whole = read(cluster, table)
    assert whole.schema.equals(to_arrow_schema(schema_of(table, names), timezone="UTC"))
    for columns in [*((name,) for name in names), *pairwise(names[::-1])]:
        part = read(cluster, table, columns)
        for name in columns:
            # What is checked only on request is null without it.
            if name == "error" or (name == "checksum_ok" and table == "messages"):
                continue
            assert part[name].equals(whole[name]), (table, columns)


def test_filters_choose_and_what_is_not_understood_goes_back_to_spark(cluster):
    assert set(rows(cluster, "entries", ["node"], filters=[EqualTo(("node",), "n2")])) == {"n2"}
    assert rows(cluster, "entries", ["index"], filters=[EqualTo(("group",), 5)]) == []
    assert set(rows(cluster, "batches", ["queue"], filters=[In(("queue",), (8, 9))])) == {8}
    both = [EqualTo(("queue",), QUEUE), EqualTo(("partition",), 1)]
    assert rows(cluster / "n1", "messages", ["body"], filters=both) == [b"x"]
    assert rows(cluster, "messages", ["body"], filters=[*both, EqualTo(("queue",), 8)]) == []
    reader = RaftqReader({"path": str(cluster), "table": "entries"}, schema_of("entries"))
    others = [GreaterThan(("index",), 3), EqualTo(("queue",), 1), EqualTo(("node", "x"), "n1")]
    assert list(reader.pushFilters(others)) == others


def test_spark_s_own_partition_is_empty(cluster):
    reader = RaftqReader({"path": str(cluster)}, schema_of("messages"))
    assert list(reader.read(InputPartition(None))) == []


def test_default_schema_leaves_out_what_costs(cluster):
    source = RaftqDataSource({"path": str(cluster)})
    assert "body" not in source.schema().fieldNames()
    assert "body" in RaftqDataSource({"payload": "binary"}).schema().fieldNames()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "rows"}, "no table 'rows'"),
        ({"path": ""}, "data directories"),
        ({"path": "/nowhere"}, "no data directory"),
        ({"onError": "skip"}, "option onError is fail or row"),
        ({"batchRows": "many"}, "batchRows"),
        ({"batchRows": "0"}, "at least 1"),
        ({"table": "entries", "payload": "binary"}, "has a payload"),
    ],
)
def test_wrong_options_are_named(cluster, options, message):
    source = RaftqDataSource({"path": str(cluster), **options})
    with pytest.raises(InvalidArgument, match=message):
        source.reader(source.schema()).partitions()


def test_a_schema_of_other_types_is_refused(cluster):
    wrong = StructType([StructField("node", LongType())])
    with pytest.raises(InvalidArgument, match="other types"):
        RaftqReader({"path": str(cluster), "table": "entries"}, wrong)


# --- What is not the log, and what is damaged ------------------------------------------------------


def test_truncated_entries_are_not_shown(tmp_path, author):
    """A conflict: two entries of an old term are superseded; only the walk can tell."""
    mine, theirs = author.copy(), author.copy()
    mine.publish({"bodies": [b"void 1"]})
    mine.publish({"bodies": [b"void 2"]})
    theirs.term = 2
    theirs.publish({"bodies": [b"real"]})
    writer = Writer(tmp_path / "n1")
    writer.write(author.entries)
    writer.write(mine.entries[-2:])
    writer.write(theirs.entries[-1:], truncate_from=5, commit=author.last)
    writer.close(theirs.last)
    assert rows(tmp_path, "entries", ["index", "term"])[-2:] == [(4, 1), (5, 2)]
    assert rows(tmp_path, "messages", ["offset", "body"])[-1] == (6, b"real")
    assert b"void 1" not in rows(tmp_path, "messages", ["body"])


def test_entries_behind_the_mark_are_given_as_unmarked(tmp_path, author):
    write_replica(tmp_path / "n1", author.entries, commit=author.entries[1])
    assert rows(tmp_path, "entries", ["index", "marked"]) == [
        (1, True),
        (2, True),
        (3, False),
        (4, False),
    ]


def test_a_mark_counts_for_the_replicas_whose_chain_confirms_it(tmp_path, author):
    """n2 knows least but is confirmed by n1's mark; n3 has another entry 4, never committed."""
    other = author.copy()
    other.entries.pop()
    other.term = 2
    other.publish({"bodies": [b"uncommitted"], "queue": 8, "offset": 0})
    write_replica(tmp_path / "n1", author.entries)
    write_replica(tmp_path / "n2", author.entries, commit=author.entries[0])
    write_replica(tmp_path / "n3", other.entries, commit=author.entries[0])
    marked = dict(rows(tmp_path, "replicas", ["node", "marked_through"]))
    assert marked == {"n1": 4, "n2": 4, "n3": 3}
    assert rows(tmp_path / "n3", "entries", ["marked"]) == [True, False, False, False]


def test_a_replica_that_diverged_keeps_its_own_mark(tmp_path, author):
    other = author.copy()
    other.entries.pop()
    other.publish({"bodies": [b"diverged"], "queue": 8, "offset": 0})
    write_replica(tmp_path / "n1", author.entries)
    write_replica(tmp_path / "n2", other.entries)
    assert rows(tmp_path, "replicas", ["marked_through"]) == [4, 4]


def test_a_flipped_byte_fails_the_query_or_leaves_a_hole(tmp_path):
    author = Author()
    for number in range(12):
        author.publish({"bodies": [b"body-%d" % number]})
    write_replica(tmp_path / "n1", author.entries, unit=1)
    flip(segments(tmp_path / "n1")[0], b"body-5")
    with pytest.raises(Corrupted, match=r"node n1, group 1: units .* damaged"):
        read(tmp_path, "messages")
    left = rows(tmp_path, "messages", ["body"], onError="row")
    # Body 4 was not known to be committed before the hole: it may have been truncated in it.
    assert left == [b"body-%d" % number for number in range(12) if number not in {4, 5}]
    # What follows the hole is not proved by an entry before it, and not broken either.
    proved = dict(rows(tmp_path, "entries", ["index", "chain_ok"], onError="row"))
    assert proved == {n: None if n == 7 else True for n in range(1, 13) if n not in {5, 6}}
    ((condition, problems),) = rows(tmp_path, "replicas", ["condition", "problems"])
    assert condition == "damaged"
    assert "damaged or missing" in problems[0]


def test_a_repaired_range_is_read_from_its_patch(tmp_path):
    author = Author()
    for number in range(12):
        author.publish({"bodies": [b"body-%d" % number]})
    write_replica(tmp_path / "n1", author.entries, unit=1)
    flip(segments(tmp_path / "n1")[0], b"body-5")
    with reopened(tmp_path / "n1") as (log, disk):
        (hole,) = log.holes
        before, *lost = author.entries[hole.first - 2 : hole.last]
        log.patches.write(Patch(before.chain, tuple(lost)), lambda _: None)
        disk.complete()
        assert not log.holes
    assert rows(tmp_path, "messages", ["body"]) == [b"body-%d" % number for number in range(12)]
    proved = rows(tmp_path, "entries", ["index", "chain_ok", "segment"])
    assert [row[:2] for row in proved] == [(index, True) for index in range(1, 13)]
    assert len({segment for *_, segment in proved}) == 2
    assert rows(tmp_path, "replicas", ["condition", "problems"]) == [("ok", [])]


def test_a_truncated_segment_is_told(tmp_path):
    author = Author()
    for number in range(12):
        author.publish({"bodies": [b"body-%d" % number]})
    write_replica(tmp_path / "n1", author.entries, unit=1)
    path = segments(tmp_path / "n1")[0]
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b"body-9")])
    assert rows(tmp_path, "messages", ["body"], onError="row")[-1] == b"body-8"


def test_a_batch_with_wrong_bytes_in_a_right_unit_is_judged_by_its_own_checksum(tmp_path):
    author = Author()
    author.publish({"bodies": [b"good"]}, {"bodies": [b"bad", b"worse"], "damage": -1})
    author.publish({"bodies": [b"good too"]})
    write_replica(tmp_path / "n1", author.entries)
    assert rows(tmp_path, "entries", ["chain_ok"]) == [True, True]
    with pytest.raises(Corrupted, match=r"node n1, group 1, entry 1 in .*fails its checksum"):
        read(tmp_path, "messages", ["body"])
    found = rows(tmp_path, "batches", ["base_offset", "checksum_ok", "error"], onError="row")
    assert [row[:2] for row in found] == [(0, True), (1, False), (3, True)]
    assert "fails its checksum" in found[1][2]
    messages = rows(tmp_path, "messages", ["offset", "body", "error"], onError="row")
    assert [row[:2] for row in messages] == [(0, b"good"), (None, None), (3, b"good too")]


def test_a_batch_that_is_none_becomes_a_row_with_its_place(tmp_path):
    author = Author()
    author.publish({"bodies": [b"bad"], "damage": 0}, {"bodies": [b"two"], "count": 3})
    write_replica(tmp_path / "n1", author.entries)
    found = rows(tmp_path, "batches", ["base_offset", "count", "producer", "error"], onError="row")
    assert found[0][:3] == (0, 1, None)
    assert "a batch begins with" in found[0][3]
    assert "its stamp says" in found[1][3]


# --- Planning --------------------------------------------------------------------------------------


def test_small_segments_are_packed_and_large_ones_are_not(tmp_path, monkeypatch):
    author = Author()
    for _ in range(40):
        author.publish({"bodies": [bytes(1000)]})
    write_replica(tmp_path / "n1", author.entries, unit=1, segment_bytes=8 << 10)
    assert len(segments(tmp_path / "n1")) > 4
    planned = plan.plan([tmp_path])
    assert len(plan.portions(planned)) == 1
    monkeypatch.setattr(plan, "PORTION_BYTES", 17 << 10)
    several = plan.portions(planned)
    assert 1 < len(several) < sum(len(portion.chunks) for portion in several)
    assert rows(tmp_path, "entries", ["index"]) == list(range(1, 41))
    assert set(rows(tmp_path, "entries", ["chain_ok"])) == {True}


def test_nodes_are_found_in_what_is_given(tmp_path, author):
    for place in ("a/data", "b/data", "c/n7"):
        write_replica(tmp_path / place, author.entries)
    found = plan.data_directories([tmp_path])
    assert sorted(found) == [str(tmp_path / "a/data"), str(tmp_path / "b/data"), "n7"]
    assert list(plan.data_directories([tmp_path / "c" / "n7", tmp_path / "c"])) == ["n7"]


def test_a_running_node_is_recognised(tmp_path, author):
    write_replica(tmp_path / "n1", author.entries)
    writer = Writer(tmp_path / "n2")
    writer.disk.lock()
    assert dict(rows(tmp_path, "replicas", ["node", "running"])) == {"n1": False, "n2": True}
    writer.close()


def test_an_empty_replica_has_no_rows(tmp_path):
    Writer(tmp_path / "n1").close()
    for table in ("entries", "batches", "messages"):
        assert rows(tmp_path, table) == []
    assert rows(tmp_path, "replicas", ["last_index", "marked_through"]) == [(0, 0)]


def test_arrow_types_are_those_that_spark_expects(cluster):
    for batch in RaftqReader(
        {"path": str(cluster)}, schema_of("messages", columns_of("messages"))
    )._read(plan.portions(plan.plan([cluster]))[0].chunks):
        assert isinstance(batch, pa.RecordBatch)
        batch.validate(full=True)
