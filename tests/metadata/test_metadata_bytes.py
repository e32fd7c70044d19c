"""Goal: whatever the bytes, apply answers; and bytes that are on disk keep their meaning.

Run with RAFTQ_REWRITE_GOLDEN=1 to write the files anew after a deliberate change of format.
"""

import os
import random
from pathlib import Path

import cbor2
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metadata_driver import apply_header, create_groups, create_queue, new_machine

from raftq.errors import InvalidArgument, RaftqError
from raftq.limits import MAX_CBOR_BYTES
from raftq.machine import Admitted
from raftq.metadata import (
    CreateGroup,
    CreateQueue,
    DeleteQueue,
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
    UpdateQueue,
    commands,
    encode,
    plain,
)
from raftq.metadata.machine import _HANDLERS

GOLDEN = Path(__file__).parent.parent / "golden" / "metadata"
CONFIG = {"partitions": 3, "delivery_limit": 9, "protected": True, "label:grün": "ja"}

COMMANDS = {
    "register_node": RegisterNode(
        name="n2", incarnation=2**64 - 1, host="10.0.0.2", port=7402, labels={"rack": "a"}
    ),
    "create_group": CreateGroup(nodes=("n1", "n3"), group=4),
    "ensure_groups": EnsureGroups(count=3),
    "created": ReplicaCreated(group=1, replica=4, incarnation=2**64 - 1),
    "lost": ReplicaLost(group=1, replica=4, incarnation=101),
    "replace_node": ReplaceNode(name="n3", incarnation=103, successor=2**64 - 2),
    "left": ReplicasLeft(group=0, replicas=(3, 300)),
    "recovered": GroupRecovered(
        group=1,
        replica=1 << 22,
        node="n1",
        incarnation=101,
        former=(4, 5, 6),
        highest=(1 << 22) + 2,
    ),
    "create_queue": CreateQueue(name="orders", config=CONFIG),
    "create_queue_evenly": CreateQueue(name="orders", config=CONFIG, even=True),
    "update_queue": UpdateQueue(name="orders", config={}, expected_version=300),
    "delete_queue": DeleteQueue(name="orders", force=True),
    "partition_ready": PartitionReady(queue=2**32 - 1, partition=1023, version=2),
    "partition_refused": PartitionRefused(queue=1, partition=0, version=2, reason="5 are ready"),
    "partition_dropped": PartitionDropped(queue=1, partition=0),
}


def same_as_golden(name, made):
    path = GOLDEN / f"{name}.bin"
    if os.environ.get("RAFTQ_REWRITE_GOLDEN") == "1":
        path.write_bytes(made)
    golden = path.read_bytes()
    assert golden == made
    return golden


@pytest.fixture(scope="module")
def machine():
    made = new_machine()
    create_groups(made)
    create_queue(made, **CONFIG)
    return made


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_have_the_golden_bytes(name):
    header = same_as_golden(name, encode(COMMANDS[name]))
    assert commands.decode(header, b"") == COMMANDS[name]
    assert header[0] == 1
    assert name.startswith(cbor2.loads(header[1:])["do"])


def test_every_command_has_golden_bytes_and_a_handler():
    assert {type(command) for command in COMMANDS.values()} == set(_HANDLERS)
    assert set(commands.Command.__args__) == set(_HANDLERS)


def test_the_snapshot_has_the_golden_bytes():
    made = new_machine()
    create_groups(made)
    apply_header(made, encode(COMMANDS["register_node"]))
    apply_header(made, encode(COMMANDS["lost"]))
    apply_header(made, encode(COMMANDS["replace_node"]))
    create_queue(made, **CONFIG)
    apply_header(made, encode(DeleteQueue(name="orders", force=False)))
    apply_header(
        made, encode(PartitionRefused(queue=1, partition=2, version=2, reason="5 are ready"))
    )
    golden = same_as_golden("snapshot", b"".join(made.snapshot()))
    restored = new_machine()
    restored.restore(iter([golden]))
    assert restored.digest() == made.digest()
    assert restored.queue_by_name("orders") == made.queue_by_name("orders")


