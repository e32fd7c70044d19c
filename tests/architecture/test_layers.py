"""Goal: nobody imports what lies above them, and each contract is able to fail.

Method: import-linter runs over the tree with the contracts of pyproject.toml, then over a tree of
empty packages of the same names into which one bad import is written.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINTER = Path(sys.executable).with_name("lint-imports")
FILES = frozenset({"machine", "ids", "errors", "limits"})


def lint(tree: Path) -> tuple[int, str]:
    """The linter's exit code and its report on the package `raftq` below `tree`."""
    done = subprocess.run(
        [LINTER, "--no-logo", "--no-cache"],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def empty_tree(tmp_path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    for name in (name.strip() for layer in layers for name in layer.split("|")):
        if name in FILES or name.startswith("batch"):
            path = tmp_path / "raftq" / f"{name}.py"
        else:
            path = tmp_path / "raftq" / name / "__init__.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for name in ("core", "entry", "membership", "messages", "ready"):
        (tmp_path / "raftq" / "raft" / f"{name}.py").touch()
    (tmp_path / "raftq" / "__init__.py").touch()
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    return tmp_path


def add(tree: Path, module: str, source: str) -> None:
    path = tree / "raftq" / module
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(source + "\n")


def test_the_tree_keeps_every_contract():
    code, report = lint(ROOT)
    assert code == 0, report


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ids.py", "import raftq.errors"),
        ("errors.py", "import raftq.limits"),
        ("machine.py", "import raftq.batch"),
        ("batch.py", "import raftq.env"),
        ("batch_format.py", "import raftq.batch_builder"),
        ("queue/ready.py", "import raftq.batch_format"),
        ("queue/ready.py", "import raftq.observability"),
        ("storage/segment.py", "import raftq.observability"),
        ("raft/core.py", "import raftq.machine"),
        ("raft/core.py", "import asyncio"),
        ("raft/core.py", "import random"),
        ("raft/core.py", "import logging"),
        ("placement/ring.py", "import raftq.batch"),
        ("placement/ring.py", "import os"),
        ("queue/ready.py", "import raftq.raft"),
        ("queue/ready.py", "import raftq.placement"),
        ("queue/ready.py", "import raftq.env"),
        ("queue/ready.py", "from time import monotonic"),
        ("metadata/nodes.py", "import raftq.batch"),
        ("metadata/nodes.py", "import raftq.queue"),
        ("metadata/nodes.py", "import threading"),
        ("wire/frame.py", "import raftq.env"),
        ("wire/frame.py", "import raftq.machine"),
        ("wire/frame.py", "import raftq.raft.core"),
        ("wire/frame.py", "import raftq.raft"),
        ("wire/frame.py", "import socket"),
        ("storage/segment.py", "import raftq.raft.core"),
        ("storage/segment.py", "import raftq.wire"),
        ("storage/segment.py", "import raftq.machine"),
        ("storage/segment.py", "import os"),
        ("env/disk.py", "import raftq.storage"),
        ("host/loop.py", "import raftq.queue"),
        ("host/loop.py", "import raftq.metadata"),
        ("host/loop.py", "import raftq.placement"),
        ("host/loop.py", "import raftq.batch"),
        ("host/loop.py", "import time"),
        ("server/node.py", "import raftq.client"),
        ("server/node.py", "import raftq.sim"),
        ("server/node.py", "import pyarrow"),
        ("client/producer.py", "import raftq.server"),
        ("client/producer.py", "import raftq.storage"),
        ("client/producer.py", "import raftq.raft.core"),
        ("client/producer.py", "import raftq.machine"),
        ("client/producer.py", "import threading"),
        ("client/producer.py", "import raftq"),
        ("embedded/node.py", "import raftq.spark"),
        ("embedded/node.py", "import raftq.host"),
        ("spark/reader.py", "import raftq.server"),
        ("spark/reader.py", "import raftq.metadata"),
        ("spark/reader.py", "import raftq.sim"),
        ("cli/main.py", "import raftq.host"),
        ("sim/world.py", "import raftq.cli"),
        ("__init__.py", "import raftq.server"),
        ("utils.py", ""),
    ],
)
def test_a_bad_import_is_found(empty_tree, module, source):
    add(empty_tree, module, source)
    code, report = lint(empty_tree)
    assert code == 1, report
    assert "1 broken" in report or "2 broken" in report or "3 broken" in report, report


def test_what_is_allowed_is_left_alone(empty_tree):
    for module, source in [
        ("queue/ready.py", "import raftq.machine, raftq.batch, raftq.errors, raftq.ids"),
        ("metadata/nodes.py", "import raftq.machine, raftq.placement, raftq.limits"),
        ("wire/peer.py", "import raftq.batch, raftq.raft.messages, raftq.raft.entry"),
        ("storage/log.py", "import raftq.env, raftq.batch, raftq.raft.ready"),
        ("host/loop.py", "import raftq.env, raftq.raft, raftq.storage, raftq.wire, raftq.machine"),
        ("host/metrics.py", "import raftq.observability"),
        ("batch.py", "import io, raftq.batch_builder, raftq.batch_format"),
        ("env/disk.py", "import os, threading, time, asyncio"),
        ("server/node.py", "import raftq.host, raftq.queue, raftq.metadata, raftq.placement"),
        ("client/routing.py", "import raftq.wire, raftq.batch, raftq.placement, asyncio"),
        ("client/blocking.py", "import threading, raftq.client.routing"),
        ("embedded/node.py", "import raftq.server, raftq.client"),
        ("spark/views.py", "import raftq.client, raftq.batch, raftq.storage, raftq.queue, pyspark"),
        ("sim/world.py", "import raftq.server, raftq.client, raftq.raft, raftq.env, random"),
        ("cli/main.py", "import raftq, raftq.embedded, raftq.sim, raftq.spark, raftq.client"),
        ("__init__.py", "import raftq.client, raftq.errors"),
    ]:
        add(empty_tree, module, source)
    code, report = lint(empty_tree)
    assert code == 0, report
