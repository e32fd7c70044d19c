"""Goal: `raftq cluster recover` says what it will do before it does it, and does nothing unasked.

Method: a cluster in this process writes real directories, which are then taken as a dead cluster's.
"""

import asyncio
import json
import shutil

import pytest

from raftq.cli import recover as command
from raftq.embedded import Cluster, Node
from raftq.embedded.recovery import Recovery


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    data = tmp_path_factory.mktemp("recover")

    async def main():
        async with Cluster(3, data=data, groups=1) as cluster, cluster.client() as client:
            await client.create_queue("orders")
            await client.send_many("orders", [b"a line of text"] * 100)

    asyncio.run(main())
    return data


@pytest.fixture
def survivor(written, tmp_path):
    return shutil.copytree(written / "n1", tmp_path / "n1")


def contents(directory):
    return {
        path: path.read_bytes()
        for path in directory.rglob("*")
        if path.name != "lock" and path.is_file()
    }


def test_it_tells_what_is_held_and_changes_nothing(survivor, run, objects):
    before = contents(survivor)
    done = run("cluster", "recover", "--data", survivor)
    assert done.exit_code == 0
    assert "n1 holds:" in done.stdout
    assert "lost for good" not in done.stdout
    (found,) = objects("cluster", "recover", "--data", survivor)
    assert [each["group"] for each in found["groups"]] == [0, 1]
    assert {each["condition"] for each in found["groups"]} == {"ok"}
    assert all(len(each["voters"]) == 3 for each in found["groups"])
    done = run("cluster", "recover", "--data", survivor, "--all", "--dry-run")
    assert done.exit_code == 0
    for words in ("lost for good", "is committed now", "a new id", "raftq cluster replace"):
        assert words in " ".join(done.stdout.split())
    assert contents(survivor) == before


def test_nothing_is_done_without_being_confirmed(survivor, run, monkeypatch):
    before = contents(survivor)
    done = run("cluster", "recover", "--data", survivor, "--all")
    assert (done.exit_code, "confirmed by --yes" in done.stderr) == (1, True)
    monkeypatch.setattr(command, "_may_ask", lambda: True)
    done = run("cluster", "recover", "--data", survivor, "--all", input="n2\n")
    assert (done.exit_code, "not the node's name" in done.stderr) == (1, True)
    assert contents(survivor) == before
    done = run("cluster", "recover", "--data", survivor, "--all", input="n1\n")
    assert done.exit_code == 0
    assert "group 1 goes on from n1, as replica" in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--all", "--group", "1"), "leave --group out"),
        (("--group", "9"), "group 9 has no replica here"),
    ],
)
def test_what_makes_no_sense_is_refused(survivor, run, words, says):
    before = contents(survivor)
    done = run("cluster", "recover", "--data", survivor, *words, "--yes", "--json")
    assert done.exit_code == 1
    assert says in json.loads(done.stderr)["message"]
    assert contents(survivor) == before


def test_what_is_no_data_directory_is_refused(tmp_path, run):
    for path, says in ((tmp_path, "no file 'node'"), (tmp_path / "none", "not a directory")):
        done = run("cluster", "recover", "--data", path)
        assert done.exit_code == 1
        assert says in done.stderr
    assert not (tmp_path / "none").exists()


def test_a_running_node_is_left_alone(survivor, run):
    members = dict.fromkeys(("n2", "n3"), "127.0.0.1:1") | {"n1": "127.0.0.1:0"}

    async def main():
        node = Node("n1", data=survivor, listen="127.0.0.1:0", members=members)
        async with node:
            done = await asyncio.to_thread(run, "cluster", "recover", "--data", survivor)
            assert done.exit_code == 1
            assert "in use by process" in done.stderr

    asyncio.run(main())


def test_what_was_decided_and_not_finished_is_finished_first(survivor, run, objects):
    with Recovery(survivor) as recovery:
        _, holdings = recovery.look()
        recovery.decide([held.group for held in holdings])
    (found,) = objects("cluster", "recover", "--data", survivor, "--dry-run")
    assert found == {"recovered": [], "pending": [0, 1]}
    assert (survivor / "recover").exists()
    done = run("cluster", "recover", "--data", survivor)
    assert "is finished now" in done.stdout
    assert not (survivor / "recover").exists()
    (found,) = objects("cluster", "recover", "--data", survivor)
    assert all(len(each["voters"]) == 1 for each in found["groups"])


def test_the_log_shows_it(survivor, run, objects):
    (done,) = objects("cluster", "recover", "--data", survivor, "--all", "--yes")
    entries = objects("log", "inspect", survivor / "group-1", "--entries")
    decided = entries[-1]["recovered"]
    assert decided["node"] == "n1"
    assert decided["replica"] == done["recovered"][1]["replica"]
    assert decided["was"] in decided["former"]
    assert "recovered" not in entries[0]
    assert "RECOVERED on n1" in run("log", "inspect", survivor / "group-1", "--entries").stdout
    assert run("log", "verify", survivor).exit_code == 0


def test_what_was_moved_aside_is_not_looked_at(survivor, objects):
    aside = survivor / "group-1.forgot-0000000000000001"
    shutil.copytree(survivor / "group-1", aside)
    assert len(objects("log", "inspect", survivor)) == 2
    assert len(objects("log", "inspect", aside)) == 1
