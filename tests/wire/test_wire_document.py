"""docs/PROTOCOL.md names everything that the code knows: kinds, operations and their fields, bounds."""

from pathlib import Path

import pytest

from raftq.limits import MAX_FRAME_BYTES
from raftq.wire.connection import REPLIES
from raftq.wire.control import OPERATIONS
from raftq.wire.frames import KIND_NAMES

DOCUMENT = (Path(__file__).parents[2] / "docs" / "PROTOCOL.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_every_kind(kind):
    name = KIND_NAMES[kind]
    if kind < 64:
        row = next(line for line in DOCUMENT.splitlines() if line.startswith(f"| {kind} |"))
        assert name in row
        for reply in REPLIES.get(kind, ()):
            assert KIND_NAMES[reply] in row.rpartition("|")[0].rpartition("|")[2]
    else:
        assert f"{name} ({kind})" in DOCUMENT


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation(name):
    begin = DOCUMENT.index(f"**`{name}`**")
    text = DOCUMENT[begin : DOCUMENT.index("\n\n", begin)]
    operation = OPERATIONS[name]
    assert operation.asks in text
    assert operation.reply in text
    for field in operation.fields:
        assert f"`{field}`" in text


def test_the_frame_limit():
    assert f"{MAX_FRAME_BYTES:,}" in DOCUMENT
