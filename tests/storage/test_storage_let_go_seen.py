"""What a log has let go of, as it is seen from outside: by the offline reader and by `raftq log`."""

import json

import pytest
from repair_world import batch
from storage_world import World
from test_storage_compaction import make, run_pass
from typer.testing import CliRunner

from raftq.cli.main import app
from raftq.env import Environment
from raftq.raft.entry import is_whole
from raftq.server.copying import copy_log
from raftq.storage.group_log import GroupLog
from raftq.storage.offline import open_directory
from raftq.storage.reader import entries_in, read_replica
from raftq.storage.reading import batches_in
from raftq.storage.walk import Condition

LIVE = {0, 31}


def lay_out(world: World, root, node):
    """The files of a world's log, as a node's directory."""
    world.kill()
    directory = root / node / "group-1"
    directory.mkdir(parents=True)
    for path in world.disk.paths():
        (directory / path.rpartition("/")[2]).write_bytes(world.disk.contents(path))
    return directory


def release(world, through):
    assert world.log.compaction.release(through, world.writer.chain_at(through))
    world.time.run()


def run(*arguments):
    result = CliRunner().invoke(app, ["log", *map(str, arguments)])
    return result.exit_code, result.stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """n1 is whole, n2 has packed what is not live, n3 has released entries as well."""
    root = tmp_path_factory.mktemp("seen")
    whole, packed, short = make(), make(), make()
    lay_out(whole, root, "n1")
    run_pass(packed, LIVE)
    lay_out(packed, root, "n2")
    run_pass(short, LIVE)
    release(short, 20)
    lay_out(short, root, "n3")
    return root


def test_the_reader_says_what_is_gone(cluster):
    whole, packed, short = (
        read_replica(*open_directory(cluster / node / "group-1")) for node in ("n1", "n2", "n3")
    )
    assert (whole.released, whole.base.index, whole.not_whole_through, whole.packed) == (
        0,
        0,
        0,
        (),
    )
    assert (packed.released, packed.base.index) == (0, 0)
    assert packed.not_whole_through > 30
    assert packed.packed
    assert (short.released, short.base.index, short.first_index) == (20, 20, 21)
    assert short.base.chain == next(
        found.entry.chain for found in list(read(cluster / "n1")) if found.entry.index == 20
    )
    not_whole = [found.entry for found in read(cluster / "n2") if not is_whole(found.entry)]
    assert len(not_whole) == sum(live.not_whole for live in packed.ranges)
    assert not_whole[-1].index <= packed.not_whole_through


def read(node):
    names, open_file = open_directory(node / "group-1")
    for live in read_replica(names, open_file).ranges:
        with open_file(live.name) as file:
            yield from entries_in(file, live)


def test_a_digest_in_memory_is_no_batch(cluster):
    """Such an entry is never among what has just been written; nothing would be made of it."""
    entries = [found.entry for found in read(cluster / "n2")]
    found = list(batches_in(entries, 5, 3, 0, 60))
    assert len(found) < len(entries)
    assert min(len(batch.data) for batch in found) > 16


@pytest.mark.parametrize("steps", ["pack", "release", "pack and release", ""])
def test_a_copy_of_a_log_that_let_go_is_as_good(steps):
    """The machine begins at the snapshot; what lies before it is still there to be handed out."""
    world = make()
    if "pack" in steps:
        run_pass(world, LIVE)
    base = 20 if "release" in steps else 0
    if base:
        release(world, base)
    world.kill()
    environment = Environment(world.time, world.disk, None, None, world.boot)
    copy_log(environment, "group-1", "group-2", incarnation=77)
    disk = world.disk
    log = GroupLog.open(disk, world.time, "group-2", incarnation=77, boot=world.boot)
    assert (log.condition, log.damage, log.holes) == (Condition.OK, (), [])
    assert (log.compaction.base.index, log.last_index) == (base, 60)
    assert log.first_index == (57 if steps else 1)
    for index in range(base + 1, 61):
        assert log.chain(index) == world.writer.chain_at(index)
    live = {offset for offset in LIVE if offset >= base} if "pack" in steps else range(base, 60)
    for offset in live:
        assert bytes(log.batches(5, 3, offset, offset + 1, 1)[0].data) == batch(offset)
    log.close()


def test_inspect_shows_what_is_gone(cluster):
    code, shown = run("inspect", cluster, "--json")
    assert code == 0
    whole, packed, short = map(json.loads, shown.splitlines())
    assert (whole["base_index"], whole["not_whole"], whole["patches"], whole["packed"]) == (
        0,
        0,
        [],
        [],
    )
    assert packed["packed"][0]["first"] > 1, "the first segment is small, and its message lives"
    assert sum(patch["not_whole"] for patch in packed["patches"]) == packed["not_whole"] > 20
    assert (short["base_index"], short["released"], short["first_index"]) == (20, 20, 21)
    assert short["not_whole_through"] == packed["not_whole_through"]
    _, shown = run("inspect", cluster)
    assert "n3/group-1: history begins at entry 21: entries up to 20 were released" in shown
    assert f"n2/group-1: {packed['not_whole']} entries up to" in shown


def test_entries_are_shown_with_what_they_lack(cluster):
    _, shown = run("inspect", cluster / "n2", "--entries", "--json")
    entries = [json.loads(line) for line in shown.splitlines()]
    assert [entry["index"] for entry in entries] == list(range(1, 61))
    assert all(entry["proved"] for entry in entries)
    gone = [entry["index"] - 1 for entry in entries if entry["bodies_released"]]
    assert gone
    assert not LIVE.intersection(gone)
    _, shown = run("inspect", cluster / "n2", "--entries", "--from", "9", "--limit", "1")
    assert shown.rstrip().endswith("1 bodies released")


def test_what_is_gone_rightly_is_sound(cluster):
    code, shown = run("verify", cluster, "--json")
    assert code == 0, shown
    verdict = json.loads(shown)
    assert verdict["sound"] is True
    assert [replica["entries"] for replica in verdict["replicas"]] == [60, 60, 40]
    assert [replica["base_index"] for replica in verdict["replicas"]] == [0, 0, 20]


def test_a_log_without_the_snapshot_that_it_needs_is_not_sound(cluster, tmp_path):
    world = make()
    run_pass(world, LIVE)
    directory = lay_out(world, tmp_path, "n2")
    for path in directory.glob("snapshot-*"):
        path.unlink()
    code, shown = run("verify", tmp_path)
    assert code == 1
    assert "no sound snapshot is at or behind what was let go of" in shown
