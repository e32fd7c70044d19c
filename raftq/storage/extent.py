"""How far back a log reaches: by index, by time, by offsets. For whoever decides what may go.

Nothing here changes anything. Where something is lost the answers are not known: they are None, and
nothing goes.
"""

from bisect import bisect_left

from raftq.errors import Corrupted
from raftq.ids import Index, Micros, Offset, Partition, QueueId
from raftq.storage.index import Place
from raftq.storage.reading import LogFiles
from raftq.storage.replay import Contents


class Extent:
    """Of one log. What is queued and has no place yet is newer than all that is asked for."""

    def __init__(self, contents: Contents, files: LogFiles) -> None:
        self._contents = contents
        self._files = files

    def first_index_since(self, moment: Micros) -> Index | None:
        """The first entry whose log time is not before `moment`, or the one behind the last.

        Log times never fall, so it is found by bisection: a few short reads.
        """
        entries = self._contents.entries
        if entries.holes:
            return None

        def log_time(index: int) -> Micros:
            found = self._files.log_time(Index(index))
            if found is None:
                raise Corrupted(f"entry {index} is not held")
            return found

        try:
            indexes = range(entries.first_index, entries.last_index + 1)
            return Index(entries.first_index + bisect_left(indexes, moment, key=log_time))
        except Corrupted:
            return None

    def index_of(self, queue: QueueId, partition: Partition, offset: Offset) -> Index | None:
        """The entry with the batch that holds an offset, or with the first one behind it."""
        _, behind = self._contents.batches.around(queue, partition, offset)
        return None if behind is None else self._index_at(behind)

    def first_offset_behind(
        self, queue: QueueId, partition: Partition, index: Index
    ) -> Offset | None:
        """The first offset of the batches in entries behind `index`; None: there are none."""
        batches = self._contents.batches
        return batches.first_behind(queue, partition, index, self._index_at)

    def begin_of_newest(self, queue: QueueId, partition: Partition, newest_bytes: int) -> Offset:
        """Where the newest batches begin, as many as these bytes hold; 0: all are as many."""
        return self._contents.batches.begin_of_newest(queue, partition, newest_bytes)

    def _index_at(self, place: Place) -> Index:
        index = self._contents.entries.index_at(place.segment, place.position)
        assert index is not None, "a batch lies in an entry"
        return index
