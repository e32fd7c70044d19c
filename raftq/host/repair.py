"""The repair of one replica: what is lost here is asked of the others, who give what they hold.

This is the asking half; the other one is in `answers.py`.

Theory of operation. The log knows its holes (`GroupLog.holes`), found at start, by a read, or by
the scrub. A hole is filled from behind: any other replica, leader or not, is asked for the last
entries of what is missing; what it gives must end in the chain value that this log goes on from,
and so proves itself and the chain value before it, which the next piece must end in. Pieces are
gathered to a patch of 1 to 16 MiB, made durable and used; then the hole is that much smaller. Where
one replica lacks something (it may be damaged too, elsewhere) the next is asked. A log that begins
with a snapshot that is lost fetches a whole snapshot instead.

Rules

1. One question at a time. An answer that is late, or to another question, is dropped.
2. Nothing is believed but what joins; who gives something else is not asked for it again in this
   round. It does not matter whether the entries are committed: what joins is what was lost here.
3. When nobody can give anything the repair waits, longer each time up to half a minute, and asks
   again; it never ends in giving up, and nothing is ever removed.
4. When all is repaired the core is told. If a configuration or the log's end was among it, the core
   begins anew from the log, as after a restart: it has to know what it could not read then.
"""

from typing import TYPE_CHECKING

