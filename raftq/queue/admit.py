"""The leader's judgement of publishes before they enter the log.

Theory of operation. The admission is an overlay on the applied state. Per partition with proposals
in flight it keeps a *tail*: the offset after them, what they add to the limits, and per producer the
batches in flight. When an entry is applied, its part of the overlay is in the state and is dropped.

Rules:

1. What was admitted is not refused by apply. A limit counts a message until its settling is applied:
   the queue is never over its limit, at worst full for a moment too long.
2. A duplicate of a batch in flight waits for it, and fails with it.
3. A command whose outcome the admission does not foresee, but reads (configuration, drop, redrive,
   subscribe, a producer's opening), stops publishes to its partition until it is applied. Those that
   only make room (acks, purges, ticks) stop nothing.
"""

from collections import deque

from raftq.batch import PUBLISH, Buffer, Header, encode_stamp, read_header
from raftq.errors import Busy, QueueFull, RaftqError
from raftq.ids import Index, Micros, Offset, ProducerId
from raftq.limits import MAX_PRODUCERS, PRODUCER_WINDOW
from raftq.machine import Admitted, DuplicateOf, Later, Verdict
from raftq.queue.administration import not_here
from raftq.queue.command_reader import check
from raftq.queue.commands import Configure, Drop, OpenProducer, Redrive, Subscribe
from raftq.queue.faults import Faults
from raftq.queue.partition import Partition
from raftq.queue.producers import Remembered, no_repetition, out_of_order
from raftq.queue.publish import measured, unacceptable
from raftq.queue.replies import Published
from raftq.queue.state import State

_Key = tuple[int, int]
_FENCES = (Configure, Drop, Redrive, Subscribe, OpenProducer)
_NO_INDEX = Index(0)


class _ProducerTail:
    """A producer's batches in flight. Never empty."""

    __slots__ = ("batches", "epoch", "new", "next_sequence")

    def __init__(self, epoch: int, *, new: bool) -> None:
        self.epoch = epoch
        self.next_sequence = 0
        self.new = new
        """The applied state does not know it yet."""
        self.batches: dict[int, Remembered] = {}
        """By sequence, ascending."""


class _Tail:
    """What is in flight for one partition. Dropped when nothing is."""

    __slots__ = ("fence", "in_flight", "message_bytes", "messages", "next_offset", "producers")

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.messages = 0
        self.message_bytes = 0
        self.producers: dict[int, _ProducerTail] = {}
        self.in_flight = 0
        self.fence = _NO_INDEX
        """Publishes wait for this index; 0 is none."""


_InFlight = tuple[Index, _Key, _Tail, int, int, int, int]
"""A command in the log that is not applied yet: its index, partition and tail; then its messages, their
bytes, its producer and sequence. A fence has no messages."""


