"""A queue machine with its admission, an index and a clock: what tests of the queue drive.

After every command it checks what must always hold: the messages of every subscription add up, the
limits count what is unfinished, every change was announced to the digest, and no error but a typed
one came back.
"""

from raftq.batch import encode
from raftq.errors import RaftqError
from raftq.machine import Admitted, Bound, Meta
from raftq.queue import commands
from raftq.queue.config import QueueConfig
from raftq.queue.faults import NO_FAULTS
from raftq.queue.machine import QueueMachine
from raftq.queue.ranges import RangeSet

NOON = 1_760_000_000_000_000
SECOND = 1_000_000
QUEUE = 1
DEFAULT = "default"


def offsets(*ranges):
    """The offsets in (start, stop) pairs, or in the ranges of a delivery."""
    return [offset for start, stop, *_ in ranges for offset in range(start, stop)]


class Client:
    """A session that numbers its commands."""

    def __init__(self, world):
        self.world = world
        self.session = world.apply(commands.encode_open_session()).session
        self.attachment = 0
        self.number = 0
        self.wanted = None

    def by(self, *, number=None, wanted=None):
        """Who asks; what is not said otherwise is a new number, and only its reply is wanted."""
        if number is None:
            number = self.number + 1
        self.number = max(self.number, number)
        wanted = self.wanted if wanted is None else wanted
        return self.session, self.attachment, number, number if wanted is None else wanted

    def receive(
        self, messages=10, *, queue=QUEUE, subscription=DEFAULT, number=None, wanted=None, **options
    ):
        """The deliveries that one taker got, or its error."""
        by = self.by(number=number, wanted=wanted)
        taker = commands.Taker(*by, queue, subscription, messages, **options)
        (result,) = self.world.apply(commands.encode_deliver([taker])).results
        assert (result.session, result.number) == by[::2]
        return result.error or list(result.deliveries)

    def take(self, messages=10, **options):
        """The one delivery that one taker got."""
        (delivery,) = self.receive(messages, **options)
        return delivery

    def settle(self, encoder, delivery, ranges, by, options):
        if ranges is None:
            ranges = [(found.start, found.stop) for found in delivery.ranges]
        where = (delivery.queue, delivery.partition, delivery.subscription, delivery.delivery)
        items = [(*where, start, stop) for start, stop in ranges]
        return self.world.apply(encoder(*by, items, **options))

    def ack(self, delivery, *ranges, number=None, wanted=None):
        by = self.by(number=number, wanted=wanted)
        return self.settle(commands.encode_ack, delivery, ranges or None, by, {})

    def nack(self, delivery, *ranges, number=None, **options):
        by = self.by(number=number)
        return self.settle(commands.encode_nack, delivery, ranges or None, by, options)

    def extend(self, delivery, *ranges, visibility_us):
        options = {"visibility_us": visibility_us}
        return self.settle(commands.encode_extend, delivery, ranges or None, self.by(), options)

    def attach(self, last_delivery=0):
        self.attachment += 1
        header = commands.encode_attach(self.session, self.attachment, last_delivery)
        return self.world.apply(header)

    def release(self, *, goodbye=False, attachment=None):
        attachment = self.attachment if attachment is None else attachment
        return self.world.apply(commands.encode_release(self.session, attachment, goodbye=goodbye))


