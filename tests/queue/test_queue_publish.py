"""Publishing: stamps, duplicates, fences and limits, judged before the log and never refused after."""

import pytest
from queue_world import NOON, QUEUE, SECOND, Client, World, all_bytes, copy_of

from raftq.batch import encode, read_stamp
from raftq.errors import (
    Busy,
    InvalidArgument,
    MessageTooLarge,
    ProducerFenced,
    QueueFull,
    QueueNotFound,
    RaftqError,
    SequenceGap,
    SessionExpired,
)
from raftq.limits import PRODUCER_EXPIRES_MICROS
from raftq.machine import Admitted, DuplicateOf, Later, Meta
from raftq.queue import commands
from raftq.queue.config import QueueConfig
from raftq.queue.effects import Available
from raftq.queue.faults import Faults
from raftq.queue.replies import ProducerOpened, Published


def batch(count=1, *, producer=0, epoch=0, sequence=0, body=b"x" * 10, queue=QUEUE, **options):
    ids = {"producer": producer, "epoch": epoch, "sequence": sequence}
    return encode([body] * count, queue=queue, partition=0, **ids, **options)


def opening(producer, *, epoch=0, opener=1):
    return commands.encode_open_producer(QUEUE, 0, producer, epoch=epoch, opener=opener)


def test_offsets_follow_each_other_and_subscribers_are_told():
    world = World()
    assert world.publish(3) == Published(0, 3, duplicate=False)
    assert world.effects == (Available(QUEUE, "default"),)
    world.subscribe("billing")
    assert world.publish(2) == Published(3, 2, duplicate=False)
    assert world.effects == (Available(QUEUE, "default"), Available(QUEUE, "billing"))


def test_batches_in_flight_are_stamped_one_after_the_other():
    world = World()
    stamps = [read_stamp(world.admit(batch(count), index=7).header) for count in (2, 1, 4)]
    assert [stamp.base_offset for stamp in stamps] == [0, 2, 3]
    assert [stamp.count for stamp in stamps] == [2, 1, 4]


def test_a_publish_to_no_partition_is_refused():
    world = World()
    assert isinstance(world.publish(queue=99), QueueNotFound)


def test_what_the_admission_let_in_is_never_refused_so_a_wrong_stamp_is_a_bug():
    world = World()
    header = world.admit(batch(3)).header
    world.apply(header, batch(3))
    with pytest.raises(AssertionError, match="does not continue 3"):
        world.machine.apply(Meta(9, 1, NOON, 0), header, batch(3))


@pytest.mark.parametrize(
    ("wish", "name"),
    [
        ({"delay_us": 1}, "delay"),
        ({"ttl_us": 1}, "ttl"),
        ({"due": [5]}, "deliver_at"),
        ({"expire": [5]}, "ttl"),
        ({"priority": 1}, "priority"),
        ({"priorities": [3]}, "priority"),
        ({"dedup_hashes": [b"x" * 16]}, "dedup_id"),
        ({"ttl_us": 1, "delay_us": 1}, "delay, ttl"),
    ],
)
def test_a_wish_of_a_later_version_is_refused_not_ignored(wish, name):
    reply = World().publish(**wish)
    assert isinstance(reply, InvalidArgument)
    assert str(reply) == f"{name}: not available in this version; send without"


def test_keys_headers_and_times_are_taken():
    world = World()
    reply = world.publish(2, keys=[b"a", None], headers=[{"k": 1}, None], times=[NOON, NOON + 1])
    assert reply == Published(0, 2, duplicate=False)
    # Bodies, the key, and the headers of the first message.
    assert world.partition().message_bytes == 2 * 10 + 1 + 4


def test_a_message_over_the_bound_is_refused_by_its_own_length():
    world = World(max_message_bytes=20)
    assert world.publish(10, size=20).count == 10
    assert isinstance(world.publish(size=21), MessageTooLarge)
    assert isinstance(world.publish(bodies=[b"x" * 21, b""]), MessageTooLarge)


# --- Producers ----------------------------------------------------------------------------------


def test_a_duplicate_of_an_original_in_flight_waits_for_it():
    """Its answer leaves only with the original's index: the leader may lose that entry yet."""
    world = World()
    body = batch(3, producer=5)
    assert isinstance(world.admit(body, index=10), Admitted)
    verdict = world.admit(body, index=10)
    assert verdict == DuplicateOf(10, Published(0, 3, duplicate=True))
    # Nothing of it enters the log, so the next batch continues behind the original.
    following = batch(1, producer=5, sequence=3)
    assert read_stamp(world.admit(following, index=11).header).base_offset == 3