def test_the_digest_is_golden():
    """Replicas of two releases compare digests, so an equal state keeps its digest."""
    same_as_golden("digest_of_founders", new_machine().digest())


def test_a_field_may_be_left_out_where_it_has_a_default():
    values = {"do": "ensure_groups", "count": 3}
    assert commands.decode(b"\x01" + cbor2.dumps(values), b"") == EnsureGroups(count=3)


# --- What is refused -------------------------------------------------------------------------------

GOOD = b"\x01" + cbor2.dumps({"do": "delete_queue", "name": "orders", "force": False})


def with_config(encoded):
    """A create_queue whose configuration has the one value that these bytes are."""
    start = cbor2.dumps({"do": "create_queue", "name": "a", "config": 0})
    assert start.endswith(b"\x66config\x00")
    return b"\x01" + start[:-1] + b"\xa1\x61x" + encoded


BAD = {
    "empty": b"",
    "kind only": b"\x01",
    "another kind": b"\x02" + GOOD[1:],
    "kind 0": b"\x00" + GOOD[1:],
    "cut": GOOD[:-1],
    "longer": GOOD + b"\x00",
    "no map": b"\x01\x80",
    "a number": b"\x01\x05",
    "too long": b"\x01"
    + cbor2.dumps({"do": "delete_queue", "name": "a" * MAX_CBOR_BYTES, "force": False}),
    "unknown command": b"\x01" + cbor2.dumps({"do": "delete_cluster"}),
    "no command": b"\x01" + cbor2.dumps({"name": "orders", "force": False}),
    "a field missing": b"\x01" + cbor2.dumps({"do": "delete_queue", "name": "orders"}),
    "a field too many": b"\x01"
    + cbor2.dumps({"do": "delete_queue", "name": "orders", "force": False, "x": 1}),
    "a field of another type": b"\x01"
    + cbor2.dumps({"do": "delete_queue", "name": "orders", "force": 0}),
    "a key twice": b"\x01\xa3\x62do\x6cdelete_queue\x64name\x61a\x64name\x61b",
    "a key that is no text": b"\x01\xa1\x01\x02",
    "a map as a key": b"\x01\xa1\xa0\x01",
    "float": with_config(cbor2.dumps(0.5)),
    "not a number": with_config(b"\xf9\x7e\x00"),
    "undefined": with_config(b"\xf7"),
    "simple value": with_config(b"\xf8\x20"),
    "bignum": with_config(cbor2.dumps(2**64)),
    "negative bignum": with_config(cbor2.dumps(-(2**64) - 1)),
    "date": with_config(b"\xc1\x00"),
    "pattern": with_config(b"\xd8\x23\x62a("),
    "cycle": with_config(b"\xd8\x1c\x81\xd8\x1d\x00"),
    "indefinite list": with_config(b"\x9f\xff"),
    "indefinite text": with_config(b"\x7f\x61a\xff"),
    "break": with_config(b"\xff"),
    "reserved length": with_config(b"\x1c"),
    "long encoding": with_config(b"\x18\x05"),
    "text that is not UTF-8": with_config(b"\x61\xff"),
    "surrogate": with_config(b"\x63\xed\xa0\x80"),
    "huge list": with_config(b"\x9b\x7f\xff\xff\xff\xff\xff\xff\xff"),
    "huge map": with_config(b"\xbb\x80\x00\x00\x00\x00\x00\x00\x00"),
    "huge text": with_config(b"\x7b\xff\xff\xff\xff\xff\xff\xff\xff"),
    "deep": with_config(b"\x81" * 10_000 + b"\x00"),
    "a bit deep": with_config(b"\x81" * 7 + b"\x00"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_bytes_are_refused_by_apply_and_by_admission(machine, name):
    version = machine.version
    reply, effects = apply_header(machine, BAD[name])
    assert type(reply) is InvalidArgument
    assert effects == ()
    assert machine.version == version
    assert isinstance(machine.admission().admit(BAD[name], b"", 1, 0), InvalidArgument)


def test_the_good_neighbours_of_bad_bytes_are_taken(machine):
    for header in (
        GOOD,
        with_config(b"\x05"),
        with_config(b"\xf6"),
        with_config(b"\x61a"),
        with_config(b"\x81" * 6 + b"\x00"),
    ):
        assert machine.admission().admit(header, b"", 1, 0) == Admitted(header)
        memory = memoryview(bytearray(header))
        assert commands.decode(memory, b"") == commands.decode(header, b"")


def test_a_body_is_refused(machine):
    assert isinstance(apply_header(machine, GOOD, b"x").reply, InvalidArgument)
    assert isinstance(machine.admission().admit(GOOD, b"x", 1, 0), InvalidArgument)


@pytest.mark.parametrize(
    "command",
    [
        EnsureGroups(count=0),
        RegisterNode(name="", incarnation=1, host="h", port=1),
        RegisterNode(name="a" * 65, incarnation=1, host="h", port=1),
        RegisterNode(name="a", incarnation=0, host="h", port=1),
        RegisterNode(name="a", incarnation=2**64, host="h", port=1),
        RegisterNode(name="a", incarnation=1, host="", port=1),
        RegisterNode(name="a", incarnation=1, host="h", port=65_536),
        CreateGroup(nodes=()),
        CreateGroup(nodes=tuple("abcdefgh")),
        CreateQueue(name="a", config={"x": 0.5}),
        CreateQueue(name="a", config={"x": object()}),
        CreateQueue(name="a", config={1: 2}),
        CreateQueue(name="\ud800", config={}),
        PartitionReady(queue=0, partition=0, version=1),
        PartitionReady(queue=2**32, partition=0, version=1),
        PartitionReady(queue=1, partition=1024, version=1),
        PartitionReady(queue=1, partition=0, version=0),
        PartitionRefused(queue=1, partition=0, version=1, reason="r" * 1025),
    ],
)
def test_what_cannot_be_decoded_is_not_encoded(command):
    with pytest.raises(InvalidArgument):
        encode(command)


# --- Anything --------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=200, derandomize=True)
@given(st.binary(max_size=64))
def test_any_bytes_are_answered(data):
    machine = new_machine()
    for header in (data, b"\x01" + data, with_config(data)):
        reply, _ = apply_header(machine, header)
        assert isinstance(reply, RaftqError | tuple)


def test_damaged_commands_are_answered(machine):
    """Method: flip, cut and splice the bytes of good commands; a fixed seed, some 20,000 of them."""
    draw = random.Random(1)
    headers = [encode(command) for command in COMMANDS.values()]
    copy = new_machine()
    copy.restore(machine.snapshot())
    for _ in range(2_000):
        for header in headers:
            damaged = bytearray(header)
            for _ in range(draw.randint(1, 3)):
                damaged[draw.randrange(len(damaged))] = draw.randrange(256)
            if draw.random() < 0.2:
                damaged = damaged[: draw.randrange(len(damaged))] + draw.choice(headers)
            reply, _ = apply_header(copy, bytes(damaged))
            assert isinstance(reply, RaftqError | tuple)
    assert len(b"".join(copy.snapshot())) > 0


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(VALUES)
def test_a_plain_value_comes_back_and_in_one_encoding(value):
    again = plain.decode(plain.encode(value), 100)
    assert msgspec.to_builtins(again, builtin_types=(bytes,)) == value
    assert plain.encode(again) == plain.encode(plain.decode(plain.encode(again), 100))


def test_the_order_of_keys_is_forgotten():
    one = plain.decode(plain.encode({"b": {"y": 1, "x": 2}, "a": []}), 9)
    other = plain.decode(plain.encode({"a": [], "b": {"x": 2, "y": 1}}), 9)
    assert plain.encode(one) == plain.encode(other)
    assert list(one) == ["a", "b"]
