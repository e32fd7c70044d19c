"""A majority is lost for good, and a person decides that one replica goes on: old or new, never both."""

import cbor2
import pytest
from server_world import NAMES, World, read_bodies
from test_server_nodes import begun, publish_somewhere
from test_server_replace import ask, has_replaced, restore, wait_until_changed

from raftq.errors import InvalidArgument
from raftq.host import identity as identities
from raftq.raft.entry import MEMBERSHIP, commands
from raftq.server import made as making
from raftq.server import recover
from raftq.server.survey import look
from raftq.sim.disk import SimulatedCrash
from raftq.storage.group_log import GroupLog
from raftq.storage.reader import entries_in, read_replica
from raftq.storage.walk import Condition, Walk

GROUPS = [0, 1, 2, 3]


@pytest.fixture
def world():
    with World() as world:
        yield world


class Offline:
    """A stopped node's directory, as the command has it."""

    def __init__(self, world, name):
        self.world = world
        self.machine = world.machines[name]
        self.disk = self.machine.disk

    def run(self, work):
        """Do it as a process of its own, to the end; what it gave, or the error."""
        process, environment = self.machine.start()
        found = []

        async def main():
            environment.disk.lock()
            try:
                found.append(work(environment))
            finally:
                environment.disk.unlock()

        task = process.spawn(main())
        self.world.until(task.done)
        try:
            task.result()
        finally:
            self.machine.kill()
        return found[0]

    def holdings(self):
        return self.run(self._look)

    @staticmethod
    def _look(environment):
        identity = identities.stored(environment.disk, boot=environment.boot)
        return look(environment.disk, identity, making.load(environment.disk))

    def decide(self, groups=GROUPS):
        def work(environment):
            identity = identities.stored(environment.disk, boot=environment.boot)
            holdings = look(environment.disk, identity, making.load(environment.disk))
            recover.check(identity, holdings, list(groups))
            return recover.decide(environment, identity, holdings, list(groups))

        return self.run(work)

    def finish(self):
        return self.run(recover.finish)

    def keep(self):
        return {path: self.disk.contents(path) for path in self.disk.paths()}


def lose_all_but(world, survivor):
    kept = {}
    for name in NAMES:
        disk = world.machines[name].disk
        world.kill(name)
        kept[name] = {path: disk.contents(path) for path in disk.paths()}
        if name != survivor:
            world.wipe(name)
    return kept


def count_messages(world, name, queue):
    client = world.connect(name)
    return sum(len(read_bodies(client.read(queue, partition=number))) for number in range(3))


def test_what_the_survivor_held_is_served_again_and_the_cluster_grows_back(world):
    queue = begun(world)
    for partition in range(3):
        publish_somewhere(world, queue, partition)
    world.run(1)
    before = count_messages(world, "n1", queue)
    assert before
    lose_all_but(world, "n1")
    offline = Offline(world, "n1")
    old = offline.holdings()
    decision = offline.decide()
    offline.finish()
    assert [row.group for row in decision.rows] == GROUPS
    for each, was in zip(offline.holdings(), old, strict=True):
        row = decision.rows[each.group]
        assert each.membership.voters == (row.replica,)
        assert row.replica > max(was.membership.members())
        assert each.term == was.term + recover.TERM_STEP
        assert each.last_index == was.last_index + 1
        assert each.obstacle == ""
    world.start("n1")
    for group in GROUPS:
        assert world.leader(group) == "n1"
    assert count_messages(world, "n1", queue) == before
    for partition in range(3):
        publish_somewhere(world, queue, partition)
    # A second start finds nothing left to do.
    world.kill("n1")
    world.start("n1")
    for group in GROUPS:
        assert world.leader(group) == "n1"
        assert world.group("n1", group).replica == decision.rows[group].replica
    for name in ("n2", "n3"):
        world.start(name)
        ask(world, name)
    wait_until_changed(world, "n3")
    world.until(lambda: all(world.digests_agree(group) for group in GROUPS))
    world.kill("n1")
    for partition in range(3):
        publish_somewhere(world, queue, partition)
    assert count_messages(world, "n2", queue) == before + 6


def test_an_old_directory_is_refused_and_never_votes(world):
    queue = begun(world)
    kept = lose_all_but(world, "n1")
    offline = Offline(world, "n1")
    offline.decide()
    offline.finish()
    world.start("n1")
    world.leader(1)
    for name in ("n2", "n3"):
        restore(world.machines[name].disk, kept[name])
        world.start(name)
        world.run(3)
        assert name not in world.nodes["n1"].host.links.up()
        assert world.nodes[name].host.links.up() == []
        for group in world.nodes[name].host.groups.values():
            assert not group.leading
        world.kill(name)
    for group in GROUPS:
        assert world.group("n1", group).leading
    with pytest.raises(InvalidArgument, match="no new data directory"):
        world.connect("n1").try_control(do="replace_node", name="n2")
    for partition in range(3):
        publish_somewhere(world, queue, partition)


