"""What one replica gives another of entries that the other lost: the last of those asked for."""

from raftq.errors import Corrupted
from raftq.ids import Index
from raftq.storage.group_log import GroupLog
from raftq.storage.patch import Patch


def suffix(log: GroupLog, first: Index, last: Index, max_bytes: int) -> Patch | None:
    """The last entries of [first, last], about `max_bytes` of them, at least one.

    None where `last` is not held. `previous_chain` is empty where that is lost here; then only
    who knows it can prove the first of them.
    """
    start, size = Index(last + 1), 0
    lost = sum(hole.last - hole.first + 1 for hole in log.holes)
    while start > max(first, log.compaction.base.index + 1):
        length = log.length(Index(start - 1))
        if not length or (size and size + length > max_bytes):
            break
        size += length
        start = Index(start - 1)
    if start > last or last > log.last_index:
        return None
    try:
        found = log.held(start, Index(last + 1), size)
    except Corrupted:
        # What is bad is a hole now, and left out; a read that only failed once is asked again.
        known = sum(hole.last - hole.first + 1 for hole in log.holes)
        return suffix(log, first, last, max_bytes) if known > lost else None
    if found[-1].index != last:
        return None
    return Patch(log.chain(Index(start - 1)) or b"", tuple(found))
