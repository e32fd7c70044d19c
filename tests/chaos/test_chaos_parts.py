"""Goal: the chaos harness finds what it looks for, and says what it cannot do.

Method: its judge, its power loss and its arithmetic on small made-up material; no processes.
"""

import json
import os
import random
import struct

import chaos_capabilities
import chaos_main
import pytest
from chaos_faults import FAULTS
from chaos_history import Probes
from chaos_judge import Times, Verdict, judge_histories
from chaos_network import CLIENTS, between, is_served
from chaos_power import Image, read_undo

# --- Judge -------------------------------------------------------------------------------------

SENT = [
    ["attempt", 1.0, "orders", "a-1"],
    ["attempt", 1.1, "orders", "a-2"],
    ["ack", 1.2, "orders", 0, 0, "a-1"],
    ["ack", 2.2, "orders", 0, 1, "a-2"],
    ["delivered", 2.3, "orders", 0, 0, "a-1", 1],
    ["delivered", 2.3, "orders", 0, 1, "a-2", 1],
    ["settled", 2.4, "orders", 0, 0, "a-1", 1],
]
LOG = {("orders", 0): [(0, "a-1"), (1, "a-2")]}


def judged(tmp_path, events, log, *, may_be_full=False):
    path = tmp_path / "history.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    verdict = Verdict()
    times = Times([(0.5, "kill"), (1.05, "split")])
    judge_histories(verdict, [path], log, times, may_be_full=may_be_full)
    return verdict


def test_a_sound_run_has_no_violation(tmp_path):
    verdict = judged(tmp_path, SENT, LOG)
    assert verdict.violations == []
    assert verdict.counts["kill"].acked == verdict.counts["split"].acked == 1
    assert verdict.delivered == 2


