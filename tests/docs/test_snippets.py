"""Goal: code on the pages is valid, and what says that it runs does run.

Method: every fenced block that is marked `python` in README.md and below docs/ is parsed, with
`await` allowed at the top. A block whose first line is `# runs` is executed in a process of its own.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(
    r"^(?P<indent> *)```python\b[^\n]*\n(?P<code>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL
)
RUNS = "# runs"


class Snippet(NamedTuple):
    name: str
    code: str


def snippets_in(page, text):
    """The python blocks of a page, each named by the page and the line it begins at."""
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        indent = found["indent"]
        code = "".join(part.removeprefix(indent) for part in found["code"].splitlines(True))
        yield Snippet(f"{page}:{line}", code)


def pages():
    yield from (page for page in [ROOT / "README.md"] if page.exists())
    yield from sorted((ROOT / "docs").rglob("*.md"))


ALL = [
    snippet
    for page in pages()
    for snippet in snippets_in(page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8"))
]
RUNNING = [snippet for snippet in ALL if snippet.code.startswith(RUNS)]


def compile_snippet(snippet):
    return compile(snippet.code, snippet.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def run(code, folder):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_every_snippet_compiles():
    failures = []
    for snippet in ALL:
        try:
            compile_snippet(snippet)
        except SyntaxError as error:
            failures.append(f"{snippet.name}: {error}")
    assert not failures, "\n".join(failures)


@pytest.mark.timeout(70)
@pytest.mark.parametrize("snippet", RUNNING, ids=lambda snippet: snippet.name)
def test_a_snippet_that_says_so_runs(snippet, tmp_path):
    done = run(snippet.code, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_snippets_are_found_and_judged(tmp_path):
    """The self-test: blocks are found, bad ones do not compile, failing ones do not pass."""
    page = (
        "text\n```python\nawait x\n```\n\n- item\n\n  ```python\n  # runs\n  1 / 0\n  ```\n"
        "```bash\nls |\n```\n```python title=x\ndef\n```\n"
    )
    good, failing, bad = snippets_in("page", page)
    assert (good.name, failing.name, bad.name) == ("page:2", "page:8", "page:15")
    compile_snippet(good)
    with pytest.raises(SyntaxError):
        compile_snippet(bad)
    assert failing.code == "# runs\n1 / 0\n"
    assert run(failing.code, tmp_path).returncode == 1
