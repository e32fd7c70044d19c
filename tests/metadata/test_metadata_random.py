"""Goal: what must hold after any sequence of commands, repeated, late, wrong or in any order.

Method: hypothesis draws commands over few names and numbers, so that they meet; after each one the
invariants are checked, and now and then the machine is replaced by one restored from its snapshot.
"""

from hypothesis import given, settings
from hypothesis import strategies as st
from metadata_driver import (
    FOUNDERS,
    INCARNATIONS,
    all_work,
    apply,
    do_group_work,
    do_node_work,
    new_machine,
    report_of,
)

from raftq.metadata import (
    Configure,
    CreateGroup,
    CreateQueue,
    DeleteQueue,
    Drop,
    EnsureGroups,
    GroupRecovered,
    PartitionDropped,
    PartitionReady,
    PartitionRefused,
    RegisterNode,
    ReplaceNode,
    ReplicaCreated,
    ReplicaLost,
    ReplicasLeft,
    Seal,
    UpdateQueue,
)

NODES = st.sampled_from(["n1", "n2", "n3", "n4"])
INCARNATION = st.sampled_from([101, 2**64 - 1, 103, 104, 999])
NAME = st.sampled_from(["a", "b", ".bad"])
CONFIG = st.fixed_dictionaries({"partitions": st.integers(0, 3), "x": st.integers(0, 1)})
SMALL = st.integers(1, 6)

COMMAND = st.one_of(
    st.builds(
        RegisterNode, name=NODES, incarnation=INCARNATION, host=st.just("h"), port=st.integers(1, 2)
    ),
    st.builds(
        CreateGroup,
        nodes=st.lists(NODES, min_size=1, max_size=3).map(tuple),
        group=st.none() | st.integers(0, 5),
    ),
    st.builds(EnsureGroups, count=st.integers(1, 4), replicas=st.integers(1, 3)),
    st.builds(ReplicaCreated, group=SMALL, replica=st.integers(1, 12), incarnation=INCARNATION),
    st.builds(ReplicaLost, group=SMALL, replica=st.integers(1, 12), incarnation=INCARNATION),
    st.builds(ReplaceNode, name=NODES, incarnation=INCARNATION, successor=INCARNATION),
    st.builds(
        ReplicasLeft,
        group=st.integers(0, 3),
        replicas=st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple),
    ),
    st.builds(
        GroupRecovered,
        group=st.integers(0, 3),
        replica=st.integers(8, 40),
        node=NODES,
        incarnation=INCARNATION,
        former=st.lists(st.integers(1, 12), min_size=1, max_size=6).map(tuple),
        highest=st.integers(8, 40),
    ),
    st.builds(CreateQueue, name=NAME, config=CONFIG),
    st.builds(UpdateQueue, name=NAME, config=CONFIG, expected_version=SMALL),
    st.builds(DeleteQueue, name=NAME, force=st.booleans()),
    st.builds(PartitionReady, queue=SMALL, partition=st.integers(0, 3), version=SMALL),
    st.builds(
        PartitionRefused, queue=SMALL, partition=st.integers(0, 3), version=SMALL, reason=st.text()
    ),
    st.builds(PartitionDropped, queue=SMALL, partition=st.integers(0, 3)),
)
STEP = st.one_of(
    COMMAND,
    st.just("node work"),
    st.builds(lambda which: ("group work", which), st.integers(0, 20)),
    st.just("restore"),
)


class Watcher:
    """Remembers what was seen, to know what must not come again."""

    def __init__(self, machine):
        self.machine = machine
        self.replicas = {}
        self.queues = {}
        self.groups_of = {}
        self.reports = set()
        self.version = 0

    def do(self, command):
        if isinstance(command, ReplicaCreated):
            self.reports.add((command.group, command.replica, command.incarnation))
        first = apply(self.machine, command)
        self.check()
        # Whatever it did, doing it again at once changes nothing, unless it names no group.
        if not (isinstance(command, CreateGroup) and command.group is None):
            version = self.machine.version
            again = apply(self.machine, command)
            assert self.machine.version == version, (command, first, again)
        self.check()

    def check(self):
        machine = self.machine
        assert machine.version >= self.version
        self.version = machine.version
        active = set()
        for group in machine.groups():
            for replica in (*group.replicas, *group.leaving):
                owner = (group.group, replica.node, replica.incarnation)
                assert self.replicas.setdefault(replica.replica, owner) == owner
            assert len(set(group.nodes.values())) == len(group.replicas)
            if group.state == "active":
                active.add(group.group)
            if group.group and group.state == "active":
                # Nobody votes before every replica has reported, each as itself.
                for replica in group.replicas:
                    report = (group.group, replica.replica, replica.incarnation)
                    assert replica.state == "pending" or report in self.reports
                assert (
                    sum(replica.state == "created" for replica in group.replicas) or group.leaving
                )
        names = [queue.name for queue in machine.queues()]
        assert len(set(names)) == len(names)
        for queue in machine.queues():
            assert self.queues.setdefault(queue.queue, queue.name) == queue.name
            assert self.groups_of.setdefault(queue.queue, queue.groups) == queue.groups
            assert machine.queue_by_name(queue.name) == queue
            assert len(queue.groups) == len(queue.reported) == queue.config["partitions"]
            assert set(queue.groups) <= active - {0}
            done = all(version == queue.version for version in queue.reported)
            assert done == (queue.state == "active")
        self.check_work()

    def check_work(self):
        machine = self.machine
        wanted = {
            (queue.queue, partition)
            for queue in machine.queues()
            for partition, version in enumerate(queue.reported)
            if version != queue.version
        }
        work = all_work(machine)
        assert sorted((item.queue, item.partition) for item in work) == sorted(wanted)
        for item in work:
            assert isinstance(item, Drop) == (machine.queue_by_id(item.queue).state == "deleting")

    def step(self, step):
        if step == "restore":
            restored = new_machine()
            restored.restore(self.machine.snapshot())
            assert restored.digest() == self.machine.digest()
            assert all_work(restored) == all_work(self.machine)
            self.machine = restored
        elif step == "node work":
            for name, incarnation in FOUNDERS:
                for work in self.machine.work_for_node(name, incarnation).create:
                    self.do(
                        ReplicaCreated(
                            group=work.group, replica=work.replica, incarnation=incarnation
                        )
                    )
        elif isinstance(step, tuple):
            work = all_work(self.machine)
            if work:
                self.do(report_of(work[step[1] % len(work)]))
        else:
            self.do(step)


@settings(deadline=None, max_examples=120, derandomize=True)
@given(st.booleans(), st.lists(STEP, max_size=40))
def test_any_sequence_of_commands_keeps_the_invariants(prepared, steps):
    watcher = Watcher(new_machine())
    if prepared:
        watcher.do(EnsureGroups(count=2))
        watcher.step("node work")
        watcher.do(CreateQueue(name="a", config={"partitions": 3, "x": 0}))
    for step in steps:
        watcher.step(step)
    watcher.check()


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.lists(STEP, max_size=30))
def test_after_any_sequence_the_work_comes_to_an_end(steps):
    """Whatever happened, once everybody does what the table asks, nothing is left to do."""
    watcher = Watcher(new_machine())
    for step in steps:
        watcher.step(step)
    machine = watcher.machine
    do_node_work(machine)
    do_group_work(machine, (Configure, Seal, Drop))
    assert {queue.state for queue in machine.queues()} <= {"active"}
    for name in INCARNATIONS:
        assert machine.work_for_node(name, INCARNATIONS[name]).create == ()
