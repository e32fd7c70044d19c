"""Producers of one partition: what makes a repeated publish harmless.

Theory of operation. A producer numbers its messages from 0; a batch carries the number of its first
one (its sequence) and the epoch under which the producer was opened. A batch is in order when its
sequence is the next one expected. One that was there already is a duplicate and is answered with the
original's offsets; its checksum tells a repetition from another batch under an old number.

Rules:

1. At least `PRODUCER_WINDOW` batches are remembered: as many as a producer may have in flight.
2. A producer that was never opened may begin with epoch 0 and sequence 0. Beginning later means that
   what came before is not known here any more, so that nothing can be said about duplicates.
3. Epochs are minted per partition and never repeat, so that a producer that was forgotten and opened
   again still fences its oldest self.
4. To open a producer is to compare and set: who opens names the epoch that it takes to be in force,
   and gets the next one if that is so. Else it is told the one in force: a newcomer names that one
   next, a producer that held an epoch before knows that it is fenced. So an opening that comes late,
   or again, fences nobody: a repetition is known by its opener, and answered with what it got.
5. After an opening nothing of an older epoch enters the log any more, so the opening's answer tells
   what became of all that was sent before. An exact repetition of what did enter is answered with
   the original's offsets whatever the epoch.
"""

from array import array
from typing import Final, NamedTuple

from raftq.batch import Header
from raftq.errors import InvalidArgument, ProducerFenced, RaftqError, SequenceGap, SessionExpired
from raftq.ids import Index, Offset
from raftq.limits import PRODUCER_WINDOW

_FIELDS: Final = 5
_WINDOW: Final = _FIELDS * PRODUCER_WINDOW
SEQUENCE_MAX: Final = 1 << 62


class Remembered(NamedTuple):
    """A batch that has its offsets."""

    sequence: int
    messages: int
    base_offset: Offset
    index: Index  # type: ignore[assignment]  # Hides tuple.index, which nobody asks it for.
    checksum: int

    def is_repeated_by(self, header: Header) -> bool:
        """Whether that batch, which has the same sequence, is this one again, byte for byte."""
        return self.checksum == header.checksum and self.messages == header.count


class Producer:
    """What a partition knows of one producer."""

    __slots__ = ("check_at", "epoch", "last_offset", "next_sequence", "opener", "used", "window")

    def __init__(self, epoch: int, used: int, check_at: int) -> None:
        self.epoch = epoch
        self.opener = 0
        """Who opened it with this epoch; 0 if nobody did."""
        self.next_sequence = 0
        self.last_offset = -1
        self.used = used
        """Log time of the last command."""
        self.check_at = check_at
        """Log time at which it is looked at, and forgotten if it was idle."""
        self.window = array("Q")
        """The newest batches, `_FIELDS` numbers each: 40 bytes a batch."""

    def published(self, batch: tuple[int, int, int, int, int], epoch: int, now: int) -> None:
        """`batch` has the fields of `Remembered`."""
        self.epoch = epoch
        self.used = now
        self.next_sequence = batch[0] + batch[1]
        self.last_offset = batch[2] + batch[1] - 1
        window = self.window
        window.extend(batch)
        if len(window) > _WINDOW:
            del window[:_FIELDS]

    def find(self, sequence: int) -> Remembered | None:
        for at in range(0, len(self.window), _FIELDS):
            if self.window[at] == sequence:
                return Remembered(*self.window[at : at + _FIELDS])  # type: ignore[arg-type]
        return None


def out_of_order(header: Header, epoch: int | None, next_sequence: int) -> RaftqError | None:
    """Why a batch can be neither the next one nor a duplicate; `epoch` None is an unknown producer."""
    where = f"on queue {header.queue}, partition {header.partition}"
    if header.sequence > SEQUENCE_MAX:
        return InvalidArgument(f"a sequence is at most {SEQUENCE_MAX}, not {header.sequence}")
    if epoch is None:
        if not header.epoch and not header.sequence:
            return None
        return SessionExpired(
            f"producer {header.producer} is not known {where} (any more), so whether its batch "
            f"{header.sequence} was published before cannot be said; open the producer anew",
            outcome="not_applied",
        )
    if header.epoch < epoch:
        return ProducerFenced(
            f"producer {header.producer} was opened anew {where}: epoch {header.epoch} is fenced by "
            f"{epoch}; this one must stop"
        )
    if header.epoch > epoch:
        return SessionExpired(
            f"producer {header.producer} was not opened with epoch {header.epoch} {where}; open it anew",
            outcome="not_applied",
        )
    if header.sequence > next_sequence:
        return SequenceGap(
            f"producer {header.producer} sent {header.sequence} {where}, but {next_sequence} is next; "
            "open the producer anew"
        )
    return None


def no_repetition(header: Header, known: Remembered | None) -> RaftqError:
    """What to say of a batch with an old sequence that is not the one remembered under it."""
    where = f"on queue {header.queue}, partition {header.partition}"
    if known is None:
        return SequenceGap(
            f"producer {header.producer} sent {header.sequence} {where} again, which is not the "
            f"beginning of one of its last {PRODUCER_WINDOW} batches; open the producer anew",
            outcome="unknown",
        )
    return InvalidArgument(
        f"producer {header.producer} sent another batch {where} under its old sequence "
        f"{header.sequence}; give every batch a sequence of its own"
    )
