"""tools/chaos: real raftq processes, real faults, and proof that nothing that was promised is lost.

Theory of operation. This process only watches: it makes namespaces of its own and starts itself once
more as their first process. That one builds a network (a namespace for each node and for the clients),
starts nodes and clients, injects faults and judges. When it ends, for whatever reason, the kernel
ends everything in its namespaces: nothing can be left behind but the directory of a failed run.

Exit status: 0 without violation; 1 with; 2 for wrong arguments; 77 when nothing could be run, or 0
with --json, where the object says {"status": "skipped"}; 130 after Ctrl-C or SIGTERM.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import chaos_capabilities as capabilities
from chaos_capabilities import MissingError
from chaos_disk_faults import DISK_FAULTS
from chaos_faults import FAULTS, Fault
from chaos_network import Network
from chaos_nodes import Nodes
from chaos_report import as_object, as_text
from chaos_run import Run

from raftq.env import loop

ALL: dict[str, Fault] = FAULTS | DISK_FAULTS
AROUND_SECONDS = 60.0
SMALL_DISK_BYTES = 1 << 30
SKIPPED, INTERRUPTED = 77, 130

EPILOG = """
faults (all but those that need five nodes, unless --faults says otherwise):

{faults}

examples:

  tools/chaos --seconds 60                          everything that this machine allows
  tools/chaos --seconds 60 --seed 7 --json          the same faults again, for a script
  tools/chaos --seconds 90 --faults kill_leader     how long does a killed leader hurt?
  tools/chaos --seconds 60 --nodes 5 --faults partial,bridge,split
  tools/chaos --seconds 60 --keep /var/tmp/look     keep data, logs and histories to look at

