"""`raftq cluster`: how the nodes and their groups are."""

from typing import Any

import typer

from raftq.cli.connect import with_client
from raftq.cli.options import (
    DEFAULT_TIMEOUT,
    DEFAULT_URL,
    JsonOption,
    Servers,
    TimeoutOption,
    UrlOption,
)
from raftq.cli.output import print_json, print_table, print_text

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="How the nodes and their groups are."
)


@app.callback()
def cluster() -> None:
    """A group of commands, although it has one so far."""


@app.command()
def status(
    url: UrlOption = DEFAULT_URL,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    as_json: JsonOption = False,
) -> None:
    """Show nodes, groups and leaders, as the node that answers sees them.

    ```
    raftq cluster status
    raftq cluster status --url raftq://127.0.0.1:7402 --json | jq .groups
    ```
    """
    found = with_client(Servers(url, timeout), lambda client: client.status())
    if as_json:
        print_json(found)
        return
    print_text(
        f"cluster {found['cluster'] or '(not begun)'}, raftq {found['version']}, "
        f"{found['queues']} queues, as {found['node']} sees it"
    )
    if found.get("problem"):
        print_text(f"problem: {found['problem']}")
    print_table(
        ("node", "clients", "peers", "up"),
        [(node["name"], node["client"], node["peer"], node["up"]) for node in found["nodes"]],
    )
    print_text("")
    print_table(
        ("group", "leader", "role here", "term", "commit", "applied", "behind", "note"),
        [_group_row(group) for group in found["groups"]],
    )


def _group_row(group: dict[str, Any]) -> tuple[object, ...]:
    behind = [
        f"{replica['node']}:{group['last_index'] - replica['match_index']}"
        for replica in group["replicas"]
        if replica["match_index"] is not None and replica["match_index"] < group["last_index"]
    ]
    return (
        group["group"],
        group["leader"],
        group["role"],
        group["term"],
        group["commit_index"],
        group["applied_index"],
        " ".join(behind) or "-",
        group["health"],
    )