from raftq.env import Clock
from raftq.errors import Corrupted
from raftq.ids import Index, Micros, ReplicaId
from raftq.limits import (
    PATCH_BYTES_MAX,
    PATCH_BYTES_MIN,
    PATCH_SHARE,
    REPAIR_PAUSE_MICROS_MAX,
    REPAIR_PAUSE_MICROS_MIN,
    REPAIR_TIMEOUT_MICROS,
)
from raftq.observability.logs import logger
from raftq.raft import SnapshotMeta
from raftq.raft.entry import MEMBERSHIP, Entry, verify
from raftq.raft.membership import decode
from raftq.raft.replica import NEVER
from raftq.storage.index import Hole
from raftq.storage.patch import Patch
from raftq.storage.snapshots import SnapshotWriter
from raftq.wire.repair_messages import (
    EntriesGiven,
    EntriesWanted,
    RepairMessage,
    SnapshotGiven,
    SnapshotWanted,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftq.host.group import Group

_log = logger("raftq.host")


class Repair:
    """One group's."""

    def __init__(
        self,
        group: "Group",
        clock: Clock,
        send: "Callable[[RepairMessage], None]",
        draw: "Callable[[int], int]",
    ) -> None:
        self._group = group
        self._clock = clock
        self._send = send
        self._draw = draw
        self.deadline: Micros = NEVER
        self.rejected = 0
        """Answers that did not join."""
        self.renews_core = False
        """Whether what was repaired is more than the core can learn by itself."""
        self._is_open = False
        self._number = 0
        self._asked: ReplicaId | None = None
        self._lacking: set[ReplicaId] = set()
        """Who cannot give what is wanted next."""
        self._peer: ReplicaId | None = None
        """Who gave something last: asked first."""
        self._pause = REPAIR_PAUSE_MICROS_MIN
        self._stuck: set[Index] = set()
        """Ends of the holes for which nobody could give anything in this round."""
        self._hole: Hole | None = None
        self._pieces: list[Patch] = []
        """Proved, each right before the one before it in this list."""
        self._pieces_bytes = 0
        self._repaired_bytes = 0
        """Since the repair began."""
        self._is_writing = False
        self._snapshot: SnapshotWriter | None = None
        self._snapshot_meta: SnapshotMeta | None = None
        self._snapshot_position = 0

    @property
    def is_open(self) -> bool:
        """Whether something is lost here and not repaired."""
        return bool(self._group.log.holes) or self._group.mending.needs_snapshot

    def tick(self, now: Micros) -> bool:
        """Called once a turn: sees new damage, and that answers do not come; whether there is any."""
        if not self.is_open:
            if self._is_open:
                self._finished()
            return False
        self._go_on_if_due(now)
        return self.is_open

    def _go_on_if_due(self, now: Micros) -> None:
        if not self._is_open:
            self._is_open = True
            self.deadline = now
            log = self._group.log
            _log.error(
                "damage found, repairing",
                group=self._group.group,
                replica=self._group.replica,
                entries=[tuple(hole) for hole in log.holes],
                snapshot=self._group.mending.needs_snapshot,
                found=log.damage[-1] if log.damage else "",
            )
        if now < self.deadline or self._is_writing:
            return
        if self._asked is not None:
            self._lacking.add(self._asked)
            self._asked = None
        else:
            self._lacking.clear()
            self._stuck.clear()
        self._go_on(now)

    def _finished(self) -> None:
        self._is_open = False
        self.deadline = NEVER
        self._drop_pieces()
        self._hole, self._asked = None, None
        self._repaired_bytes = 0
        self._pause = REPAIR_PAUSE_MICROS_MIN
        group = self._group
        _log.info(
            "damage repaired",
            group=group.group,
            replica=group.replica,
            entries=group.log.patches.repaired_entries,
        )
        group.mending.repaired(renew_core=self.renews_core)
        self.renews_core = False

    # --- Asking -------------------------------------------------------------------------------

    def _go_on(self, now: Micros) -> None:
        """Ask the next question, or write what has been gathered, or wait."""
        if self._group.mending.needs_snapshot:
            self._ask_for_snapshot(now)
            return
        hole = self._next_hole()
        if hole is None:
            self._wait(now)
            return
        last = Index(self._pieces[-1].first - 1) if self._pieces else hole.last
        peer = self._next_peer()
        if peer is not None:
            group = self._group
            self._ask(peer, now)
            self._send(EntriesWanted(group.replica, peer, self._number, hole.first, last))
        elif self._pieces:
            self._lacking.clear()
            self._write()
        else:
            self._stuck.add(hole.last)
            self._hole = None
            self._lacking.clear()
            self._go_on(now)

    def _next_hole(self) -> Hole | None:
        """The one at work, or the last that is not stuck."""
        holes = self._group.log.holes
        if self._hole is not None and self._hole not in holes:
            # It was truncated, or grew.
            self._hole = None
        if self._hole is None:
            self._drop_pieces()
            waiting = [hole for hole in holes if hole.last not in self._stuck]
            self._hole = waiting[-1] if waiting else None
        return self._hole

    def _drop_pieces(self) -> None:
        self._pieces, self._pieces_bytes = [], 0

    def _next_peer(self) -> ReplicaId | None:
        group = self._group
        peers = [
            replica
            for replica in sorted(group.nodes)
            if replica != group.replica and replica not in self._lacking
        ]
        if self._peer in peers:
            return self._peer
        return peers[self._draw(len(peers))] if peers else None

    def _ask(self, peer: ReplicaId, now: Micros) -> None:
        self._number += 1
        self._asked = peer
        self.deadline = Micros(now + REPAIR_TIMEOUT_MICROS)

    def _wait(self, now: Micros) -> None:
        """Nobody can give anything now; a node may come back, or be repaired itself."""
        self._peer = None
        self.deadline = Micros(now + self._pause + self._draw(self._pause))
        self._pause = min(2 * self._pause, REPAIR_PAUSE_MICROS_MAX)

    # --- What comes ---------------------------------------------------------------------------

    def step(self, message: EntriesGiven | SnapshotGiven) -> None:
        """An answer of another replica of this group."""
        now = self._clock.monotonic()
        if message.number == self._number and message.sender == self._asked and self.is_open:
            self._asked = None
            if isinstance(message, EntriesGiven):
                self._take_entries(message, now)
            else:
                self._take_snapshot(message, now)

    def _take_entries(self, message: EntriesGiven, now: Micros) -> None:
        hole = self._hole
        if hole is None or hole not in self._group.log.holes:
            self._go_on(now)
            return
        piece = self._proved(message, hole)
        if piece is None:
            self._lacking.add(message.sender)
            self._peer = None
            self._go_on(now)
            return
        self._peer = message.sender
        self._lacking.clear()
        self._pause = REPAIR_PAUSE_MICROS_MIN
        self._pieces.append(piece)
        self._pieces_bytes += sum(entry.size for entry in piece.entries)
        enough = min(max(self._repaired_bytes // PATCH_SHARE, PATCH_BYTES_MIN), PATCH_BYTES_MAX)
        if piece.first == hole.first or self._pieces_bytes >= enough:
            self._write()
        else:
            self._go_on(now)

    def _proved(self, message: EntriesGiven, hole: Hole) -> Patch | None:
        """What was given, as far as it joins; None if it does not."""
        entries, previous = message.entries, message.previous_chain
        patches = self._group.log.patches
        last = Index(self._pieces[-1].first - 1) if self._pieces else hole.last
        if not entries or entries[0].index < hole.first or entries[-1].index != last:
            return None
        if not previous:
            # The giver lost the entry before its first one. It may be known here; else the first
            # one proves no more than the chain value behind it.
            previous = patches.chain_before(entries[0].index) or b""
            if not previous:
                previous, entries = entries[0].chain, entries[1:]
        if not entries or not _is_chain(entries, previous):
            return None
        chain = entries[-1].chain
        joins = (
            chain == self._pieces[-1].previous_chain
            if self._pieces
            else patches.joins_behind(last, chain)
        )
        if not joins:
            self.rejected += 1
            _log.warning(
                "what a peer gave for damaged entries does not join the log",
                group=self._group.group,
                peer=self._group.nodes.get(message.sender),
                first=entries[0].index,
                last=last,
            )
            return None
        return Patch(previous, entries)

    def _write(self) -> None:
        pieces, self._hole = self._pieces, None
        self._repaired_bytes += self._pieces_bytes
        self._drop_pieces()
        entries = tuple(entry for piece in reversed(pieces) for entry in piece.entries)
        log = self._group.log
        self._is_writing = True
        self.renews_core = (
            self.renews_core
            or entries[-1].index == log.last_index
            or any(entry.kind == MEMBERSHIP for entry in entries)
        )
        log.patches.write(Patch(pieces[-1].previous_chain, entries), self._written)

    def _written(self, is_used: bool) -> None:
        self._is_writing = False
        now = self._clock.monotonic()
        if is_used:
            self.deadline = now
        else:
            self._wait(now)
        self._group.want_turn()

    # --- Snapshots ----------------------------------------------------------------------------

    def _ask_for_snapshot(self, now: Micros) -> None:
        peer = self._next_peer()
        if peer is None:
            self._lacking.clear()
            self._drop_snapshot()
            self._wait(now)
            return
        if peer != self._peer:
            self._drop_snapshot()
        meta = self._snapshot_meta
        group = self._group
        self._ask(peer, now)
        index = meta.index if meta is not None else Index(0)
        self._send(
            SnapshotWanted(group.replica, peer, self._number, index, self._snapshot_position)
        )

    def _drop_snapshot(self) -> None:
        if self._snapshot is not None:
            self._snapshot.abandon()
        self._snapshot = self._snapshot_meta = None
        self._snapshot_position = 0

    def _take_snapshot(self, message: SnapshotGiven, now: Micros) -> None:
        if self._snapshot_meta is None:
            self._begin_snapshot(message)
        meta, writer = self._snapshot_meta, self._snapshot
        if (
            meta is None
            or writer is None
            or ((message.index, message.position) != (meta.index, self._snapshot_position))
        ):
            self._lacking.add(message.sender)
            self._peer = None
            self._drop_snapshot()
            self._go_on(now)
            return
        self._peer = message.sender
        writer.write_raw(message.data)
        self._snapshot_position += len(message.data)
        if message.done:
            self._is_writing = True
            writer.finish()
        else:
            self._go_on(now)

    def _begin_snapshot(self, message: SnapshotGiven) -> None:
        """Only one that stands in this log, where the log has the same chain value."""
        log = self._group.log
        if not message.index or message.index > log.last_index:
            return
        if log.snapshot.index != message.index and log.chain(message.index) != message.chain:
            return
        try:
            membership = decode(message.membership)
        except Corrupted:
            return
        self._snapshot_meta = SnapshotMeta(
            message.index, message.term, message.chain, message.log_time, membership
        )
        self._snapshot = log.begin_snapshot(self._snapshot_meta, self._snapshot_written)

    def _snapshot_written(self) -> None:
        self._snapshot = self._snapshot_meta = None
        self._snapshot_position = 0
        self.renews_core = True
        self._written(not self._group.log.needs_snapshot)


def _is_chain(entries: tuple[Entry, ...], previous: bytes) -> bool:
    index = entries[0].index
    for entry in entries:
        if entry.index != index or not verify(entry, previous):
            return False
        index = Index(index + 1)
        previous = entry.chain
    return True