def test_the_log_itself_says_what_was_decided(world):
    begun(world)
    lose_all_but(world, "n2")
    offline = Offline(world, "n2")
    decision = offline.decide()
    offline.finish()
    for row in decision.rows:
        directory = identities.group_directory(row.group)
        stored = read_replica(
            offline.disk.names(directory),
            lambda name, d=directory: offline.disk.open(f"{d}/{name}"),
        )
        assert not stored.problems
        live = stored.ranges[-1]
        *_, last = entries_in(offline.disk.open(f"{directory}/{live.name}"), live)
        assert last.entry.kind == MEMBERSHIP
        assert last.proved
        record = cbor2.loads(commands(last.entry)[1].header)
        assert record["do"] == "recovered"
        assert record["node"] == "n2"
        assert record["replica"] == row.replica
        assert record["was"] in record["former"]
        assert record["last_index"] == last.entry.index - 1


def test_a_node_does_not_start_before_it_is_finished(world):
    begun(world)
    lose_all_but(world, "n1")
    offline = Offline(world, "n1")
    decision = offline.decide()
    world.start("n1")
    for group in GROUPS:
        assert world.leader(group) == "n1"
        assert world.group("n1", group).replica == decision.rows[group].replica
    assert recover.PATH not in offline.disk.names("")


@pytest.mark.parametrize("is_power_lost", [False, True])
@pytest.mark.parametrize("is_amnesiac", [False, True])
def test_a_crash_anywhere_leaves_old_or_new(is_power_lost, is_amnesiac, monkeypatch):
    """Every operation of the disk is cut, by a kill or by a power loss."""
    with World(groups=1) as world:
        queue = begun(world)
        lose_all_but(world, "n1")
        offline = Offline(world, "n1")
        if is_amnesiac:
            make_amnesiac(offline, 1, monkeypatch)
        disk = offline.disk
        kept = offline.keep()
        before = 15

        def work(environment):
            identity = identities.stored(environment.disk, boot=environment.boot)
            holdings = look(environment.disk, identity, making.load(environment.disk))
            recover.decide(environment, identity, holdings, [0, 1])
            recover.finish(environment)

        begin = disk.operations
        offline.run(work)
        total = disk.operations - begin
        assert total > 20
        seen = set()
        for cut in range(1 + is_power_lost, total + 1, 2):
            world.wipe("n1")
            restore(disk, kept)
            disk.crash_at = disk.operations + cut
            with pytest.raises((SimulatedCrash, InvalidArgument)):
                run_cut(offline, work)
            if is_power_lost:
                disk.power_loss()
            disk._locked = False
            is_decided = recover.PATH in disk.names("")
            holdings = offline.holdings()
            identity = offline.run(
                lambda environment: identities.stored(environment.disk, boot=environment.boot)
            )
            if not is_decided and not identity.former:
                seen.add("old")
                assert all(len(each.membership.voters) == 3 for each in holdings)
                continue
            seen.add("new")
            offline.finish()
            for each in offline.holdings():
                assert len(each.membership.voters) == 1
                assert each.obstacle == ""
            assert offline.disk.names("").count(recover.PATH) == 0
            assert len(making.moved_aside(disk)) == is_amnesiac
            if cut % 15 == 0:
                world.start("n1")
                assert world.leader(1) == "n1"
                assert count_messages(world, "n1", queue) == before
                world.kill("n1")
        assert seen == {"old", "new"}


def run_cut(offline, work):
    process, environment = offline.machine.start()

    async def main():
        environment.disk.lock()
        work(environment)

    task = process.spawn(main())
    try:
        offline.world.until(task.done)
        task.result()
    finally:
        offline.machine.kill()
    raise InvalidArgument("it was not cut")


# --- One group, while the others go on ------------------------------------------------------------


def make_amnesiac(offline, group, monkeypatch):
    """As if the end of the log had been damaged; that stands in its segments from then on."""

    def work(environment):
        made = making.load(environment.disk).get(group, making.NOTHING)
        identity = identities.stored(environment.disk, boot=environment.boot)
        directory = identities.group_directory(group)
        with monkeypatch.context() as patch:
            patch.setattr(Walk, "condition", property(lambda _: Condition.AMNESIAC))
            log = GroupLog.open(
                environment.disk,
                environment.clock,
                directory,
                incarnation=made.incarnation or identity.incarnation,
                boot=environment.boot,
            )
        log.close()

    offline.run(work)