class World:
    """One group. Every command is an entry of its own, applied at once."""

    def __init__(self, *, faults=NO_FAULTS, partitions=1, configure=True, **options):
        self.machine = QueueMachine(faults)
        self.admission = self.machine.admission()
        self.index = 0
        self.now = NOON
        self.effects = ()
        self.log = []
        self.version = 0
        self.partitions = partitions
        if configure:
            self.configure(**options)

    def configure(self, queue=QUEUE, **options):
        self.version += 1
        config = QueueConfig.from_user({"partitions": self.partitions, **options})
        self.config = config
        for partition in range(self.partitions):
            self.apply(commands.encode_configure(queue, partition, self.version, config))

    def apply(self, header, body=b""):
        """The reply; an error is given, not raised."""
        self.index += 1
        meta = Meta(self.index, 1, self.now, 0)
        self.log.append((meta, header, body))
        applied = self.machine.apply(meta, header, body)
        assert isinstance(applied.reply, tuple | RaftqError)
        self.effects = applied.effects
        self.admission.applied(self.index)
        check_invariants(self.machine)
        if len(self.machine._state.items()) < 20:
            check_digest(self.machine)
        return applied.reply

    def admit(self, body, *, index=None):
        index = self.index + 1 if index is None else index
        return self.admission.admit(b"\x01", body, index, self.now)

    def publish(self, count=1, *, size=10, bodies=None, queue=QUEUE, partition=0, **options):
        """The reply of a batch that went through the admission, or why it did not."""
        bodies = [b"x" * size] * count if bodies is None else bodies
        body = encode(bodies, queue=queue, partition=partition, **options)
        verdict = self.admit(body)
        return self.apply(verdict.header, body) if isinstance(verdict, Admitted) else verdict

    def operate(self, encoder, *, queue=QUEUE, partition=0, subscription=DEFAULT, **options):
        """A command without a session on one subscription."""
        where = {"queue": queue, "partition": partition, "subscription": subscription}
        return self.apply(encoder(0, 0, 0, 0, **where, **options))

    def subscribe(self, subscription, start="earliest"):
        return self.operate(commands.encode_subscribe, subscription=subscription, start=start)

    def update(self, **options):
        """Changes some options of the queue; gives the last partition's reply."""
        self.version += 1
        self.config = self.config.updated(options)
        replies = [
            self.apply(commands.encode_configure(QUEUE, partition, self.version, self.config))
            for partition in range(self.partitions)
        ]
        return replies[-1]

    def release(self, *bounds, through=None, chain=b"c" * 16):
        """Of each (partition, offset); through the last entry, unless it is said."""
        through = self.index if through is None else through
        bounds = tuple(Bound(QUEUE, *bound) for bound in bounds)
        return self.apply(self.machine.release_command(through, chain, bounds))

    def expire(self, *bounds):
        bounds = tuple(Bound(QUEUE, *bound) for bound in bounds)
        return self.apply(self.machine.expire_command(bounds))

    def is_settled(self, start, stop, *, partition=0):
        return self.machine.is_settled(QUEUE, partition, start, stop)

    def tick(self, seconds=0):
        self.now += round(seconds * SECOND)
        return self.apply(commands.encode_tick())

    def change_leader(self, gap):
        self.now += gap
        self.index += 1
        meta = Meta(self.index, 2, self.now, 0)
        self.log.append((meta, gap, None))
        self.machine.leader_changed(meta, gap)
        self.admission = self.machine.admission()

    def stats(self, *, queue=QUEUE, partition=0, subscription=DEFAULT):
        described = self.machine.describe(queue, partition)
        return next(found for found in described.subscriptions if found.name == subscription)

    def partition(self, *, queue=QUEUE, partition=0):
        return self.machine.describe(queue, partition)

    def dead(self, *, partition=0, subscription=DEFAULT, **options):
        return self.machine.dead_letters(QUEUE, partition, subscription, **options)


def check_invariants(machine):
    for queue, partition, _ in machine.partitions():
        stats = machine.describe(queue, partition)
        assert stats.released <= stats.needed_from <= stats.next_offset
        assert stats.needed_from <= stats.first_offset <= stats.next_offset
        check_retention(machine._state.partitions[queue, partition])
        most = 0
        for found in stats.subscriptions:
            unfinished = found.ready + found.in_flight + found.delayed
            ended = found.settled + found.dead + found.discarded
            assert stats.next_offset - found.start == unfinished + ended
            assert min(found[2:]) >= 0
            most = max(most, unfinished)
        assert most <= stats.messages <= stats.next_offset - stats.needed_from
        if len(stats.subscriptions) == 1:
            assert stats.messages == most


def check_retention(partition):
    """Bytes add up, outcomes are known of every message, and what is gone is not there."""
    finished = RangeSet()
    for part in partition._finished_elsewhere(None, partition.needed_from, partition.next_offset):
        finished.add(*part)
    counted = list(finished.missing(partition.needed_from, partition.next_offset))
    assert partition.message_bytes == sum(partition.sizes.between(*part) for part in counted)
    assert partition.messages == sum(stop - start for start, stop in counted)
    for subscription in partition.subscriptions.values():
        remembered = {
            reason: gone.count_below(partition.next_offset)
            for reason, gone in subscription.discarded_ranges.items()
        }
        for reason, count in subscription.discarded.items():
            assert count == remembered.get(reason, 0) + subscription.released.get(reason, 0)
        below = max(0, partition.released - subscription.start)
        assert below == sum(subscription.released.values())
        assert subscription.released.get("settled", 0) <= subscription.settled


def check_digest(machine):
    """The digest kept up item by item is that of the whole state."""
    kept_up = machine.digest()
    for item in machine._state.items():
        item.digest = b""
    assert kept_up == machine.digest(), "a change was not announced"


def copy_of(machine):
    copy = QueueMachine()
    copy.restore(iter(list(machine.snapshot())))
    return copy


def replay(machine, meta, header, body):
    """Feeds one line of a world's log."""
    if body is None:
        machine.leader_changed(meta, header)
        return None
    return machine.apply(meta, header, body)


def all_bytes(machine):
    return b"".join(machine.snapshot())
