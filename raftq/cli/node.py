"""`raftq node`: one node of a cluster, in this process."""

import asyncio
import signal
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from raftq.cli.node_settings import NodeSettings, load_settings
from raftq.cli.options import note_json
from raftq.cli.output import print_error, print_json
from raftq.cli.parent import exit_with_parent
from raftq.embedded import Node
from raftq.env import loop
from raftq.errors import InvalidArgument
from raftq.observability import logs

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


def _option(variable: str, text: str, **more: Any) -> Any:
    """An option that may also stand in the environment."""
    return typer.Option(envvar=f"RAFTQ_{variable}", help=text, show_default=False, **more)


NameOption = Annotated[str | None, _option("NAME", "This node's name, the same for ever.")]
DataOption = Annotated[str | None, _option("DATA", "Its data directory, its alone.")]
ListenOption = Annotated[
    str | None, _option("LISTEN", "HOST:PORT for clients.  [default: 127.0.0.1:7400]")
]
PeerListenOption = Annotated[
    str | None,
    _option(
        "PEER_LISTEN",
        "HOST:PORT for the other nodes: where --cluster says, unless it is a cluster of one.",
    ),
]
AdminListenOption = Annotated[
    str | None, _option("ADMIN_LISTEN", "HOST:PORT for /health and /metrics; without, none.")
]
ClusterOption = Annotated[
    str | None,
    _option(
        "CLUSTER",
        "The founding nodes, NAME=HOST:PEERPORT,...; the same list on every node. A data directory "
        "that belongs to a cluster ignores it.",
    ),
]
GroupsOption = Annotated[
    int | None,
    _option("GROUPS", "Raft groups of a new cluster.  [default: as many as nodes]", min=0),
]
ConfigOption = Annotated[Path | None, _option("CONFIG", "A TOML file with these options as keys.")]


def node(
    name: NameOption = None,
    data: DataOption = None,
    listen: ListenOption = None,
    peer_listen: PeerListenOption = None,
    admin_listen: AdminListenOption = None,
    cluster: ClusterOption = None,
    groups: GroupsOption = None,
    config: ConfigOption = None,
    log_level: Annotated[LogLevel, typer.Option(envvar="RAFTQ_LOG_LEVEL")] = "INFO",
    log_json: Annotated[
        bool, typer.Option("--log-json", envvar="RAFTQ_LOG_JSON", help="Log lines of JSON.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print an object when listening, another at the end.",
            callback=note_json,
        ),
    ] = False,
    with_parent: Annotated[bool, typer.Option("--exit-with-parent", hidden=True)] = False,
) -> None:
    r"""Run one node until SIGTERM or Ctrl-C, which hand its leaderships over first.

    A cluster of three, one command on each machine, with the same --cluster:

    ```
    raftq node --name n1 --data data/n1 --listen 10.0.0.1:7400 --admin-listen 10.0.0.1:7600 \
        --cluster n1=10.0.0.1:7500,n2=10.0.0.2:7500,n3=10.0.0.3:7500
    ```

    From a file, whose keys are the options (name = "n1", admin_listen = "...", [cluster] a table):

    ```
    raftq node --config /etc/raftq/n1.toml
    ```

    For trying things out on one machine, see `raftq dev`.
    """
    if with_parent:
        exit_with_parent()
    settings = load_settings(
        config,
        {
            "name": name,
            "data": data,
            "listen": listen,
            "peer_listen": peer_listen,
            "admin_listen": admin_listen,
            "cluster": cluster,
            "groups": groups,
        },
    )
    made = make_node(settings)
    logs.configure(level=log_level, json=log_json)
    # A parent learns on standard output when the ports are open.
    raise typer.Exit(loop.run(_serve(made, as_json=as_json or with_parent), server=True))


def make_node(settings: NodeSettings) -> Node:
    """The node of these settings, not started.

    Raises: InvalidArgument.
    """
    return Node(
        settings.name,
        data=settings.data,
        listen=settings.listen,
        members=settings.members(),
        admin_listen=settings.admin_listen,
        groups=settings.groups,
        labels=settings.labels,
    )


async def _serve(node: Node, *, as_json: bool) -> int:
    """Run until a signal or a failure; the exit status."""
    running = asyncio.get_running_loop()
    signalled: asyncio.Future[None] = running.create_future()

    def stop() -> None:
        if not signalled.done():
            signalled.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        running.add_signal_handler(number, stop)
    try:
        await node.start()
    except OSError as error:
        raise InvalidArgument(
            f"node {node.name} cannot start: {error}; is the address in use?"
        ) from error
    if as_json:
        print_json(
            {"node": node.name, "listen": node.client_address, "admin_listen": node.admin_address}
        )
    failed = asyncio.ensure_future(node.failed())
    failed.add_done_callback(lambda _: stop())
    await signalled
    if failed.done():
        print_error("NodeFailed", f"node {node.name} has stopped: {failed.result()}")
        return 1
    failed.cancel()
    await node.stop()
    if as_json:
        print_json({"node": node.name, "stopped": True})
    return 0
