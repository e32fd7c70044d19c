"""Where a log is written: one segment's end, and the bytes of the next unit.

Used by the running log and by recovery alike, so that both write the same format. It knows nothing
of syncs, queues or reading, and never overwrites: `position` only grows.
"""

from collections.abc import Sequence
from typing import NamedTuple

from raftq.env import File
from raftq.ids import NOBODY, Index, ReplicaId, Term, WriteSeq
from raftq.limits import FORMAT_VERSION
from raftq.raft.entry import GENESIS, Buffer
from raftq.storage.segment import (
    SEGMENT_HEADER_BYTES,
    SEGMENT_MAGIC,
    SegmentHeader,
    encode_segment_header,
)
from raftq.storage.unit import (
    MAGIC,
    UNIT_HEADER_BYTES,
    UnitHeader,
    body_checksum,
    seal,
    seed_of,
)

POSITION_MAX = 1 << 32
"""Positions in an index are 32 bits wide; a segment is 64 MiB and at most one unit longer."""


class State(NamedTuple):
    """What the newest unit says of the replica, as it is after the unit."""

    write_seq: WriteSeq
    term: Term
    vote: ReplicaId
    last_index: Index
    last_term: Term
    last_chain: bytes


NOTHING = State(WriteSeq(0), Term(0), NOBODY, Index(0), Term(0), GENESIS)
"""Before the first unit."""


class Appender:
    """The end of the newest segment. A new segment's header goes out with its first unit."""

    __slots__ = (
        "_boot",
        "_seed",
        "_segment_header",
        "file",
        "flags",
        "incarnation",
        "last_header",
        "number",
        "position",
        "previous",
        "segment_bytes",
        "sequence",
        "state",
    )

    def __init__(self, *, incarnation: int, boot: int, flags: int = 0) -> None:
        self.incarnation = incarnation
        self._boot = boot
        self._seed = 0
        self._segment_header = b""
        self.file: File | None = None
        self.flags = flags
        """Segment flags, handed on from segment to segment."""
        self.sequence = 0
        self.segment_bytes = 0
        self.position = 0
        self.number = 0
        self.previous = 0
        self.last_header = b""
        """Bytes of the newest unit's header, if it was written here."""
        self.state = NOTHING

    def resume(self, *, sequence: int, header: UnitHeader) -> None:
        """Units go on behind `header`, which lies in segment `sequence`; `begin` comes next."""
        self.sequence = sequence
        self.position = header.end
        self.number = header.number
        self.previous = header.checksum
        self.state = state_of(header)

    def begin(self, file: File, *, sequence: int, segment_bytes: int) -> None:
        """Go on in a new segment, which continues the present end."""
        assert sequence > self.sequence, "sequences never repeat"
        state = self.state
        self._segment_header = encode_segment_header(
            SegmentHeader(
                magic=SEGMENT_MAGIC,
                version=FORMAT_VERSION,
                flags=self.flags,
                zeros=0,
                incarnation=self.incarnation,
                sequence=sequence,
                boot=self._boot,
                continues_segment=self.sequence,
                continues_position=self.position,
                number=self.number,
                previous=self.previous,
                last_index=state.last_index,
                last_term=state.last_term,
                last_chain=state.last_chain,
                write_seq=state.write_seq,
                checksum=0,
            )
        )
        self.file = file
        self.sequence = sequence
        self.segment_bytes = segment_bytes
        self.position = SEGMENT_HEADER_BYTES
        self._seed = seed_of(self.incarnation, sequence)

    def fits(self, body_bytes: int) -> bool:
        """A segment takes at least one unit, whatever its size."""
        end = self.position + UNIT_HEADER_BYTES + body_bytes
        return end <= self.segment_bytes or self.position == SEGMENT_HEADER_BYTES

    def append(
        self,
        vectors: Sequence[Buffer],
        body_bytes: int,
        *,
        flags: int,
        records: int,
        synced_through: int,
        commit_index: Index,
        commit_chain: bytes,
        state: State,
    ) -> UnitHeader:
        """Write one unit into the page cache. The header returned lacks its own checksum.

        Raises: OSError. Nothing may be appended after that.
        """
        file, position, seed = self.file, self.position, self._seed
        assert file is not None, "a segment was begun"
        assert position + body_bytes < POSITION_MAX
        header = UnitHeader(
            MAGIC,
            FORMAT_VERSION,
            flags,
            0,
            body_bytes,
            records,
            position,
            self.number + 1,
            state.write_seq,
            self.previous,
            self._boot,
            synced_through,
            commit_index,
            commit_chain,
            state.term,
            state.vote,
            state.last_index,
            state.last_term,
            state.last_chain,
            body_checksum(vectors, seed),
            0,
        )
        sealed, checksum = seal(header, seed)
        if self._segment_header:
            file.write(0, (self._segment_header + sealed, *vectors))
            self._segment_header = b""
        else:
            file.write(position, (sealed, *vectors))
        self.number += 1
        self.previous = checksum
        self.last_header = sealed
        self.state = state
        self.position = position + UNIT_HEADER_BYTES + body_bytes
        return header

    def write_header(self) -> None:
        """Write the segment's header without a unit; only recovery, which syncs before it goes on."""
        assert self.file is not None, "a segment was begun"
        if self._segment_header:
            self.file.write(0, (self._segment_header,))
            self._segment_header = b""


def state_of(header: UnitHeader) -> State:
    return State(
        header.write_seq,
        header.term,
        header.vote,
        header.last_index,
        header.last_term,
        header.last_chain,
    )
