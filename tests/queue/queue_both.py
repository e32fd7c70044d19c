"""A machine and the model beside it.

`Both` does each command in both and compares the replies; `check` compares every message. `ACTIONS`
says how arguments are chosen, for a search as for a random walk.
"""

from queue_model import (
    LIMIT,
    MAX_BYTES,
    MAX_MESSAGES,
    NAMES,
    VISIBILITY,
    Held,
    Message,
    Model,
    states_in,
    states_of,
)
from queue_world import DEFAULT, QUEUE, SECOND, Client, World, offsets

from raftq.errors import InvalidArgument, OffsetOutOfRange, QueueFull, RaftqError
from raftq.machine import Bound
from raftq.queue import commands
from raftq.queue.command_reader import decode
from raftq.queue.replies import HistoryReleased, LogsExpired, Published


class Both:
    """The machine and the model: each method does one command in both and compares the replies."""

    def __init__(self):
        self.world = World(
            delivery_limit=LIMIT,
            visibility_timeout=10,
            max_messages=MAX_MESSAGES,
            max_bytes=MAX_BYTES,
        )
        self.clients = [Client(self.world) for _ in range(3)]
        self.model = Model()
        self.seen = []
        self.gone = set()
        self.released_through = 0

    def publish(self, sizes):
        reply = self.world.publish(bodies=[b"x" * size for size in sizes])
        if self.model.room(sizes):
            assert reply == Published(self.model.next_offset, len(sizes), duplicate=False)
            self.model.publish(sizes)
        else:
            assert isinstance(reply, QueueFull)

    def receive(self, client, name, messages, size):
        reply = self.clients[client].receive(messages, subscription=name, max_bytes=size)
        if name not in self.model.messages:
            assert isinstance(reply, RaftqError)
            return
        taken = self.model.receive(name, messages, size)
        assert len(reply) == bool(taken)
        if not taken:
            return
        (delivery,) = reply
        got = [
            (offset, found.delivery_count)
            for found in delivery.ranges
            for offset in range(found.start, found.stop)
        ]
        assert got == [(message.offset, message.count + 1) for message in taken]
        for message in taken:
            message.state, message.delivery = "in_flight", delivery.delivery
            message.count += 1
        deadline = self.world.now + VISIBILITY
        assert delivery.deadline == deadline
        self.model.deliveries[delivery.delivery] = Held(client, name, deadline, VISIBILITY)
        self.seen.append(delivery)

    def choose(self, which, low, length):
        """A delivery that was seen some time, and a range about it."""
        delivery = self.seen[-1 - which % min(len(self.seen), 6)]
        first, last = delivery.ranges[0].start, delivery.ranges[-1].stop
        start = first + low % (last - first + 1)
        chosen = range(start, start + 1 + length % 6)
        held = self.model.held(delivery.delivery)
        stale = [offset for offset in chosen if offset not in held]
        return delivery, chosen, [held[offset] for offset in chosen if offset in held], stale

    def settled(self, reply, stale):
        assert [offset for *_, start, stop in reply.stale for offset in range(start, stop)] == stale
        self.model.drop_empty()

    def ack(self, client, which, low, length):
        delivery, chosen, messages, stale = self.choose(which, low, length)
        reply = self.clients[client].ack(delivery, (chosen.start, chosen.stop))
        for message in messages:
            message.state = "settled"
        self.settled(reply, stale)

    def nack(self, which, low, length, delay, counts, reject):
        delivery, chosen, messages, stale = self.choose(which, low, length)
        ranges = (chosen.start, chosen.stop)
        options = {"delay_us": delay, "count": counts, "reject": reject}
        reply = self.clients[0].nack(delivery, ranges, **options)
        for message in messages:
            if reject:
                message.state, message.reason = "dead", "rejected"
            else:
                due = self.world.now + delay if delay else 0
                self.model.back(message, fails=counts, due=due)
        self.settled(reply, stale)

    def extend(self, which, low, length, visibility):
        delivery, chosen, messages, stale = self.choose(which, low, length)
        ranges = (chosen.start, chosen.stop)
        reply = self.clients[1].extend(delivery, ranges, visibility_us=visibility)
        if messages:
            held = self.model.deliveries[delivery.delivery]
            if self.world.now + visibility > held.deadline:
                held.deadline, held.visibility = self.world.now + visibility, visibility
        self.settled(reply, stale)

    def pass_time(self, seconds):
        self.world.tick(seconds)
        self.model.pass_time(self.world.now)

    def change_leader(self, gap):
        self.world.change_leader(gap)
        for held in self.model.deliveries.values():
            floor = self.world.now + min(held.visibility, 5 * SECOND, gap)
            if gap and not held.postponed and floor > held.deadline:
                held.deadline, held.postponed = floor, True

    def leave(self, client, goodbye):
        self.clients[client].release(goodbye=goodbye)
        for delivery, held in self.model.deliveries.items():
            if held.client == client:
                for at, message in enumerate(self.model.held(delivery).values()):
                    self.model.back(message, fails=not goodbye and at == 0)
        self.model.drop_empty()
        if goodbye:
            self.clients[client] = Client(self.world)

    def subscribe(self, start):
        """`start` as a number counts from the earliest offset."""
        model, earliest = self.model, self.model.earliest()
        wish = start if isinstance(start, str) else max(0, earliest + start)
        reply = self.world.subscribe("billing", wish)
        if "billing" in model.messages:
            assert reply.start >= 0
            return
        first = {"earliest": earliest, "latest": model.next_offset}.get(wish, wish)
        if not earliest <= first <= model.next_offset:
            assert isinstance(reply, OffsetOutOfRange)
            return
        gone, before = model.gone(), model.open_sizes()
        begun = {}
        for offset in range(first, model.next_offset):
            begun[offset] = Message(offset, model.messages[DEFAULT][offset].size)
            if offset in gone:
                begun[offset].discard("settled_before")
                for earlier in begun.values():
                    earlier.passed = earlier.state == "ready"
        model.messages["billing"] = begun
        if model.open_sizes() != before and not model.room([]):
            assert isinstance(reply, QueueFull)
            del model.messages["billing"]
        else:
            assert reply.start == first

    def unsubscribe(self):
        self.world.operate(commands.encode_unsubscribe, subscription="billing")
        self.model.messages.pop("billing", None)
        self.model.deliveries = {
            d: held for d, held in self.model.deliveries.items() if held.name == DEFAULT
        }

    def purge(self, name, dead):
        reply = self.world.operate(commands.encode_purge, subscription=name, dead=dead)
        wanted = {"dead"} if dead else {"ready", "delayed"}
        found = [
            message
            for message in self.model.messages.get(name, {}).values()
            if message.state in wanted
        ]
        assert isinstance(reply, RaftqError) or reply.count == len(found)
        for message in found:
            message.discard("purged_dead" if dead else "purged")

    def redrive(self, name, reason, limit):
        options = {"subscription": name, "reason": reason, "limit": limit}
        reply = self.world.operate(commands.encode_redrive, **options)
        found = [
            message
            for message in self.model.messages.get(name, {}).values()
            if message.state == "dead" and reason in {"", message.reason}
        ]
        found = found[: limit or None]
        for message in found:
            message.state = "ready"
        if not isinstance(reply, RaftqError):
            assert offsets(*reply.ranges) == [message.offset for message in found]
            for message in found:
                message.failures = 0
        else:
            full = isinstance(reply, QueueFull)
            assert full == (name in self.model.messages)
            assert not full or not self.model.room([])
            for message in found:
                message.state = "dead"

    def retain(self, log):
        self.world.update(retain="log" if log else "until_settled")
        model = self.model
        if log and model.whole_from is None:
            model.whole_from = model.next_offset
        if not log:
            model.whole_from, model.floor = None, 0

    def expire(self, ahead):
        """Up to an offset counted from the floor; two partitions that are not here change nothing."""
        model = self.model
        bound = max(0, model.floor + ahead)
        bounds = [Bound(QUEUE + 9, 0, 5), Bound(QUEUE, 0, bound), Bound(QUEUE, 7, 5)]
        reply = self.world.apply(self.world.machine.expire_command(tuple(bounds)))
        bound = min(bound, model.next_offset)
        forgotten = []
        if model.whole_from is not None and bound > model.floor:
            model.floor = bound
            forgotten = [
                message
                for messages in model.messages.values()
                for message in messages.values()
                if message.offset < bound and message.state in {"ready", "delayed"}
            ]
        for message in forgotten:
            message.discard("retention")
        assert reply == LogsExpired(len(forgotten))

    def release(self, ahead, through):
        """Up to an offset counted from the lowest needed, through an index counted from this one's."""
        model, world = self.model, self.world
        bound, through = max(0, model.first_needed() + ahead), max(0, world.index + 1 + through)
        header = world.machine.release_command(
            through, b"%16d" % through, (Bound(QUEUE, 0, bound), Bound(QUEUE, 7, 5))
        )
        before = world.machine.digest()
        reply = world.apply(header)
        fits = self.released_through < through < world.index
        if not fits or not model.released <= bound <= model.first_needed():
            assert isinstance(reply, InvalidArgument)
            assert world.machine.digest() == before
            return
        assert reply == HistoryReleased(through, bound - model.released)
        assert world.machine.released == (through, b"%16d" % through)
        outcomes = {}
        for name, messages in model.messages.items():
            for offset in range(model.released, bound):
                if offset in messages:
                    what = name, messages[offset].outcome
                    outcomes[what] = outcomes.get(what, 0) + 1
        said = decode(header).ranges[0]
        assert (said.before, said.offset) == (model.released, bound)
        assert {row[:2]: row.messages for row in said.outcomes} == outcomes
        self.released_through, model.released = through, bound

    def what_is_gone_stays_gone(self):
        now = self.model.gone()
        assert self.gone <= now
        self.gone = now
        machine, low = self.world.machine, max(0, self.model.first_needed() - 2)
        for offset in range(low, self.model.next_offset):
            settled = machine.is_settled(QUEUE, 0, offset, offset + 1)
            assert settled == (offset in now)
        for start in range(low, self.model.next_offset, 3):
            settled = machine.is_settled(QUEUE, 0, start, start + 5)
            assert settled == (set(range(start, start + 5)) <= now)
        (kept, *_) = machine.kept()
        assert kept.needed_from == self.model.first_needed()

    def every_message_is_where_the_model_has_it(self):
        partition = self.world.machine._state.partitions[QUEUE, 0]
        assert list(partition.subscriptions) == list(self.model.messages)
        for name, messages in self.model.messages.items():
            subscription = partition.subscriptions[name]
            assert states_of(subscription, partition.next_offset) == states_in(messages)
        stats = self.world.partition()
        assert stats.first_offset == self.model.earliest()
        assert stats.needed_from == self.model.first_needed()
        assert stats.released == self.model.released
        open_sizes = self.model.open_sizes()
        assert stats.messages == len(open_sizes)
        assert stats.message_bytes == sum(open_sizes.values())

    def every_delivery_is_held_by_its_session(self):
        for number, client in enumerate(self.clients):
            held = [d for d, found in self.model.deliveries.items() if found.client == number]
            assert list(self.world.machine.held_by(client.session)) == held
        partition = self.world.machine._state.partitions[QUEUE, 0]
        deadlines = {
            delivery: flight.deadline
            for subscription in partition.subscriptions.values()
            for delivery, flight in subscription.in_flight.items()
        }
        assert deadlines == {d: held.deadline for d, held in self.model.deliveries.items()}

    def check(self):
        self.every_message_is_where_the_model_has_it()
        self.every_delivery_is_held_by_its_session()
        self.what_is_gone_stays_gone()


