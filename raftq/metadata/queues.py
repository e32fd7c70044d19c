"""Commands about queues and their partitions; the package's docstring draws the states."""

import re
from typing import Any, Final

from msgspec.structs import replace

from raftq.errors import Busy, InvalidArgument, InvalidQueueName, QueueExists, QueueNotFound
from raftq.ids import GroupId, Partition, QueueId
from raftq.limits import KIB, MAX_PARTITIONS, MAX_QUEUE_NAME
from raftq.metadata import plain
from raftq.metadata.commands import (
    MAX_ID,
    CreateQueue,
    DeleteQueue,
    PartitionDropped,
    PartitionReady,
    PartitionRefused,
    UpdateQueue,
)
from raftq.metadata.records import Queue, Refusal
from raftq.metadata.replies import QueueReply
from raftq.metadata.tables import Tables

MAX_QUEUES: Final = 10_000
"""Each takes about a kilobyte in every node's copy."""
MAX_ALL_PARTITIONS: Final = 100_000
"""Of all queues together: bounds a copy, and the time to take a snapshot."""
MAX_CONFIG_BYTES: Final = 64 * KIB
"""As encoded; all options fit, and 64 labels of 256 ASCII characters with values of as many."""
RETRY_AFTER_SECONDS: Final = 1

_NAME: Final = re.compile(rf"(?!\.|__)[A-Za-z0-9._-]{{1,{MAX_QUEUE_NAME}}}")
_FOLLOWING: Final = {"creating": "creating", "active": "updating", "updating": "updating"}
"""State -> state after an update; the others take none."""


def create(tables: Tables, command: CreateQueue) -> QueueReply:
    """Raises: InvalidQueueName, InvalidArgument, QueueExists, Busy."""
    if not _NAME.fullmatch(command.name):
        raise InvalidQueueName
    known = tables.queue_named(command.name)
    if known is not None:
        _check_stays(known)
        if _same(known.config, command.config):
            return _reply(tables, known)
        raise QueueExists(
            f"queue {command.name!r} exists with another configuration; "
            "use update_queue to change it"
        )
    partitions = _checked_partitions(command.config)
    if len(tables.queues) >= MAX_QUEUES or tables.next_queue > MAX_ID:
        raise Busy(f"a cluster has at most {MAX_QUEUES} queues; delete some")
    if sum(tables.load.values()) + partitions > MAX_ALL_PARTITIONS:
        raise Busy(f"a cluster has at most {MAX_ALL_PARTITIONS} partitions; delete queues")
    queue = Queue(
        queue=tables.next_queue,
        name=command.name,
        config=command.config,
        version=1,
        state="creating",
        groups=_placed(tables, tables.next_queue, partitions, even=command.even),
        reported=(0,) * partitions,
    )
    tables.next_queue = QueueId(tables.next_queue + 1)
    tables.put_queue(queue)
    return _reply(tables, queue)


def update(tables: Tables, command: UpdateQueue) -> QueueReply:
    """Raises: QueueNotFound, InvalidArgument, Busy."""
    queue = _named(tables, command.name)
    _check_stays(queue)
    if _same(queue.config, command.config):
        return _reply(tables, queue)
    if queue.version != command.expected_version:
        raise Busy(
            f"queue {queue.name!r} was changed meanwhile; read it again and retry",
            retry_after=RETRY_AFTER_SECONDS,
        )
    partitions = _checked_partitions(command.config)
    if partitions != len(queue.groups):
        raise InvalidArgument(
            f"queue {queue.name!r} has {len(queue.groups)} partitions; "
            "their number cannot be changed in this version"
        )
    state = _FOLLOWING[queue.state]
    queue = replace(queue, config=command.config, version=queue.version + 1, state=state)
    tables.put_queue(queue)
    return _reply(tables, queue)


def delete(tables: Tables, command: DeleteQueue) -> QueueReply:
    """Raises: QueueNotFound."""
    queue = _named(tables, command.name)
    changed = queue
    if queue.state == "deleting":
        # The version stays: what has been dropped needs no other report.
        changed = replace(queue, force=queue.force or command.force)
    elif command.force:
        changed = _next(queue, "deleting", force=True)
    elif queue.state != "sealing":
        changed = _next(queue, "sealing")
    if changed != queue:
        tables.put_queue(changed)
    return _reply(tables, changed)


def ready(tables: Tables, command: PartitionReady) -> QueueReply:
    """Raises: QueueNotFound, InvalidArgument."""
    queue = _reported(tables, command)
    if queue is None:
        return _gone(tables, command.queue)
    if command.version > queue.version:
        raise InvalidArgument(f"queue {queue.name!r} has no version {command.version} yet")
    if command.version < queue.version or queue.state == "deleting":
        return _reply(tables, queue)  # A late report of what is not asked for any more.
    return _fulfilled(tables, queue, command.partition)


