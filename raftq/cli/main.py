"""The commands together, and how an error ends one: a line on standard error, and a status."""

import sys
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from raftq import __version__
from raftq.cli import audit, bench, cluster, dead, demo, dev, log, messages, node, queue, simulate
from raftq.cli.options import wants_json
from raftq.cli.output import print_failure
from raftq.errors import RaftqError

FAILED = 1
INTERRUPTED = 130


class Commands(TyperGroup):
    """The top of the command tree: what leaves it as an exception becomes a line and a status."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # Whoever read the output has left: typer ends the process silently.
        except (RaftqError, OSError) as error:
            print_failure(error, as_json=wants_json(ctx))
            raise typer.Exit(FAILED) from error
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    name="raftq",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="""Durable queues that you can prove: a Raft-replicated log store with a queue layer.

    Start with a cluster on this machine, then use it from another terminal:

    ```
    raftq dev
    raftq queue create orders --partitions 4
    raftq send orders "hello"
    raftq receive orders
    ```

    Every command has --help with examples, and --json for machines. The cluster is named by --url
    or RAFTQ_URL. An error is a line on standard error, with --json an object with its `outcome`: "unknown"
    means that it may have been done. Exit status: 0 done, 1 failed, 2 not understood.
    """,
)


def _version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"raftq {__version__}\n")
        raise typer.Exit


@app.callback()
def top(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Options of the program itself are handled where they are declared."""
    assert not version, "printed already"


app.command("dev")(dev.dev)
app.command("node")(node.node)
app.add_typer(queue.app, name="queue")
app.command("send")(messages.send)
app.command("receive")(messages.receive)
app.command("tail")(messages.tail)
app.add_typer(dead.app, name="dead")
app.add_typer(cluster.app, name="cluster")
app.add_typer(log.app, name="log")
app.command("audit")(audit.audit)
app.command("bench")(bench.bench)
app.command("simulate")(simulate.simulate)
app.command("demo")(demo.demo)


def run() -> NoReturn:
    """The program."""
    app(prog_name="raftq")
    raise AssertionError("the command line ends by itself")
