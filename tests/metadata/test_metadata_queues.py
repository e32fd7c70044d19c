"""Queues: made, changed and deleted in steps that all partitions take together."""

from collections import Counter

import pytest
from metadata_driver import (
    all_work,
    apply,
    create_groups,
    create_queue,
    do_group_work,
    group_ids,
    new_machine,
    report_of,
)

from raftq.errors import (
    Busy,
    InvalidArgument,
    InvalidQueueName,
    QueueExists,
    QueueNotFound,
)
from raftq.limits import MAX_PARTITIONS
from raftq.metadata import (
    Configure,
    CreateQueue,
    DeleteQueue,
    Drop,
    PartitionDropped,
    PartitionReady,
    PartitionRefused,
    Seal,
    UpdateQueue,
    queues,
)
from raftq.metadata.queues import MAX_CONFIG_BYTES


@pytest.fixture
def machine():
    made = new_machine()
    create_groups(made)
    return made


def ready(queue, partition, version):
    return PartitionReady(queue=queue, partition=partition, version=version)


def refused(queue, partition, version, reason="3 messages are ready"):
    return PartitionRefused(queue=queue, partition=partition, version=version, reason=reason)


def dropped(queue, partition):
    return PartitionDropped(queue=queue, partition=partition)


def creation(name="orders", **config):
    return CreateQueue(name=name, config=config)


def deletion(name="orders", *, force=False):
    return DeleteQueue(name=name, force=force)


# --- Making --------------------------------------------------------------------------------------


def test_a_queue_is_active_when_all_partitions_are_configured(machine):
    reply = apply(machine, creation(partitions=3, delivery_limit=9))
    assert reply == (1, "creating", 1, machine.version)
    assert apply(machine, ready(1, 2, 1)).state == "creating"
    assert apply(machine, ready(1, 2, 1)).state == "creating"
    assert apply(machine, ready(1, 0, 1)).state == "creating"
    assert apply(machine, ready(1, 1, 1)) == (1, "active", 1, machine.version)
    queue = machine.queue_by_name("orders")
    assert queue == machine.queue_by_id(1) == machine.queues()[0]
    assert queue.config == {"partitions": 3, "delivery_limit": 9}
    assert all_work(machine) == []


def test_the_groups_are_told_their_partitions(machine):
    apply(machine, creation(partitions=5, delivery_limit=9))
    told = {}
    for group in group_ids(machine):
        for work in machine.work_for_group(group):
            assert work == Configure(1, work.partition, {"partitions": 5, "delivery_limit": 9}, 1)
            told[work.partition] = group
    assert told == {partition: machine.group_of(1, partition) for partition in range(5)}
    assert machine.group_of(1, 5) is None
    assert machine.group_of(1, -1) is None
    assert machine.group_of(2, 0) is None
    apply(machine, ready(1, 3, 1))
    assert [work.partition for work in machine.work_for_group(told[3])] == [
        partition for partition in range(5) if told[partition] == told[3] and partition != 3
    ]


def test_partitions_are_placed_with_bounded_load(machine):
    for number in range(30):
        create_queue(machine, f"queue-{number}", partitions=4)
    load = Counter(group for queue in machine.queues() for group in queue.groups)
    assert sorted(load) == group_ids(machine)
    assert max(load.values()) <= 120 // 3 * 5 // 4 + 1


