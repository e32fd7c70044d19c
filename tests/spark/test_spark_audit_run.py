"""`audit` as a whole, the audit of machines, and the data source inside Spark."""

import json

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql import functions as F  # noqa: N812
from spark_replicas import QUEUE, Author, flip, segments, write_cluster, write_replica

from raftq.errors import InvalidArgument
from raftq.queue import commands
from raftq.queue.config import QueueConfig
from raftq.queue.machine import QueueMachine
from raftq.raft.entry import Command
from raftq.spark import machine_replay, questions, run
from raftq.spark.audits import machine as machine_audit
from raftq.spark.audits.machine import machine
from raftq.spark.plan import plan
from raftq.spark.run import AUDITS, audit_with
from raftq.spark.source import FORMAT, read_table, register


def build_author(entries=30):
    """What the machine of a queue would really be given."""
    author = Author()
    author.noop()
    config = commands.encode_configure(QUEUE, 0, 1, QueueConfig())
    author.add(Command(config), Command(commands.encode_open_session()))
    for number in range(entries):
        author.publish(
            {"bodies": [b"m"] * 10, "keys": [b"k"] * 10, "producer": 5, "sequence": 10 * number}
        )
    author.add(Command(commands.encode_tick()))
    return author


def ledger_of(author, path):
    lines = [{"format": "raftq-ledger", "version": 1, "cluster": ""}]
    for number, entry in enumerate(author.entries[2:-1]):
        place = {"queue": QUEUE, "partition": 0, "base_offset": 10 * number, "count": 10}
        lines.append(place | {"index": entry.index, "chain": entry.chain.hex(), "producer": 5})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    root = tmp_path_factory.mktemp("cluster")
    write_cluster(root, build_author())
    return root


# --- Machines --------------------------------------------------------------------------------------


def test_machines_of_all_replicas_come_to_the_same_state(cluster):
    answer = machine(plan([cluster]), entries_max=1_000, every=10)
    assert (answer.findings, answer.checked, answer.compared) == ([], 3 * 33, 4)
    answer = machine(plan([cluster]), entries_max=7, every=10)
    assert (answer.findings, answer.checked, answer.compared) == ([], 21, 1)


def test_a_replayed_digest_is_that_of_the_machine(cluster):
    found = list(
        machine_replay.digests(cluster / "n1" / "group-1", start=0, common=0, stop=33, every=1)
    )
    assert [index for index, _ in found] == list(range(1, 34))
    assert len({digest for _, digest in found[1:-1]}) == 31
    assert found[0][1] == QueueMachine().digest().hex()


def test_machine_finds_a_replica_whose_log_leads_elsewhere(tmp_path):
    """Seeded by another log on one node: the machines cannot agree, and say from where on."""
    author, other = build_author(), build_author()
    other.entries[20:] = []
    other.offsets[QUEUE, 0] = 180
    while len(other.entries) < len(author.entries):
        other.publish({"bodies": [b"m"] * 9})
    write_cluster(tmp_path, author, nodes=2)
    write_replica(tmp_path / "n3", other.entries)
    answer = machine(plan([tmp_path]), entries_max=1_000, every=5)
    (finding,) = answer.findings
    assert (finding.node, finding.group) == (None, 1)
    assert finding.detail.startswith("the machines differ at entry 25, or before: n1 has ")


def test_machine_finds_a_state_that_depends_on_the_hash_seed(cluster, monkeypatch):
    """Seeded by a replay that iterates a set of texts, in processes of different hash seeds."""
    seeded = (
        "import sys, json\n"
        "work = json.load(sys.stdin)\n"
        "order = ''.join(name for name in {'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'})\n"
        "for item in work:\n"
        "    print(json.dumps({'group': 1, 'index': item['stop'], 'digest': order}))\n"
    )
    monkeypatch.setattr(machine_audit, "REPLAY", ("-c", seeded))
    (finding,) = machine(plan([cluster]), entries_max=1_000).findings
    assert "the machines differ at entry 33" in finding.detail


