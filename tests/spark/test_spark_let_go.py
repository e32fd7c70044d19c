"""What was let go of: never taken for what it was, never passed over in silence, and proved.

One log on three replicas: n1 has packed what is settled, n2 has also dropped what was released, n3 has
let go of nothing. Entries 1 to 24 are released by the command in entry 45.
"""

import json
import shutil

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from spark_let_go import BODIES, PRODUCER, Replica, build, released_leader
from spark_replicas import QUEUE, read, rows
from xxhash import xxh3_64_intdigest

from raftq import batch
from raftq.errors import Corrupted
from raftq.spark import machine_replay
from raftq.spark.audits.acknowledged import LetGo, acknowledged
from raftq.spark.audits.duplicates import duplicates
from raftq.spark.audits.integrity import integrity
from raftq.spark.audits.machine import machine
from raftq.spark.audits.offsets import offsets
from raftq.spark.audits.order import order, suspicions
from raftq.spark.audits.released import released
from raftq.spark.audits.replicas import replicas
from raftq.spark.history import read_history
from raftq.spark.ledger import read_ledger
from raftq.spark.plan import plan
from raftq.spark.questions import _BOUNDS
from raftq.spark.run import audit_with
from raftq.spark.tables import columns_of, signed

RELEASED = 24
"""The last entry before the first message that is needed."""

COUNT = len(BODIES)


@pytest.fixture(scope="module")
def leader():
    return released_leader()


@pytest.fixture(scope="module")
def cluster(leader, tmp_path_factory):
    assert leader.machine.released[0] == RELEASED
    root = tmp_path_factory.mktemp("let-go")
    Replica(root / "n1", leader).pack().end()
    Replica(root / "n2", leader).pack().release().end()
    Replica(root / "n3", leader).end()
    return root


@pytest.fixture
def copy(cluster, tmp_path):
    return shutil.copytree(cluster, tmp_path / "cluster")


def snapshots(root, node):
    return sorted((root / node / "group-1").glob("snapshot-*"))


# --- Tables ----------------------------------------------------------------------------------------


def test_entries_are_what_they_were_but_for_their_bodies(cluster, leader):
    columns = ["node", "index", "chain", "chain_ok", "commands", "bodies_released"]
    found = rows(cluster, "entries", columns)
    for node, first in (("n1", 1), ("n2", RELEASED + 1), ("n3", 1)):
        mine = [row[1:] for row in found if row[0] == node]
        assert [row[:2] for row in mine] == [
            (entry.index, entry.chain) for entry in leader.entries[first - 1 :]
        ]
        assert all(row[2] for row in mine)
    gone = {node: sum(row[-1] for row in found if row[0] == node) for node in ("n1", "n2", "n3")}
    assert (gone["n1"], gone["n3"]) == (22, 0)
    assert 0 < gone["n2"] < gone["n1"]


def test_a_batch_without_its_body_says_what_its_stamp_says(cluster):
    columns = ["node", "index", "queue", "partition", "base_offset", "count", "error"]
    known = rows(cluster, "batches", columns)
    places = {node: [row[1:] for row in known if row[0] == node] for node in ("n1", "n3")}
    assert places["n1"] == places["n3"]
    columns = [
        "node",
        "body_released",
        "checksum_ok",
        "producer",
        "sequence",
        "digest",
        "run_count",
    ]
    found = [row for row in rows(cluster, "batches", columns) if row[0] == "n1"]
    assert sum(row[1] for row in found) == 22
    for _, is_gone, *values in found:
        if is_gone:
            assert values == [None] * 5
        else:
            assert values[:2] == [True, PRODUCER]
            assert None not in values


def test_messages_are_those_that_have_a_body(cluster, leader):
    found = rows(cluster, "messages", ["node", "partition", "offset", "body"])
    batches = rows(cluster, "batches", ["node", "partition", "base_offset", "body_released"])
    assert found == [
        (node, partition, base + number, body)
        for node, partition, base, is_gone in batches
        if not is_gone
        for number, body in enumerate(BODIES)
    ]
    assert {row[2] for row in found if row[:2] == ("n3", 0)} == set(range(28 * COUNT))


