"""What a batch means for its partition: judged from its header, never from a message.

Rule. A batch that asks for what this version does not do (delays, times to live, priorities, message
ids) is refused: its wishes are never silently ignored.
"""

from collections.abc import Sequence

from raftq.batch import (
    DEDUP,
    DUE,
    EXPIRE,
    HEADERS,
    PRIORITIES,
    Buffer,
    Header,
    column,
    read_header,
    read_stamp,
)
from raftq.errors import InvalidArgument, MessageTooLarge, RaftqError
from raftq.machine import Applied, Meta
from raftq.queue.config import QueueConfig
from raftq.queue.replies import Published
from raftq.queue.state import State

_LENGTHS = ("body_length", "key_length", "header_length")
_UNAVAILABLE = DUE | EXPIRE | PRIORITIES | DEDUP


def unacceptable(header: Header, body: Buffer, config: QueueConfig) -> RaftqError | None:
    """Why a queue cannot take this batch, whatever its state."""
    if header.flags & _UNAVAILABLE or header.delay or header.ttl or header.priority:
        wishes = {
            "delay": header.delay,
            "deliver_at": header.flags & DUE,
            "ttl": header.ttl or header.flags & EXPIRE,
            "priority": header.priority or header.flags & PRIORITIES,
            "dedup_id": header.flags & DEDUP,
        }
        named = ", ".join(name for name, wished in wishes.items() if wished)
        return InvalidArgument(f"{named}: not available in this version; send without")
    longest = header.body_bytes
    if longest > config.max_message_bytes:
        lengths = column(body, header, "body_length")
        longest = max(lengths) if lengths else longest
        if longest > config.max_message_bytes:
            return MessageTooLarge(
                f"a message of {longest} bytes is over the {config.max_message_bytes} of queue "
                f"{header.queue}; store it elsewhere and send a reference"
            )
    return None


def measured(header: Header, body: Buffer, config: QueueConfig) -> tuple[int, Sequence[int] | None]:
    """Bytes of all bodies, keys and headers of a batch, and of each message where that matters.

    It matters in a queue with max_bytes, for messages that are not all the same.
    """
    size = header.body_bytes + header.key_bytes
    if header.flags & HEADERS:
        size += sum(column(body, header, "header_length") or ())
    if config.max_bytes:
        lengths = _unequal_lengths(header, body)
        if lengths is not None:
            return sum(lengths), lengths
    return size, None


def _unequal_lengths(header: Header, body: Buffer) -> Sequence[int] | None:
    found = [column(body, header, name) for name in _LENGTHS]
    columns = [lengths for lengths in found if lengths is not None]
    if all(bytes(lengths[1:]) == bytes(lengths[:-1]) for lengths in columns):
        return None
    return [sum(lengths) for lengths in zip(*columns, strict=True)]


def publish(state: State, meta: Meta, stamp_header: bytes, body: Buffer) -> Applied:
    """Applies an admitted publish. It is never refused: its offsets are in the log already.

    Raises: RaftqError for bytes that no admission can have let through.
    """
    stamp = read_stamp(stamp_header)
    header = read_header(body)
    partition = state.partitions.get(stamp[:2])
    assert partition is not None, f"{stamp} was admitted to a partition that is not here"
    sizes = partition.sizes
    assert stamp.base_offset == sizes.end_offset, f"{stamp} does not continue {sizes.end_offset}"
    assert stamp.count == header.count, f"{stamp} stands beside another batch"
    state.touch(partition)
    count, base_offset = stamp.count, stamp.base_offset
    partition.publish(count, *measured(header, body, partition.config))
    if header.producer:
        producer = partition.producers.get(header.producer)
        if producer is None:
            producer = state.open_producer(partition, header.producer, header.epoch, meta.log_time)
        batch = (header.sequence, count, base_offset, meta.index, header.checksum)
        producer.published(batch, header.epoch, meta.log_time)
    return Applied(Published(base_offset, count, False), partition.available)