def test_the_seeded_bug_answers_a_duplicate_of_an_original_in_flight_at_once():
    world = World(faults=Faults(duplicate_answered_early=True))
    body = batch(3, producer=5)
    world.admit(body, index=10)
    assert world.admit(body, index=10).index == 0


def test_a_duplicate_of_an_applied_original_gets_the_originals_offset():
    world = World()
    first = world.publish(3, producer=5)
    at = world.index
    world.publish(2)
    verdict = world.publish(3, producer=5)
    assert verdict == DuplicateOf(at, Published(first.base_offset, 3, duplicate=True))


def test_an_original_lost_with_its_leader_is_admitted_again():
    """The overlay is thrown away with the leader; what never was applied is no original."""
    world = World()
    body = batch(3, producer=5)
    world.admit(body, index=10)
    world.change_leader(SECOND)
    assert isinstance(world.admit(body), Admitted)


def test_another_body_under_an_old_sequence_is_refused_not_swallowed():
    world = World()
    world.publish(2, producer=5)
    for other in ({"size": 11}, {"count": 1}, {"count": 3}):
        reply = world.publish(**{"count": 2, "producer": 5, **other})
        assert isinstance(reply, InvalidArgument)
    in_flight = batch(2, producer=5, sequence=2)
    world.admit(in_flight)
    assert isinstance(world.admit(batch(2, producer=5, sequence=2, body=b"y")), InvalidArgument)


def test_a_gap_is_refused_and_the_missing_batch_still_fits():
    world = World()
    world.publish(2, producer=5)
    gap = world.publish(1, producer=5, sequence=3)
    assert isinstance(gap, SequenceGap)
    assert gap.outcome == "not_applied"
    assert world.publish(1, producer=5, sequence=2) == Published(2, 1, duplicate=False)


def test_a_sequence_inside_an_old_batch_is_refused():
    world = World()
    world.publish(4, producer=5)
    reply = world.publish(1, producer=5, sequence=2)
    assert isinstance(reply, SequenceGap)
    assert reply.outcome == "unknown"


def test_sixty_four_batches_are_remembered():
    world = World()
    replies = [world.publish(1, producer=5, sequence=sequence) for sequence in range(70)]
    for sequence in range(6, 70):
        verdict = world.publish(1, producer=5, sequence=sequence)
        assert verdict.reply == replies[sequence]._replace(duplicate=True)
    forgotten = world.publish(1, producer=5, sequence=5)
    assert isinstance(forgotten, SequenceGap)
    assert forgotten.outcome == "unknown"


def test_no_more_batches_are_let_in_flight_than_are_remembered():
    world = World()
    for sequence in range(64):
        assert isinstance(world.admit(batch(producer=5, sequence=sequence)), Admitted)
    assert isinstance(world.admit(batch(producer=5, sequence=64)), Busy)
    assert isinstance(world.admit(batch(producer=5, sequence=3)), DuplicateOf)


def test_a_producer_never_opened_begins_at_zero():
    world = World()
    unknown = world.publish(1, producer=5, sequence=7)
    assert isinstance(unknown, SessionExpired)
    assert unknown.outcome == "not_applied"
    assert isinstance(world.publish(1, producer=5, epoch=1), SessionExpired)
    assert isinstance(world.publish(1, producer=5, sequence=2**63), InvalidArgument)
    assert world.publish(1, producer=5) == Published(0, 1, duplicate=False)


def test_producer_zero_has_no_duplicates():
    world = World()
    assert [world.publish(1).base_offset for _ in range(3)] == [0, 1, 2]


def test_an_opened_producer_goes_on_where_it_was_and_fences_its_older_self():
    world = World()
    assert world.apply(opening(5, opener=1)) == ProducerOpened(5, 1, -1, -1, opened=True)
    world.publish(3, producer=5, epoch=1)
    assert world.apply(opening(5, epoch=1, opener=2)) == ProducerOpened(5, 2, 2, 2, opened=True)
    fenced = world.publish(1, producer=5, epoch=1, sequence=3)
    assert isinstance(fenced, ProducerFenced)
    assert world.publish(1, producer=5, epoch=2, sequence=3) == Published(3, 1, duplicate=False)
    assert isinstance(world.publish(1, producer=5, epoch=9, sequence=4), SessionExpired)


