"""The faults of disks and clocks, and the combination that broke other systems.

Rules are those of `chaos_faults`. In addition: a disk fails one node at a time, but for a power loss,
which may take all of them.
"""

import os
import time
from pathlib import Path

from chaos_faults import Fault
from chaos_network import between
from chaos_power import lose_power
from chaos_stage import NANO, RECOVER_SECONDS, Stage, ViolationError

from raftq.storage.segment import SEGMENT_HEADER_BYTES, is_segment

START_SECONDS = STOP_SECONDS = 10.0
FAILED = 1
"""Exit status of a node that stopped because its disk failed."""

RESERVE_LEFT_BYTES = 24 << 20
"""Free space that is less than the reserve below which publishes are refused, and not nothing."""

CLOCK_SECONDS = (0.3, 1.0, 5.0, 60.0, 3_600.0, 86_400.0, 10 * 365 * 86_400.0)


async def _some_node(stage: Stage) -> str:
    return (await stage.leader())[0] if stage.choose.random() < 0.6 else stage.any_node()


async def fsync_error(stage: Stage) -> None:
    """One sync fails. The node must not go on: what the disk holds is not known any more."""
    victim = await _some_node(stage)
    layer = stage.nodes.layers[victim]
    stage.say(f"one sync of {victim} fails with EIO")
    layer.set(sync_errors=1)
    status = await stage.ended(victim, STOP_SECONDS)
    if not layer.get("sync_errors_given"):
        raise ViolationError(f"{victim} ended with status {status} before a sync failed")
    if status != FAILED:
        raise ViolationError(f"{victim} ended with status {status} after a failed sync, not 1")
    layer.set(sync_errors_given=0)
    await stage.seconds(0.2, 1.0)


async def write_error(stage: Stage) -> None:
    victim = await _some_node(stage)
    stage.say(f"one write of {victim} fails with EIO")
    stage.nodes.layers[victim].set(write_errors=1)
    status = await stage.ended(victim, STOP_SECONDS)
    if status != FAILED:
        raise ViolationError(f"{victim} ended with status {status} after a failed write, not 1")
    await stage.seconds(0.2, 1.0)


async def spare_error(stage: Stage) -> None:
    """Nothing was promised of a segment that is only being prepared: going on is as good as stopping."""
    victim = await _some_node(stage)
    stage.say(f"the next segment that {victim} prepares fails with EIO")
    stage.nodes.layers[victim].set(spares=1, write_errors=1)
    await stage.seconds(2.0, 5.0)


async def fsync_stall(stage: Stage) -> None:
    victim = await _some_node(stage)
    seconds = stage.choose.choice((0.1, 0.3, 1.0, 3.0))
    stage.say(f"syncs of {victim} take {seconds:g} s")
    stage.nodes.layers[victim].set(sync_stall_until=stage.until(seconds))
    await stage.seconds(seconds, seconds + 0.5)


async def write_stall(stage: Stage) -> None:
    victim = await _some_node(stage)
    seconds = stage.choose.choice((0.1, 0.3, 1.0))
    stage.say(f"writes of {victim} take {seconds:g} s")
    stage.nodes.layers[victim].set(write_stall_until=stage.until(seconds))
    await stage.seconds(seconds, seconds + 0.5)


