"""One tree of errors, in one table.

Rules:

1. Every error a user can meet derives from `RaftqError` and stands in this file, with a number
   (`code`, stable for ever, sent over the wire), `retriable` (may the same call succeed later?)
   and a default `outcome`.
2. `outcome` says what is known of the request: ``"not_applied"`` (nothing happened, and nothing
   will) or ``"unknown"`` (it may or may not have happened). The instance's value is what counts;
   client retries are driven by it.
3. A message says what happened, to which queue, and what to do next.
4. Where a built-in fits (TimeoutError, ConnectionError, ValueError), the class derives from it too.

`docs/reference/errors.md` is generated from this file.
"""

from typing import ClassVar, Literal

Outcome = Literal["not_applied", "unknown"]


class RaftqError(Exception):
    """Base of every error that raftq raises on purpose.

    `retry_after` is in seconds and 0.0 where waiting would not help; `failed` names the items
    that were refused where one call carried several (their receipts, or their positions).
    """

    code: ClassVar[int] = 1
    retriable: ClassVar[bool] = False
    default_outcome: ClassVar[Outcome] = "not_applied"

    def __init__(
        self,
        message: str = "",
        *,
        outcome: Outcome | None = None,
        retry_after: float = 0.0,
        failed: tuple[object, ...] = (),
    ) -> None:
        super().__init__(message or (type(self).__doc__ or "").partition("\n")[0])
        self.outcome: Outcome = outcome or self.default_outcome
        self.retry_after = retry_after
        self.failed = failed


class QueueNotFound(RaftqError):
    """No queue of this name exists; create it first, or check the spelling."""

    code = 10


class QueueExists(RaftqError):
    """A queue of this name exists with another configuration; use update_queue to change it."""

    code = 11


class QueueNotEmpty(RaftqError):
    """The queue still holds messages; drain it, or delete it with force=True."""

    code = 12


class QueueFull(RaftqError):
    """The queue is at its limit and its overflow policy is to refuse; consume, or raise the limit."""

    code = 13
    retriable = True


class InvalidQueueName(RaftqError, ValueError):
    """A queue name is 1 to 80 of A-Z a-z 0-9 . _ - and starts neither with '.' nor with '__'."""

    code = 14


class InvalidArgument(RaftqError, ValueError):
    """An argument is outside its range; the message names it and the range."""

    code = 15


class MessageTooLarge(RaftqError, ValueError):
    """A message is over the queue's max_message_bytes; store it elsewhere and send a reference."""

    code = 16


class StaleReceipt(RaftqError):
    """The delivery behind this receipt is over (expired, settled or taken back); nothing changed."""

    code = 20


class ProducerFenced(RaftqError):
    """A newer producer has been opened under this name; this one must stop."""

    code = 21


class SequenceGap(RaftqError):
    """A producer's sequence number skips one that never arrived; open the producer anew."""

    code = 22


class CrossGroupTransaction(RaftqError):
    """The queues of this transaction live in different groups; create them with colocate_with."""

    code = 23


class TransactionAborted(RaftqError):
    """The transaction was not applied, in no part; receive again and retry."""

    code = 24
    retriable = True


class SessionExpired(RaftqError):
    """The session was unknown or expired when the command arrived; earlier outcomes are unknown."""

    code = 25
    default_outcome = "unknown"


class OffsetOutOfRange(RaftqError, LookupError):
    """The offset is not held any more, or not yet; start from 'earliest' or 'latest'."""

    code = 26


class NoQuorum(RaftqError):
    """A majority of the group's replicas cannot be reached; bring nodes back, then retry."""

    code = 30
    retriable = True
    default_outcome = "unknown"


class Timeout(RaftqError, TimeoutError):
    """The call took longer than its time limit; raise timeout=, or see `raftq cluster status`."""

    code = 31
    retriable = True
    default_outcome = "unknown"


class ConnectionFailed(RaftqError, ConnectionError):
    """No node could be reached; check the addresses, and that a node is running there."""

    code = 32
    retriable = True


class Busy(RaftqError):
    """A bound on work in progress is reached; slow down and retry after `retry_after` seconds."""

    code = 33
    retriable = True


class Throttled(RaftqError):
    """A quota is spent; retry after `retry_after` seconds."""

    code = 34
    retriable = True


class AuthenticationFailed(RaftqError):
    """The credentials were refused."""

    code = 40


class AccessDenied(RaftqError):
    """This user may not do that; an administrator can grant it."""

    code = 41


class ProtocolError(RaftqError):
    """The other side broke the protocol; check that it is raftq and of a fitting version."""

    code = 42


class UnsupportedVersion(ProtocolError):
    """No common protocol version; upgrade the older side."""

    code = 43


class StorageFull(RaftqError):
    """The disk is full, so new messages are refused; acks, deletes and reads go on. Free space."""

    code = 50
    retriable = True


class ReplicaDamaged(RaftqError):
    """This replica is damaged and serves nothing it cannot prove; the others go on."""

    code = 51
    retriable = True


class Corrupted(RaftqError):
    """Stored or received bytes fail their checksum."""

    code = 52


class ClusterMismatch(RaftqError):
    """This node or data directory belongs to another cluster, or to another list of members."""

    code = 53


def _tree(base: type[RaftqError]) -> list[type[RaftqError]]:
    found = [base]
    for child in base.__subclasses__():
        found += _tree(child)
    return found


TABLE: dict[int, type[RaftqError]] = {error.code: error for error in _tree(RaftqError)}
"""Every error by its code: what a client uses to turn an answer into an exception."""

assert len(TABLE) == len(_tree(RaftqError)), "two errors share a code"


def from_code(
    code: int, message: str, *, outcome: Outcome | None = None, retry_after: float = 0.0
) -> RaftqError:
    """The error that a peer named by `code`; an unknown code becomes a plain RaftqError."""
    return TABLE.get(code, RaftqError)(message, outcome=outcome, retry_after=retry_after)
