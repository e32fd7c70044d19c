"""Snapshots have one index, restore to the same digest, and refuse what is not theirs."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from metadata_driver import (
    CLUSTER,
    FOUNDERS,
    all_work,
    apply,
    apply_header,
    create_groups,
    create_queue,
    do_group_work,
    new_machine,
    report_of,
)

from raftq.errors import ClusterMismatch, Corrupted, InvalidArgument
from raftq.ids import ClusterId, Index, Micros, Term
from raftq.machine import Meta
from raftq.metadata import (
    Changed,
    CreateGroup,
    CreateQueue,
    DeleteQueue,
    Drop,
    EnsureGroups,
    MetadataMachine,
    PartitionRefused,
    RegisterNode,
    ReplicaCreated,
    ReplicaLost,
    Seal,
    UpdateQueue,
    encode,
)


def history():
    """Commands of every kind, in the order in which a small cluster might make them."""
    machine = new_machine()
    made = []

    def do(command):
        made.append(command)
        return apply(machine, command)

    def work():
        for item in all_work(machine):
            do(report_of(item))

    for name, incarnation in FOUNDERS:
        do(RegisterNode(name=name, incarnation=incarnation, host="127.0.0.1", port=7401))
    do(EnsureGroups(count=3))
    do(CreateGroup(group=4, nodes=("n2",)))
    for name, incarnation in FOUNDERS:
        for item in machine.work_for_node(name, incarnation).create:
            do(ReplicaCreated(group=item.group, replica=item.replica, incarnation=incarnation))
    do(ReplicaLost(group=1, replica=machine.group(1).replica_on("n3").replica, incarnation=103))
    do(CreateQueue(name="orders", config={"partitions": 3, "label:b": "x", "label:a": "y"}))
    do(CreateQueue(name="letters", config={}))
    work()
    do(UpdateQueue(name="orders", config={"partitions": 3, "x": None}, expected_version=1))
    do(DeleteQueue(name="letters", force=False))
    work()
    work()
    do(DeleteQueue(name="orders", force=False))
    do(PartitionRefused(queue=1, partition=1, version=3, reason="1 message is dead"))
    do(CreateQueue(name="letters", config={"partitions": 2}))
    do(DeleteQueue(name="letters", force=True))
    work()
    return made


HISTORY = history()


def test_a_machine_goes_on_from_a_snapshot_at_any_index():
    """Each prefix is restored into a fresh machine, which follows with the same digest to the end."""
    whole = new_machine()
    followers = []
    for command in HISTORY:
        followers.append(new_machine())
        followers[-1].restore(whole.snapshot())
        reply = apply(whole, command)
        for follower in followers:
            assert repr(apply(follower, command)) == repr(reply)
            assert follower.digest() == whole.digest()
    for follower in followers:
        assert follower.nodes() == whole.nodes()
        assert follower.groups() == whole.groups()
        assert follower.queues() == whole.queues()
        assert all_work(follower) == all_work(whole)
        assert follower.version == whole.version
        # What is not in the rows: where the next things go.
        assert apply(follower, CreateQueue(name="new", config={})).queue == 4
        assert apply(follower, CreateGroup(nodes=("n1",))).group == 5


def test_a_snapshot_is_of_the_time_it_was_asked_for():
    machine = new_machine()
    create_groups(machine)
    create_queue(machine, partitions=3)
    digest = machine.digest()
    slices = machine.snapshot()
    first = next(slices)
    apply(machine, DeleteQueue(name="orders", force=True))
    do_group_work(machine, (Drop,))
    create_queue(machine, "other")
    assert machine.digest() != digest
    copy = new_machine()
    copy.restore(iter([first, *slices]))
    assert copy.digest() == digest


def test_a_snapshot_may_arrive_in_other_slices():
    machine = new_machine()
    create_groups(machine)
    for number in range(100):
        create_queue(machine, f"queue-{number}")
    data = b"".join(machine.snapshot())
    assert len(list(machine.snapshot())) >= 4
    copy = new_machine()
    copy.restore(data[start : start + 7] for start in range(0, len(data), 7))
    assert copy.digest() == machine.digest()


def test_a_restored_state_replaces_the_present_one():
    machine = new_machine()
    create_groups(machine)
    create_queue(machine, "orders")
    digest = machine.digest()
    machine.restore(new_machine().snapshot())
    assert machine.digest() == new_machine().digest() != digest
    assert machine.queue_by_name("orders") is None
    assert machine.work_for_node("n1", 101).run == ()


def test_the_deepest_configuration_comes_back():
    machine = new_machine()
    create_groups(machine)
    config = {"x": 1}
    for _ in range(6):
        config = {"x": config}
    assert create_queue(machine, **config).config == config
    with pytest.raises(InvalidArgument):
        encode(CreateQueue(name="deeper", config={"x": config}))
    copy = new_machine()
    copy.restore(machine.snapshot())
    assert copy.digest() == machine.digest()


def test_a_snapshot_of_another_cluster_is_refused():
    machine = MetadataMachine(ClusterId(CLUSTER + 1), FOUNDERS)
    digest = machine.digest()
    assert digest != new_machine().digest()
    with pytest.raises(ClusterMismatch):
        machine.restore(new_machine().snapshot())
    assert machine.digest() == digest


def test_a_damaged_snapshot_is_refused_and_changes_nothing():
    source = new_machine()
    create_groups(source, 1)
    create_queue(source)
    data = b"".join(source.snapshot())
    machine = new_machine()
    digest = machine.digest()
    damaged = [data[:length] for length in range(len(data))]
    damaged += [data + b"\x00", data + struct.pack("<I", 2) + b"\x81\x01", b"\x01\x00\x00\x00\x05"]
    damaged += [data[:5] + b"\x02" + data[6:]]  # Another format.
    for bytes_ in damaged:
        with pytest.raises(Corrupted):
            machine.restore(iter([bytes_]))
    assert machine.digest() == digest
    machine.restore(iter([data]))
    assert machine.digest() == source.digest()


def test_the_digest_does_not_depend_on_the_hash_seed():
    """Replicas are processes of their own, each with its own seed."""
    script = (
        "from test_metadata_snapshot import HISTORY, apply, new_machine\n"
        "machine = new_machine()\n"
        "for command in HISTORY: apply(machine, command)\n"
        "print(machine.digest().hex())"
    )
    here = Path(__file__).parent
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": f"{here}:{here.parent.parent}"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
    assert len(found.pop().strip()) == 32


def test_the_rest_of_the_contract():
    machine = new_machine()
    meta = Meta(Index(9), Term(2), Micros(10**15), 0)
    digest = machine.digest()
    assert machine.next_deadline() is None
    machine.leader_changed(meta, Micros(10**9))
    assert machine.digest() == digest
    machine.admission().applied(Index(9))
    command = RegisterNode(name="n1", incarnation=101, host="h", port=1)
    assert machine.apply(meta, encode(command), b"").effects == (Changed(1),)
    assert machine.apply(meta, encode(command), b"").effects == ()
    assert len(machine.digest()) == 16
    assert machine.digest() != digest


def test_a_refusal_keeps_no_frames_alive():
    reply, _ = apply_header(new_machine(), encode(DeleteQueue(name="orders", force=False)))
    assert reply.__traceback__ is None


def test_history_reaches_every_state():
    """The test above is worth what its history is: it must go through all of this."""
    machine = new_machine()
    states = set()
    for command in HISTORY:
        apply(machine, command)
        states |= {queue.state for queue in machine.queues()}
        states |= {type(work) for work in all_work(machine)}
    assert states >= {"creating", "active", "updating", "sealing", "deleting", Drop, Seal}
    assert machine.was_deleted(2)
    assert machine.was_deleted(3)
    assert machine.queue_by_id(1).refusal is not None
