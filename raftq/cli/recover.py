"""`raftq cluster recover`: what is left when a majority is lost for good, and going on from it.

Rule: everything that is decided here is said first, in words that an operator at three in the morning
understands, and confirmed by the node's name or `--yes`. What is known of each group is printed also
where nothing is done: it says which survivor is the one to choose.
"""

import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from raftq.cli.options import JsonOption
from raftq.cli.output import print_json, print_note, print_table, print_text
from raftq.embedded.recovery import METADATA_GROUP, Decision, Holding, Recovery
from raftq.errors import InvalidArgument
from raftq.ids import GroupId

_LOST: Final = (
    "What was acknowledged by the lost majority, and is not on this disk, is lost for good."
)
_UNMARKED: Final = (
    "What is on this disk and was never acknowledged (at most what stands under 'unmarked') is "
    "committed now: messages may appear whose senders heard of no success."
)
_CHOICE: Final = (
    "Among several survivors choose, for each group, the one with the highest 'last term', then the "
    "highest 'last index'."
)
_WHOLE: Final = (
    "The cluster gets a new id and goes on from this node alone. No other node may come back with the "
    "data that it has: it is refused here, but a majority of the others, started by themselves, would "
    "be a cluster too. Empty their directories, then: raftq cluster replace NODE, for each."
)
_SINGLE: Final = (
    "Group 0 must have its majority, and nodes that are lost must have been replaced (raftq cluster "
    "replace NODE): only then the others refuse their old directories."
)


def recover(
    data: Annotated[
        Path,
        typer.Option("--data", help="The data directory of the survivor, whose node is stopped."),
    ],
    group: Annotated[
        list[int] | None,
        typer.Option("--group", min=1, help="A group that lost its majority; may be repeated."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="The whole cluster: group 0, and all groups held here.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what is there and what would be done.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: it has been understood.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Go on from one replica when a majority is lost for good. Data may be lost: read what it says.

    Without `--group` or `--all` it only says what this node holds. The node must be stopped. A
    replica that goes on gets a new id and becomes its group's only voter; the log says so for ever.

    ```
    raftq cluster recover --data raftq-data/n1 --dry-run
    raftq cluster recover --data raftq-data/n1 --all
    ```
    """
    if group and everything:
        raise InvalidArgument("--all takes every group: leave --group out")
    with Recovery(data) as recovery:
        pending = recovery.pending()
        if pending is not None:
            _finish_first(recovery, pending, dry_run=dry_run, as_json=as_json)
            return
        name, holdings = recovery.look()
        wanted = [held.group for held in holdings] if everything else (group or [])
        chosen = [GroupId(number) for number in sorted(set(wanted))]
        if not as_json:
            _show(name, holdings, chosen)
        if chosen:
            recovery.check(chosen)
        if not chosen or dry_run:
            if as_json:
                print_json(_result(name, holdings, None))
            return
        if not yes:
            _confirm(name, as_json=as_json)
        decision = recovery.decide(chosen)
        recovery.finish()
    if as_json:
        print_json(_result(name, holdings, decision))
    else:
        _say_what_next(name, decision)


def _finish_first(recovery: Recovery, pending: Decision, *, dry_run: bool, as_json: bool) -> None:
    groups = [row.group for row in pending.rows]
    if not dry_run:
        recovery.finish()
    if as_json:
        print_json({"recovered": [] if dry_run else groups, "pending": groups if dry_run else []})
    elif dry_run:
        print_text(f"decided before, and finished by the next start: groups {groups}")
    else:
        print_text(f"what had been decided before is finished now: groups {groups}; start the node")


def _show(name: str, holdings: list[Holding], chosen: list[GroupId]) -> None:
    print_text(f"{name} holds:")
    print_table(
        (
            "group",
            "replica",
            "condition",
            "term",
            "last term",
            "last index",
            "commit mark",
            "unmarked",
            "voters",
            "chain",
        ),
        [
            (
                held.group,
                held.replica,
                held.condition,
                held.term,
                held.last_term,
                held.last_index,
                held.commit_index,
                held.unmarked,
                " ".join(map(str, held.membership.voters)),
                held.last_chain.hex()[:16],
            )
            for held in holdings
        ],
    )
    for held in holdings:
        for problem in held.problems:
            print_text(f"group {held.group}: {problem}")
        if held.condition == "amnesiac":
            print_text(
                f"group {held.group}: this replica has forgotten something that it had promised, "
                "perhaps acknowledged messages; the copy that goes on lacks them"
            )
        if held.obstacle:
            print_text(f"group {held.group} cannot go on from here: {held.obstacle}")
    if chosen:
        print_text("")
        for warning in (_LOST, _UNMARKED, _CHOICE, _WHOLE if METADATA_GROUP in chosen else _SINGLE):
            print_text(f"- {warning}")


def _may_ask() -> bool:
    return sys.stdin.isatty()


def _confirm(name: str, *, as_json: bool) -> None:
    if as_json or not _may_ask():
        raise InvalidArgument(
            "nothing was done: it is confirmed by --yes where nobody can be asked"
        )
    print_text("")
    if typer.prompt(f"To go on, type the node's name ({name})").strip() != name:
        raise InvalidArgument("nothing was done: that is not the node's name")


def _say_what_next(name: str, decision: Decision) -> None:
    for row in decision.rows:
        print_text(f"group {row.group} goes on from {name}, as replica {row.replica}")
    print_note("start the node; `raftq cluster status` shows when the groups are led")


def _result(name: str, holdings: list[Holding], decision: Decision | None) -> dict[str, Any]:
    return {
        "node": name,
        "groups": [
            {
                "group": held.group,
                "replica": held.replica,
                "condition": held.condition,
                "term": held.term,
                "first_index": held.first_index,
                "last_index": held.last_index,
                "last_term": held.last_term,
                "last_chain": held.last_chain,
                "commit_index": held.commit_index,
                "unmarked": held.unmarked,
                "voters": held.membership.voters,
                "problems": held.problems,
                "obstacle": held.obstacle,
            }
            for held in holdings
        ],
        "recovered": [{"group": row.group, "replica": row.replica} for row in decision.rows]
        if decision is not None
        else [],
        "cluster": f"{decision.cluster:032x}" if decision is not None and decision.cluster else "",
    }