async def disk_full(stage: Stage) -> None:
    """Below the reserve publishes are refused; with no byte left a node may also stop itself."""
    victim = await _some_node(stage)
    left = stage.choose.choice((RESERVE_LEFT_BYTES, 0))
    ballast = stage.nodes.directory(victim) / "ballast"
    facts = os.statvfs(stage.nodes.directory(victim))
    stage.say(f"{victim} has {left >> 20} MiB of disk left")
    file = os.open(ballast, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        _fill(file, facts.f_bavail * facts.f_frsize - left)
        await stage.seconds(1.5, 3.0)
    finally:
        os.close(file)
        ballast.unlink()
    status = stage.nodes.exit_status(victim)
    if status is not None:
        stage.say(f"{victim} stopped itself with status {status}")
        if status != FAILED:
            raise ViolationError(f"{victim} ended with status {status} on a full disk, not 1")


def _fill(file: int, size: int) -> None:
    """Take so many bytes; what is not there any more is not taken."""
    done, step = 0, 8 << 20
    while done < size:
        try:
            os.posix_fallocate(file, done, min(step, size - done))
        except OSError:
            if step <= 4096:
                return
            step //= 8
            continue
        done += min(step, size - done)


async def clock_jump(stage: Stage) -> None:
    victim = await _some_node(stage)
    seconds = stage.choose.choice(CLOCK_SECONDS) * stage.choose.choice((-1, 1))
    stage.say(f"the wall clock of {victim} jumps by {seconds:g} s")
    stage.nodes.layers[victim].set(clock_offset=round(seconds * NANO))
    await stage.seconds(1.5, 4.0)
    stage.say(f"the wall clock of {victim} jumps back")


async def power_loss(stage: Stage) -> None:
    """What was not synced may be gone, in whole or in parts."""
    kind = stage.choose.choice(("one", "one", "most", "all"))
    victims = stage.others()
    if kind == "one":
        victims = [(await stage.leader())[0] if stage.choose.random() < 0.5 else victims[0]]
    elif kind == "most":
        victims = victims[: len(victims) // 2 + 1]
    await _let_writes_pile_up(stage, victims)
    stage.say(f"power loss of {'+'.join(sorted(victims))}")
    for name in victims:
        stage.nodes.kill(name)
    for name in victims:
        stage.say(lose_power(stage, name))
    await stage.seconds(0.0, 1.0)
    for name in victims:
        stage.start_healed(name)


async def _let_writes_pile_up(stage: Stage, victims: list[str]) -> None:
    """Often: a disk that has just synced loses nothing. The stall outlasts the wait."""
    if stage.choose.random() < 0.7:
        stage.say(f"syncs of {'+'.join(sorted(victims))} stall")
        for name in victims:
            stage.nodes.layers[name].set(sync_stall_until=stage.until(5.0))
        await stage.seconds(0.02, 0.5)


async def combined(stage: Stage) -> None:
    """A leader is paused, a follower loses power, and the rest is divided while both come back."""
    leader, group = await stage.leader()
    follower, *rest = stage.others(leader)
    stage.say(f"SIGSTOP {leader}, leader of group {group}; power loss of {follower}")
    stage.nodes.pause(leader)
    await _let_writes_pile_up(stage, [follower])
    stage.nodes.kill(follower)
    stage.say(lose_power(stage, follower))
    stage.start_healed(follower)
    await stage.seconds(0.0, 1.0)
    stage.say(f"{follower} | {'+'.join(rest)}; SIGCONT {leader}")
    stage.cut(between([follower], rest))
    stage.nodes.resume(leader)
    await stage.seconds(1.0, 2.5)
    stage.say(f"{leader} | {'+'.join(rest)}")
    stage.cut(between([leader], rest))
    await stage.seconds(1.0, 2.5)


async def bit_flip(stage: Stage) -> None:
    """One bit of one file of one stopped node: in a sealed segment, or in an index file."""
    victim = stage.any_node()
    # Every start begins a new segment, so the one before it is sealed.
    stage.nodes.kill(victim)
    stage.nodes.start_node(victim)
    await stage.ready(victim, time.monotonic() + RECOVER_SECONDS)
    await stage.nodes.terminate(victim)
    stage.say(f"{victim} stopped")
    path, size = _old_file(stage, stage.nodes.directory(victim))
    position = stage.choose.randrange(SEGMENT_HEADER_BYTES, size)
    bit = 1 << stage.choose.randrange(8)
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ bit]))
    name = path.relative_to(stage.nodes.data)
    stage.say(f"bit {bit:#04x} flipped at {position} of {size} in {name}")
    stage.damaged[victim] = str(name)
    stage.nodes.start_node(victim)
    deadline = time.monotonic() + START_SECONDS
    while (await stage.nodes.ask_node(victim, {"do": "status"})) is None:
        if time.monotonic() > deadline or not stage.nodes.is_running(victim):
            break
    await stage.seconds(1.0, 2.0)
    reasons = await stage.nodes.not_ready(victim)
    if stage.nodes.is_running(victim):
        stage.say(f"{victim} says: {'; '.join(reasons) or 'ready'}")
    else:
        stage.say(stage.nodes.last_words(victim))


def _old_file(stage: Stage, directory: Path) -> tuple[Path, int]:
    """A file that nobody writes any more, and how many bytes of it mean something."""
    found = []
    for group in sorted(directory.glob("group-*")):
        segments = sorted(path for path in group.iterdir() if is_segment(path.name))
        for path in segments[:-1]:
            size = len(path.read_bytes().rstrip(b"\0"))
            if size > 2 * SEGMENT_HEADER_BYTES:
                found.append((path, size))
        found += [
            (path, path.stat().st_size)
            for path in sorted(group.glob("*.index"))
            if path.stat().st_size > 2 * SEGMENT_HEADER_BYTES
        ]
    if not found:
        raise ViolationError(f"{directory} has no sealed segment yet: give the run more time")
    return stage.choose.choice(found)


DISK_FAULTS: dict[str, Fault] = {
    "fsync_error": Fault(fsync_error, ("layer",), "one sync fails with EIO; the node must stop"),
    "write_error": Fault(write_error, ("layer",), "one write fails with EIO; the node must stop"),
    "spare_error": Fault(spare_error, ("layer",), "preparing a segment ahead fails with EIO"),
    "fsync_stall": Fault(fsync_stall, ("layer",), "syncs of a node take up to 3 s"),
    "write_stall": Fault(write_stall, ("layer",), "writes of a node take up to 1 s"),
    "disk_full": Fault(disk_full, ("disks",), "a node's disk below its reserve, or full"),
    "clock_jump": Fault(clock_jump, ("layer",), "a node's wall clock off by 0.3 s to 10 years"),
    "power_loss": Fault(
        power_loss, ("layer",), "one node, most or all lose what was not synced, or a part of it"
    ),
    "combined": Fault(
        combined, ("layer", "filter"), "leader paused, follower loses power, partition"
    ),
    "bit_flip": Fault(
        bit_flip,
        (),
        "a bit flips in an old file of a stopped node (once, in the end)",
        is_last=True,
    ),
}