def refused(tables: Tables, command: PartitionRefused) -> QueueReply:
    """Raises: QueueNotFound, InvalidArgument."""
    queue = _reported(tables, command)
    if queue is None:
        return _gone(tables, command.queue)
    if command.version != queue.version or queue.force:
        return _reply(tables, queue)
    refusal = Refusal(command.version, command.partition, command.reason)
    if queue.state == "sealing":
        # Nothing was dropped; the next version opens again what has been sealed.
        tables.put_queue(_next(queue, "updating", refusal=refusal))
    elif queue.state == "deleting" and queue.refusal is None:
        # Too late to go back, others may be dropped: told, and asked again until drained or forced.
        tables.put_queue(replace(queue, refusal=refusal))
    return _reply(tables, tables.queues[queue.queue])


def dropped(tables: Tables, command: PartitionDropped) -> QueueReply:
    """Raises: QueueNotFound, InvalidArgument."""
    queue = _reported(tables, command)
    if queue is None:
        return _gone(tables, command.queue)
    if queue.state != "deleting":
        raise InvalidArgument(f"queue {queue.name!r} is not being deleted")
    return _fulfilled(tables, queue, command.partition)


def _fulfilled(tables: Tables, queue: Queue, partition: Partition) -> QueueReply:
    """The partition has done what the present version asks; perhaps it was the last."""
    if queue.reported[partition] == queue.version:
        return _reply(tables, queue)
    reported = list(queue.reported)
    reported[partition] = queue.version
    queue = replace(queue, reported=tuple(reported))
    if all(version == queue.version for version in queue.reported):
        if queue.state == "deleting":
            tables.remove_queue(queue)
            return _gone(tables, queue.queue)
        if queue.state == "sealing":
            queue = _next(queue, "deleting")
        else:
            queue = replace(queue, state="active")
    tables.put_queue(queue)
    return _reply(tables, queue)


def _next(
    queue: Queue, state: str, *, force: bool = False, refusal: Refusal | None = None
) -> Queue:
    return replace(queue, version=queue.version + 1, state=state, force=force, refusal=refusal)


def _named(tables: Tables, name: str) -> Queue:
    queue = tables.queue_named(name)
    if queue is None:
        raise QueueNotFound(f"no queue {name[:MAX_QUEUE_NAME]!r} exists")
    return queue


def _reported(
    tables: Tables, command: PartitionReady | PartitionRefused | PartitionDropped
) -> Queue | None:
    """The queue that a report speaks of; None if it has been deleted."""
    queue = tables.queues.get(command.queue)
    if queue is None:
        if command.queue >= tables.next_queue:
            raise QueueNotFound(f"queue {command.queue} was never created")
        return None
    if command.partition >= len(queue.groups):
        raise InvalidArgument(f"queue {queue.name!r} has no partition {command.partition}")
    return queue


def _check_stays(queue: Queue) -> None:
    if queue.state in {"sealing", "deleting"}:
        raise Busy(
            f"queue {queue.name!r} is being deleted; retry when it is gone",
            retry_after=RETRY_AFTER_SECONDS,
        )


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """By their bytes: to Python, True equals 1."""
    return plain.encode(one) == plain.encode(other)


def _checked_partitions(config: dict[str, Any]) -> int:
    """The number of partitions of a configuration that can be stored."""
    if len(plain.encode(config)) > MAX_CONFIG_BYTES:
        raise InvalidArgument(f"a configuration has at most {MAX_CONFIG_BYTES} bytes")
    if config.get("dedicated", False) is not False:
        raise InvalidArgument("dedicated=True is not available in this version")
    partitions = config.get("partitions", 1)
    if type(partitions) is not int or not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidArgument(f"partitions is 1 to {MAX_PARTITIONS}")
    return partitions


def _placed(tables: Tables, queue: QueueId, partitions: int, *, even: bool) -> tuple[GroupId, ...]:
    ring = tables.ring()
    if ring is None:
        raise Busy("no group is ready to host a queue; retry", retry_after=RETRY_AFTER_SECONDS)
    load = dict(tables.load)
    groups: list[GroupId] = []
    for partition in range(partitions):
        group = ring.place(queue, Partition(partition), load, even=even)
        load[group] = load.get(group, 0) + 1
        groups.append(group)
    return tuple(groups)


def _reply(tables: Tables, queue: Queue) -> QueueReply:
    return QueueReply(queue.queue, queue.state, queue.version, tables.version)


def _gone(tables: Tables, queue: QueueId) -> QueueReply:
    return QueueReply(queue, "deleted", 0, tables.version)