def test_an_amnesiac_majority_goes_on_from_the_copy_that_is_chosen(world, monkeypatch):
    queue = begun(world)
    for partition in range(3):
        publish_somewhere(world, queue, partition)
    world.run(1)
    before = count_messages(world, "n1", queue)
    for name in NAMES:
        world.kill(name)
        make_amnesiac(Offline(world, name), 1, monkeypatch)
    world.start()
    for group in (0, 2, 3):
        world.leader(group)
    world.run(3)
    assert not any(node.host.groups[1].leading for node in world.nodes.values())
    world.kill("n1")
    offline = Offline(world, "n1")
    (held,) = [each for each in offline.holdings() if each.group == 1]
    assert held.condition == "amnesiac"
    assert held.obstacle == ""
    decision = offline.decide([1])
    assert decision.cluster == 0
    offline.finish()
    (held,) = [each for each in offline.holdings() if each.group == 1]
    assert held.condition == "ok"
    assert held.membership.voters == (decision.rows[0].replica,)
    world.start("n1")
    world.until(lambda: 1 in world.nodes["n1"].host.groups, 20)
    assert world.leader(1) == "n1"
    wait_until_changed(world, "n2")
    wait_until_changed(world, "n3")
    world.until(lambda: all(world.digests_agree(group) for group in GROUPS))
    assert count_messages(world, "n2", queue) == before
    for name in NAMES:
        (aside,) = making.moved_aside(world.machines[name].disk)
        assert aside.startswith("group-1.forgot-")
    world.kill("n1")
    for partition in range(3):
        publish_somewhere(world, queue, partition)


def test_a_recovery_of_a_group_that_has_gone_on_is_void_and_says_so(world):
    """Its directory lay in a drawer while the group replaced it."""
    queue = begun(world)
    world.kill("n1")
    offline = Offline(world, "n1")
    group = queue["partitions"][0]["group"]
    work = {node.host.groups[group].replica for node in world.nodes.values()}
    world.kill("n2")
    for path in world.machines["n2"].disk.paths():
        if path.startswith(f"group-{group}/"):
            world.machines["n2"].disk.lose_file(path)
    decision = offline.decide([group])
    kept = offline.keep()
    # Without the decision the group replaces what n2 lost, and goes on.
    offline.disk.remove(recover.PATH)
    world.start("n1")
    world.start("n2")
    world.until(lambda: has_replaced(world, "n2", group, work), 20)
    wait_until_changed(world, "n2")
    world.kill("n1")
    world.wipe("n1")
    restore(offline.disk, kept)
    world.start("n1")
    world.until(lambda: world.nodes["n1"].replicas.void, 20)
    assert world.nodes["n1"].replicas.void == {group: (world.group("n2", group).replica,)}
    assert group not in world.nodes["n1"].host.groups
    assert world.connect("n1").try_control(do="status")["void"] == [group]
    assert decision.rows[0].replica > world.group("n2", group).replica
    publish_somewhere(world, queue, 0)


# --- What is refused ------------------------------------------------------------------------------


def test_group_0_is_recovered_with_all_others_or_not_at_all(world):
    begun(world)
    lose_all_but(world, "n1")
    offline = Offline(world, "n1")
    with pytest.raises(InvalidArgument, match="use --all"):
        offline.decide([0])
    with pytest.raises(InvalidArgument, match="no replica here"):
        offline.decide([9])
    assert recover.PATH not in offline.disk.names("")


def test_a_log_with_a_hole_is_no_survivor(world):
    queue = begun(world)
    group = queue["partitions"][0]["group"]
    for _ in range(20):
        publish_somewhere(world, queue, 0)
    world.run(1)
    lose_all_but(world, "n1")
    offline = Offline(world, "n1")
    disk = offline.disk
    directory = identities.group_directory(group)
    stored = read_replica(disk.names(directory), lambda name: disk.open(f"{directory}/{name}"))
    live = stored.ranges[0]
    path = f"{directory}/{live.name}"
    disk.flip_bit(path, live.start + (live.stop - live.start) // 2)
    (held,) = [each for each in offline.holdings() if each.group == group]
    assert held.condition == "damaged"
    assert "lost here" in held.obstacle
    with pytest.raises(InvalidArgument, match="use another survivor"):
        offline.decide()
