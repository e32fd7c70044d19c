"""Ack, nack, extend: messages become ranges per delivery, and one command per group.

What is stale is told at the end: everything that could be settled has been settled then.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from raftq.client.message import BaseMessage, DeliveryReceipt, Source, Target
from raftq.client.options import duration_us
from raftq.client.retry import Patience
from raftq.client.session import Sessions
from raftq.errors import InvalidArgument, RaftqError, StaleReceipt
from raftq.ids import Offset
from raftq.limits import DELAY_MICROS_MAX, MAX_REASON_BYTES, SECOND, VISIBILITY_MICROS_MAX
from raftq.wire.requests import ACK, EXTEND, NACK, Item

Runs = dict[Target, list[Item]]
STALE_SHOWN: Final = 3


def runs_of(messages: Iterable[BaseMessage]) -> Runs:
    """The ranges that the messages make up, by where they came from.

    Raises: InvalidArgument for one that was only read, or is no message.
    """
    if not isinstance(messages, Iterable):
        raise InvalidArgument(f"what is settled are received messages, not {messages!r:.100}")
    runs: Runs = {}
    source: Source | None = None
    start = stop = Offset(-1)
    for message in messages:
        try:
            origin, offset = message.source, message.offset
        except AttributeError:
            raise InvalidArgument(f"{message!r:.100} is no message that was received") from None
        if origin is source and offset == stop:
            stop = Offset(stop + 1)
            continue
        if source is not None:
            _add(runs, source, start, stop)
        source, start = origin, offset
        stop = Offset(start + 1)
    if source is not None:
        _add(runs, source, start, stop)
    return runs


def _add(runs: Runs, source: Source, start: Offset, stop: Offset) -> None:
    if not source.delivery_count:
        raise InvalidArgument("this message was read, not received: there is nothing to settle")
    items = runs.setdefault(source.target, [])
    items.append(Item(source.partition, source.delivery, start, stop))


def receipts_of(target: Target, items: Iterable[Item]) -> list[DeliveryReceipt]:
    """One receipt per message of the ranges."""
    queue, _, subscription, group, session = target
    return [
        DeliveryReceipt(queue, subscription, group, session, partition, delivery, Offset(offset))
        for partition, delivery, start, stop in items
        for offset in range(start, stop)
    ]


def stale_error(failed: Sequence[DeliveryReceipt]) -> StaleReceipt:
    """The error that names what could not be settled."""
    shown = ", ".join(f"{each.partition}/{each.offset}" for each in failed[:STALE_SHOWN])
    more = f" and {len(failed) - STALE_SHOWN} more" if len(failed) > STALE_SHOWN else ""
    return StaleReceipt(
        f"{len(failed)} messages of {failed[0].queue!r} are not held any more ({shown}{more}): "
        "their delivery expired or was settled; they may have been handed to another consumer",
        failed=tuple(failed),
    )


class Settling:
    """Settles through the sessions of a client."""

    def __init__(self, sessions: Sessions, patience: Callable[[], Patience]) -> None:
        self._sessions = sessions
        self._patience = patience

    async def ack(self, messages: Iterable[BaseMessage]) -> None:
        """Raises: StaleReceipt with `failed`, RaftqError."""
        await self.settle(runs_of(messages), ACK)

    async def nack(
        self,
        messages: Iterable[BaseMessage],
        *,
        delay: float,
        reason: str,
        count: bool,
        reject: bool,
    ) -> None:
        if reject and delay:
            raise InvalidArgument("what is rejected is not handed out again: it takes no delay")
        delay_us = duration_us(delay, "delay")
        if delay_us > DELAY_MICROS_MAX:
            raise InvalidArgument(f"delay is at most {DELAY_MICROS_MAX // SECOND} s")
        # A reason that is too long loses its end rather than the nack.
        short = reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
        runs = runs_of(messages)
        await self.settle(runs, NACK, time_us=delay_us, count=count, reason=short, reject=reject)

    async def extend(self, messages: Iterable[BaseMessage], seconds: float) -> None:
        time_us = duration_us(seconds, "seconds")
        if not 0 < time_us <= VISIBILITY_MICROS_MAX:
            raise InvalidArgument(
                f"seconds is above 0 and at most {VISIBILITY_MICROS_MAX // SECOND}"
            )
        await self.settle(runs_of(messages), EXTEND, time_us=time_us)

    async def settle(
        self,
        runs: Runs,
        action: int,
        *,
        time_us: int = 0,
        count: bool = True,
        reason: str = "",
        reject: bool = False,
    ) -> None:
        """All runs at once; then what was stale, or what else went wrong, is raised.

        Raises: StaleReceipt with `failed`, RaftqError.
        """
        patience = self._patience()
        loop = asyncio.get_running_loop()
        works = [
            (
                target,
                loop.create_task(
                    self._sessions.of(target.group).settle(
                        patience,
                        session=target.session,
                        queue=target.queue_id,
                        subscription=target.subscription,
                        action=action,
                        items=items,
                        time_us=time_us,
                        count=count,
                        reason=reason,
                        reject=reject,
                    )
                ),
            )
            for target, items in runs.items()
        ]
        failed: list[DeliveryReceipt] = []
        problem: RaftqError | None = None
        try:
            for target, work in works:
                try:
                    failed += receipts_of(target, await work)
                except RaftqError as error:
                    problem = problem or error
        finally:
            for _, work in works:
                work.cancel()
        if problem is not None:
            raise problem
        if failed:
            raise stale_error(failed)