def test_who_opens_a_producer_without_knowing_its_epoch_is_told_it_and_fences_nobody():
    world = World()
    world.apply(opening(5, opener=1))
    world.publish(3, producer=5, epoch=1)
    for epoch in (0, 2, 9):
        told = world.apply(opening(5, epoch=epoch, opener=2))
        assert told == ProducerOpened(5, 1, 2, 2, opened=False)
    assert world.publish(1, producer=5, epoch=1, sequence=3) == Published(3, 1, duplicate=False)


def test_a_repeated_opening_gets_the_same_answer_and_one_that_comes_late_changes_nothing():
    world = World()
    first = world.apply(opening(5, opener=1))
    assert world.apply(opening(5, opener=1)) == first
    second = world.apply(opening(5, epoch=1, opener=2))
    assert (second.epoch, second.opened) == (2, True)
    # The first opener's requests arrive again, after it was fenced.
    for epoch in (0, 1):
        late = world.apply(opening(5, epoch=epoch, opener=1))
        assert (late.epoch, late.opened) == (2, False)
    assert world.apply(opening(5, epoch=1, opener=2)) == second


def test_a_producer_that_was_never_opened_can_begin_anew():
    world = World()
    world.publish(2, producer=5)
    assert world.apply(opening(5, opener=1)) == ProducerOpened(5, 1, 1, 1, opened=True)
    # What was sent before and arrives now is refused, but for what is in the log already.
    assert isinstance(world.publish(1, producer=5, sequence=2), ProducerFenced)
    assert world.publish(2, producer=5).reply == Published(0, 2, duplicate=True)
    assert world.publish(1, producer=5, epoch=1, sequence=2) == Published(2, 1, duplicate=False)
    assert isinstance(world.publish(1, producer=5, sequence=2), ProducerFenced)


def test_an_idle_producer_is_forgotten_and_its_old_batches_are_refused_not_taken_as_new():
    world = World()
    world.apply(opening(5))
    world.publish(2, producer=5, epoch=1)
    world.now += PRODUCER_EXPIRES_MICROS - 1
    world.tick()
    assert world.partition().producers == 1
    world.now += 1
    world.tick()
    assert world.partition().producers == 0
    refused = world.publish(2, producer=5, epoch=1, sequence=2)
    assert isinstance(refused, SessionExpired)
    assert refused.outcome == "not_applied"
    # The epoch minted anew still fences the one that was forgotten.
    assert world.apply(opening(5)).epoch == 2
    assert isinstance(world.publish(2, producer=5, epoch=1, sequence=2), ProducerFenced)


def test_there_are_not_more_producers_than_the_bound(monkeypatch):
    for module in ("admit", "administration"):
        monkeypatch.setattr(f"raftq.queue.{module}.MAX_PRODUCERS", 2)
    world = World()
    world.publish(1, producer=5)
    admitted = world.admit(batch(producer=6))
    assert isinstance(world.admit(batch(producer=7)), Busy)
    world.apply(admitted.header, batch(producer=6))
    assert isinstance(world.publish(1, producer=0), Published)
    assert isinstance(world.publish(1, producer=7), Busy)
    assert isinstance(world.apply(opening(6)), ProducerOpened)
    assert isinstance(world.apply(opening(9)), Busy)
    world.tick(PRODUCER_EXPIRES_MICROS / SECOND)
    assert isinstance(world.publish(1, producer=7), Published)
    assert isinstance(world.publish(1, producer=9), Published)
    assert isinstance(world.publish(1, producer=5), Busy)
    world.apply(commands.encode_drop(QUEUE, 0, force=True))
    assert world.machine._state.producers == 0


def test_a_producer_in_use_is_not_forgotten():
    world = World()
    for sequence in range(4):
        world.now += PRODUCER_EXPIRES_MICROS // 2
        world.publish(1, producer=5, sequence=sequence)
        world.tick()
    assert world.partition().producers == 1


def test_a_tick_in_flight_that_forgets_the_producer_does_not_spoil_an_admitted_stamp():
    world = World()
    world.publish(2, producer=5)
    world.now += PRODUCER_EXPIRES_MICROS
    body = batch(2, producer=5, sequence=2)
    admitted = world.admit(body, index=world.index + 2)
    world.tick()
    assert world.apply(admitted.header, body) == Published(2, 2, duplicate=False)
    assert isinstance(world.publish(1, producer=5, sequence=4), Published)