def test_a_digest_is_never_taken_for_a_batch(cluster, monkeypatch):
    """Whatever it looks like: nobody reads it."""
    original = batch.read_header
    lengths = []

    def read_header(data):
        lengths.append(len(data))
        return original(data)

    monkeypatch.setattr(batch, "read_header", read_header)
    read(cluster, "batches")
    read(cluster, "messages")
    read(cluster, "entries")
    assert min(lengths) > 100, "a digest of 16 bytes was read as a batch"


def test_replicas_say_where_their_history_begins(cluster, leader):
    found = rows(cluster, "replicas", ["first_index", "base_index", "base_chain", "problems"])
    nothing = (1, 0, bytes(16), [])
    assert found == [
        nothing,
        (RELEASED + 1, RELEASED, leader.chain_at(RELEASED), []),
        nothing,
    ]
    times = rows(cluster, "replicas", ["base_log_time"])
    assert [time is None for time in times] == [True, False, True]


# --- Machines --------------------------------------------------------------------------------------


def test_machines_begin_with_a_snapshot_behind_what_is_gone(cluster):
    answer = machine(plan([cluster]), entries_max=1_000, every=5)
    assert all(finding.is_note for finding in answer.findings)
    assert [(finding.node, finding.detail[:45]) for finding in answer.findings] == [
        (node, "can be replayed from its snapshot at entry 47") for node in ("n1", "n2")
    ]
    # n3 comes to 47 from the beginning, where the others have their snapshot; then 50 and 53.
    assert (answer.checked, answer.compared) == (53 + 6 + 6, 3)
    answer = machine(plan([cluster]), entries_max=4, every=100)
    assert (answer.checked, answer.compared) == (3 * 4, 2)


def test_a_snapshot_that_is_not_what_the_log_leads_to_is_found(leader, tmp_path, monkeypatch):
    """Seeded by one of another state; what led to it is gone, but another replica has it."""
    Replica(tmp_path / "n1", leader).end()
    wrong = [*leader.snapshots[:47], leader.snapshots[46], *leader.snapshots[48:]]
    monkeypatch.setattr(leader, "snapshots", wrong)
    Replica(tmp_path / "n2", leader).pack().end()
    answer = machine(plan([tmp_path]), entries_max=99, every=100)
    assert "the machines differ at entry 47, or before" in " ".join(map(str, answer.findings))


def test_an_entry_without_its_bodies_is_never_replayed(cluster):
    directory = cluster / "n1" / "group-1"
    with pytest.raises(Corrupted, match="bodies of entry 3 were released"):
        list(machine_replay.digests(directory, start=0, common=0, stop=53, every=100))


def test_without_a_snapshot_it_is_said_that_nothing_can_be_replayed(copy):
    for path in snapshots(copy, "n2"):
        path.unlink()
    found = [each for each in machine(plan([copy]), entries_max=99).findings if not each.is_note]
    assert [(finding.node, finding.group) for finding in found] == [("n2", 1)]
    assert "cannot be replayed: history begins at entry 25, and there is no sound" in str(found[0])
    for path in (*snapshots(copy, "n1"), *snapshots(copy, "n3")):
        path.unlink()
    history = read_history(plan([copy]))
    assert not [finding for finding in history.findings if not finding.is_note]
    shutil.rmtree(copy / "n3")
    findings, *_ = released(read_history(plan([copy])))
    assert ["no machine can be made" in finding.detail for finding in findings[:2]] == [True, True]


# --- Was it right to let go? -----------------------------------------------------------------------


def test_what_is_gone_was_settled_and_released(cluster):
    findings, messages, figures = released(read_history(plan([cluster])))
    assert all(finding.is_note for finding in findings)
    gone = {finding.node: finding.detail for finding in findings}
    assert gone["n1"] == f"the bodies of {22 * COUNT} messages behind that were released"
    assert gone["n2"].startswith("history begins at entry 25: what lies before, with what was wri")
    assert "n3" not in gone
    assert figures == {"replicas": 2, "entries_released": RELEASED}
    assert messages > 22 * COUNT


def test_a_body_that_is_gone_while_its_message_is_needed_is_found(leader, tmp_path):
    """Seeded by a replica that judges wrongly."""
    Replica(tmp_path / "n1", leader).pack(lambda *_: True).end()
    findings, *_ = released(read_history(plan([tmp_path])))
    (finding,) = [finding for finding in findings if not finding.is_note]
    assert (finding.node, finding.queue, finding.partition) == ("n1", QUEUE, 1)
    assert finding.offset == leader.machine.describe(QUEUE, 1).needed_from
    assert "are gone, and were not settled" in finding.detail


