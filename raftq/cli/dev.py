"""`raftq dev`: a cluster on this machine, one process per node, until Ctrl-C."""

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer

from raftq.cli.options import JsonOption
from raftq.cli.output import print_error, print_json, print_note, print_text
from raftq.cli.processes import Processes
from raftq.env import loop

_LOOK_SECONDS = 0.5
_PATIENCE_SECONDS = 4.0
"""A cluster is ready in less, usually."""

_MAJORITY_SECONDS = 8.0
"""Then a majority will do: what it keeps the others from is said before."""


def dev(
    nodes: Annotated[int, typer.Option(min=1, max=9, help="How many nodes.")] = 3,
    data: Annotated[
        Path, typer.Option(help="Where their data goes; used again when started again.")
    ] = Path("raftq-data"),
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65_000,
            help="The first node's port for clients; the others follow. Peers listen 100 above, "
            "health and metrics 200 above. 0: any free ports.",
        ),
    ] = 7400,
    as_json: JsonOption = False,
) -> None:
    """Run a cluster on this machine for development. Ctrl-C stops it.

    ```
    raftq dev --nodes 3 --data ./raftq-data
    ```

    Prints the URL once the cluster is ready. In another terminal:

    ```
    raftq queue create orders --partitions 4
    raftq send orders "hello"
    raftq receive orders
    ```
    """
    raise typer.Exit(loop.run(_run(Processes(nodes, data=data, port=port), as_json=as_json)))


async def _run(processes: Processes, *, as_json: bool) -> int:
    running = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        running.add_signal_handler(number, stop.set)
    starting = asyncio.ensure_future(processes.start(patience=_MAJORITY_SECONDS))
    stopping = asyncio.ensure_future(stop.wait())
    saying = asyncio.ensure_future(_say_what_is_missing(processes))
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    saying.cancel()
    await asyncio.gather(saying, return_exceptions=True)
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return 0
    starting.result()
    _say_where(processes, as_json=as_json)
    gone: list[str] = []
    while not stop.is_set():
        await asyncio.wait({stopping}, timeout=_LOOK_SECONDS)
        for name in processes.names:
            if name not in gone and not processes.is_running(name):
                gone.append(name)
                print_error("NodeFailed", processes.last_words(name))
        if len(gone) == len(processes.names):
            print_note("no node is left")
            break
    if not as_json and stop.is_set():
        print_note("stopping")
    await processes.stop()
    return 1 if gone else 0


async def _say_what_is_missing(processes: Processes) -> None:
    """While the cluster does not get ready: which node is why, and what to do; each reason once."""
    said: dict[str, list[str]] = {}
    while True:
        await asyncio.sleep(_PATIENCE_SECONDS)
        for name in processes.names:
            if not processes.is_running(name):
                continue
            reasons = await processes.not_ready(name)
            if reasons and said.get(name) != reasons:
                said[name] = reasons
                print_note(
                    f"{name} is not ready: {'; '.join(reasons)}. If its data is gone, let the new "
                    f"directory take its place, once the others are ready: raftq cluster replace {name}. "
                    f"Else see {processes.log_path(name)}"
                )


def _say_where(processes: Processes, *, as_json: bool) -> None:
    if as_json:
        rows = [
            {
                "name": name,
                "process": processes.process_id(name),
                "data": str(processes.directory(name)),
                "log": str(processes.log_path(name)),
                **processes.addresses[name]._asdict(),
            }
            for name in processes.names
        ]
        print_json({"url": processes.url, "data": str(processes.data), "nodes": rows})
        return
    print_text(processes.url)
    print_note(f"data and logs are in {processes.data}; Ctrl-C stops the cluster")
