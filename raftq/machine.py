"""The contract of a replicated state machine: commands in, reply and effects out.

Theory of operation. A group's log is a sequence of entries, each holding 1..n *commands*. Every
replica feeds the same commands in the same order to its own machine, so all machines go through
the same states. The leader sends the replies and carries out the effects; followers throw both
away. A machine is therefore a function of its group's log alone:

Rule 1. No clock but `Meta.log_time`, no randomness, no I/O, no float, no iteration over a set, no
        dependence on hash order, on `id()` or on any other group.
Rule 2. `apply` never raises for a command that a client can cause: a refusal is a reply that is a
        `RaftqError`, the same on every replica. An exception means a bug and stops the replica.
Rule 3. A machine snapshot has one index: what `snapshot()` yields is the state as it was when
        `snapshot()` was called, whatever is applied while its slices are drawn.
Rule 4. `digest()` covers the whole replicated state: equal digests at an equal index, or the
        replicas have diverged.

A command is a header (bytes; the first is its kind) and an optional body (a batch, opaque here).
The *admission* judges proposals on the leader before they enter the log, on an overlay of the
applied machine that includes the proposals in flight; what it has admitted, apply does not refuse.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol, runtime_checkable

from raftq.errors import RaftqError
from raftq.ids import Index, Micros, Offset, Partition, QueueId, Term

Buffer = bytes | bytearray | memoryview


class Meta(NamedTuple):
    """What a machine may know about the command it applies, besides the command."""

    index: Index  # type: ignore[assignment]  # Hides tuple.index, which nobody asks this for.
    term: Term
    log_time: Micros
    position: int
    """Position of the command in its entry, from 0."""


class Applied(NamedTuple):
    """What applying one command gave: `reply` for its proposer, `effects` for the leader."""

    reply: object = None
    effects: tuple[object, ...] = ()


class Admitted(NamedTuple):
    """The command enters the log with this (perhaps stamped) header."""

    header: bytes


class DuplicateOf(NamedTuple):
    """The command repeats one that is in the log at `index`; it does not enter the log again.

    The answer must wait until `index` is committed and applied, and fails with it. `reply` is what
    the original's apply gave or will give.
    """

    index: Index  # type: ignore[assignment]  # As above.
    reply: object


class Later(NamedTuple):
    """Cannot be judged while other proposals are in flight: ask again when `index` is applied."""

    index: Index  # type: ignore[assignment]  # As above.


Verdict = Admitted | DuplicateOf | Later | RaftqError


class Admission(Protocol):
    """Leader-only overlay. Made when the leader's no-op is applied, thrown away on stepping down."""

    def admit(self, header: bytes, body: Buffer, index: Index, log_time: Micros) -> Verdict:
        """Judge one command that would become part of the entry at `index`.

        Must be called for every command that enters the log, in log order.
        """
        ...

    def applied(self, index: Index) -> None:
        """The entry at `index` has been applied: what the overlay knew of it is in the machine."""
        ...


class Machine(Protocol):
    """One group's replicated state."""

    def apply(self, meta: Meta, header: bytes, body: Buffer) -> Applied: ...

    def admission(self) -> Admission: ...

    def next_deadline(self) -> Micros | None:
        """Log time at which `tick_command` should enter the log, or None while nothing is due."""
        ...

    def tick_command(self) -> bytes:
        """Header of the command that lets log time pass (it expires what is due)."""
        ...

    def leader_changed(self, meta: Meta, gap: Micros) -> None:
        """A no-op is applied: a new leader began after `gap` of log time without entries.

        Called on every replica, at the no-op's index; part of the replicated state.
        """
        ...

    def snapshot(self) -> Iterator[bytes]:
        """The state as of now, in slices; each is produced in at most about 5 ms."""
        ...

    def restore(self, slices: Iterator[bytes]) -> None: ...

    def digest(self) -> bytes:
        """16 bytes over the whole replicated state."""
        ...


class Kept(NamedTuple):
    """What the log must keep of one partition's batches, as far as the machine can say.

    `needed_from`: nobody will ask for the body of a message below this offset again. Above it some
    may be needed no more either: `is_settled` says of which. Such bodies stay for `audit_micros`
    after they were published, but at most `audit_bytes` of them. A partition that is a log forgets
    by itself: what is older than `expire_micros`, and what is beyond the newest `expire_bytes`; None
    where there is no such bound.
    """

    queue: QueueId
    partition: Partition
    needed_from: Offset
    audit_micros: Micros
    audit_bytes: int
    expire_micros: Micros | None
    expire_bytes: int | None


class Bound(NamedTuple):
    """One partition, and the lowest offset that is kept of it."""

    queue: QueueId
    partition: Partition
    offset: Offset


@runtime_checkable
class Retaining(Protocol):
    """What a machine has besides `Machine` if its log may let go of what nobody needs any more.

    Whether something is let go is decided by commands in the log, so all replicas agree; when its
    bytes go is each replica's own business, and not before its machine has a durable snapshot.
    """

    @property
    def released(self) -> tuple[Index, bytes]:
        """The last entry that was released, and the chain value there; (0, zeros) at first."""
        ...

    def kept(self) -> tuple[Kept, ...]:
        """One for each partition."""
        ...

    def is_settled(self, queue: QueueId, partition: Partition, start: Offset, stop: Offset) -> bool:
        """Whether nobody will ask for the bodies of [start, stop) again; a closed partition's too."""
        ...

    def release_command(self, through: Index, chain: bytes, bounds: tuple[Bound, ...]) -> bytes:
        """Header of the command that releases all entries up to `through`.

        `bounds`: of each partition with batches up to there, the offset behind the last of them.
        Apply checks all of it again, and refuses what is still needed.
        """
        ...

    def expire_command(self, bounds: tuple[Bound, ...]) -> bytes:
        """Header of the command with which partitions that are logs forget what lies below."""
        ...
