"""Goal: `raftq simulate` and `raftq audit` pass on what they were told, and end as the verdict says.

Method: the judges themselves are replaced; they have tests of their own.
"""

import json

import pytest

from raftq.sim import reexec
from raftq.sim import run as sim_run
from raftq.sim.run import Result
from raftq.spark import run as spark_run
from raftq.spark.java import SparkUnavailableError
from raftq.spark.report import AuditReport, AuditSummary, Finding


@pytest.fixture
def simulated(monkeypatch):
    """The calls of the simulator; seeds that can be divided by 5 see a violation."""
    calls = []

    def simulate(seed, **options):
        calls.append((seed, options))
        return Result(seed, 3, "ab", () if seed % 5 else ("two leaders",), {"operations": 9})

    monkeypatch.setattr(sim_run, "simulate", simulate)
    monkeypatch.setattr(reexec, "fix_hashes", lambda: None)
    return calls


def test_seeds_are_run_in_turn(simulated, objects):
    found = objects("simulate", "-n", 3, "--first", 6, "--faults", 2, "--kind", "kill")
    assert [(each["seed"], each["clean"]) for each in found] == [(6, True), (7, True), (8, True)]
    assert simulated[0][1] == {
        "nodes": None,
        "seconds": 30,
        "operations": 2000,
        "faults": 2,
        "kinds": ("kill",),
        "table": False,
    }


def test_a_violation_fails_the_command_and_says_how_to_see_it(simulated, run):
    result = run("simulate", "-n", 3, "--first", 4)
    assert result.exit_code == 1
    assert "two leaders" in result.stdout
    assert result.stderr.startswith("Violation: 1 of 3 seeds")
    assert "raftq simulate --seed 5 --table" in result.stderr


def test_runs_for_a_time_are_summed_up(simulated, run):
    """The runs are in processes of their own, so what is seen here is what they answered."""
    result = run("simulate", "--for", 1, "--first", 1, "--jobs", 2, "--json")
    assert result.exit_code == 1
    total = json.loads(result.stdout.splitlines()[-1])
    assert total["seeds"] >= 5
    assert total["operations"] == 9 * total["seeds"]
    assert total["violations"] == total["seeds"] // 5
    assert total["failed_seeds"]["5"] == "two leaders"
    assert "seed 5: two leaders" in result.stderr


def test_an_unknown_fault_is_a_usage_error(simulated, run):
    assert run("simulate", "--kind", "flood").exit_code == 2
    assert simulated == []


def report(violations):
    finding = Finding("replicas", not violations, "n2", 1, None, None, None, "differs")
    summary = AuditSummary(
        "replicas", "the same log?", 10, "entries", violations, 1, 0.5, {}, (finding,)
    )
    skipped = AuditSummary("machine", "same state?", 0, "entries", 0, 0, 0.0, {}, (), "left out")
    return AuditReport(("d",), ("n1", "n2"), 1, 5, 10, 1.0, (summary, skipped))


@pytest.fixture
def audited(monkeypatch):
    """The calls of the audit, and what it answers."""
    calls, answers = [], []

    def audit(directories, **options):
        calls.append((directories, options))
        options["progress"]("reading headers", 1, 2)
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    monkeypatch.setattr(spark_run, "audit", audit)
    return calls, answers


def test_an_audit_that_passes(audited, run, tmp_path):
    calls, answers = audited
    answers.append(report(0))
    result = run("audit", tmp_path, "--ledger", tmp_path / "l", "--complete", "--only", "replicas")
    assert result.exit_code == 0
    assert "passed: 5 messages" in result.stdout
    assert "note (replicas) node n2, group 1: differs" in result.stdout
    (directories, options) = calls[0]
    assert directories == [tmp_path]
    assert options["ledger"] == tmp_path / "l"
    assert (options["ledger_is_complete"], options["only"]) == (True, ["replicas"])


def test_an_audit_that_fails(audited, run, tmp_path):
    audited[1].append(report(3))
    result = run("audit", tmp_path, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["verdict"] == "failed"
    assert result.stderr.splitlines()[-1] == "AuditFailed: 3 violations were found"


def test_an_audit_without_spark(audited, run, tmp_path):
    audited[1].append(SparkUnavailableError("pip install 'raftq[spark]'"))
    result = run("audit", tmp_path)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "SparkUnavailableError: pip install 'raftq[spark]'"
