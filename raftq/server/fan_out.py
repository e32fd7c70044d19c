"""Operations of one queue group, and of all groups of a queue.

The node that was asked splits an operation on a queue into one internal operation per group or
partition, sends each to the group's leader (perhaps itself), and joins the answers. The first
failure is the whole operation's answer: it says what to do, and asking again is safe.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from raftq.errors import Busy, RaftqError
from raftq.ids import GroupId, Partition, QueueId
from raftq.limits import MAX_ANSWER_BYTES
from raftq.machine import Buffer
from raftq.metadata import Queue
from raftq.queue import commands
from raftq.queue.dead_letters import DELIVERY_LIMIT, REJECTED
from raftq.queue.replies import Attached, Delivery, ProducerOpened, SessionOpened
from raftq.server.answering import answer_map
from raftq.server.group_operations import GroupOperations, first_page
from raftq.server.request import Request
from raftq.wire import cbor, control, errors
from raftq.wire.frames import FrameKind

if TYPE_CHECKING:
    from raftq.server.node import Node

Map = dict[str, Any]
Operation = Callable[[Request, Map], None]

_REASONS = (DELIVERY_LIMIT, REJECTED)
_BY = (commands.NO_SESSION, 0, 0, 0)
"""Operators' commands are of no session: doing them twice is doing them once."""


HELD_RANGES_MAX = 5_000
"""Ranges of deliveries in the answer to an attach."""


