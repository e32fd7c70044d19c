"""`raftq send`, `receive` and `tail`: messages in, messages out, messages looked at."""

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
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
from raftq.cli.output import bytes_fields, print_json, print_note
from raftq.client.client import AsyncClient
from raftq.client.message import BaseMessage
from raftq.errors import InvalidArgument, RaftqError

READ_BYTES = 256 * 1024
"""Of a pipe or file at once: input of any length takes bounded memory."""

RECEIVE_MESSAGES = 1_000
"""Taken at once: what is printed is acknowledged soon after."""


def send(
    queue: QueueArgument,
    bodies: Annotated[
        list[str] | None,
        typer.Argument(metavar="[BODY]...", help="One message each; without any, see below."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="Send this file's content as one message."),
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="With --file: one message for each line instead.")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option("--key", "-k", help="Messages of one key go to one partition, in order."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="May be repeated."),
    ] = None,
    url: UrlOption = DEFAULT_URL,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    as_json: JsonOption = False,
) -> None:
    """Send messages: the arguments, a file, or else each line of standard input.

    It ends when all of them are on the disks of a majority; with --json it prints a receipt a line.

    ```
    raftq send orders "hello" "world"
    raftq send orders --key customer-7 --header kind=new '{"total": 12}'
    raftq send orders --file invoice.pdf
    tail -f access.log | raftq send access
    ```
    """
    if bodies and file is not None:
        raise typer.BadParameter("give bodies or --file, not both")
    if lines and file is None:
        raise typer.BadParameter("--lines goes with --file")
    given = _bodies(bodies, file, lines=lines)
    encoded_key = key.encode() if key is not None else None
    headers = _headers(header)

    sent = 0
    sending = 0

    async def work(client: AsyncClient) -> None:
        nonlocal sent, sending
        async for some in given:
            sending = len(some)
            keys = [encoded_key] * sending if encoded_key is not None else None
            receipts = await client.send_many(queue, some, keys=keys, headers=headers)
            sent += sending
            sending = 0
            if as_json:
                for receipt in receipts:
                    print_json({"queue": queue, **receipt._asdict()})

    def say(prefix: str, perhaps: str = "") -> None:
        if not as_json:
            print_note(f"{prefix}sent {sent} message{'s' * (sent != 1)} to {queue}{perhaps}")

    # Whoever stops or loses it on the way has to know where to go on.
    try:
        with_client(Servers(url, timeout), work)
    except KeyboardInterrupt:
        say("interrupted: ", f"; of {sending} more it is not known" if sending else "")
        raise
    except (RaftqError, OSError):
        if sent:
            say("failed: ")
        raise
    say("")


def _bodies(
    bodies: list[str] | None, file: Path | None, *, lines: bool
) -> AsyncIterator[list[bytes]]:
    """What is sent, in portions: one call each.

    Raises: InvalidArgument.
    """
    if bodies:
        return _once([body.encode("utf-8", "surrogateescape") for body in bodies])
    if file is None:
        return _lines(sys.stdin.buffer)
    try:
        return _lines(file.open("rb")) if lines else _once([file.read_bytes()])
    except OSError as error:
        raise InvalidArgument(
            f"cannot read {file} ({error.strerror}); nothing was sent: name a file that exists, "
            "or give the message itself"
        ) from error


async def _once(bodies: list[bytes]) -> AsyncIterator[list[bytes]]:
    yield bodies


async def _lines(stream: Any) -> AsyncIterator[list[bytes]]:
    """The lines of a stream, as many at once as there are: a slow pipe is not waited for."""
    rest = b""
    with stream:
        while True:
            await _readable(stream)
            chunk = stream.read1(READ_BYTES)
            if not chunk:
                break
            *lines, rest = (rest + chunk).split(b"\n")
            if lines:
                yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


