"""One step on the way to other members of a group, judged from how its leader finds it now.

Whoever is to join is wanted by node, in the place of those that are to leave there. From any state in
between, also one that another leader left, the same question gives the next step:

    one that joins is no member yet     make it a learner; learners that are to leave go
    a learner has caught up             make it a voter, with those of its node that leave out
    nothing of that                     done, or wait

Rules

1. A place is never empty: who leaves votes on until its successor does.
2. `left` names only replicas whose successor is a voter, by a committed configuration. Ids ascend, so
   from then on no leader whose metadata lag can take them in again.
"""

from collections.abc import Mapping
from typing import NamedTuple

from raftq.host.group import Group
from raftq.ids import ReplicaId
from raftq.observability.logs import logger
from raftq.raft import ChangeRefused, Membership, NotLeader

_log = logger("raftq.host")

Places = Mapping[ReplicaId, str]


class Progress(NamedTuple):
    """What has become of a change. Both are empty while it is under way."""

    left: tuple[ReplicaId, ...]
    """They are out for good."""
    unusable: tuple[ReplicaId, ...]
    """They cannot join: a higher id was in the group before."""


def route(group: Group, nodes: Places, up: list[str]) -> None:
    """Know where these replicas are, and probe those whose node is linked.

    Nobody is forgotten before a restart: for a while the core speaks to those that left.
    """
    new = {node for replica, node in nodes.items() if replica not in group.nodes}
    group.nodes.update(nodes)
    for node in sorted(new):
        if node in up:
            group.link_up(node)


def advance(group: Group, *, joining: Places, leaving: Places) -> Progress:
    """Take the next step, if there is one and this replica leads; say what has been reached."""
    raft = group.raft
    status = raft.status()
    present = status.membership
    caught_up = [each.replica for each in status.followers if each.caught_up]
    following = next_step(present, caught_up, joining=joining, leaving=leaving)
    if following is not None:
        try:
            raft.propose_membership(following)
        except ChangeRefused as refused:
            if not refused.may_succeed_later:
                _log.error("membership change refused", group=group.group, reason=str(refused))
        except NotLeader:
            pass
        else:
            _log.info(
                "members change",
                group=group.group,
                voters=following.voters,
                learners=following.learners,
            )
            group.want_turn()
    is_committed = status.commit_index >= status.membership_index and not present.outgoing
    return Progress(
        left_for_good(present, joining, leaving) if is_committed else (),
        unusable(present, joining),
    )


def unusable(present: Membership, joining: Places) -> tuple[ReplicaId, ...]:
    members = present.members()
    newest = max(*members, present.retired)
    return tuple(r for r in sorted(joining) if r not in members and r <= newest)


def left_for_good(present: Membership, joining: Places, leaving: Places) -> tuple[ReplicaId, ...]:
    taken = [node for replica, node in joining.items() if replica in present.voters]
    members = present.members()
    return tuple(r for r in sorted(leaving) if r not in members and leaving[r] in taken)


def next_step(
    present: Membership, caught_up: list[ReplicaId], *, joining: Places, leaving: Places
) -> Membership | None:
    """The voters and learners to propose now; None if there is nothing to do but wait."""
    staying = [learner for learner in present.learners if learner not in leaving]
    refused = unusable(present, joining)
    new = [r for r in joining if r not in present.members() and r not in refused]
    if new:
        return Membership(present.voters, tuple(sorted((*staying, *new))))
    ready = [learner for learner in staying if learner in joining and learner in caught_up]
    taken = [joining[r] for r in joining if r in present.voters or r in ready]
    voters = [v for v in present.voters if v not in leaving or leaving[v] not in taken]
    wanted = Membership(
        tuple(sorted((*voters, *ready))), tuple(r for r in staying if r not in ready)
    )
    if (wanted.voters, wanted.learners) == (present.voters, present.learners):
        return None
    return wanted
