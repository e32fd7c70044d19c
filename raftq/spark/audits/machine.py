"""Do the machines of all replicas come to the same state?

Equal logs do not prove it: a machine that iterates a set comes to a state that depends on its
process. So each node's logs are replayed in a process with a hash seed of its own, and the digests
of the machines are compared at equal indexes. This is the one audit that is no query: a log is
replayed in order. It looks at the groups of queues, up to what all replicas hold, and no further
than `entries_max` entries a group.

Where a replica has let go of its beginning, or of bodies, its machine is made from a snapshot behind
that. The replicas are compared from the first index on at which all of them can begin; what came
before is said to be gone.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from raftq.ids import METADATA_GROUP, Index
from raftq.limits import CHECKPOINT_ENTRIES
from raftq.spark.machine_replay import starts
from raftq.spark.plan import Planned
from raftq.spark.report import Finding
from raftq.spark.session import python_path

NAME: Final = "machine"
REPLAY: Final = ("-m", "raftq.spark.machine_replay")
"""What the Python of each node is told to run."""


class MachineAnswer(NamedTuple):
    """Findings, and how many entries were replayed on all nodes together."""

    findings: list[Finding]
    checked: int
    compared: int


def machine(
    planned: Sequence[Planned], *, entries_max: int, every: int = CHECKPOINT_ENTRIES
) -> MachineAnswer:
    """Replays all nodes at once, each in its own process.

    Raises: OSError, subprocess.SubprocessError when a process cannot be started or dies.
    """
    work: dict[str, list[dict[str, object]]] = {}
    checked = 0
    found: list[Finding] = []
    by_group: dict[int, list[Planned]] = {}
    for one in planned:
        if one.group != METADATA_GROUP:
            by_group.setdefault(one.group, []).append(one)
    for group, members in by_group.items():
        possible = _possible(members, found)
        common = max((begins[0] for _, begins in possible), default=Index(0))
        stop = min([common + entries_max, *(member.marked_through for member, _ in possible)])
        if stop <= common:
            if common:
                detail = NOTHING_IN_COMMON.format(stop, common)
                found.append(_finding(None, group, detail, is_note=True))
            continue
        for member, begins in possible:
            # The longer way proves more: it comes to what the snapshots of others say.
            begins = [at for at in begins if at <= common]
            own_start = next((at for at in begins if stop - at <= entries_max), begins[-1])
            item = {
                "group": group,
                "directory": str(member.directory),
                "start": own_start,
                "common": common,
                "stop": stop,
                "every": every,
            }
            work.setdefault(member.node, []).append(item)
            checked += stop - own_start
    return _compared(_replayed(work), checked, found)


NOTHING_IN_COMMON: Final = (
    "the replicas have nothing in common that can be replayed: one ends at entry {}, another begins "
    "with its snapshot at {}"
)


def _possible(members: list[Planned], found: list[Finding]) -> list[tuple[Planned, list[Index]]]:
    """The replicas that can be replayed, and from where; the findings get what is to be said of it."""
    possible = []
    for member in members:
        begins = starts(member.directory, member.replica)
        if not begins:
            detail = NO_START.format(member.replica.first_index)
            found.append(_finding(member.node, member.group, detail))
            continue
        possible.append((member, begins))
        if begins[0]:
            detail = (
                f"can be replayed from its snapshot at entry {begins[0]} on: what led to it is gone"
            )
            found.append(_finding(member.node, member.group, detail, is_note=True))
    return possible


NO_START: Final = (
    "cannot be replayed: history begins at entry {}, and there is no sound snapshot at or behind what "
    "was let go of"
)


def _replayed(work: dict[str, list[dict[str, object]]]) -> dict[str, list[dict[str, Any]]]:
    """What the process of each node told."""

    def replay(numbered: tuple[int, str]) -> list[dict[str, Any]]:
        seed, node = numbered
        variables = {"PYTHONHASHSEED": str(seed), "PYTHONPATH": python_path() or ""}
        done = subprocess.run(  # noqa: S603 - our own interpreter and module.
            [sys.executable, *REPLAY],
            input=json.dumps(work[node]),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env=os.environ | variables,
        )
        return [json.loads(line) for line in done.stdout.splitlines()]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(work, pool.map(replay, enumerate(work, 1)), strict=True))


def _compared(
    told: dict[str, list[dict[str, Any]]], checked: int, found: list[Finding]
) -> MachineAnswer:
    digests: dict[tuple[int, int], dict[str, str]] = {}
    for node, lines in told.items():
        for line in lines:
            if "problem" in line:
                detail = f"the log cannot be replayed: {line['problem']}"
                found.append(_finding(node, line["group"], detail))
            else:
                place = (line["group"], line["index"])
                digests.setdefault(place, {})[node] = line["digest"]
    diverged: set[int] = set()
    compared = 0
    for (group, index), by_node in sorted(digests.items()):
        compared += len(by_node) > 1
        if len(set(by_node.values())) > 1 and group not in diverged:
            # From here on all later ones differ too.
            diverged.add(group)
            states = ", ".join(f"{node} has {digest}" for node, digest in sorted(by_node.items()))
            detail = f"the machines differ at entry {index}, or before: {states}"
            found.append(_finding(None, group, detail))
    return MachineAnswer(found, checked, compared)


def _finding(node: str | None, group: int, detail: str, *, is_note: bool = False) -> Finding:
    return Finding(
        audit=NAME,
        is_note=is_note,
        node=node,
        group=group,
        queue=None,
        partition=None,
        offset=None,
        detail=detail,
    )
