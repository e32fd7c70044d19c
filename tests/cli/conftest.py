"""What the tests of the command line share: a fake client, and a way to run a command."""

import json

import pytest
from cli_fakes import FakeClient
from typer.testing import CliRunner

from raftq.cli import connect
from raftq.cli.main import app


@pytest.fixture
def client(monkeypatch):
    fake = FakeClient()

    def open_client(servers):
        fake.servers = servers
        return fake

    monkeypatch.setattr(connect, "open_client", open_client)
    monkeypatch.delenv("RAFTQ_URL", raising=False)
    return fake


@pytest.fixture
def run():
    """Runs a command; the result has exit_code, stdout, stderr."""

    def run_command(*arguments, **options):
        return CliRunner().invoke(app, [str(each) for each in arguments], **options)

    return run_command


@pytest.fixture
def objects(run):
    """Runs a command with --json, which must succeed; the objects it printed, and nothing else."""

    def run_command(*arguments, **options):
        result = run(*arguments, "--json", **options)
        assert result.exit_code == 0, result.stderr
        return [json.loads(line) for line in result.stdout.splitlines()]

    return run_command
