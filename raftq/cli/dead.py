"""`raftq dead`: messages that nobody could handle; why, and what to do with them."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from raftq.cli.connect import with_client
from raftq.cli.options import (
    DEFAULT_SUBSCRIPTION,
    DEFAULT_TIMEOUT,
    DEFAULT_URL,
    JsonOption,
    QueueArgument,
    Servers,
    SubscriptionOption,
    TimeoutOption,
    UrlOption,
)
from raftq.cli.output import bytes_fields, print_json, print_table, print_text
from raftq.client.admin import DeadLetter
from raftq.limits import SECOND

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Dead letters: messages that nobody could handle, and why.",
)

LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000)]
ReasonOption = Annotated[
    str | None, typer.Option("--reason", help="Only those that died of this reason.")
]


def _letters(
    name: str, subscription: str, limit: int, reason: str | None, servers: Servers
) -> list[DeadLetter]:
    letters = with_client(
        servers, lambda client: client.dead_letters(name, subscription=subscription, limit=limit)
    )
    return [letter for letter in letters if reason is None or letter.reason == reason]


@app.command("list")
def list_letters(
    name: QueueArgument,
    subscription: SubscriptionOption = DEFAULT_SUBSCRIPTION,
    limit: LimitOption = 100,
    reason: ReasonOption = None,
    url: UrlOption = DEFAULT_URL,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    as_json: JsonOption = False,
) -> None:
    """List dead letters without their bodies; looking at them consumes nothing.

    ```
    raftq dead list orders
    raftq dead list orders --reason delivery_limit --json
    ```
    """
    letters = _letters(name, subscription, limit, reason, Servers(url, timeout))
    if as_json:
        for letter in letters:
            print_json(_letter_map(letter, with_body=False))
        return
    if not letters:
        print_text(f"{name} has no dead letters")
        return
    print_table(
        ("partition", "offset", "reason", "deliveries", "error"),
        [
            (each.partition, each.offset, each.reason, each.delivery_count, each.error)
            for each in letters
        ],
    )
    reasons = Counter(letter.reason for letter in letters)
    print_text(", ".join(f"{count} by {name}" for name, count in sorted(reasons.items())))


@app.command()
def peek(
    name: QueueArgument,
    subscription: SubscriptionOption = DEFAULT_SUBSCRIPTION,
    limit: LimitOption = 1,
    reason: ReasonOption = None,
    url: UrlOption = DEFAULT_URL,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    as_json: JsonOption = False,
) -> None:
    """Show dead letters in full: body, headers, error, and the history of their deliveries.

    ```
    raftq dead peek orders
    raftq dead peek orders --limit 10 --json
    ```
    """
    for letter in _letters(name, subscription, limit, reason, Servers(url, timeout)):
        shown = _letter_map(letter, with_body=True)
        if as_json:
            print_json(shown)
        else:
            _show(shown)


@app.command()
def redrive(
    name: QueueArgument,
    subscription: SubscriptionOption = DEFAULT_SUBSCRIPTION,
    reason: ReasonOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    url: UrlOption = DEFAULT_URL,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    as_json: JsonOption = False,
) -> None:
    """Make dead letters ready again, with a fresh count of deliveries.

    ```
    raftq dead redrive orders --dry-run
    raftq dead redrive orders --reason delivery_limit
    ```
    """
    done = with_client(
        Servers(url, timeout),
        lambda client: client.redrive(
            name, subscription=subscription, reason=reason, dry_run=dry_run
        ),
    )
    if as_json:
        print_json(
            {
                "name": name,
                "subscription": subscription,
                "redriven": done.count,
                "by_reason": dict(done.by_reason),
                "dry_run": dry_run,
            }
        )
        return
    reasons = ", ".join(f"{count} of {why}" for why, count in sorted(done.by_reason.items()))
    verb = "would redrive" if dry_run else "redrove"
    print_text(f"{verb} {done.count} dead letters of {name}" + (f" ({reasons})" if reasons else ""))


@app.command()
def purge(
    name: QueueArgument,
    subscription: SubscriptionOption = DEFAULT_SUBSCRIPTION,
    url: UrlOption = DEFAULT_URL,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    as_json: JsonOption = False,
) -> None:
    """Discard all dead letters of a subscription for good.

    ```
    raftq dead purge orders -s billing
    ```
    """
    purged = with_client(
        Servers(url, timeout),
        lambda client: client.purge_dead(name, subscription=subscription),
    )
    if as_json:
        print_json({"name": name, "subscription": subscription, "purged": purged})
    else:
        print_text(f"purged {purged} dead letters of {name}")


def _show(letter: dict[str, Any]) -> None:
    """One letter, for people."""
    for field, value in letter.items():
        if field == "history":
            print_text("history:")
            for attempt in value:
                print_text(f"  {_attempt_text(attempt)}")
        elif field in ("died_at", "timestamp"):
            print_text(f"{field}: {_iso(value)}")
        else:
            print_text(f"{field}: {value}")
    print_text("")


def _attempt_text(attempt: dict[str, Any]) -> str:
    error = f": {attempt['error']}" if attempt["error"] else ""
    return (
        f"{_iso(attempt['handed_out_at'])} handed out, {_iso(attempt['ended_at'])} "
        f"{attempt['outcome']}{error} (delivery {attempt['delivery']}, session {attempt['session']})"
    )


def _iso(seconds: float) -> str:
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _attempt_map(attempt: Sequence[Any]) -> dict[str, Any]:
    delivery, session, handed_out_at, ended_at, outcome, error = attempt
    return {
        "delivery": delivery,
        "session": session,
        "handed_out_at": handed_out_at / SECOND,
        "ended_at": ended_at / SECOND,
        "outcome": outcome,
        "error": error,
    }


def _letter_map(letter: DeadLetter, *, with_body: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "queue": letter.queue,
        "partition": letter.partition,
        "offset": letter.offset,
        "reason": letter.reason,
        "error": letter.error,
        "delivery_count": letter.delivery_count,
        "died_at": letter.died_at,
        "timestamp": letter.timestamp,
        **bytes_fields("key", letter.key),
    }
    if with_body:
        shown["headers"] = dict(letter.headers)
        shown["history"] = [_attempt_map(attempt) for attempt in letter.history]
        shown |= bytes_fields("body", letter.body)
    return shown