async def _readable(stream: Any) -> None:
    """Until a pipe or a terminal has something, or its end: the connections live on meanwhile, and
    one Ctrl-C is enough.
    """
    try:
        number = stream.fileno()
        mode = os.fstat(number).st_mode
    except OSError:
        return  # It is no file at all.
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stream.isatty()):
        return
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(number, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(number)


def _headers(texts: list[str] | None) -> dict[str, str] | None:
    headers: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidArgument(f"--header {text!r} is not like NAME=VALUE")
        headers[name] = value
    return headers or None


def receive(
    queue: QueueArgument,
    max_messages: Annotated[
        int, typer.Option("--max", "-n", min=1, help="End after so many messages.")
    ] = 1,
    wait: Annotated[
        float,
        typer.Option("--wait", "-w", min=0, help="Seconds to wait when there is no message."),
    ] = 0.0,
    subscription: SubscriptionOption = DEFAULT_SUBSCRIPTION,
    acknowledge: Annotated[
        bool,
        typer.Option(
            "--ack/--no-ack",
            help="Acknowledge what was printed. Without, it comes back to others at once.",
        ),
    ] = True,
    visibility_timeout: Annotated[
        float | None, typer.Option(help="Seconds until an unacknowledged message comes back.")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    as_json: JsonOption = False,
) -> None:
    """Take messages, print them, and acknowledge them once they are printed.

    It ends when there is none (left), or after --max. Bodies are printed as they are, one a line;
    with --json one object a line, where a body that is no text is in base64 under body_base64.

    ```
    raftq receive orders
    raftq receive orders --max 100 --wait 5 --json
    raftq receive orders --no-ack
    ```
    """

    async def work(client: AsyncClient) -> int:
        taken = 0
        while taken < max_messages:
            messages = await client.receive(
                queue,
                max_messages=min(max_messages - taken, RECEIVE_MESSAGES),
                wait=wait,
                subscription=subscription,
                visibility_timeout=visibility_timeout,
            )
            if not messages:
                break
            try:
                for message in messages:
                    _print_message(message, as_json=as_json)
                sys.stdout.flush()
            except BrokenPipeError:
                raise
            except OSError as error:
                raise OSError(
                    f"cannot print ({error.strerror}); the last {len(messages)} messages taken "
                    "were not acknowledged, they come back: make room, or print elsewhere"
                ) from error
            taken += len(messages)
            if acknowledge:
                await client.ack(messages)
        return taken

    taken = with_client(Servers(url, timeout), work)
    if not taken and not as_json:
        print_note(f"nothing is ready in {queue}")


def tail(
    queue: QueueArgument,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", min=0, help="Only this one.  [default: all]"),
    ] = None,
    start: Annotated[
        str,
        typer.Option("--start", help="earliest, latest, or an offset (of one --partition)."),
    ] = "latest",
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Wait for more at the end.")
    ] = True,
    max_messages: Annotated[
        int, typer.Option("--max", "-n", min=0, help="End after so many messages; 0: never.")
    ] = 0,
    url: UrlOption = DEFAULT_URL,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    as_json: JsonOption = False,
) -> None:
    """Print messages as they come, without consuming any. Ctrl-C ends it.

    The messages of one partition are in their order; those of different partitions come as they
    are read.

    ```
    raftq tail orders
    raftq tail orders --start earliest --no-follow
    raftq tail orders --partition 2 --start 1000 --json
    ```
    """
    first: Any = int(start) if start.isdigit() else start
    if partition is None and isinstance(first, int):
        raise typer.BadParameter("an offset is of one partition: say which with --partition")
    count = 0

    async def read(client: AsyncClient, number: int) -> None:
        nonlocal count
        reader = client.reader(queue, partition=number, start=first, follow=follow)
        async for message in reader:
            if max_messages and count == max_messages:
                raise _Enough  # Another partition had the last one.
            _print_message(message, as_json=as_json)
            sys.stdout.flush()
            count += 1
            if count == max_messages:
                raise _Enough

    async def work(client: AsyncClient) -> None:
        if partition is not None:
            numbers = [partition]
        else:
            described = await client.describe_queue(queue)
            numbers = [each.partition for each in described.partitions]
        tasks = [asyncio.ensure_future(read(client, number)) for number in numbers]
        try:
            await asyncio.gather(*tasks)
        except _Enough:
            pass
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    with_client(Servers(url, timeout), work)


class _Enough(Exception):
    """As many messages were printed as were asked for."""


def _print_message(message: BaseMessage, *, as_json: bool) -> None:
    if as_json:
        print_json(message_map(message))
    else:
        sys.stdout.buffer.write(message.body + b"\n")


def message_map(message: BaseMessage) -> dict[str, Any]:
    """A message as JSON shows it."""
    return {
        "queue": message.queue,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp,
        "delivery_count": message.delivery_count,
        **bytes_fields("key", message.key),
        "headers": message.headers,
        **bytes_fields("body", message.body),
    }
