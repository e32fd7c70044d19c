"""`raftq cluster recover`: a group goes on from one replica, because its majority is lost for good.

Theory of operation
-------------------
A group that has lost a majority of its replicas (disks gone, or replicas amnesiac) stands still for
ever, and rightly: what the lost ones acknowledged, or promised to a candidate, nobody can know. Only
a person can decide that it is lost. The decision is made for one data directory while its node is
stopped, about one group or about all of them, and has two parts:

    decide    save the small file `recover`: for each replica here a new id and a new incarnation, and,
              if the whole cluster is meant, a new cluster id
    finish    carry it out. The command does so at once; so does every start of the node, before it
              looks at anything else, as long as `recover` is there

What finish does, in this order, each step a no-op where it has been done:

    1. a log that is amnesiac is copied: what verifies goes into a new directory under the new
       incarnation; the old one is moved aside, and the copy takes its place
    2. one entry is appended to the log: MEMBERSHIP, with the new id as the only voter, in a term far
       above the log's. Its second command says what was decided, when, and who had been the members:
       the log itself tells it for ever, to `raftq log inspect` and to audits
    3. `replicas` says that the group's directory is the new id's (`made`)
    4. for the whole cluster: `node` names the new cluster, and this node's new replica of group 0
    5. `recover` is removed

The node then starts. Group 0, if it was among them, elects its only voter. The reconciler reports each
recovered replica to group 0 (`GroupRecovered`): only then is it run, under its new id, and all others
of its group are lost and get successors, which join as they always do.

Why that is safe, as far as it can be

1. Old or new. Before `recover` has its name nothing was changed; from then on no replica of this
   directory runs before all steps are done. So nobody ever votes, in the old membership, with a log
   that holds the forced entry, and nobody ever leads by it who may still answer under its old id.
2. Who was in the old membership cannot speak with the new one. A message names the replica that it is
   for, and its new id is in no old membership. If the whole cluster is meant its id is new too, and
   both sides refuse the link. If one group is meant group 0 is there: the nodes that are lost are
   replaced first, so that the others refuse their directories; one that was not, and comes back,
   hears from group 0 that its replica is lost.
3. The forced entry's term is `TERM_STEP` above the log's own and the new id `ID_STEP` or more above
   all that are known here: more than the lost ones can have counted on meanwhile, by elections or
   by changes. Ids are drawn, so that two recoveries of one group do not get the same.
4. A group that went on elsewhere is not overruled: group 0 refuses the report (`recoveries`).
5. Nothing is deleted: an amnesiac log lies aside, and every other one is only appended to.

What it cannot do: bring back what only the lost ones held. Entries behind the commit mark here may
never have been acknowledged, and are committed now. And if a majority of the *old* members ever starts
again by itself, with its old disks, it is a cluster too: nobody here can stop it. The lost directories
have to be emptied.
"""

from collections.abc import Iterable
from contextlib import closing
from typing import Final, NamedTuple

import cbor2

from raftq.env import Environment
from raftq.errors import Corrupted, InvalidArgument
from raftq.host import identity as identities
from raftq.host.identity import Identity, group_directory
from raftq.ids import METADATA_GROUP, NOBODY, ClusterId, GroupId, Index, ReplicaId, Term, WriteSeq
from raftq.limits import FORMAT_VERSION
from raftq.raft import Membership
from raftq.raft import membership as memberships
from raftq.raft.entry import MEMBERSHIP, Command, build
from raftq.raft.log import RaftLog
from raftq.raft.ready import Write
from raftq.server import made as making
from raftq.server.copying import copy_log
from raftq.server.made import Made
from raftq.server.replicas import amnesia_path
from raftq.server.survey import Holding, look
from raftq.storage import small_file
from raftq.storage.group_log import Condition, GroupLog
from raftq.storage.recovered import encode_recovered

PATH: Final = "recover"
TERM_STEP: Final = 1 << 20
ID_STEP: Final = 1 << 20


class Forced(NamedTuple):
    """What was decided about one replica."""

    group: GroupId
    replica: ReplicaId
    """Its new id."""
    incarnation: int
    """Of its directory, if that has to be copied."""
    former: tuple[ReplicaId, ...]
    """The members of the group as its log knows them."""


