"""One pass over what a log keeps, in slices, to find rot early.

Segments are walked unit by unit, so that headers and records are checked as a start without
indexes would check them; then their indexes, the patches, and the snapshots. What is found bad is a
hole from then on (entries), not given out any more (snapshots), or made anew at the next start
(indexes). Nothing is removed, nothing is written.

A slice is a bounded read and the hashing of it; how often one is asked for is the caller's business.
"""

from collections.abc import Iterator
from contextlib import closing

from raftq.errors import Corrupted
from raftq.limits import SCRUB_SLICE_BYTES
from raftq.storage import index_file
from raftq.storage.damage import Damage
from raftq.storage.patches import Patches
from raftq.storage.segment import SEGMENT_HEADER_BYTES, Scanner, index_name
from raftq.storage.unit import seed_of


def scrub(log: Damage, patches: Patches) -> Iterator[int]:
    """Yields the bytes looked at since the last time; what is found is noted."""
    for segment, end in log.segments():
        yield from _segment(log, segment, end)
    for part in patches.in_use():
        yield patches.check(part)
    yield from log.check_snapshots()


def _segment(log: Damage, segment: int, end: int) -> Iterator[int]:
    file = log.segment_file(segment)
    if file is None:
        log.suspect_bytes(segment, 0, 1 << 62, "the segment cannot be opened")
        return
    sound_to = SEGMENT_HEADER_BYTES
    seen = 0
    with closing(file):
        for found in Scanner(
            file,
            seed_of(log.incarnation, segment),
            start=SEGMENT_HEADER_BYTES,
            stop=end,
            partial=True,
            read_bytes=SCRUB_SLICE_BYTES,
        ):
            header = found.header
            if header.position > sound_to:
                log.suspect_bytes(segment, sound_to, header.position, "no unit is there any more")
            if found.body is None:
                log.suspect_bytes(segment, header.position, header.end, "the unit does not verify")
            sound_to = header.end
            seen += len(found.body or b"")
            if seen >= SCRUB_SLICE_BYTES:
                yield seen
                seen = 0
        if end > sound_to:
            log.suspect_bytes(segment, sound_to, end, "no unit is there any more")
        _check_index(log, segment)
    yield seen


def _check_index(log: Damage, segment: int) -> None:
    data = log.read_file(index_name(segment))
    if data is None:
        return
    try:
        index_file.decode(data, sequence=segment, incarnation=log.incarnation)
    except Corrupted as error:
        log.note_harmless(f"{error}; it is made anew at the next start")
