"""`raftq queue`: make, look at, change and remove queues."""

from collections.abc import Mapping
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
from raftq.cli.output import print_json, print_table, print_text
from raftq.client.admin import QueueDescription, QueueSummary
from raftq.errors import InvalidArgument, QueueExists

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Make, look at, change and remove queues.",
)

VisibilityOption = Annotated[
    float | None,
    typer.Option(help="Seconds after which a message that was not settled is handed out again."),
]
DeliveryLimitOption = Annotated[
    int | None,
    typer.Option(help="Failed deliveries after which a message becomes a dead letter; 0: never."),
]
MaxMessagesOption = Annotated[
    int | None, typer.Option(help="Messages the queue may hold; then senders are refused.")
]
MaxBytesOption = Annotated[
    int | None, typer.Option(help="Bytes the queue may hold; then senders are refused.")
]
MaxMessageBytesOption = Annotated[int | None, typer.Option(help="Bytes of one message.")]
AuditRetentionOption = Annotated[
    float | None, typer.Option(help="Seconds for which settled messages are kept for audits.")
]
RetainOption = Annotated[
    str | None,
    typer.Option(help="until_settled, or log: messages stay readable when they are settled."),
]
RetainSecondsOption = Annotated[
    float | None,
    typer.Option(help="Make it a log that keeps messages for so many seconds; 0: without end."),
]
RetainBytesOption = Annotated[
    int | None, typer.Option(help="Make it a log that keeps its newest so many bytes; 0: all.")
]
ProtectedOption = Annotated[
    bool | None, typer.Option("--protected/--unprotected", help="Guard it against removal.")
]
LabelOption = Annotated[
    list[str] | None, typer.Option("--label", metavar="NAME=VALUE", help="May be repeated.")
]


@app.command()
def create(
    name: QueueArgument,
    partitions: Annotated[int | None, typer.Option("--partitions", "-p", min=1)] = None,
    visibility_timeout: VisibilityOption = None,
    delivery_limit: DeliveryLimitOption = None,
    max_messages: MaxMessagesOption = None,
    max_bytes: MaxBytesOption = None,
    max_message_bytes: MaxMessageBytesOption = None,
    retain: RetainOption = None,
    retain_seconds: RetainSecondsOption = None,
    retain_bytes: RetainBytesOption = None,
    audit_retention: AuditRetentionOption = None,
    protected: ProtectedOption = None,
    label: LabelOption = None,
    url: UrlOption = DEFAULT_URL,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    as_json: JsonOption = False,
) -> None:
    """Make a queue. One that exists with the same configuration is fine.

    ```
    raftq queue create orders
    raftq queue create orders --partitions 4 --visibility-timeout 60 --label team=shop
    raftq queue create readings --retain-seconds 604800
    ```
    """
    options = _given(
        partitions=partitions,
        visibility_timeout=visibility_timeout,
        delivery_limit=delivery_limit,
        max_messages=max_messages,
        max_bytes=max_bytes,
        max_message_bytes=max_message_bytes,
        retain=retain,
        retain_seconds=retain_seconds,
        retain_bytes=retain_bytes,
        audit_retention=audit_retention,
        protected=protected,
        labels=_labels(label),
    )
    try:
        made = with_client(
            Servers(url, timeout), lambda client: client.create_queue(name, **options)
        )
    except QueueExists as error:
        raise QueueExists(
            f"queue {name!r} exists with another configuration; see `raftq queue describe {name}`, "
            f"and change it with `raftq queue update {name}`"
        ) from error
    _show_summary(made, "created", as_json=as_json)


@app.command()
def update(
    name: QueueArgument,
    visibility_timeout: VisibilityOption = None,
    delivery_limit: DeliveryLimitOption = None,
    max_messages: MaxMessagesOption = None,
    max_bytes: MaxBytesOption = None,
    max_message_bytes: MaxMessageBytesOption = None,
    retain: RetainOption = None,
    retain_seconds: RetainSecondsOption = None,
    retain_bytes: RetainBytesOption = None,
    audit_retention: AuditRetentionOption = None,
    protected: ProtectedOption = None,
    label: LabelOption = None,
    url: UrlOption = DEFAULT_URL,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    as_json: JsonOption = False,
) -> None:
    """Change some of a queue's configuration; what is not named stays as it is.

    ```
    raftq queue update orders --visibility-timeout 120
    ```
    """
    options = _given(
        visibility_timeout=visibility_timeout,
        delivery_limit=delivery_limit,
        max_messages=max_messages,
        max_bytes=max_bytes,
        max_message_bytes=max_message_bytes,
        retain=retain,
        retain_seconds=retain_seconds,
        retain_bytes=retain_bytes,
        audit_retention=audit_retention,
        protected=protected,
        labels=_labels(label),
    )
    if not options:
        raise typer.BadParameter("say what to change; see raftq queue update --help")
    changed = with_client(
        Servers(url, timeout), lambda client: client.update_queue(name, **options)
    )
    _show_summary(changed, "updated", as_json=as_json)