def test_entries_that_are_gone_without_a_command_are_found(tmp_path):
    """Seeded by a replica that drops what no command has released."""
    leader = build()
    Replica(tmp_path / "n1", leader).release(20, leader.chain_at(20)).end()
    findings, *_ = released(read_history(plan([tmp_path])))
    assert [str(finding) for finding in findings if not finding.is_note] == [
        "node n1, group 1: has let go of entries up to 20, but they are released up to 0 only"
    ]


def test_nothing_is_replayed_where_nothing_is_gone(cluster, monkeypatch):
    monkeypatch.setattr("raftq.spark.history.states", None)
    assert read_history(plan([cluster / "n3"])) == ((), (), 0)


# --- Audits ----------------------------------------------------------------------------------------


def ledger_rows(leader):
    """What the producer was told of each batch."""
    told = []
    for entry in leader.entries:
        for bound in leader.published(entry):
            told.append(
                {
                    "queue": QUEUE,
                    "partition": bound.partition,
                    "base_offset": bound.offset,
                    "count": COUNT,
                    "group": 1,
                    "index": entry.index,
                    "chain": entry.chain.hex(),
                    "digest": signed(xxh3_64_intdigest(b"".join(BODIES))),
                    "producer": PRODUCER,
                    "epoch": 0,
                    "sequence": bound.offset,
                }
            )
    return told


def write_ledger(path, told):
    head = {"format": "raftq-ledger", "version": 1, "cluster": ""}
    path.write_text("".join(json.dumps(row) + "\n" for row in [head, *told]))
    return path


class Tables:
    def __init__(self, spark, root, tmp_path, told):
        def table(name):
            return spark.createDataFrame(read(root, name, columns_of(name), onError="row"))

        self.replicas, self.entries, self.batches = map(table, ("replicas", "entries", "batches"))
        self.ledger = spark.createDataFrame(read_ledger(write_ledger(tmp_path / "ledger", told)))
        self.bounds = spark.createDataFrame(read_history(plan([root])).bounds(()), _BOUNDS)

    def acknowledged(self, *, is_complete=True):
        let_go = LetGo(self.bounds, self.entries)
        return acknowledged(self.batches, self.ledger, let_go, is_complete=is_complete)


def told(answer):
    """Violations and notes, as texts."""
    found = sorted(
        (row.is_note, row.node or "", row.partition or 0, row.offset or 0, row.detail)
        for row in answer.findings.collect()
    )
    return tuple([row[1:] for row in found if row[0] is wanted] for wanted in (False, True))


def figures(answer):
    (row,) = answer.summary.collect()
    return row.checked, dict(row.figures)


def test_no_audit_takes_what_was_released_for_a_fault(spark, cluster, leader, tmp_path):
    tables = Tables(spark, cluster, tmp_path, ledger_rows(leader))
    answers = {
        "integrity": integrity(tables.replicas, tables.entries, tables.batches),
        "offsets": offsets(tables.replicas, tables.batches, tables.ledger, tables.bounds),
        "replicas": replicas(tables.replicas, tables.entries),
        "duplicates": duplicates(tables.batches),
        "order": order(tables.batches, suspicions(tables.batches), None),
        "acknowledged": tables.acknowledged(),
    }
    assert {name: told(answer) for name, answer in answers.items()} == {
        name: ([], []) for name in answers
    }
    assert figures(answers["integrity"])[1]["bodies_released"] > 22
    assert figures(answers["duplicates"])[1]["without_body"] > 22 * COUNT
    # n3 still has all of it.
    messages = 48 * COUNT
    assert figures(answers["acknowledged"])[1]["present"] == messages


