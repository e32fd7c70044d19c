"""Goal: a killed leader and a partition cost nothing that was acknowledged; a stopped run leaves nothing.

Method: tools/chaos with a fixed seed, for some seconds. Where namespaces cannot be made the tests are
skipped, with the name of what is missing.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import chaos_capabilities
import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(100)]

MAIN = Path(__file__).with_name("chaos_main.py")
MISSING = chaos_capabilities.missing_for_all()
needs_namespaces = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


@needs_namespaces
def test_a_kill_and_a_partition_lose_and_double_nothing():
    words = ["--seconds", "5", "--seed", "3", "--faults", "kill_leader,split", "--json"]
    done = subprocess.run(
        [sys.executable, MAIN, *words],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    print(done.stderr)
    report = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, report["violations"]) == (0, [])
    assert report["status"] == "passed"
    assert report["lost"] == report["duplicated"] == 0
    rows = {row["fault"]: row for row in report["faults"]}
    assert rows["kill_leader"]["acked"] > 100
    if report["skipped"]:
        pytest.skip("; ".join(f"{name}: {why}" for name, why in report["skipped"].items()))
    assert rows["split"]["acked"] > 100


@needs_namespaces
def test_a_run_that_is_stopped_leaves_nothing():
    words = ["--seconds", "60", "--seed", "1", "--faults", "disk_full,pause_node"]
    with subprocess.Popen(
        [sys.executable, MAIN, *words], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    ) as run:
        assert run.stderr is not None
        lines = [run.stderr.readline()]
        while "gap" not in lines[-1]:
            lines.append(run.stderr.readline())
            assert lines[-1], "".join(lines)
        # Other runs may be at work on this machine: only its own places are looked at.
        places = list(Path(tempfile.gettempdir()).glob(f"raftq-chaos-{run.pid}-*"))
        assert len(places) == 1
        children = descendants(run.pid)
        assert len(children) >= 5
        run.send_signal(signal.SIGTERM)
        assert "taken down" in run.stderr.read()
    assert run.returncode == 130
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and any(map(is_alive, children)):
        time.sleep(0.02)
    assert not any(map(is_alive, children))
    assert not places[0].exists()
    assert f"raftq-chaos-{run.pid}" not in Path("/proc/mounts").read_text()


def descendants(process):
    """Processes below this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == process:
                found += [int(entry.name), *descendants(int(entry.name))]
    return found


def is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