def choice(choose):
    """Of a delivery and some of its messages."""
    return {"which": choose(range(6)), "low": choose(range(20)), "length": choose(range(6))}


def wanted(choose):
    return {
        "client": choose(range(3)),
        "name": choose([DEFAULT, DEFAULT, "billing"]),
        "messages": choose(range(1, 13)),
        "size": choose([1, 40, 10_000, 10_000]),
    }


def sizes(choose):
    return {"sizes": [choose(range(31)) for _ in range(choose(range(1, 9)))]}


def nacked(choose):
    return {
        **choice(choose),
        "delay": choose([0, 0, SECOND, 15 * SECOND]),
        "counts": choose([True, True, False]),
        "reject": choose([False, False, False, True]),
    }


ACTIONS = {
    # name: (how often in a random walk, arguments)
    "publish": (20, sizes),
    "receive": (20, wanted),
    "ack": (12, lambda choose: {"client": choose(range(3)), **choice(choose)}),
    "nack": (15, nacked),
    "extend": (5, lambda choose: {**choice(choose), "visibility": choose([SECOND, 20 * SECOND])}),
    "pass_time": (10, lambda choose: {"seconds": choose([0, 0.5, 1, 3, 9, 20])}),
    "change_leader": (2, lambda choose: {"gap": choose([0, 1, 4, 60]) * SECOND}),
    "leave": (3, lambda choose: {"client": choose(range(3)), "goodbye": choose([True, False])}),
    "subscribe": (
        4,
        lambda choose: {"start": choose(["earliest", "earliest", "latest", -1, 0, 1, 5, 60])},
    ),
    "retain": (2, lambda choose: {"log": choose([True, True, False])}),
    "expire": (4, lambda choose: {"ahead": choose([-1, 0, 1, 3, 8, 20, 1_000])}),
    "release": (
        4,
        lambda choose: {
            "ahead": choose([0, 0, 0, -1, -4, 1, 9]),
            "through": choose([-1, -1, -1, -3, 0, 1]),
        },
    ),
    "unsubscribe": (2, lambda _: {}),
    "purge": (2, lambda choose: {"name": choose(NAMES), "dead": choose([True, False])}),
    "redrive": (
        5,
        lambda choose: {
            "name": choose([DEFAULT, DEFAULT, "billing"]),
            "reason": choose(["", "rejected"]),
            "limit": choose(range(4)),
        },
    ),
}
NEEDS_A_DELIVERY = ("ack", "nack", "extend")
