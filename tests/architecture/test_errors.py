"""Goal: every error can be told from the others, explains itself, and stands on the page."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import raftq
from raftq import errors

ROOT = Path(__file__).resolve().parents[2]
GENERATOR = ROOT / "tools" / "generate_reference.py"
EVERY = sorted(errors.TABLE.values(), key=lambda error: error.code)


def subclasses(base):
    return {base}.union(*(subclasses(child) for child in base.__subclasses__()))


def declared():
    """Those of errors.py; a package may have errors of its own that no user meets."""
    return {error for error in subclasses(errors.RaftqError) if error.__module__ == errors.__name__}


def generate(*arguments):
    done = subprocess.run(
        [sys.executable, GENERATOR, *arguments],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_every_error_has_a_code_of_its_own():
    codes = [error.__dict__.get("code") for error in declared()]
    assert None not in codes
    assert len(set(codes)) == len(codes)
    assert set(errors.TABLE.values()) == declared()


@pytest.mark.parametrize("error", EVERY, ids=lambda error: error.__name__)
def test_an_error_explains_itself(error):
    sentence = (error.__doc__ or "").partition("\n")[0]
    assert len(sentence) >= 25, "a sentence that says what happened, and what to do"
    assert sentence.endswith("."), "a whole sentence, in one line: it is the default message"
    assert str(error()) == sentence
    assert error().outcome in {"not_applied", "unknown"}


@pytest.mark.parametrize("error", EVERY, ids=lambda error: error.__name__)
def test_an_error_travels_by_its_code(error):
    found = errors.from_code(error.code, "it happened", outcome="unknown", retry_after=0.5)
    assert type(found) is error
    assert (str(found), found.outcome, found.retry_after) == ("it happened", "unknown", 0.5)


def test_an_unknown_code_is_still_an_error_of_raftq():
    assert type(errors.from_code(64_999, "from the future")) is errors.RaftqError


@pytest.mark.parametrize("error", EVERY, ids=lambda error: error.__name__)
def test_an_error_crosses_processes(error):
    """Spark and test runners send exceptions between processes; what is known must survive."""
    sent = error("it happened", outcome="unknown", retry_after=0.5, failed=(1, 2))
    found = pickle.loads(pickle.dumps(sent))
    assert (type(found), str(found), found.outcome) == (error, "it happened", "unknown")
    assert (found.retry_after, found.failed) == (0.5, (1, 2))


@pytest.mark.parametrize("error", EVERY, ids=lambda error: error.__name__)
def test_users_reach_an_error_at_the_top(error):
    assert getattr(raftq, error.__name__) is error


def test_the_page_is_what_the_code_says():
    code, output = generate("--check")
    assert code == 0, output


def test_a_page_that_is_out_of_date_is_found(tmp_path):
    """The generator is run over a copy of the project whose page has lost a row."""
    for name in ("tools/generate_reference.py", "docs/reference/errors.md"):
        copy = tmp_path / name
        copy.parent.mkdir(parents=True)
        copy.write_bytes((ROOT / name).read_bytes())
    page = tmp_path / "docs" / "reference" / "errors.md"
    lines = page.read_text(encoding="utf-8").splitlines(keepends=True)
    page.write_text("".join(lines[:-1]), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, tmp_path / "tools" / "generate_reference.py", "--check"],
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert lines[-1].strip() in done.stderr
