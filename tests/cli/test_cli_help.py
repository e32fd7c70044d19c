"""Goal: every command teaches: its --help says what it does, and shows examples on their own lines."""

import pytest
import typer

from raftq import __version__
from raftq.cli.main import app


def leaves(command, path=()):
    for name, each in getattr(command, "commands", {}).items():
        if hasattr(each, "commands"):
            yield from leaves(each, (*path, name))
        else:
            yield (*path, name)


COMMANDS = list(leaves(typer.main.get_command(app)))


def test_the_commands_that_scripts_rely_on_are_there():
    expected = """
        dev, node, send, receive, tail, cluster status, cluster replace, cluster recover, log inspect, log verify, simulate, bench,
        audit, demo, queue create, queue list, queue describe, queue update, queue delete,
        queue purge, dead list, dead peek, dead redrive, dead purge
    """
    names = {tuple(name.split()) for name in expected.split(",")}
    assert sorted(COMMANDS) == sorted(names)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_has_examples(run, path):
    result = run(*path, "--help", env={"COLUMNS": "200"})
    assert result.exit_code == 0
    example = f"raftq {' '.join(path)}"
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert any(line.startswith(example) or line.endswith(example) for line in lines)
    assert "--json" in result.stdout


def test_the_version(run):
    assert run("--version").stdout == f"raftq {__version__}\n"
