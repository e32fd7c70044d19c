"""Leaving office on purpose: to a chosen successor, or because the group goes on without the leader.

Rules:

1. The successor is a voter of the configuration in force that has said that nothing is lost of its
   log: another one would not campaign. It is told to when it has everything.
2. As long as it lacks what was committed when it was chosen, the leader goes on as before. Then
   nothing new is proposed: what is left to send is about one round trip of work.
3. An election timeout after the first wish the successor is given up. Another wish meanwhile names
   another successor and wins no time: a leader that is to leave could otherwise stay for ever.
4. A leader that a committed configuration does not contain retires: it looks for the voter that has
   most, of those that are whole if there is one, hands over to it, and after an election timeout it
   simply stops.
"""

from raftq.ids import NOBODY, Micros, ReplicaId
from raftq.limits import ELECTION_MICROS_MAX
from raftq.raft.messages import TimeoutNow
from raftq.raft.replica import NEVER, Replica


def begin(leader: Replica, to: ReplicaId) -> bool:
    """Hand over to `to`, which may take a while. False if it is nobody who could lead.

    A second wish takes the place of the first.
    """
    progress = leader.progress.get(to)
    if to not in leader.log.membership.voters or progress is None:
        return False
    if progress.amnesiac or progress.damaged:
        return False
    _begin(leader, to)
    return True


def _begin(leader: Replica, to: ReplicaId) -> None:
    if leader.transfer_to == NOBODY:
        leader.transfer_deadline = Micros(leader.now + ELECTION_MICROS_MAX)
    if leader.transfer_to != to:
        leader.transfer_to = to
        leader.transfer_goal = leader.commit_index
    go_on(leader)


def is_closed(leader: Replica) -> bool:
    """Whether nothing new is taken any more, because the chosen successor has nearly everything."""
    progress = leader.progress.get(leader.transfer_to)
    return progress is None or progress.match >= leader.transfer_goal


def go_on(leader: Replica) -> None:
    """Tell the chosen successor to campaign as soon as it has everything."""
    progress = leader.progress.get(leader.transfer_to)
    if progress is not None and progress.match == leader.log.last_index:
        leader.heir, leader.heir_term = progress.replica, leader.term
        leader.send_now.append(TimeoutNow(leader.replica, progress.replica, leader.term))


def retire(leader: Replica) -> None:
    """The configuration without this leader is committed: look for the voter that has most."""
    if leader.transfer_to == NOBODY:
        matches, progress = leader.matches, leader.progress

        def worth(voter: ReplicaId) -> tuple[bool, int]:
            return not progress[voter].damaged, matches.get(voter, 0)

        _begin(leader, max(leader.log.membership.voters, key=worth))


def give_up(leader: Replica) -> None:
    """The successor did not take over in time."""
    leader.transfer_to = NOBODY
    leader.transfer_deadline = NEVER
    log = leader.log
    retired = not log.membership.is_voter(leader.replica)
    if retired and leader.commit_index >= log.membership_index:
        leader.become_follower(leader.term, NOBODY)
