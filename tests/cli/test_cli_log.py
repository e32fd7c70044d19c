"""Goal: `raftq log` reads what nodes wrote, and finds what somebody changed.

Method: a cluster in this process writes real directories; then bytes in them are turned.
"""

import asyncio
import json
import shutil

import pytest

from raftq.cli.log import Checked, Directory, compare
from raftq.embedded import Cluster


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    data = tmp_path_factory.mktemp("log")

    async def main():
        async with Cluster(3, data=data, groups=1) as cluster, cluster.client() as client:
            await client.create_queue("orders")
            for _ in range(5):
                await client.send_many("orders", [b"a line of text"] * 100)

    asyncio.run(main())
    return data


@pytest.fixture
def data(written, tmp_path):
    return shutil.copytree(written, tmp_path / "data")


def damage(directory):
    """Turn one byte in the middle of what the newest written segment holds."""
    path = max(directory.glob("segment-*.log"), key=lambda each: each.read_bytes().rstrip(b"\0"))
    content = bytearray(path.read_bytes())
    position = content.find(b"a line of text")
    assert position > 0
    content[position] ^= 1
    path.write_bytes(content)


def test_inspect_summarises_replicas(data, objects, run):
    found = objects("log", "inspect", data)
    assert len(found) == 6
    assert {(each["group"], each["condition"]) for each in found} == {("0", "ok"), ("1", "ok")}
    assert str(data / "n1" / "group-1") in run("log", "inspect", data / "n1").stdout


def test_inspect_shows_entries(data, objects, run):
    entries = objects("log", "inspect", data / "n1" / "group-1", "--entries", "--from", "2")
    assert [entry["index"] for entry in entries] == list(range(2, len(entries) + 2))
    assert all(entry["proved"] for entry in entries)
    assert entries[-1]["kind"] == "commands"
    lines = run("log", "inspect", data / "n1" / "group-1", "--entries", "-n", "2").stdout
    assert len(lines.splitlines()) == 2


def test_sound_logs_verify(data, objects, run):
    (verdict,) = objects("log", "verify", data)
    assert (verdict["sound"], verdict["differences"]) == (True, [])
    assert sum(replica["entries"] for replica in verdict["replicas"]) > 15
    assert run("log", "verify", data).stdout.splitlines()[-1].startswith("sound")


def test_a_turned_byte_is_found(data, run):
    damage(data / "n2" / "group-1")
    result = run("log", "verify", data, "--json")
    assert result.exit_code == 1
    verdict = json.loads(result.stdout)
    assert verdict["sound"] is False
    problems = {row["path"]: row["problems"] for row in verdict["replicas"] if row["problems"]}
    assert list(problems) == [str(data / "n2" / "group-1")]
    assert result.stderr.startswith("Corrupted: ")
    assert run("log", "verify", data / "n1").exit_code == 0


def test_logs_of_other_clusters_differ(tmp_path):
    def checked(name, chains):
        return Checked(Directory(tmp_path / name, "1", None, None), 2, 9, [], chains)

    first = checked("a", {1: b"x", 2: b"y"})
    assert compare([first, checked("b", {2: b"y", 3: b"z"})]) == []
    (difference,) = compare([first, checked("b", {1: b"x", 2: b"z"})])
    assert "group 1 differs from index 2 on" in difference


def test_a_place_without_replicas_is_refused(tmp_path, run):
    for path in (tmp_path, tmp_path / "nothing"):
        result = run("log", "verify", path)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith("InvalidArgument: ")