BROKEN = {
    "lost": (SENT, {("orders", 0): [(0, "a-1")]}),
    "other payload": (SENT, {("orders", 0): [(0, "a-1"), (1, "b-1")]}),
    "stored twice": (SENT, {("orders", 0): [*LOG["orders", 0], (2, "a-1")]}),
    "hole": (SENT, {("orders", 0): [(0, "a-1"), (2, "a-2")]}),
    "same delivery twice": ([*SENT, SENT[4]], LOG),
    "after it was settled": ([*SENT, ["delivered", 3.0, "orders", 0, 0, "a-1", 2]], LOG),
    "refused and stored": ([*SENT, ["refused", 3.0, "a-1"]], LOG),
    "never delivered": (SENT[:5], LOG),
    "unexpected error": ([*SENT, ["failed", 3.0, "send", "Corrupted", "unknown", "?"]], LOG),
    "full, but no disk was": (
        [*SENT, ["failed", 3.0, "send", "StorageFull", "not_applied", "?"]],
        LOG,
    ),
    "a client broke": ([*SENT, ["broken", 3.0, "Traceback"]], LOG),
    "order": (
        [*SENT[:2], ["ack", 1.2, "orders", 0, 1, "a-1"], ["ack", 2.2, "orders", 0, 0, "a-2"]],
        {("orders", 0): [(0, "a-2"), (1, "a-1")]},
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_found(tmp_path, name):
    assert judged(tmp_path, *BROKEN[name]).violations


def test_losses_are_counted_where_the_message_was_sent(tmp_path):
    verdict = judged(tmp_path, *BROKEN["lost"])
    assert (verdict.counts["kill"].lost, verdict.counts["split"].lost) == (0, 1)
    verdict = judged(tmp_path, *BROKEN["stored twice"])
    assert (verdict.counts["kill"].duplicated, verdict.counts["split"].duplicated) == (1, 0)


def test_a_full_disk_explains_its_error(tmp_path):
    assert judged(tmp_path, *BROKEN["full, but no disk was"], may_be_full=True).violations == []


# --- Power loss --------------------------------------------------------------------------------

RECORD = struct.Struct("<QQQqqQ")


def record(kind, sequence, *, inode=0, offset=0, old_size=0, payload=b""):
    return RECORD.pack(ord(kind), sequence, inode, offset, old_size, len(payload)) + payload


class Everything(random.Random):
    """Chance that always says: all is lost."""

    def random(self):
        return 0.0


def test_what_was_synced_stays_and_the_rest_goes(tmp_path):
    directory, saved = tmp_path / "n1", tmp_path / "saved"
    directory.mkdir()
    saved.mkdir()
    file, new = directory / "segment", directory / "new"
    file.write_bytes(b"synced--" + b"unsynced" + b"longer")
    new.write_bytes(b"")
    inode = file.stat().st_ino
    undo = tmp_path / "undo"
    undo.write_bytes(
        record("W", 1, inode=inode, old_size=0, payload=bytes(8))
        + record("S", 2, inode=inode, offset=1)
        + record("W", 3, inode=inode, offset=8, old_size=16, payload=b"before--")
        + record("W", 4, inode=inode, offset=16, old_size=16, payload=bytes(6))
        + record("C", 5, payload=os.fsencode(new))
        + record("W", 6, inode=inode, payload=b"cut off")[:-1]
    )
    said = Image(directory, saved, Everything()).make(list(read_undo(undo)))
    assert file.read_bytes() == b"synced--before--"
    assert not new.exists()
    assert said == "all of 2 unsynced writes and 1 names lost"


@pytest.mark.parametrize("seed", range(20))
def test_parts_of_a_write_may_survive_in_whole_sectors(tmp_path, seed):
    directory, saved = tmp_path / "n1", tmp_path / "saved"
    directory.mkdir()
    saved.mkdir()
    file = directory / "segment"
    file.write_bytes(b"n" * 2048)
    inode = file.stat().st_ino
    undo = tmp_path / "undo"
    undo.write_bytes(record("W", 1, inode=inode, old_size=2048, payload=b"o" * 2048))
    Image(directory, saved, random.Random(seed)).make(list(read_undo(undo)))
    data = file.read_bytes()
    assert len(data) == 2048
    assert all(len({*data[at : at + 512]}) == 1 for at in range(0, 2048, 512))


# --- Arithmetic --------------------------------------------------------------------------------


def test_a_group_is_served_where_a_majority_and_the_clients_meet():
    voters = ["n1", "n2", "n3"]
    assert is_served(voters, [])
    assert is_served(voters, between(["n1"], ["n2", "n3"]))
    assert is_served(voters, [("n1", "n2"), ("n1", "n3")])
    assert not is_served(voters, between(["n1"], ["n2", "n3"]) + between(["n2"], ["n3"]))
    assert not is_served(voters, between(["n1"], ["n2", "n3"]) + between(["n2", "n3"], [CLIENTS]))


def test_the_gap_is_the_longest_pause_that_ends_in_the_time(tmp_path):
    path = tmp_path / "probes"
    path.write_text("".join(f"[{at}, {p}]\n" for at, p in [(1, 0), (9, 0), (9.5, 0), (9, 1)]))
    probes = Probes(path, [0, 1])
    probes.look()
    assert probes.gap(9.2, 9.6, [0]) == pytest.approx(0.5)
    assert probes.gap(2.0, 9.6, [0]) == pytest.approx(8.0)
    assert probes.gap(9.2, 12.0, [0, 1]) == pytest.approx(3.0)
    assert probes.all_since(8.0, 1)
    assert not probes.all_since(9.2, 1)
    probes.close()


# --- What cannot be done is said ---------------------------------------------------------------


def test_without_root_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(chaos_capabilities.os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit) as ended:
        chaos_main.main(["--seconds", "1", "--json"])
    assert ended.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert found["status"] == "skipped"
    assert "root is needed" in found["reason"]
    with pytest.raises(SystemExit) as ended:
        chaos_main.main(["--seconds", "1"])
    assert ended.value.code == chaos_main.SKIPPED


def test_a_missing_program_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(chaos_capabilities.shutil, "which", lambda _: None)
    for check in (
        chaos_capabilities.check_filter,
        lambda: chaos_capabilities.build_layer(tmp_path),
    ):
        with pytest.raises(chaos_capabilities.MissingError, match="needed"):
            check()
    faults, reasons, layer = chaos_main.usable(["split", "kill_leader", "fsync_error"], tmp_path)
    assert list(faults) == ["kill_leader"]
    assert "nft" in reasons["split"]
    assert "cc" in reasons["fsync_error"]
    assert layer is None


@pytest.mark.parametrize(
    "words",
    [[], ["--seconds", "0"], ["--seconds", "9", "--faults", "rain"],
     ["--seconds", "9", "--faults", "partial"]],
)  # fmt: skip
def test_wrong_arguments_are_refused(words, capsys):
    with pytest.raises(SystemExit) as ended:
        chaos_main.main(words)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_help_names_every_fault(capsys):
    with pytest.raises(SystemExit):
        chaos_main.main(["--help"])
    text = capsys.readouterr().out
    assert all(name in text for name in FAULTS)