@app.command("list")
def list_queues(
    url: UrlOption = DEFAULT_URL,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    as_json: JsonOption = False,
) -> None:
    """Name all queues; with --json one object a line.

    ```
    raftq queue list --json | jq -r .name
    ```
    """
    queues = with_client(Servers(url, timeout), lambda client: client.list_queues())
    queues.sort(key=lambda queue: queue.name)
    if as_json:
        for queue in queues:
            print_json(summary_map(queue))
    elif queues:
        rows = [(queue.name, queue.partitions, queue.state, queue.id) for queue in queues]
        print_table(("queue", "partitions", "state", "id"), rows)
    else:
        print_text("there are no queues; make one: raftq queue create NAME")


@app.command()
def describe(
    name: QueueArgument,
    subscription: SubscriptionOption = DEFAULT_SUBSCRIPTION,
    url: UrlOption = DEFAULT_URL,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    as_json: JsonOption = False,
) -> None:
    """Show what a queue holds, where, and how its messages stand with a subscription.

    ```
    raftq queue describe orders
    raftq queue describe orders --json | jq .depth
    ```
    """
    found = with_client(
        Servers(url, timeout),
        lambda client: client.describe_queue(name, subscription=subscription),
    )
    if as_json:
        print_json(description_map(found))
        return
    counts = found.counts
    print_text(
        f"{found.name}: {found.depth} to do for {found.subscription!r} ({counts.ready} ready, "
        f"{counts.in_flight} in flight, {counts.delayed} delayed), {counts.settled} settled, "
        f"{counts.dead} dead, {counts.discarded} discarded"
    )
    for option, value in sorted(found.config.items()):
        print_text(f"  {option} = {value}")
    print_table(
        ("partition", "group", "leader", "released below", "first offset", "next offset"),
        [
            (p.partition, p.group, p.leader, p.released, p.first_offset, p.next_offset)
            for p in found.partitions
        ],
    )


@app.command()
def delete(
    name: QueueArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Even if it still holds messages: they are lost.")
    ] = False,
    url: UrlOption = DEFAULT_URL,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    as_json: JsonOption = False,
) -> None:
    """Remove a queue and all it holds.

    ```
    raftq queue delete orders
    raftq queue delete orders --force
    ```
    """
    with_client(Servers(url, timeout), lambda client: client.delete_queue(name, force=force))
    if as_json:
        print_json({"name": name, "deleted": True})
    else:
        print_text(f"deleted {name}")


@app.command()
def purge(
    name: QueueArgument,
    url: UrlOption = DEFAULT_URL,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    as_json: JsonOption = False,
) -> None:
    """Discard what is ready or delayed in the default subscription. There is no way back.

    ```
    raftq queue purge orders
    ```
    """
    purged = with_client(Servers(url, timeout), lambda client: client.purge_queue(name))
    if as_json:
        print_json({"name": name, "purged": purged})
    else:
        print_text(f"purged {purged} messages of {name}")


def _given(**options: Any) -> Any:
    """Only what was given: everything else is the cluster's to decide."""
    return {name: value for name, value in options.items() if value is not None}


def _labels(texts: list[str] | None) -> dict[str, str] | None:
    if not texts:
        return None
    labels: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidArgument(f"--label {text!r} is not like NAME=VALUE")
        labels[name] = value
    return labels


def summary_map(queue: QueueSummary) -> dict[str, Any]:
    """A queue as JSON shows it in a list."""
    return {
        "name": queue.name,
        "id": queue.id,
        "partitions": queue.partitions,
        "state": queue.state,
        "config": dict(queue.config),
    }


def description_map(found: QueueDescription) -> dict[str, Any]:
    """A queue as JSON shows it in full."""
    return {
        "name": found.name,
        "id": found.id,
        "config": dict(found.config),
        "subscription": found.subscription,
        "depth": found.depth,
        **_counts_map(found.counts),
        "partitions": [
            {
                "partition": partition.partition,
                "group": partition.group,
                "leader": partition.leader,
                "first_offset": partition.first_offset,
                "next_offset": partition.next_offset,
                "released": partition.released,
                "subscriptions": {
                    name: _counts_map(counts) for name, counts in partition.subscriptions.items()
                },
            }
            for partition in found.partitions
        ],
    }


def _counts_map(counts: Any) -> Mapping[str, int]:
    names = ("ready", "in_flight", "delayed", "settled", "dead", "discarded")
    return {name: getattr(counts, name) for name in names}


def _show_summary(queue: QueueSummary, verb: str, *, as_json: bool) -> None:
    if as_json:
        print_json(summary_map(queue))
    else:
        print_text(f"{verb} {queue.name}: {queue.partitions} partitions, {queue.state}")