def test_the_partitions_of_one_queue_are_spread_as_well(machine):
    queue = create_queue(machine, partitions=64)
    assert max(Counter(queue.groups).values()) <= -(-64 * 5 // 12)


def test_a_group_that_became_active_later_hosts_what_comes_later(machine):
    first = create_queue(machine, "first", partitions=6)
    create_groups(machine, 4)
    assert machine.queue_by_id(1) == first
    assert 4 in create_queue(machine, "second", partitions=12).groups


def test_a_group_that_is_not_active_hosts_nothing():
    machine = new_machine()
    reply = apply(machine, creation())
    assert isinstance(reply, Busy)
    assert reply.retry_after > 0
    create_groups(machine, 1)
    machine_groups = apply(machine, creation(partitions=8))
    assert machine_groups.queue == 1
    assert set(machine.queue_by_id(1).groups) == {1}


def test_the_same_queue_may_be_asked_for_again(machine):
    command = creation(partitions=2, delivery_limit=3)
    first = apply(machine, command)
    assert apply(machine, command) == first
    assert apply(machine, creation(delivery_limit=3, partitions=2)) == first
    do_group_work(machine)
    assert apply(machine, command) == (1, "active", 1, machine.version)


@pytest.mark.parametrize("config", [{"partitions": 3}, {}, {"partitions": 2, "x": None}])
def test_another_configuration_under_the_same_name_is_refused(machine, config):
    apply(machine, creation(partitions=2))
    assert isinstance(apply(machine, creation(**config)), QueueExists)


def test_true_is_not_one(machine):
    apply(machine, creation(limit=1))
    assert isinstance(apply(machine, creation(limit=True)), QueueExists)


@pytest.mark.parametrize(
    "name", ["", ".a", "__a", "a b", "a/b", "ü", "a\n", "a" * 81, "a" * 500_000]
)
def test_a_bad_name_is_refused(machine, name):
    assert isinstance(apply(machine, creation(name)), InvalidQueueName)


@pytest.mark.parametrize("name", ["a", "_a", "-", "A.b_c-9", "a" * 80])
def test_a_good_name_is_taken(machine, name):
    assert create_queue(machine, name).name == name


@pytest.mark.parametrize(
    "config",
    [
        {"partitions": 0},
        {"partitions": MAX_PARTITIONS + 1},
        {"partitions": True},
        {"partitions": "4"},
        {"partitions": None},
        {"dedicated": True},
        {"dedicated": 1},
        {"label:x": "x" * MAX_CONFIG_BYTES},
    ],
)
def test_a_configuration_that_cannot_be_is_refused(machine, config):
    assert isinstance(apply(machine, creation(**config)), InvalidArgument)
    create_queue(machine)
    reply = apply(machine, UpdateQueue(name="orders", config=config, expected_version=1))
    assert isinstance(reply, InvalidArgument)
    assert machine.queue_by_name("orders").version == 1


def test_queues_and_partitions_are_bounded(machine, monkeypatch):
    monkeypatch.setattr(queues, "MAX_QUEUES", 2)
    monkeypatch.setattr(queues, "MAX_ALL_PARTITIONS", 10)
    assert isinstance(apply(machine, creation("a", partitions=11)), Busy)
    create_queue(machine, "a", partitions=8)
    assert isinstance(apply(machine, creation("b", partitions=3)), Busy)
    create_queue(machine, "b", partitions=2)
    assert isinstance(apply(machine, creation("c")), Busy)
    assert apply(machine, creation("b", partitions=2)).state == "active"


# --- Changing ------------------------------------------------------------------------------------


def test_an_update_is_active_when_all_partitions_have_its_version(machine):
    create_queue(machine, partitions=2)
    command = UpdateQueue(
        name="orders", config={"partitions": 2, "delivery_limit": 7}, expected_version=1
    )
    reply = apply(machine, command)
    assert reply == (1, "updating", 2, machine.version)
    assert apply(machine, command) == reply
    assert {work.version for work in all_work(machine)} == {2}
    assert apply(machine, ready(1, 0, 1)).state == "updating"
    assert apply(machine, ready(1, 1, 1)).state == "updating"
    assert len(all_work(machine)) == 2
    do_group_work(machine)
    assert machine.queue_by_id(1).state == "active"
    assert apply(machine, command) == (1, "active", 2, machine.version)


def test_an_update_while_creating_stays_creating(machine):
    apply(machine, creation(partitions=2))
    apply(machine, ready(1, 0, 1))
    reply = apply(
        machine, UpdateQueue(name="orders", config={"partitions": 2, "x": 1}, expected_version=1)
    )
    assert (reply.state, reply.config_version) == ("creating", 2)
    assert apply(machine, ready(1, 1, 1)).state == "creating"
    do_group_work(machine)
    assert machine.queue_by_id(1).state == "active"


def test_updates_that_cross_are_told(machine):
    create_queue(machine)
    apply(machine, UpdateQueue(name="orders", config={"x": 1}, expected_version=1))
    reply = apply(machine, UpdateQueue(name="orders", config={"x": 2}, expected_version=1))
    assert isinstance(reply, Busy)
    reply = apply(machine, UpdateQueue(name="orders", config={"x": 2}, expected_version=9))
    assert isinstance(reply, Busy)


def test_the_number_of_partitions_stays(machine):
    create_queue(machine, partitions=2)
    for config in ({"partitions": 3}, {}):
        reply = apply(machine, UpdateQueue(name="orders", config=config, expected_version=1))
        assert isinstance(reply, InvalidArgument)


def test_what_does_not_exist_cannot_be_changed(machine):
    command = UpdateQueue(name="orders", config={}, expected_version=1)
    assert isinstance(apply(machine, command), QueueNotFound)
    assert isinstance(apply(machine, deletion()), QueueNotFound)
    assert isinstance(apply(machine, deletion(force=True)), QueueNotFound)
    assert isinstance(apply(machine, ready(1, 0, 1)), QueueNotFound)
    assert isinstance(apply(machine, dropped(1, 0)), QueueNotFound)
    assert isinstance(apply(machine, refused(1, 0, 1)), QueueNotFound)


def test_reports_that_cannot_be_are_refused(machine):
    create_queue(machine, partitions=2)
    assert isinstance(apply(machine, ready(1, 2, 1)), InvalidArgument)
    assert isinstance(apply(machine, ready(1, 0, 2)), InvalidArgument)
    assert isinstance(apply(machine, dropped(1, 0)), InvalidArgument)
    assert isinstance(apply(machine, dropped(1, 2)), InvalidArgument)
    assert apply(machine, refused(1, 0, 1)).state == "active"
    assert machine.queue_by_id(1).refusal is None


# --- Deleting ------------------------------------------------------------------------------------


def test_nothing_is_dropped_before_all_partitions_are_sealed_and_empty(machine):
    create_queue(machine, partitions=3)
    reply = apply(machine, deletion())
    assert reply == apply(machine, deletion()) == (1, "sealing", 2, machine.version)
    for partition in (2, 0, 1):
        assert {type(work) for work in all_work(machine)} == {Seal}
        assert isinstance(apply(machine, dropped(1, partition)), InvalidArgument)
        apply(machine, ready(1, partition, 2))
    assert machine.queue_by_id(1).state == "deleting"
    assert sorted(all_work(machine)) == [Drop(1, number, 3, force=False) for number in range(3)]


def test_a_queue_is_gone_when_all_partitions_are_dropped(machine):
    create_queue(machine, partitions=2)
    apply(machine, deletion())
    do_group_work(machine, (Seal,))
    assert apply(machine, dropped(1, 1)).state == "deleting"
    assert apply(machine, dropped(1, 1)).state == "deleting"
    assert len(all_work(machine)) == 1
    assert not machine.was_deleted(1)
    reply = apply(machine, dropped(1, 0))
    assert reply == apply(machine, dropped(1, 0)) == (1, "deleted", 0, machine.version)
    assert machine.queues() == ()
    assert machine.queue_by_name("orders") is machine.queue_by_id(1) is None
    assert machine.group_of(1, 0) is None
    assert machine.was_deleted(1)
    assert not machine.was_deleted(2)
    assert apply(machine, ready(1, 0, 2)).state == "deleted"
    assert apply(machine, refused(1, 0, 2)).state == "deleted"


@pytest.mark.parametrize("force", [False, True])
def test_being_ready_does_not_stand_for_being_dropped(machine, force):
    create_queue(machine, partitions=2)
    apply(machine, deletion(force=force))
    do_group_work(machine, (Seal,))
    version = machine.queue_by_id(1).version
    for partition in range(2):
        assert apply(machine, ready(1, partition, version)).state == "deleting"
    assert len(all_work(machine)) == 2


def test_a_partition_that_is_not_empty_refuses_the_delete_and_all_are_opened_again(machine):
    create_queue(machine, partitions=3)
    version = apply(machine, deletion()).config_version
    apply(machine, ready(1, 0, 2))
    reply = apply(machine, refused(1, 2, 2))
    assert reply == (1, "updating", 3, machine.version)
    assert apply(machine, refused(1, 2, 2)) == reply
    refusal = machine.queue_by_id(1).refusal
    assert refusal.version == version
    assert (refusal.partition, refusal.reason) == (2, "3 messages are ready")
    assert sorted(work.partition for work in all_work(machine)) == [0, 1, 2]
    assert {type(work) for work in all_work(machine)} == {Configure}
    assert apply(machine, ready(1, 1, 2)).state == "updating"
    do_group_work(machine)
    assert machine.queue_by_id(1).state == "active"
    assert apply(machine, deletion()).config_version == 4
    assert machine.queue_by_id(1).refusal is None


def test_a_late_report_of_a_refused_delete_deletes_nothing(machine):
    """Partition 1 was sealed and empty under version 2; that it was empty then means nothing now."""
    create_queue(machine, partitions=2)
    apply(machine, deletion())
    apply(machine, refused(1, 0, 2))
    apply(machine, deletion())
    assert machine.queue_by_id(1).version == 4
    apply(machine, ready(1, 0, 2))
    assert apply(machine, ready(1, 1, 2)).state == "sealing"
    assert apply(machine, refused(1, 0, 2)).state == "sealing"
    assert len(all_work(machine)) == 2


def test_force_drops_at_once(machine):
    create_queue(machine, partitions=2)
    reply = apply(machine, deletion(force=True))
    assert reply == apply(machine, deletion(force=True)) == (1, "deleting", 2, machine.version)
    assert apply(machine, deletion()) == reply
    assert sorted(all_work(machine)) == [Drop(1, number, 2, force=True) for number in range(2)]
    assert apply(machine, refused(1, 0, 2)).state == "deleting"
    assert machine.queue_by_id(1).refusal is None
    do_group_work(machine, (Drop,))
    assert machine.queues() == ()


@pytest.mark.parametrize("state", ["creating", "updating", "sealing"])
def test_force_works_in_every_state(machine, state):
    if state == "creating":
        apply(machine, creation(partitions=2))
    else:
        create_queue(machine, partitions=2)
    if state == "updating":
        apply(
            machine,
            UpdateQueue(name="orders", config={"partitions": 2, "x": 1}, expected_version=1),
        )
    if state == "sealing":
        apply(machine, deletion())
    assert machine.queue_by_id(1).state == state
    assert apply(machine, deletion(force=True)).state == "deleting"
    do_group_work(machine, (Drop,))
    assert machine.queues() == ()


def test_a_drop_that_is_refused_goes_on_until_drained_or_forced(machine):
    """A partition that was not sealed after all: what it holds is not lost."""
    create_queue(machine, partitions=2)
    apply(machine, deletion())
    do_group_work(machine, (Seal,))
    apply(machine, dropped(1, 0))
    reply = apply(machine, refused(1, 1, 3))
    assert reply == apply(machine, refused(1, 1, 3)) == (1, "deleting", 3, machine.version)
    assert machine.queue_by_id(1).refusal.partition == 1
    assert all_work(machine) == [Drop(1, 1, 3, force=False)]
    assert apply(machine, deletion(force=True)).config_version == 3
    assert all_work(machine) == [Drop(1, 1, 3, force=True)]
    assert apply(machine, dropped(1, 1)).state == "deleted"


def test_a_queue_that_is_being_deleted_is_neither_made_nor_changed(machine):
    create_queue(machine)
    for force in (False, True):
        apply(machine, deletion(force=force))
        reply = apply(machine, creation())
        assert isinstance(reply, Busy)
        assert reply.retry_after > 0
        version = machine.queue_by_id(1).version
        update = UpdateQueue(name="orders", config={"x": 1}, expected_version=version)
        assert isinstance(apply(machine, update), Busy)


def test_a_queue_made_again_under_its_name_is_another_one(machine):
    first = create_queue(machine, partitions=2)
    load = Counter(first.groups)
    apply(machine, deletion(force=True))
    do_group_work(machine, (Drop,))
    second = create_queue(machine, partitions=2)
    assert (first.queue, second.queue) == (1, 2)
    assert second.version == 1
    assert load.total() == Counter(second.groups).total() == 2
    # Late reports of the first one touch nothing of the second.
    assert apply(machine, dropped(1, 0)).state == "deleted"
    assert machine.queue_by_name("orders") == second


def test_work_is_taken_up_by_anybody_at_any_point(machine):
    """Each report is made twice and the last one late, as if the leader had died in between."""
    apply(machine, creation(partitions=4))
    done = []
    while pending := all_work(machine):
        work = pending[0]
        done.append(work)
        apply(machine, report_of(work))
        apply(machine, report_of(work))
        apply(machine, report_of(done[0]))
    assert len(done) == 4
    assert machine.queue_by_id(1).state == "active"