def test_machine_says_when_a_log_cannot_be_replayed(tmp_path):
    author = build_author()
    write_cluster(tmp_path, author, unit=1)
    flip(segments(tmp_path / "n2")[0], b"mmmmmmmm")
    findings = machine(plan([tmp_path]), entries_max=1_000).findings
    assert [finding.node for finding in findings] == ["n2"]
    assert "missing or damaged" in findings[0].detail


# --- In Spark --------------------------------------------------------------------------------------


def test_spark_reads_what_the_reader_gives(spark, cluster):
    register(spark)
    frame = read_table(spark, [cluster], "messages", ["node", "queue", "offset", "size"])
    assert frame.where(F.col("node") == "n2").agg(F.sum("size"), F.max("offset")).first() == (
        300,
        299,
    )
    assert frame.where(F.col("queue") == 99).count() == 0
    loaded = spark.read.format(FORMAT).option("path", str(cluster)).option("table", "entries")
    assert loaded.load().where("kind = 'noop'").count() == 3


def test_the_whole_audit_passes_over_a_right_cluster_and_its_ledger(spark, cluster, tmp_path):
    ledger = ledger_of(build_author(), tmp_path / "ledger")
    steps = []
    report = audit_with(
        spark,
        [str(cluster)],
        ledger=ledger,
        ledger_is_complete=True,
        progress=lambda step, done, total: steps.append((step, done, total)),
    )
    assert report.verdict == "passed", [str(f) for a in report.audits for f in a.findings]
    assert (report.nodes, report.groups) == (("n1", "n2", "n3"), 1)
    assert (report.messages, report.copies) == (300, 900)
    checked = {audit.name: audit.checked for audit in report.audits}
    assert checked == {
        "integrity": 99,
        "offsets": 90,
        "replicas": 33,
        "acknowledged": 300,
        "duplicates": 90,
        "order": 90,
        "released": 0,
        "machine": 99,
    }
    assert all(not audit.skipped and not audit.findings for audit in report.audits)
    assert report.is_whole
    assert json.loads(json.dumps(report.to_map()))["verdict"] == "passed"
    assert [step for step, *_ in steps] == ["reading headers", *AUDITS, "done"]
    assert steps[-1] == ("done", 10, 10)


def test_the_whole_audit_fails_with_the_place_of_what_is_wrong(spark, tmp_path, monkeypatch):
    """One missing acknowledgement, one producer's key out of order; found through headers that were
    read without Spark, and messages that Spark read. Findings are cut, not their count.
    """
    monkeypatch.setattr(questions, "FINDINGS_MAX", 2)
    author = build_author(5)
    for sequence in (90, 80, 70, 60):
        author.publish({"bodies": [b"m"], "keys": [b"k"], "producer": 6, "sequence": sequence})
    ledger = ledger_of(build_author(6), tmp_path / "ledger")
    data = tmp_path / "data"
    write_cluster(data, author, nodes=1)
    report = audit_with(
        spark,
        [str(data)],
        headers=run._read_headers([str(data)]),
        ledger=ledger,
        only=["acknowledged", "order"],
    )
    assert report.verdict == "failed"
    acknowledged, order = report.audits
    assert (acknowledged.violations, acknowledged.figures["missing"]) == (1, 10)
    assert str(acknowledged.findings[0]).startswith(
        "queue 7, partition 0, offset 50: missing: 10 messages from here on"
    )
    assert (order.violations, len(order.findings)) == (3, 2)


def test_what_was_not_asked_is_said(spark, cluster):
    only = ["machine", "acknowledged"]
    report = audit_with(spark, [str(cluster)], only=only, machine_entries_max=0)
    assert {audit.name: audit.skipped for audit in report.audits} == {
        "acknowledged": "no ledger was given",
        "machine": "left out by request",
    }
    assert report.verdict == "passed"


def test_an_unknown_audit_is_refused():
    with pytest.raises(InvalidArgument, match="no audit nonsense"):
        run.audit(["/nowhere"], only=["nonsense"])


def test_directories_without_data_are_refused_before_spark_starts(tmp_path):
    with pytest.raises(InvalidArgument, match="holds none"):
        run.audit([tmp_path])
