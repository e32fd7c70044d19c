"""A model of a queue that keeps every message by itself, and is obviously right.

`states_of` and `states_in` show the machine's messages and the model's in the same way.
"""

from dataclasses import dataclass, field

from queue_world import DEFAULT, SECOND, offsets

LIMIT, VISIBILITY, MAX_MESSAGES, MAX_BYTES = 2, 10 * SECOND, 24, 100
NAMES = (DEFAULT, "billing")
OPEN = ("ready", "delayed", "in_flight")


@dataclass
class Message:
    """One message in one subscription."""

    offset: int
    size: int
    state: str = "ready"
    count: int = 0
    failures: int = 0
    due: int = 0
    delivery: int = 0
    reason: str = ""
    passed: bool = False
    """Others were done with a later one when this subscription began: it comes with the returned ones."""

    def discard(self, reason):
        self.state, self.reason = "discarded", reason

    @property
    def outcome(self):
        return self.reason if self.state == "discarded" else self.state


@dataclass
class Held:
    """One delivery."""

    client: int
    name: str
    deadline: int
    visibility: int
    postponed: bool = False


@dataclass
class Model:
    """All messages, by subscription and offset, and all deliveries that hold something."""

    messages: dict = field(default_factory=lambda: {DEFAULT: {}})
    deliveries: dict = field(default_factory=dict)
    next_offset: int = 0
    whole_from: int | None = None
    floor: int = 0
    released: int = 0

    def publish(self, sizes):
        for size in sizes:
            for messages in self.messages.values():
                messages[self.next_offset] = Message(self.next_offset, size)
            self.next_offset += 1

    def open_sizes(self):
        return {
            message.offset: message.size
            for messages in self.messages.values()
            for message in messages.values()
            if message.state in OPEN
        }

    def room(self, sizes):
        open_sizes = self.open_sizes()
        messages, size = len(open_sizes) + len(sizes), sum(open_sizes.values()) + sum(sizes)
        return messages <= MAX_MESSAGES and size <= MAX_BYTES

    def needed(self):
        return {
            message.offset
            for messages in self.messages.values()
            for message in messages.values()
            if message.state in {*OPEN, "dead"}
        }

    def keep_from(self):
        return self.next_offset if self.whole_from is None else max(self.whole_from, self.floor)

    def first_needed(self):
        return min([*self.needed(), self.keep_from()])

    def earliest(self):
        return max(self.floor, self.first_needed())

    def gone(self):
        return set(range(self.keep_from())) - self.needed()

    def receive(self, name, messages, size):
        ready = [found for found in self.messages[name].values() if found.state == "ready"]
        ready.sort(key=lambda message: (not (message.count or message.passed), message.offset))
        taken = []
        for message in ready[:messages]:
            if taken and sum(found.size for found in taken) + message.size > size:
                break
            taken.append(message)
            if message.size > size:
                break
        return taken

    def held(self, delivery):
        name = self.deliveries[delivery].name if delivery in self.deliveries else DEFAULT
        return {
            message.offset: message
            for message in self.messages[name].values()
            if message.state == "in_flight" and message.delivery == delivery
        }

    def drop_empty(self):
        self.deliveries = {d: held for d, held in self.deliveries.items() if self.held(d)}

    def back(self, message, *, fails, due=0):
        message.failures += fails
        if fails and message.failures >= LIMIT:
            message.state, message.reason = "dead", "delivery_limit"
        elif message.offset < self.floor:
            message.discard("retention")
        elif due:
            message.state, message.due = "delayed", due
        else:
            message.state = "ready"

    def pass_time(self, now):
        for delivery, held in self.deliveries.items():
            if held.deadline <= now:
                for message in self.held(delivery).values():
                    self.back(message, fails=True)
        for messages in self.messages.values():
            for message in messages.values():
                if message.state == "delayed" and message.due <= now:
                    message.state = "ready"
        self.drop_empty()


def states_of(subscription, next_offset):
    """(offset, state, count, failures, due or delivery or reason) of every message of the machine."""
    rows = [(offset, "ready", 0, 0, 0) for offset in range(subscription.next_new, next_offset)]
    for span in subscription.waiting:
        rows += [(at, "ready", span.delivery_count, span.failures, 0) for at in offsets(span)]
    for due, span in subscription.delayed:
        rows += [(at, "delayed", span.delivery_count, span.failures, due) for at in offsets(span)]
    for delivery, flight in subscription.in_flight.items():
        for span in flight.held:
            past = (span.delivery_count, span.failures)
            rows += [(at, "in_flight", *past, delivery) for at in offsets(span)]
    for span in subscription.dead:
        rows += [(at, "dead", span.delivery_count, None, span.reason) for at in offsets(span)]
    assert len({row[0] for row in rows}) == len(rows), "a message is in two states"
    finished = set(offsets(*subscription.finished))
    assert finished - {row[0] for row in rows if row[1] == "dead"} == (
        set(range(subscription.start, next_offset)) - {row[0] for row in rows}
    )
    return sorted(rows)


def states_in(messages):
    rows = []
    for message in messages.values():
        last = {"delayed": message.due, "in_flight": message.delivery, "dead": message.reason}
        if message.state in {*OPEN, "dead"}:
            failures = None if message.state == "dead" else message.failures
            row = (message.state, message.count, failures, last.get(message.state, 0))
            rows.append((message.offset, *row))
    return sorted(rows)