The table says for each fault how many messages were acknowledged, lost and stored twice, and for how
long a partition accepted nothing: from one successful publish to the next, with one publish every ten
milliseconds. Exit status 0 only without any violation. It needs root, and says what else is missing:
nft for partitions, cc for disk and clock faults, mkfs.ext4 and loop devices for full disks.
"""


def arguments_of(words: list[str]) -> argparse.Namespace:
    faults = "\n".join(f"  {name:<15} {fault.text}" for name, fault in ALL.items())
    parser = argparse.ArgumentParser(
        prog="tools/chaos",
        description="A raftq cluster of real processes, real faults drawn from a seed, and checks "
        "that nothing acknowledged is lost, doubled or out of order.",
        epilog=EPILOG.format(faults=faults),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, required=True, help="how long faults come")
    parser.add_argument("--seed", type=int, help="what to draw them from; drawn itself if left out")
    parser.add_argument("--faults", help="names with commas between them; see below")
    parser.add_argument("--nodes", type=int, choices=(3, 5), default=3)
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep everything there")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    found = parser.parse_args(words)
    if not 1 <= found.seconds <= 86_400:
        parser.error("--seconds is 1 to 86400")
    names = found.faults.split(",") if found.faults else list(ALL)
    for name in names:
        if name not in ALL:
            parser.error(f"there is no fault {name!r}; there are {', '.join(ALL)}")
        if found.faults and ALL[name].nodes_least > found.nodes:
            parser.error(f"{name} needs --nodes {ALL[name].nodes_least}")
    found.names = [name for name in names if ALL[name].nodes_least <= found.nodes]
    keep = found.keep if found.inside is None else None
    if keep is not None and keep.exists() and any(keep.iterdir()):
        parser.error(f"{keep} is not empty")
    return found


# --- Outside -----------------------------------------------------------------------------------


def skip(reason: str, *, as_json: bool) -> NoReturn:
    """Nothing can be run here."""
    if as_json:
        print(json.dumps({"status": "skipped", "reason": reason}), flush=True)
    print(f"tools/chaos: skipped: {reason}", file=sys.stderr)
    sys.exit(0 if as_json else SKIPPED)


def watch(wanted: argparse.Namespace, words: list[str]) -> int:
    """Start the run in namespaces of its own, pass signals on, and tidy up behind it."""
    reason = capabilities.missing_for_all()
    if reason is not None:
        skip(reason, as_json=wanted.json)
    if wanted.seed is None:
        words = [*words, "--seed", str(random.randrange(1 << 31))]
    if wanted.keep is not None:
        wanted.keep.mkdir(parents=True, exist_ok=True)
        place = wanted.keep.resolve()
    else:
        place = Path(tempfile.mkdtemp(prefix=f"raftq-chaos-{os.getpid()}-"))
    capabilities.enter(processes=True)
    command = [sys.executable, __file__, *words, "--inside", str(place)]
    # A session of its own: Ctrl-C reaches the run through this process alone, once.
    # No threads exist yet, so running code in the child is safe.
    inside = subprocess.Popen(
        command,
        start_new_session=True,
        preexec_fn=_end_with_parent,  # noqa: PLW1509
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: inside.send_signal(signal.SIGTERM))
    status = inside.wait()
    if wanted.keep is None and status in {0, SKIPPED, INTERRUPTED}:
        shutil.rmtree(place, ignore_errors=True)
    return status if status >= 0 else INTERRUPTED


def _end_with_parent() -> None:
    """Linux: SIGKILL to this process when the one that started it is gone."""
    capabilities.ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


# --- Inside ------------------------------------------------------------------------------------


def usable(names: list[str], place: Path) -> tuple[dict[str, Fault], dict[str, str], Path | None]:
    """The faults that can be had, those that cannot and why, and the fault layer."""
    needs = {need for name in names for need in ALL[name].needs}
    missing: dict[str, str] = {}
    layer: Path | None = None
    try:
        layer = capabilities.build_layer(place)
    except MissingError as error:
        missing["layer"] = str(error)
    for need, check in (
        ("filter", capabilities.check_filter),
        ("disks", lambda: capabilities.check_small_disks(place)),
    ):
        if need in needs:
            try:
                check()
            except MissingError as error:
                missing[need] = str(error)
    reasons = {name: missing[need] for name in names for need in ALL[name].needs if need in missing}
    faults = {name: ALL[name] for name in names if name not in reasons}
    return faults, reasons, layer


def run_inside(wanted: argparse.Namespace) -> int:
    place = Path(wanted.inside)
    capabilities.enter_mounts()
    subprocess.run(["mount", "-t", "proc", "proc", "/proc"], check=True)
    faults, missing, layer = usable(wanted.names, place)
    if not faults:
        skip("; ".join(sorted(set(missing.values()))), as_json=wanted.json)
    network = Network([f"n{number}" for number in range(1, wanted.nodes + 1)])
    network.can_filter = any("filter" in fault.needs for fault in faults.values())
    network.build()
    data = place / "data"
    data.mkdir()
    recording = any(name in faults for name in ("power_loss", "combined"))
    nodes = Nodes(wanted.nodes, data=data, network=network, layer=layer, recording=recording)
    if "disk_full" in faults:
        for name in nodes.names:
            nodes.directory(name).mkdir()
            image = place / f"{name}.image"
            capabilities.make_small_disk(image, nodes.directory(name), size=SMALL_DISK_BYTES)
    report = loop.run(_run(wanted, faults, missing, nodes, network, place))
    if report["violations"] or wanted.keep is not None:
        _keep(place, nodes)
        (place / "report.json").write_text(json.dumps(report, indent=2))
    print(json.dumps(report) if wanted.json else as_text(report), flush=True)
    return 1 if report["violations"] else 0


async def _run(
    wanted: argparse.Namespace,
    faults: dict[str, Fault],
    missing: dict[str, str],
    nodes: Nodes,
    network: Network,
    place: Path,
) -> dict[str, Any]:
    running, this = asyncio.get_running_loop(), asyncio.current_task()
    assert this is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        running.add_signal_handler(number, this.cancel)
    progress = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731 - one line.
    progress(
        f"tools/chaos: seed {wanted.seed}, {wanted.nodes} nodes, {wanted.seconds:g} s of "
        f"{', '.join(faults)}"
    )
    for name, reason in missing.items():
        progress(f"tools/chaos: {name} is skipped: {reason}")
    run = Run(
        seed=wanted.seed,
        seconds=wanted.seconds,
        faults=faults,
        nodes=nodes,
        network=network,
        work=place,
        progress=progress,
    )
    outcome = run.outcome
    try:
        async with asyncio.timeout(wanted.seconds + AROUND_SECONDS):
            await run.run()
    except TimeoutError:
        outcome.verdict.add(
            f"the run did not end within {AROUND_SECONDS:g} s of its time of faults"
        )
    kept = str(place) if outcome.verdict.violations or wanted.keep is not None else ""
    report = as_object(
        outcome,
        seed=wanted.seed,
        nodes=wanted.nodes,
        seconds=wanted.seconds,
        missing=missing,
        kept=kept,
    )
    if wanted.faults:
        report["repeat"] += f" --faults {wanted.faults}"
    return report


def _keep(place: Path, nodes: Nodes) -> None:
    """What would vanish with the mounts is copied."""
    for image in place.glob("*.image"):
        name = image.stem
        shutil.copytree(nodes.directory(name), place / "disks" / name)
        subprocess.run(["umount", nodes.directory(name)], check=False)
        nodes.directory(name).rmdir()
        (place / "disks" / name).rename(nodes.directory(name))
        image.unlink()


def main(words: list[str]) -> int:
    wanted = arguments_of(words)
    if wanted.inside is None:
        return watch(wanted, words)
    try:
        return run_inside(wanted)
    except (asyncio.CancelledError, KeyboardInterrupt):
        print("tools/chaos: interrupted; everything has been taken down", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