class Decision(NamedTuple):
    """The file `recover`."""

    cluster: ClusterId
    """The new one; 0 if the cluster goes on as it is."""
    decided_at: int
    """Wall clock, microseconds."""
    rows: tuple[Forced, ...]


def examine(environment: Environment) -> tuple[Identity | None, list[Holding]]:
    """Whose directory it is, and what it holds of each group. Changes nothing.

    Raises: Corrupted, OSError.
    """
    identity = identities.stored(environment.disk, boot=environment.boot)
    if identity is None or identity.state != "active":
        return identity, []
    return identity, look(environment.disk, identity, making.load(environment.disk))


def check(identity: Identity | None, holdings: Iterable[Holding], groups: list[GroupId]) -> None:
    """Whether this may be decided about these groups, which are all that are here, or single ones.

    Raises: InvalidArgument.
    """
    if identity is None or identity.state != "active":
        raise InvalidArgument(
            "the data directory belongs to no cluster: there is nothing to recover"
        )
    held = {each.group: each for each in holdings}
    if absent := [group for group in groups if group not in held]:
        raise InvalidArgument(f"group {absent[0]} has no replica here; others may have one")
    if METADATA_GROUP in groups and len(groups) < len(held):
        raise InvalidArgument(
            "group 0 holds the cluster together: it is recovered with all groups of its node, or not "
            "at all; use --all"
        )
    for group in groups:
        if held[group].obstacle:
            raise InvalidArgument(
                f"group {group} cannot go on from this replica: {held[group].obstacle}; "
                "use another survivor"
            )


def decide(
    environment: Environment,
    identity: Identity,
    holdings: Iterable[Holding],
    groups: list[GroupId],
) -> Decision:
    """Make the decision durable. From now on the node starts with it, or not at all.

    Raises: OSError; then nothing was decided.
    """
    entropy = environment.entropy
    chosen = [each for each in holdings if each.group in groups]
    known = [max(identity.metadata_replicas())]
    known += [row.replica for row in making.load(environment.disk).values()]
    known += [max(each.membership.members()) for each in chosen]
    known += [each.membership.retired for each in chosen]
    first = max(known) + ID_STEP + entropy.below(ID_STEP)
    rows = tuple(
        Forced(
            each.group,
            ReplicaId(first + position),
            entropy.bits(64),
            each.membership.members(),
        )
        for position, each in enumerate(chosen)
    )
    whole = METADATA_GROUP in groups
    cluster = ClusterId(entropy.bits(128) if whole else 0)
    decision = Decision(cluster, environment.clock.wall(), rows)
    small_file.save(environment.disk, PATH, _encode(decision))
    return decision


def _encode(decision: Decision) -> bytes:
    return cbor2.dumps(
        {
            "version": FORMAT_VERSION,
            "cluster": decision.cluster.to_bytes(16, "little"),
            "decided_at": decision.decided_at,
            "rows": [list(row) for row in decision.rows],
        }
    )


def decided(environment: Environment) -> Decision | None:
    """What was decided and is not finished.

    Raises: Corrupted, OSError.
    """
    stored = small_file.load(environment.disk, PATH)
    if stored is None:
        return None
    fields = cbor2.loads(stored)
    if fields.get("version") != FORMAT_VERSION:
        raise Corrupted(f"the file {PATH!r} has version {fields.get('version')}")
    return Decision(
        ClusterId(int.from_bytes(fields["cluster"], "little")),
        fields["decided_at"],
        tuple(
            Forced(group, replica, incarnation, tuple(former))
            for group, replica, incarnation, former in fields["rows"]
        ),
    )