# --- Commands in flight that publishes must wait for ---------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        commands.encode_configure(QUEUE, 0, 2, QueueConfig.from_user({"max_messages": 1})),
        commands.encode_drop(QUEUE, 0, force=True),
        commands.encode_redrive(0, 0, 0, 0, queue=QUEUE, partition=0),
        commands.encode_subscribe(0, 0, 0, 0, queue=QUEUE, partition=0, subscription="billing"),
        opening(5),
    ],
)
def test_a_publish_waits_for_what_the_admission_does_not_foresee(header):
    """A stamp that apply would refuse spoils every stamp behind it."""
    world = World()
    assert world.admission.admit(header, b"", 20, NOON) == Admitted(header)
    assert world.admit(batch(), index=21) == Later(20)
    world.admission.applied(19)
    assert world.admit(batch(), index=21) == Later(20)
    world.admission.applied(20)
    assert isinstance(world.admit(batch(), index=21), Admitted)


def test_a_publish_waits_for_the_last_of_them():
    world = World()
    for index in (20, 22):
        world.admission.admit(opening(index), b"", index, NOON)
    assert world.admit(batch(), index=23) == Later(22)
    world.admission.applied(20)
    assert world.admit(batch(), index=23) == Later(22)
    world.admission.applied(22)
    assert isinstance(world.admit(batch(), index=23), Admitted)


def test_a_publish_behind_a_drop_is_refused_and_one_before_it_is_applied():
    world = World()
    body = batch(2)
    before = world.admit(body)
    drop = commands.encode_drop(QUEUE, 0, force=True)
    world.admission.admit(drop, b"", world.index + 2, NOON)
    assert isinstance(world.admit(body), Later)
    assert world.apply(before.header, body) == Published(0, 2, duplicate=False)
    world.apply(drop)
    assert isinstance(world.admit(body), QueueNotFound)


def test_commands_that_only_make_room_stop_nothing():
    world = World()
    client = Client(world)
    world.publish(2)
    delivery = client.take()
    ack = commands.encode_ack(*client.by(), [(QUEUE, 0, "default", delivery.delivery, 0, 2)])
    purge = commands.encode_purge(*client.by(), queue=QUEUE, partition=0, subscription="default")
    for header in (ack, purge, commands.encode_tick(), commands.encode_open_session()):
        assert world.admission.admit(header, b"", 50, NOON) == Admitted(header)
    assert isinstance(world.admit(batch(), index=50), Admitted)


def test_a_lowered_limit_does_not_refuse_what_was_admitted_before_it():
    world = World(max_messages=10)
    body = batch(5)
    admitted = world.admit(body, index=world.index + 2)
    config = QueueConfig.from_user({"max_messages": 1})
    world.apply(commands.encode_configure(QUEUE, 0, 9, config))
    assert world.apply(admitted.header, body) == Published(0, 5, duplicate=False)
    assert isinstance(world.publish(1), QueueFull)


def test_the_overlay_is_empty_when_everything_is_applied():
    world = World()
    bodies = [batch(1, producer=5, sequence=sequence) for sequence in range(3)]
    headers = [world.admit(body, index=world.index + 1).header for body in bodies]
    world.admission.admit(opening(7), b"", world.index + 1, NOON)
    for header, body in zip(headers, bodies, strict=True):
        world.machine.apply(Meta(world.index + 1, 1, NOON, 0), header, body)
    world.admission.applied(world.index + 1)
    assert not world.admission._tails
    assert not world.admission._in_flight
    assert not world.admission._new_producers
    assert isinstance(world.admit(batch(1, producer=5, sequence=3)), Admitted)


def test_admission_reads_the_state_and_changes_nothing():
    world = World()
    before = all_bytes(world.machine)
    world.admit(batch(3, producer=5))
    world.admission.admit(commands.encode_drop(QUEUE, 0, force=True), b"", 9, NOON)
    assert all_bytes(world.machine) == before
    assert copy_of(world.machine).digest() == world.machine.digest()


def test_a_damaged_batch_is_refused_with_a_type():
    world = World()
    body = batch(2)
    for damaged in (b"", body[:50], b"x" + body[1:], body[:-1]):
        assert isinstance(world.admit(damaged), RaftqError)