def test_each_outcome_of_what_is_gone(spark, copy, leader, tmp_path):
    """n3 is lost. A row for each way in which a message can be gone, rightly or not."""
    shutil.rmtree(copy / "n3")
    shutil.rmtree(copy / "n1")
    good = ledger_rows(leader)
    below = [row for row in good if row["index"] <= RELEASED]
    packed = [row for row in good if row["index"] == RELEASED + 2]
    assert [row["partition"] for row in packed] == [0], "settled, and not yet released"
    never = below[0] | {"base_offset": 500}
    no_digest = packed[0] | {"chain": "00" * 16}
    tables = Tables(spark, copy, tmp_path, [*good, never, no_digest])
    answer = tables.acknowledged()
    violations, notes = told(answer)
    assert [(partition, offset) for _, partition, offset, _ in violations] == sorted(
        [(never["partition"], 500), (no_digest["partition"], no_digest["base_offset"])]
    )
    assert notes == []
    checked, found = figures(answer)
    assert checked == (48 + 2) * COUNT
    assert found["missing"] == 2 * COUNT
    bodies = rows(copy, "batches", ["body_released"])
    assert found["present"] == COUNT * bodies.count(False)
    assert found["released"] == COUNT * (len(below) + bodies.count(True))
    # Without what proves it, nothing is taken for released.
    _, found = figures(acknowledged(tables.batches, tables.ledger))
    assert found["missing"] == COUNT * (len(below) + 2)


def test_a_message_that_a_held_entry_does_not_hold_is_not_released(
    spark, cluster, leader, tmp_path
):
    """n3 holds the entry, so it shows that the message was never in it."""
    row = next(row for row in ledger_rows(leader) if row["index"] == 4)
    wrong = row | {"index": 3}
    tables = Tables(spark, cluster, tmp_path, [wrong])
    violations, _ = told(tables.acknowledged(is_complete=False))
    assert ["0 are there" in detail for *_, detail in violations] == [True]


def test_offsets_begin_where_the_release_ends(spark, cluster, leader, tmp_path):
    tables = Tables(spark, cluster, tmp_path, ledger_rows(leader))
    early = tables.bounds.selectExpr(
        "group", "queue", "partition", "released_index", "released - 6 as released"
    )
    violations, _ = told(offsets(tables.replicas, tables.batches, None, early))
    assert [(node, partition) for node, partition, *_ in violations] == [("n2", 0), ("n2", 1)]
    assert "are missing" in violations[0][-1]
    later = early.selectExpr("group", "queue", "partition", "99 as released_index", "released")
    assert len(told(offsets(tables.replicas, tables.batches, None, later))[0]) == 2
    later = later.selectExpr(
        "group", "queue", "partition", "released_index", "released + 12 released"
    )
    assert told(offsets(tables.replicas, tables.batches, None, later)) == ([], [])


def test_a_log_that_begins_behind_another_history_is_found(spark, copy, leader, tmp_path):
    tables = Tables(spark, copy, tmp_path, ledger_rows(leader))
    wrong = (
        tables.replicas.selectExpr("*", "if(node = 'n2', unhex('00'), base_chain) as other")
        .drop("base_chain")
        .withColumnRenamed("other", "base_chain")
    )
    violations, _ = told(replicas(wrong, tables.entries))
    assert violations == [
        ("n2", 0, 0, "begins behind entry 24 with another chain value than n1, n3 has there")
    ]


def test_who_sent_what_is_gone_is_said_to_be_unknown(spark, copy, leader, tmp_path):
    shutil.rmtree(copy / "n3")
    partial = [row for row in ledger_rows(leader) if row["index"] not in {3, 5}]
    tables = Tables(spark, copy, tmp_path, partial)
    violations, notes = told(tables.acknowledged())
    assert violations == []
    (note,) = notes
    assert note[:3] == ("", 0, 0)
    assert note[3].startswith(f"{2 * COUNT} messages whose bodies were released are in no row")


def test_the_verdict_says_how_far_history_goes(spark, cluster, leader, tmp_path):
    ledger = write_ledger(tmp_path / "ledger", ledger_rows(leader))
    report = audit_with(spark, [str(cluster)], ledger=ledger, ledger_is_complete=True)
    assert report.verdict == "passed", [str(f) for a in report.audits for f in a.findings]
    assert not report.is_whole
    found = json.loads(json.dumps(report.to_map()))
    assert [(each["node"], each["first_index"]) for each in found["history"]] == [
        ("n1", 1),
        ("n2", 25),
    ]
    notes = {each["name"]: each["notes"] for each in found["audits"]}
    assert notes == {
        "integrity": 0,
        "offsets": 1,
        "replicas": 0,
        "acknowledged": 1,
        "duplicates": 1,
        "order": 1,
        "released": 2,
        "machine": 2,
    }
    (note,) = report.audits[4].findings
    assert note.detail.startswith("judged as far as it is held: history begins at entry 25 on n2; ")