def finish(environment: Environment) -> Decision | None:
    """Carry out what was decided, if anything was; durable on return. Needs a running loop.

    Raises: Corrupted, OSError; it is tried again at the next start.
    """
    decision = decided(environment)
    if decision is None:
        return None
    disk = environment.disk
    identity = identities.stored(disk, boot=environment.boot)
    if identity is None:
        raise Corrupted("the data directory lost its identity (file 'node') while it was recovered")
    made = making.load(disk)
    for row in decision.rows:
        before = made.get(row.group)
        if before is None:  # Group 0's is not listed before it was recovered once.
            before = Made(identity.metadata_replica(), is_finished=True, incarnation=0)
        if before.replica == row.replica:
            continue
        incarnation = _trusted(environment, identity, row, before)
        _force(environment, identity, decision, row, before, incarnation)
        made[row.group] = Made(
            row.replica,
            is_finished=True,
            incarnation=0 if incarnation == identity.incarnation else incarnation,
            former=row.former,
        )
        making.save(disk, made)
    if decision.cluster not in {0, identity.cluster}:
        own = made[METADATA_GROUP].replica
        identities.save(disk, identity.recovered(cluster=decision.cluster, replica=own))
    disk.remove(PATH)
    disk.sync_directory("")
    return decision


def _trusted(environment: Environment, identity: Identity, row: Forced, before: Made) -> int:
    """See to it that the group's directory is one that may vote; the incarnation that it has."""
    disk, directory = environment.disk, group_directory(row.group)
    old = before.incarnation or identity.incarnation
    copy, aside = f"{directory}.copy", making.aside(row.group, old)
    top = disk.names("")
    if aside not in top:
        with closing(_open(environment, directory, old)) as log:
            is_amnesiac = log.is_amnesiac
        if not is_amnesiac:
            return old
        copy_log(environment, directory, copy, incarnation=row.incarnation)
        making.move_aside(disk, row.group, old)
        top = disk.names("")
    if copy in top:
        disk.rename(copy, directory)
        disk.sync_directory("")
    return row.incarnation


def _open(environment: Environment, directory: str, incarnation: int) -> GroupLog:
    return GroupLog.open(
        environment.disk,
        environment.clock,
        directory,
        incarnation=incarnation,
        boot=environment.boot,
    )


def _force(
    environment: Environment,
    identity: Identity,
    decision: Decision,
    row: Forced,
    before: Made,
    incarnation: int,
) -> None:
    """Append the entry that makes the replica its group's only voter, unless it stands there."""
    disk, directory = environment.disk, group_directory(row.group)
    with closing(_open(environment, directory, incarnation)) as log:
        known = RaftLog(log)
        if row.replica not in known.membership.voters:
            if log.condition is not Condition.OK or known.damaged:
                raise Corrupted(
                    f"group {row.group} cannot go on from here: {'; '.join(log.damage)}"
                )
            _append(log, known, _record(identity, decision, row, before, log), row.replica)
    if "amnesiac" in disk.names(directory):
        disk.remove(amnesia_path(row.group))
        disk.sync_directory(directory)


def _record(
    identity: Identity, decision: Decision, row: Forced, before: Made, log: GroupLog
) -> Command:
    """What the log says of it for ever."""
    return encode_recovered(
        {
            "node": identity.name,
            "replica": row.replica,
            "was": before.replica,
            "former": list(row.former),
            "term": log.state.term,
            "last_index": log.last_index,
            "commit_index": log.state.commit_index,
            "decided_at": decision.decided_at,
        }
    )


def _append(log: GroupLog, known: RaftLog, record: Command, replica: ReplicaId) -> None:
    retired = max(*known.membership.members(), known.membership.retired)
    membership = Membership((replica,), retired=ReplicaId(retired))
    entry = build(
        previous_chain=known.last_chain,
        index=Index(known.last_index + 1),
        term=Term(log.state.term + TERM_STEP),
        kind=MEMBERSHIP,
        log_time=known.last_log_time,
        commands=(Command(memberships.encode(membership)), record),
    )
    log.write(
        Write(
            seq=WriteSeq(log.state.last_write + 1),
            reset=None,
            truncate_from=Index(0),
            entries=(entry,),
            term=entry.term,
            vote=NOBODY,
            last_index=entry.index,
            last_term=entry.term,
            last_chain=entry.chain,
            commit_index=log.state.commit_index,
            commit_chain=known.chain(log.state.commit_index) or bytes(16),
        )
    )
