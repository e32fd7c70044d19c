"""What one replica does about damage: repair, scrub, and a core that knows what it may not do.

While something is lost the core goes on voting and following, does not lead, and applies nothing
behind it. When all is repaired it is told; if a configuration, the log's end or the snapshot was
among it, a new core that has read the whole log takes the place of one that could not.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from raftq.env import Environment
from raftq.host.answers import Answers
from raftq.host.catch_up import CatchUpBudget, CatchUpShare
from raftq.host.repair import Repair
from raftq.host.scrubber import Scrubber
from raftq.ids import GroupId, Index, Micros
from raftq.raft import HardState, Raft, Role
from raftq.raft.faults import Faults
from raftq.wire.repair_messages import EntriesWanted, RepairMessage, SnapshotWanted

if TYPE_CHECKING:
    from raftq.host.group import Group


class Mending:
    """One group's."""

    def __init__(
        self,
        group: "Group",
        environment: Environment,
        send: Callable[[str, GroupId, RepairMessage], None],
        faults: Faults,
        budget: CatchUpBudget,
    ) -> None:
        self._send_to = send
        self._clock = environment.clock
        self._draw = environment.entropy.below
        self._faults = faults
        self.repair = Repair(group, environment.clock, self._send, self._draw)
        self._answers = Answers(group, self._send, CatchUpShare(budget))
        self._allowance = CatchUpShare(budget)
        self.scrubber = Scrubber(group, environment.clock.monotonic())
        self._group = group
        self._core_is_old = False
        self._is_unrestored = group.log.needs_snapshot
        """The machine could not be made: its snapshot is lost."""
        group.log.listen_to_damage(group.want_turn)

    def _send(self, message: RepairMessage) -> None:
        node = self._group.nodes.get(message.to)
        if node is not None:
            self._send_to(node, self._group.group, message)

    def step(self, message: RepairMessage) -> None:
        """A peer's replica lost something, or gives what this one lost."""
        if not self._group.stopped:
            if isinstance(message, EntriesWanted | SnapshotWanted):
                self._answers.step(message)
            else:
                self.repair.step(message)
            self._group.want_turn()

    @property
    def deadline(self) -> Micros:
        return min(
            self.repair.deadline,
            self.scrubber.deadline,
            self._answers.deadline,
            self._allowance.deadline,
        )

    def tick(self, now: Micros) -> None:
        """Once a turn, before the core is asked for anything."""
        self._answers.tick(now)
        self._allowance.wake(now)
        is_open = self.repair.tick(now)
        core, log = self._group.raft, self._group.log
        if is_open:
            self.look()
        elif self._core_is_old:
            self._renew_core()
        elif core.log.damaged:
            # A read failed once and does so no more.
            core.repaired()
        if log.needs_snapshot and not self.needs_snapshot:
            # What the next start would begin from is lost, while the machine is here.
            self._group.snapshotter.take_soon()
        self.scrubber.tick(now)

    def look(self) -> None:
        """Let the core know at once of what is lost, before it says anything to anybody."""
        core, log = self._group.raft, self._group.log
        if self.repair.is_open:
            core.log.note_damage(log.holes[0].first if log.holes else log.first_index)
            if self.needs_snapshot:
                core.unreadable = core.apply_next

    @property
    def needs_snapshot(self) -> bool:
        """The machine cannot be made, or go on, from what is held: it needs a peer's snapshot."""
        group = self._group
        is_behind = group.applied_index < group.log.first_index - 1
        return group.log.needs_snapshot and (self._is_unrestored or is_behind)

    def repaired(self, *, renew_core: bool) -> None:
        """Nothing is lost here any more."""
        self._core_is_old = self._core_is_old or renew_core
        if not self._core_is_old:
            self._group.raft.repaired()

    def make_core(self, state: HardState, *, may_vote: bool) -> Raft:
        """A core that begins from the log as it is."""
        return Raft(
            replica=self._group.replica,
            state=state,
            log=self._group.log,
            draw=self._draw,
            monotonic=self._clock.monotonic(),
            wall=self._clock.wall(),
            may_vote=may_vote,
            faults=self._faults,
            allowance=self._allowance,
        )

    def _renew_core(self) -> None:
        group, old = self._group, self._group.raft
        if old.role is Role.LEADER or not old.persistence.idle or old.diverged is not None:
            return
        self._core_is_old = False
        if self._is_unrestored or group.applied_index < group.log.snapshot.index:
            self._is_unrestored = False
            group.restore()
        state = HardState(old.term, old.vote, old.commit_index, old.persistence.seq)
        core = self.make_core(state, may_vote=old.may_vote)
        core.applied_index = max(core.applied_index, group.applied_index)
        core.apply_next = Index(core.applied_index + 1)
        group.raft = core

    @property
    def health(self) -> str:
        """What is wrong here, and what happens or has to be done; empty if nothing is."""
        group, log = self._group, self._group.log
        if group.quarantined is not None:
            return f"takes no part: {group.quarantined}"
        if not group.raft.may_vote:
            return (
                "amnesiac: it may have forgotten a vote or an entry that it had acknowledged, so it "
                "follows and is not counted; a new replica takes its place as soon as the group is led "
                "(if a majority is like this for good: raftq cluster recover)"
            )
        if self.needs_snapshot:
            return "its snapshot is lost and is being fetched from the other replicas"
        if log.holes:
            ranges = ", ".join(f"{hole.first} to {hole.last}" for hole in log.holes[:8])
            return (
                f"entries {ranges} are lost here and are being fetched from the other replicas; "
                "until then it votes and follows, and does not lead"
            )
        return ""
