"""The options that many commands share, each with one name, one text, one meaning."""

from typing import Annotated, NamedTuple

import typer

DEFAULT_URL = "raftq://127.0.0.1:7400"
DEFAULT_SUBSCRIPTION = "default"
DEFAULT_TIMEOUT = 10.0

_JSON = "raftq.json"


def note_json(context: typer.Context, value: bool) -> bool:
    """Remembered for whoever prints the error, when the command is gone."""
    context.meta[_JSON] = value
    return value


def wants_json(context: typer.Context) -> bool:
    """Whether the command that ran below this context was asked for JSON."""
    return bool(context.meta.get(_JSON))


UrlOption = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="RAFTQ_URL",
        help="Where the cluster is: raftq://HOST:PORT[,HOST:PORT...]. Any node will do.",
        metavar="URL",
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout",
        envvar="RAFTQ_TIMEOUT",
        help="Seconds after which a request to the cluster is given up.",
        metavar="SECONDS",
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print JSON: one object, or one a line where there may be many.",
        callback=note_json,
    ),
]
QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]
SubscriptionOption = Annotated[
    str, typer.Option("--subscription", "-s", help="Which subscription of the queue.")
]


class Servers(NamedTuple):
    """Whom a command talks to, and for how long it tries."""

    url: str
    timeout: float
