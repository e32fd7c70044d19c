"""Limits are exact, with proposals in flight, several subscriptions and messages of any length."""

from queue_world import QUEUE, Client, World

from raftq.batch import encode
from raftq.errors import QueueFull
from raftq.machine import Admitted, DuplicateOf
from raftq.queue import commands
from raftq.queue.config import QueueConfig
from raftq.queue.replies import Published, Redriven


def batch(count):
    return encode([b"x" * 10] * count, queue=QUEUE, partition=0)


def test_max_messages_is_exact_with_proposals_in_flight():
    world = World(max_messages=10)
    bodies = [batch(4), batch(4), batch(3), batch(2), batch(1)]
    verdicts = [world.admit(body, index=9) for body in bodies]
    assert [isinstance(v, Admitted) for v in verdicts] == [True, True, False, True, False]
    assert isinstance(verdicts[2], QueueFull)
    assert isinstance(verdicts[4], QueueFull)
    for verdict, body in zip(verdicts, bodies, strict=True):
        if isinstance(verdict, Admitted):
            world.apply(verdict.header, body)
    assert world.partition().messages == 10


def test_max_bytes_is_exact_with_proposals_in_flight():
    world = World(max_bytes=100)
    verdicts = [world.admit(batch(count), index=9) for count in (4, 4, 3, 2, 1)]
    assert [isinstance(v, Admitted) for v in verdicts] == [True, True, False, True, False]


def test_a_message_counts_until_its_settling_is_applied():
    world = World(max_messages=3)
    world.publish(3)
    client = Client(world)
    delivery = client.take(2)
    assert isinstance(world.publish(1), QueueFull)
    client.ack(delivery, (1, 2))
    assert world.publish(1) == Published(3, 1, duplicate=False)
    assert isinstance(world.publish(1), QueueFull)


def test_max_bytes_is_exact_for_messages_of_any_length():
    world = World(max_bytes=100)
    world.publish(bodies=[b"x" * 70, b"", b"x" * 29])
    assert isinstance(world.publish(size=2), QueueFull)
    assert world.publish(size=1).base_offset == 3
    client = Client(world)
    delivery = client.take()
    client.ack(delivery, (1, 2))
    assert isinstance(world.publish(size=1), QueueFull)
    client.ack(delivery, (2, 3))
    assert isinstance(world.publish(size=30), QueueFull)
    assert world.publish(size=29).base_offset == 4
    assert world.partition().message_bytes == 100


def test_limits_are_split_over_the_partitions_without_a_rest():
    config = QueueConfig.from_user({"partitions": 4, "max_messages": 10, "max_bytes": 7})
    assert [config.messages_share(partition) for partition in range(4)] == [3, 3, 2, 2]
    assert [config.bytes_share(partition) for partition in range(4)] == [2, 2, 2, 1]


def test_a_message_counts_until_every_subscription_is_done_with_it():
    world = World(max_messages=4)
    world.subscribe("billing")
    world.publish(4)
    client = Client(world)
    client.ack(client.take(4))
    assert isinstance(world.publish(1), QueueFull)
    client.ack(client.take(4, subscription="billing"), (1, 3))
    assert world.partition().messages == 2
    assert world.publish(2).base_offset == 4
    world.operate(commands.encode_unsubscribe, subscription="billing")
    assert world.partition().messages == 2
    assert world.partition().first_offset == 4


def test_a_duplicate_is_answered_although_the_queue_is_full():
    world = World(max_messages=2)
    world.publish(2, producer=5)
    assert isinstance(world.publish(2, producer=5), DuplicateOf)


def test_dead_letters_do_not_count_but_redriving_them_does():
    world = World(max_messages=2)
    world.publish(2)
    client = Client(world)
    client.nack(client.take(), reject=True)
    world.publish(1)
    full = world.operate(commands.encode_redrive)
    assert isinstance(full, QueueFull)
    assert world.stats().dead == 2
    assert world.operate(commands.encode_redrive, limit=1) == Redriven(1, ((0, 1),))
    assert world.partition().messages == 2
