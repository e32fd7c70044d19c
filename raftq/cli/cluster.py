"""`raftq cluster`: how the nodes and their groups are, and whose places others take."""

from typing import Annotated, Any

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
from raftq.cli.recover import recover

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="How the nodes and their groups are; replacing a node; going on without a majority.",
)
app.command()(recover)


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
    for node in found["nodes"]:
        if node.get("replacement"):
            print_text(
                f"{node['name']}: a new, empty data directory asks to take its place: "
                f"raftq cluster replace {node['name']}"
            )
    for change in found.get("changing", ()):
        what = "catches up, then votes" if change["created"] else "is being made"
        print_text(f"group {change['group']}: a new replica on {change['node']} {what}")
    for group in found.get("void", ()):
        print_text(
            f"group {group} was recovered on {found['node']} in vain: it has gone on elsewhere"
        )
    for directory in found.get("moved_aside", ()):
        print_text(f"{found['node']} keeps {directory}: it counts no more; remove it when you like")
    print_text("")
    print_table(
        ("group", "leader", "role here", "term", "commit", "applied", "behind", "note"),
        [_group_row(group) for group in found["groups"]],
    )


@app.command()
def replace(
    node: Annotated[str, typer.Argument(help="The name of the node that is gone.")],
    url: UrlOption = DEFAULT_URL,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    as_json: JsonOption = False,
) -> None:
    """Let a new, empty data directory take the place of a node whose own is gone.

    Start a node of the same name and peer address, with an empty `--data`, first. The old directory
    is refused from then on, for ever; the new one votes when it has caught up.

    ```
    raftq cluster replace n3
    raftq cluster status
    ```
    """
    groups = with_client(Servers(url, timeout), lambda client: client.replace_node(node))
    if as_json:
        print_json({"node": node, "groups": groups})
        return
    print_text(
        f"node {node} is being replaced, in {len(groups)} groups; "
        "`raftq cluster status` says when all have changed"
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
