"""Goal: what the linters cannot see stays true of every file, and each rule is able to fail.

Method: the rules of `style_rules.py` are run over the tree, then over small bad samples.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import style_rules as rules

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = frozenset({"__pycache__", "build", "dist", "site", "node_modules", "results"})
TEXT_SUFFIXES = frozenset({".py", ".md", ".toml", ".yml", ".yaml", ".cfg", ".sh", ""})

# raftq.env is the outside world, and the simulator imitates it. Command line and Spark jobs are
# programs of their own, outside any simulation.
OUTSIDE = ("raftq/env/", "raftq/sim/", "raftq/cli/", "raftq/spark/")

EXCEPTIONS: dict[str, dict[str, str]] = {
    "raftq/client/blocking.py": {
        "threading": "the blocking client is a private event loop on a thread of its own",
    },
    "raftq/client/url.py": {
        "os": "RAFTQ_URL names the cluster where the program does not",
    },
}
"""File -> dotted name that it may use all the same -> why."""


def files(*suffixes: str) -> Iterator[Path]:
    """Every file of the project with one of these suffixes; hidden folders other than .ci are not."""
    pending = [ROOT]
    while pending:
        for path in sorted(pending.pop().iterdir()):
            hidden = path.name.startswith(".") and path.name != ".ci"
            if hidden or path.name in SKIPPED or path.name.endswith(".egg-info"):
                continue
            if path.is_dir():
                pending.append(path)
            elif path.suffix in suffixes:
                yield path


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


PYTHON = {name_of(path): path.read_text("utf-8") for path in files(".py")}
TEXTS = {name_of(path): path.read_text("utf-8", "replace") for path in files(*TEXT_SUFFIXES)}
INSIDE = [name for name in PYTHON if name.startswith("raftq/") and not name.startswith(OUTSIDE)]
MACHINES = [name for name in PYTHON if name.startswith(("raftq/queue/", "raftq/metadata/"))]
DOCUMENTED = [name for name in PYTHON if name.startswith(("raftq/", "bench/", "tools/"))]

Rule = Callable[[str], Iterator[rules.Finding]]


def findings(rule: Rule, sources: dict[str, str]) -> list[str]:
    return [
        f"{name}:{finding.line}: {finding.text}"
        for name, source in sources.items()
        for finding in rule(source)
        if not any(finding.text.startswith(allowed) for allowed in EXCEPTIONS.get(name, {}))
    ]


def chosen(names: list[str]) -> dict[str, str]:
    return {name: PYTHON[name] for name in names}


@pytest.mark.parametrize(
    ("rule", "sources"),
    [
        (rules.file_is_short, PYTHON),
        (rules.functions_are_short, PYTHON),
        (rules.has_docstring, chosen(DOCUMENTED)),
        (rules.no_left_over_marks, TEXTS),
        (rules.no_machine_paths, TEXTS),
        (rules.no_outside_world, chosen(INSIDE)),
        (rules.no_set_iteration, chosen(MACHINES)),
        (rules.no_floats, chosen(MACHINES)),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_the_tree_keeps_the_rule(rule, sources):
    assert sources
    assert not findings(rule, sources), "\n".join(findings(rule, sources))


def test_folders_are_named_for_what_they_hold():
    parts = {part for name in PYTHON for part in Path(name).with_suffix("").parts}
    assert sorted(parts & rules.BANNED_FOLDERS) == []


def test_mentioned_pages_exist():
    """A page that is mentioned anywhere is in the project, under that name."""
    pages = {Path(name).name for name in TEXTS if name.endswith(".md")}
    missing = [
        f"{name}:{line}: {page} does not exist"
        for name, source in TEXTS.items()
        for line, page in rules.mentioned_pages(source)
        if Path(page).name not in pages
    ]
    assert not missing, "\n".join(missing)


def test_every_exception_is_needed():
    """An exception that nothing needs any more is taken out of the list."""
    for name, allowed in EXCEPTIONS.items():
        texts = [finding.text for finding in rules.no_outside_world(PYTHON.get(name, ""))]
        for dotted in allowed:
            assert any(text.startswith(dotted) for text in texts), f"{name}: {dotted}"


MARK = rules.LEFT_OVER_MARKS[0]
PLACE = rules.MACHINE_PATHS[0]

BAD_SAMPLES = [
    (rules.file_is_short, "x = 1\n" * 451),
    (rules.functions_are_short, "def f():\n" + "    x = 1\n" * 80),
    (rules.functions_are_short, "class C:\n  async def f(self):\n" + "    x = 1\n" * 80),
    (rules.has_docstring, "x = 1\n"),
    (rules.has_docstring, "# A comment is not a docstring.\n"),
    (rules.no_left_over_marks, f"x = 1  # {MARK}: later\n"),
    (rules.no_machine_paths, f'x = "{PLACE}x"\n'),
    (rules.no_outside_world, "import time\n"),
    (rules.no_outside_world, "import time as clock\nclock.monotonic()\n"),
    (rules.no_outside_world, "from time import monotonic\n"),
    (rules.no_outside_world, "from os import path\n"),
    (rules.no_outside_world, "import os.path\n"),
    (rules.no_outside_world, "def f():\n    import random\n"),
    (rules.no_outside_world, "from concurrent.futures import ThreadPoolExecutor\n"),
    (rules.no_outside_world, "import threading\n"),
    (rules.no_outside_world, "import signal\n"),
    (rules.no_outside_world, "import datetime\ndatetime.datetime.now()\n"),
    (rules.no_outside_world, "from datetime import datetime\ndatetime.now()\n"),
    (rules.no_outside_world, "import asyncio\nasyncio.wait_for(x, 1)\n"),
    (rules.no_outside_world, "from asyncio import wait_for\n"),
    (rules.no_outside_world, "import asyncio as a\na.wait([x])\n"),
    (rules.no_outside_world, "import asyncio\nasyncio.open_connection()\n"),
    (rules.no_outside_world, "import asyncio\nasyncio.to_thread(f)\n"),
    (rules.no_outside_world, "loop.create_connection(f)\n"),
    (rules.no_outside_world, "self.loop.create_server(f)\n"),
    (rules.no_outside_world, "get_loop().run_in_executor(None, f)\n"),
    (rules.no_outside_world, "data = open('x').read()\n"),
    (rules.no_set_iteration, "for x in {1, 2}:\n    pass\n"),
    (rules.no_set_iteration, "for x in set(y):\n    pass\n"),
    (rules.no_set_iteration, "def f(y: set[int]):\n    return [x for x in y]\n"),
    (rules.no_set_iteration, "def f(y: 'set[int] | None'):\n    return list(y)\n"),
    (rules.no_set_iteration, "def f():\n    y = frozenset(z)\n    return tuple(y)\n"),
    (rules.no_set_iteration, "class C:\n    y: set[int]\n    def f(self):\n        self.y.pop()\n"),
    (
        rules.no_set_iteration,
        "class C:\n  def a(self):\n    self.y: set[int] = z\n  def b(self):\n    return [*self.y]\n",
    ),
    (rules.no_set_iteration, "def f(y: set[int]):\n    for x in y - {1}:\n        pass\n"),
    (rules.no_set_iteration, "def f(y: set[int]):\n    return [*y]\n"),
    (rules.no_floats, "x = 0.5\n"),
    (rules.no_floats, "x = a / b\n"),
    (rules.no_floats, "def f(x: float): pass\n"),
]

GOOD_SAMPLES = [
    (rules.file_is_short, "x = 1\n" * 450),
    (rules.functions_are_short, "def f():\n" + "    x = 1\n" * 79),
    (rules.has_docstring, '"""What it is."""\n'),
    (rules.no_left_over_marks, f"x = 'a{MARK}b'\n"),
    (rules.no_machine_paths, f'x = "docs{PLACE}x"\n'),
    (
        rules.no_outside_world,
        "import asyncio\nasync def f():\n    async with asyncio.timeout(1): ...\n",
    ),
    (rules.no_outside_world, "from raftq.env import Clock\ndef f(time: Clock):\n    time.now()\n"),
    (rules.no_outside_world, "self.disk.open('x')\nmessage.time.now\nself.random\n"),
    (rules.no_outside_world, "from datetime import timedelta\n"),
    (rules.no_set_iteration, "def f(y: set[int]):\n    return sorted(y), len(y), 3 in y\n"),
    (rules.no_set_iteration, "def f(y: dict[int, set[int]]):\n    for x in y:\n        pass\n"),
    (rules.no_set_iteration, "def f(y: set[int]): ...\ndef g(y: list[int]):\n    return list(y)\n"),
    (rules.no_floats, "x = a // b\n"),
]


def sample_name(value: object) -> str:
    return value.__name__ if callable(value) else ""


@pytest.mark.parametrize(("rule", "source"), BAD_SAMPLES, ids=sample_name)
def test_a_rule_finds_what_is_bad(rule, source):
    assert list(rule(source))


@pytest.mark.parametrize(("rule", "source"), GOOD_SAMPLES, ids=sample_name)
def test_a_rule_leaves_what_is_good(rule, source):
    assert list(rule(source)) == []


def test_mentions_are_found():
    page = "docs/NOWHERE" + ".md"
    assert list(rules.mentioned_pages(f"one\nsee `{page}`.\n")) == [(2, page)]
