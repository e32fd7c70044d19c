"""Goal: one run of pytest judges everything, so that its closing line counts it all.

Method: the verbs of `tools/check` that are not tests run as tests. `layers` has a file of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def check(*arguments):
    here = Path(sys.executable).parent
    done = subprocess.run(
        [ROOT / "tools" / "check", *arguments],
        cwd=ROOT,
        env={**os.environ, "RAFTQ_READY": "1", "PATH": f"{here}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.timeout(240)  # Types are inferred from nothing in a clean clone.
@pytest.mark.parametrize("verb", ["format", "lint", "types", "docs"])
def test_the_tree_passes(verb):
    code, report = check(verb)
    assert code == 0, report


def test_an_unknown_verb_is_refused():
    code, report = check("spelling")
    assert code == 2
    assert "no verb 'spelling'" in report


@pytest.mark.parametrize("tool", ["setup", "demo", "test", "check", "generate-reference"])
def test_every_tool_explains_itself(tool):
    done = subprocess.run(
        [ROOT / "tools" / tool, "--help"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"tools/{tool}")
    assert len(done.stdout.splitlines()) == 3
