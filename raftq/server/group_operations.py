"""What a group's leader does for an operation on a queue: the inner half of `fan_out.py`.

Internal, between nodes: `group_propose` has a queue command applied and returns the numbers of its
reply; `group_describe` and `group_letters` read the applied state, after making sure that this node
still leads.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from raftq import batch
from raftq.errors import Busy, InvalidArgument, ProtocolError, ReplicaDamaged
from raftq.host import Group
from raftq.ids import Offset, Partition, QueueId
from raftq.queue.dead_letters import DeadLetter
from raftq.queue.machine import QueueMachine
from raftq.queue.replies import Purged, Redriven
from raftq.server.answering import answer_map
from raftq.server.request import Request

if TYPE_CHECKING:
    from raftq.server.node import Node

Map = dict[str, Any]
Operation = Callable[[Request, Map], None]

_LETTERS_BYTES_MAX = 512 * 1024
"""Bodies in one answer with dead letters, unless the first one alone has more."""


def first_page(letters: Iterable[Map]) -> list[Map]:
    """As many letters as one answer takes, at least one; asked for again, the others follow."""
    page: list[Map] = []
    size = 0
    for letter in letters:
        size += len(letter["body"])
        if page and size > _LETTERS_BYTES_MAX:
            break
        page.append(letter)
    return page


class GroupOperations:
    """Handles the internal operations."""

    def __init__(self, node: "Node") -> None:
        self._node = node

    def operations(self) -> dict[str, Operation]:
        return {
            "group_propose": self._group_propose,
            "group_describe": self._group_describe,
            "group_letters": self._group_letters,
        }

    def led(self, request: Request, wanted: Map) -> Group | None:
        """Our leading replica of the group; otherwise the request is passed on."""
        group_id = self._node.router.queue_group(wanted["group"])
        group = self._node.router.leading(group_id)
        if group is None:
            self._node.router.forward(request, group_id)
        return group

    def _when_sure(self, request: Request, group: Group, read: Callable[[], Map]) -> None:
        """Answer with `read` once it is certain that no newer leader exists."""
        group.read(answer_map(request, lambda _: read()))

    def _group_propose(self, request: Request, wanted: Map) -> None:
        group = self.led(request, wanted)
        if group is None:
            return

        def counted(reply: object) -> Map:
            # Every tuple has a method of that name.
            return {"count": reply.count if isinstance(reply, Purged | Redriven) else 0}

        header = wanted["header"]
        if type(header) is not bytes:
            raise ProtocolError("group_propose needs the bytes of a command")
        group.propose(header, b"", answer_map(request, counted), reserve=True)

    def _group_describe(self, request: Request, wanted: Map) -> None:
        group = self.led(request, wanted)
        if group is None:
            return
        machine = _machine(group)

        def read() -> Map:
            return {
                "partitions": [
                    self._describe(machine, group, QueueId(wanted["queue"]), Partition(number))
                    for number in wanted["partitions"]
                ]
            }

        self._when_sure(request, group, read)

    def _describe(
        self, machine: QueueMachine, group: Group, queue: QueueId, partition: Partition
    ) -> Map:
        stats = machine.describe(queue, partition)
        if stats is None:
            raise Busy(f"partition {partition} is not open in its group yet", retry_after=0.1)
        return {
            "partition": partition,
            "group": group.group,
            "leader": self._node.config.name,
            "first_offset": stats.first_offset,
            "next_offset": stats.next_offset,
            "released": stats.released,
            "subscriptions": {
                counts.name: {
                    "ready": counts.ready,
                    "in_flight": counts.in_flight,
                    "delayed": counts.delayed,
                    "settled": counts.settled,
                    "dead": counts.dead,
                    "discarded": counts.discarded,
                }
                for counts in stats.subscriptions
            },
        }

    def _group_letters(self, request: Request, wanted: Map) -> None:
        group = self.led(request, wanted)
        if group is None:
            return
        machine = _machine(group)
        queue, partition = QueueId(wanted["queue"]), Partition(wanted["partition"])

        def read() -> Map:
            if partition in machine.without_subscription(queue, wanted["subscription"]):
                raise InvalidArgument(
                    f"the queue has no subscription {wanted['subscription']!r}; describe it to see "
                    "those it has"
                )
            found = machine.dead_letters(
                queue,
                partition,
                wanted["subscription"],
                after_offset=wanted["after"],
                limit=wanted["limit"],
            )
            letters = (_letter(group, queue, partition, letter) for letter in found)
            return {"letters": first_page(letters)}

        self._when_sure(request, group, read)


def _machine(group: Group) -> QueueMachine:
    assert isinstance(group.machine, QueueMachine)
    return group.machine


def _letter(group: Group, queue: QueueId, partition: Partition, letter: DeadLetter) -> Map:
    """A dead letter with its message."""
    offset = Offset(letter.offset)
    found = group.log.batches(queue, partition, offset, Offset(offset + 1), 1)
    if not found:
        raise ReplicaDamaged(f"offset {offset} of partition {partition} cannot be read here")
    stored = batch.Batch(memoryview(found[0].data))
    at = offset - found[0].base_offset
    return {
        "partition": partition,
        "offset": offset,
        "reason": letter.reason,
        "error": letter.error,
        "delivery_count": letter.delivery_count,
        "died_at": letter.died_at,
        "history": [list(attempt) for attempt in letter.history],
        "body": stored.bodies(at, at + 1)[0],
        "key": stored.keys(at, at + 1)[0],
        "headers": stored.headers(at, at + 1)[0],
        "timestamp": stored.times[at],
    }