class QueueAdmission:
    """Implements `raftq.machine.Admission`; made by `QueueMachine.admission`."""

    __slots__ = ("_faults", "_in_flight", "_new_producers", "_state", "_tails")

    def __init__(self, state: State, faults: Faults) -> None:
        self._state = state
        self._faults = faults
        self._tails: dict[_Key, _Tail] = {}
        self._in_flight: deque[_InFlight] = deque()
        self._new_producers = 0

    def admit(self, header: bytes, body: Buffer, index: Index, log_time: Micros) -> Verdict:
        """A publish is judged by its batch: of its header only the kind is looked at."""
        del log_time  # Nothing that is judged here depends on it.
        try:
            if header and header[0] == PUBLISH:
                return self._admit_publish(body, index)
            command = check(header)
        except RaftqError as refusal:
            return refusal
        if isinstance(command, _FENCES):
            self._fence((command.queue, command.partition), index)
        return Admitted(header)

    def applied(self, index: Index) -> None:
        queue = self._in_flight
        while queue and queue[0][0] <= index:
            at, key, tail, messages, size, number, sequence = queue.popleft()
            tail.in_flight -= 1
            if messages:
                tail.messages -= messages
                tail.message_bytes -= size
            elif tail.fence == at:
                tail.fence = _NO_INDEX
            if number:
                producer = tail.producers[number]
                self._new_producers -= producer.new
                producer.new = False
                del producer.batches[sequence]
                if not producer.batches:
                    del tail.producers[number]
            if not tail.in_flight:
                del self._tails[key]

    def _fence(self, key: _Key, index: Index) -> None:
        tail = self._tails.get(key)
        if tail is None:
            partition = self._state.partitions.get(key)
            tail = self._tails[key] = _Tail(partition.next_offset if partition else 0)
        tail.fence = index
        tail.in_flight += 1
        self._in_flight.append((index, key, tail, 0, 0, 0, 0))

    def _admit_publish(self, body: Buffer, index: Index) -> Verdict:
        batch = read_header(body)
        key = (batch.queue, batch.partition)
        tail = self._tails.get(key)
        if tail is not None and tail.fence:
            return Later(tail.fence)
        partition = self._state.partitions.get(key)
        if partition is None:
            return not_here(batch.queue, batch.partition)
        if partition.sealed:
            return Busy(f"queue {batch.queue} is being deleted; ask again when that is settled")
        refused = unacceptable(batch, body, partition.config)
        if refused is not None:
            return refused
        if self._faults.no_dedup:
            batch = batch._replace(producer=ProducerId(0))
        if batch.producer:
            verdict = self._judge_producer(batch, partition, tail)
            if verdict is not None:
                return verdict
        size, _ = measured(batch, body, partition.config)
        if partition.config.max_messages or partition.config.max_bytes:
            full = _full(batch, partition, tail, size)
            if full is not None:
                return full
        if tail is None:
            tail = self._tails[key] = _Tail(partition.next_offset)
        return self._take(batch, partition, tail, index, size)

    def _take(
        self, batch: Header, partition: Partition, tail: _Tail, index: Index, size: int
    ) -> Admitted:
        base_offset, count = Offset(tail.next_offset), batch.count
        tail.next_offset = base_offset + count
        tail.messages += count
        tail.message_bytes += size
        tail.in_flight += 1
        number, sequence = batch.producer, batch.sequence
        key = (batch.queue, batch.partition)
        self._in_flight.append((index, key, tail, count, size, number, sequence))
        if number:
            producer = tail.producers.get(number)
            if producer is None:
                new = number not in partition.producers
                producer = tail.producers[number] = _ProducerTail(batch.epoch, new=new)
                self._new_producers += new
            producer.next_sequence = sequence + count
            remembered = Remembered(sequence, count, base_offset, index, batch.checksum)
            producer.batches[sequence] = remembered
        return Admitted(encode_stamp(batch.queue, batch.partition, base_offset, count))

    def _judge_producer(
        self, batch: Header, partition: Partition, tail: _Tail | None
    ) -> Verdict | None:
        """None when the batch is its producer's next one."""
        known = partition.producers.get(batch.producer)
        in_flight = tail.producers.get(batch.producer) if tail else None
        latest = in_flight or known
        if latest is None:
            refused = out_of_order(batch, None, 0)
            if refused is None and self._state.producers + self._new_producers >= MAX_PRODUCERS:
                return Busy(f"this group knows {MAX_PRODUCERS} producers, its bound; retry later")
            return refused
        if latest.next_sequence == batch.sequence and latest.epoch == batch.epoch:
            if in_flight is not None and len(in_flight.batches) >= PRODUCER_WINDOW:
                return _window_full(batch)
            return None
        original = in_flight.batches.get(batch.sequence) if in_flight else None
        if original is None and known is not None:
            original = known.find(batch.sequence)
        if original is None or not original.is_repeated_by(batch):
            return out_of_order(batch, latest.epoch, latest.next_sequence) or no_repetition(
                batch, original
            )
        at = _NO_INDEX if self._faults.duplicate_answered_early else original.index
        return DuplicateOf(at, Published(original.base_offset, original.messages, duplicate=True))


def _window_full(batch: Header) -> Busy:
    return Busy(
        f"producer {batch.producer} has {PRODUCER_WINDOW} batches in flight on queue {batch.queue}, "
        f"partition {batch.partition}: no more would be remembered; wait for answers"
    )


def _full(batch: Header, partition: Partition, tail: _Tail | None, size: int) -> QueueFull | None:
    config = partition.config
    messages, message_bytes_held = partition.messages, partition.message_bytes
    if tail is not None:
        messages += tail.messages
        message_bytes_held += tail.message_bytes
    messages_max = config.messages_share(partition.number)
    bytes_max = config.bytes_share(partition.number)
    if messages_max and messages + batch.count > messages_max:
        held = f"{messages} of {messages_max} messages"
    elif bytes_max and message_bytes_held + size > bytes_max:
        held = f"{message_bytes_held} of {bytes_max} bytes"
    else:
        return None
    return QueueFull(
        f"queue {batch.queue}, partition {batch.partition} holds {held}, and {batch.count} messages "
        f"of {size} bytes more do not fit; consume, or raise the limit"
    )