class FanOut:
    """Splits, sends and joins."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._inner = GroupOperations(node)

    def operations(self) -> dict[str, Operation]:
        return {
            "describe_queue": self._describe_queue,
            "purge_queue": self._purge_queue,
            "purge_dead": self._purge_dead,
            "dead_letters": self._dead_letters,
            "redrive": self._redrive,
            "subscribe": self._subscribe,
            "unsubscribe": self._unsubscribe,
            "open_session": self._open_session,
            "attach": self._attach,
            "close_session": self._close_session,
            "open_producer": self._open_producer,
        }

    def internal(self) -> dict[str, Operation]:
        return self._inner.operations()

    # --- Splitting and joining ----------------------------------------------------------------

    def _ask(self, request: Request, parts: list[Map], join: Callable[[list[Map]], Map]) -> None:
        """Send each part to its group's leader; answer with `join` of the replies, in order."""
        replies: list[Map | None] = [None] * len(parts)

        def heard(position: int, kind: int, body: tuple[Buffer, ...]) -> None:
            if request.is_answered:
                return
            values = memoryview(b"".join(body))
            if kind == FrameKind.ERROR:
                request.fail(_as_retriable(errors.decode_error(values)))
                return
            try:
                replies[position] = cbor.decode(values, max_bytes=MAX_ANSWER_BYTES)
                if all(reply is not None for reply in replies):
                    request.answer_map(join([reply for reply in replies if reply is not None]))
            except RaftqError as error:
                request.fail(error)

        if not parts:
            request.answer_map(join([]))
        for position, part in enumerate(parts):

            def answered(kind: int, body: tuple[Buffer, ...], position: int = position) -> None:
                heard(position, kind, body)

            self._node.admin.handle_internal(
                Request(FrameKind.CONTROL, memoryview(cbor.encode(part)), answered)
            )

    def _each_partition(
        self,
        request: Request,
        queue: Queue,
        header: Callable[[QueueId, Partition], bytes],
        join: Callable[[list[Map]], Map],
    ) -> None:
        parts: list[Map] = [
            {
                "do": "group_propose",
                "group": group,
                "header": header(queue.queue, Partition(number)),
            }
            for number, group in enumerate(queue.groups)
        ]
        self._ask(request, parts, join)

    # --- On a queue ---------------------------------------------------------------------------

    def _describe_queue(self, request: Request, wanted: Map) -> None:
        queue = self._node.metadata.queue(wanted["name"])
        numbers: dict[GroupId, list[int]] = {}
        for number, group in enumerate(queue.groups):
            numbers.setdefault(group, []).append(number)
        parts: list[Map] = [
            {
                "do": "group_describe",
                "group": group,
                "queue": queue.queue,
                "partitions": partitions,
            }
            for group, partitions in numbers.items()
        ]

        def join(replies: list[Map]) -> Map:
            rows = [row for reply in replies for row in reply["partitions"]]
            return {
                "name": queue.name,
                "id": queue.queue,
                "config": queue.config,
                "state": queue.state,
                "partitions": sorted(rows, key=lambda row: int(row["partition"])),
            }

        self._ask(request, parts, join)

    def _purge_queue(self, request: Request, wanted: Map) -> None:
        queue = self._node.metadata.queue(wanted["name"])
        self._each_partition(
            request,
            queue,
            lambda queue, partition: commands.encode_purge(*_BY, queue=queue, partition=partition),
            lambda replies: {"purged": sum(reply["count"] for reply in replies)},
        )

    def _purge_dead(self, request: Request, wanted: Map) -> None:
        queue = self._node.metadata.queue(wanted["name"])
        self._each_partition(
            request,
            queue,
            lambda queue, partition: commands.encode_purge(
                *_BY,
                queue=queue,
                partition=partition,
                subscription=wanted["subscription"],
                dead=True,
            ),
            lambda replies: {"purged": sum(reply["count"] for reply in replies)},
        )

    def _redrive(self, request: Request, wanted: Map) -> None:
        queue = self._node.metadata.queue(wanted["name"])
        chosen: dict[int, list[tuple[int, int]]] = {}
        for partition, offset in wanted.get("offsets") or ():
            chosen.setdefault(partition, []).append((offset, offset + 1))
        reasons = (wanted["reason"],) if wanted.get("reason") else _REASONS
        parts: list[Map] = []
        labels: list[str] = []
        for number, group in enumerate(queue.groups):
            if chosen and number not in chosen:
                continue
            for reason in reasons:
                header = commands.encode_redrive(
                    *_BY,
                    queue=queue.queue,
                    partition=Partition(number),
                    subscription=wanted["subscription"],
                    reason=reason,
                    ranges=sorted(chosen.get(number, ())),
                    dry_run=wanted["dry_run"],
                )
                parts.append({"do": "group_propose", "group": group, "header": header})
                labels.append(reason)

        def join(replies: list[Map]) -> Map:
            by_reason: dict[str, int] = {}
            for label, reply in zip(labels, replies, strict=True):
                if reply["count"]:
                    by_reason[label] = by_reason.get(label, 0) + reply["count"]
            return {"redriven": sum(by_reason.values()), "by_reason": by_reason}

        self._ask(request, parts, join)

    def _dead_letters(self, request: Request, wanted: Map) -> None:
        queue = self._node.metadata.queue(wanted["name"])
        only = wanted.get("partition")
        after = wanted.get("after_offset")
        parts: list[Map] = [
            {
                "do": "group_letters",
                "group": group,
                "queue": queue.queue,
                "partition": number,
                "subscription": wanted["subscription"],
                "after": -1 if after is None else after,
                "limit": wanted["limit"],
            }
            for number, group in enumerate(queue.groups)
            if only in (None, number)
        ]

        def join(replies: list[Map]) -> Map:
            letters = [letter for reply in replies for letter in reply["letters"]]
            return {"letters": first_page(letters[: wanted["limit"]])}

        self._ask(request, parts, join)

    def _subscribe(self, request: Request, wanted: Map) -> None:
        queue = self._node.metadata.queue(wanted["name"])
        name = control.check_subscription(wanted["subscription"])
        self._each_partition(
            request,
            queue,
            lambda queue, partition: commands.encode_subscribe(
                *_BY,
                queue=queue,
                partition=partition,
                subscription=name,
                start=wanted["start"],
            ),
            lambda _: {},
        )

    def _unsubscribe(self, request: Request, wanted: Map) -> None:
        queue = self._node.metadata.queue(wanted["name"])
        self._each_partition(
            request,
            queue,
            lambda queue, partition: commands.encode_unsubscribe(
                *_BY,
                queue=queue,
                partition=partition,
                subscription=wanted["subscription"],
            ),
            lambda _: {},
        )

    # --- On a group ---------------------------------------------------------------------------

    def _propose_mapped(
        self, request: Request, wanted: Map, header: bytes, answer: Callable[[object], Map]
    ) -> None:
        group = self._inner.led(request, wanted)
        if group is None:
            return
        group.propose(header, b"", answer_map(request, answer), reserve=True)

    def _open_session(self, request: Request, wanted: Map) -> None:
        def answer(reply: object) -> Map:
            assert isinstance(reply, SessionOpened)
            return {"session": reply.session, "attachment": 0}

        self._propose_mapped(request, wanted, commands.encode_open_session(), answer)

    def _attach(self, request: Request, wanted: Map) -> None:
        def answer(reply: object) -> Map:
            assert isinstance(reply, Attached)
            return {
                "attachment": reply.attachment,
                "held": [
                    {
                        "delivery": delivery.delivery,
                        "queue": delivery.queue,
                        "partition": delivery.partition,
                        "subscription": delivery.subscription,
                        "deadline": delivery.deadline,
                        "ranges": [list(each) for each in delivery.ranges],
                    }
                    for delivery in _first_ranges(reply.held)
                ],
            }

        header = commands.encode_attach(
            wanted["session"], wanted["attachment"], wanted["last_seen"]
        )
        self._propose_mapped(request, wanted, header, answer)

    def _close_session(self, request: Request, wanted: Map) -> None:
        header = commands.encode_release(wanted["session"], wanted["attachment"], goodbye=True)
        self._propose_mapped(request, wanted, header, lambda _: {})

    def _open_producer(self, request: Request, wanted: Map) -> None:
        queue, partition = QueueId(wanted["queue"]), Partition(wanted["partition"])
        group = self._node.metadata.group_of(queue, partition)
        if group is None:
            raise Busy(f"partition {partition} of queue {queue} is not known", retry_after=0.1)

        def answer(reply: object) -> Map:
            assert isinstance(reply, ProducerOpened)
            return {
                "opened": reply.opened,
                "epoch": reply.epoch,
                "last_sequence": reply.last_sequence,
                "last_offset": reply.last_offset,
            }

        header = commands.encode_open_producer(
            queue,
            partition,
            wanted["producer"],
            epoch=wanted["epoch"],
            opener=wanted["opener"],
        )
        self._propose_mapped(request, {"group": group}, header, answer)


def _first_ranges(held: tuple[Delivery, ...]) -> Iterator[Delivery]:
    """As many deliveries as an answer takes; the others come back with their visibility timeout."""
    ranges = 0
    for delivery in held:
        ranges += len(delivery.ranges)
        if ranges > HELD_RANGES_MAX:
            return
        yield delivery


def _as_retriable(error: errors.WireError) -> RaftqError:
    """A part found no leader: for the whole operation that means to ask again soon."""
    if isinstance(error, RaftqError):
        return error
    return Busy("a group of the queue has no leader at the moment", retry_after=0.05)
