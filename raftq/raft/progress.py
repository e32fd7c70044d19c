"""What a leader knows of one other replica, and how much it may send it.

    PROBE      where the logs agree is not known: one append, then wait for an answer
    REPLICATE  it is known: appends are sent ahead of the answers, within a window
    SNAPSHOT   what it needs next is not held here any more: it gets the snapshot, chunk by chunk

Rules:

1. `Invariant: 0 <= match < next`. Within a term `match` never falls.
2. Success never moves `next` back; only a refusal, a lost link or a heartbeat reply that shows a
   missing tail does.
3. `sent_match`, `sent_next` and `sent_commit` are what held when the newest heartbeat left. Only the reply to that
   very heartbeat is compared with them: anything older may have been overtaken on its way.
"""

from collections import deque
from enum import Enum

from raftq.ids import Index, Micros, ReplicaId
from raftq.limits import MAX_INFLIGHT_APPENDS, MAX_INFLIGHT_BYTES


class Stage(Enum):
    """How entries are sent to a replica."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    """Of one replica, in one term of this leader."""

    __slots__ = (
        "amnesiac",
        "damaged",
        "heard",
        "inflight",
        "inflight_bytes",
        "judged_from",
        "match",
        "next",
        "paused",
        "replica",
        "round_acked",
        "sent_commit",
        "sent_match",
        "sent_next",
        "sent_round",
        "snapshot_anew",
        "snapshot_asked",
        "snapshot_chain",
        "snapshot_index",
        "snapshot_position",
        "stage",
    )

    def __init__(self, replica: ReplicaId, next_index: Index, now: Micros) -> None:
        self.replica = replica
        self.match = Index(0)
        self.next = next_index
        self.stage = Stage.PROBE
        self.paused = False
        """In PROBE: the probe is on its way."""
        self.amnesiac = False
        """It lost what it had acknowledged: it is sent to, and counts for nothing."""
        self.damaged = True
        """It has not said yet, in this term, that nothing of its log and machine is lost there."""
        self.judged_from = 0
        """Only replies to later heartbeats tell that: in this round it got a new log. Before the
        first such reply an answer to an append tells it too."""
        self.heard = now
        self.inflight: deque[tuple[Index, int]] = deque()
        """Appends on the way: (last index, bytes), ascending."""
        self.inflight_bytes = 0
        self.round_acked = 0
        self.sent_round = 0
        self.sent_match = Index(0)
        self.sent_next = Index(0)
        self.sent_commit = Index(0)
        self.snapshot_index = Index(0)
        """In SNAPSHOT: which one it gets; with its chain value this is never that of another."""
        self.snapshot_chain = b""
        self.snapshot_position = 0
        self.snapshot_asked = False
        self.snapshot_anew = False
        """What it has of another one is of no use: nobody here has the rest."""

    def may_send(self) -> bool:
        if self.stage is Stage.REPLICATE:
            return (
                len(self.inflight) < MAX_INFLIGHT_APPENDS
                and self.inflight_bytes < MAX_INFLIGHT_BYTES
            )
        return self.stage is Stage.PROBE and not self.paused

    def sent(self, last: Index, size: int) -> None:
        """An append with entries up to `last` left."""
        if self.stage is Stage.PROBE:
            self.paused = True
            return
        self.next = Index(last + 1)
        self.inflight.append((last, size))
        self.inflight_bytes += size

    def acknowledged(self, match: Index) -> None:
        """Its log is durable and equal to the leader's up to `match`."""
        inflight = self.inflight
        while inflight and inflight[0][0] <= match:
            self.inflight_bytes -= inflight.popleft()[1]
        self.match = max(self.match, match)
        self.next = max(self.next, Index(match + 1))

    def begin_probe(self, next_index: Index) -> None:
        assert next_index > self.match
        self._leave()
        self.stage = Stage.PROBE
        self.paused = False
        self.next = next_index

    def begin_replicate(self) -> None:
        self._leave()
        self.stage = Stage.REPLICATE
        self.next = Index(self.match + 1)

    def begin_snapshot(
        self, index: Index, chain: bytes, *, position: int = 0, anew: bool = False
    ) -> None:
        self._leave()
        self.stage = Stage.SNAPSHOT
        self.snapshot_index = index
        self.snapshot_chain = chain
        self.snapshot_position = position
        self.snapshot_asked = False
        self.snapshot_anew = anew

    def installed(self, round_: int) -> None:
        """It has another log now; whether that is whole, replies to later heartbeats tell."""
        self.damaged = True
        self.judged_from = round_

    def _leave(self) -> None:
        self.inflight.clear()
        self.inflight_bytes = 0
