"""One subscription: where each message of a partition stands for its consumers.

Theory of operation. A message is below `start` (never this subscription's), new (from `next_new`
on: never handed out, whatever the backlog it costs one integer), waiting to be handed out again,
delayed, held by a delivery, or finished: settled, discarded or dead. New and waiting ones are
*ready*.

    published since start = ready + delayed + in flight + settled + dead + discarded

Rules:

1. Waiting messages are handed out before new ones, lower offsets first.
2. `finished` is what will not be handed out by itself any more. The lowest message that anybody
   still needs is the lowest that is not finished, or dead.
3. Heaps hold spans with distinct starts, so what they give does not depend on how they lie.
"""

from heapq import heapify, heappop, heappush
from typing import Final

from raftq.ids import QueueId
from raftq.queue.dead_letters import DeadLetters
from raftq.queue.effects import Available
from raftq.queue.message_bytes import MessageBytes
from raftq.queue.ranges import RangeSet
from raftq.queue.spans import Span

SETTLED: Final = "settled"
SETTLED_BEFORE: Final = "settled_before"
"""All other subscriptions were done with it before this one began."""


class InFlight:
    """One delivery, as the subscription keeps it: who holds what, and until when."""

    __slots__ = ("deadline", "held", "postponed", "session", "since", "visibility")

    def __init__(
        self, session: int, *, since: int, visibility: int, deadline: int, held: list[Span]
    ) -> None:
        self.session = session
        self.since = since
        self.visibility = visibility
        self.deadline = deadline
        self.held = held
        """Ascending and never empty: a delivery that holds nothing is over."""
        self.postponed = False
        """A leader change has put off the deadline; it does so once."""


class Subscription:
    """The state of one subscription on one partition."""

    __slots__ = (
        "available",
        "dead",
        "delayed",
        "delayed_messages",
        "discarded",
        "discarded_ranges",
        "finished",
        "in_flight",
        "in_flight_messages",
        "name",
        "next_new",
        "released",
        "settled",
        "start",
        "waiting",
        "waiting_messages",
    )

    def __init__(self, queue: QueueId, name: str, start: int) -> None:
        self.name = name
        self.start = start
        self.next_new = start
        self.waiting: list[Span] = []
        self.waiting_messages = 0
        self.delayed: list[tuple[int, Span]] = []
        """A heap of (due, span)."""
        self.delayed_messages = 0
        self.in_flight: dict[int, InFlight] = {}
        """By delivery, ascending, as deliveries are numbered in the order of the log."""
        self.in_flight_messages = 0
        self.finished = RangeSet()
        self.settled = 0
        self.discarded: dict[str, int] = {}
        """Messages by reason."""
        self.discarded_ranges: dict[str, RangeSet] = {}
        """Which they are, as far as they have not been released."""
        self.released: dict[str, int] = {}
        """Messages whose bodies may be gone, by what became of them."""
        self.dead = DeadLetters()
        self.available = (Available(queue, name),)

    def ready(self, next_offset: int) -> int:
        return next_offset - self.next_new + self.waiting_messages

    def unfinished(self, next_offset: int) -> int:
        """Ready, delayed and in flight."""
        return self.ready(next_offset) + self.delayed_messages + self.in_flight_messages

    def lowest_needed(self) -> int:
        """The lowest offset that is neither settled nor discarded."""
        lowest = self.finished.first_missing(self.start)
        dead = self.dead.first()
        return lowest if dead is None or lowest < dead else dead

    def begin_without(self, gone: RangeSet, next_offset: int) -> None:
        """These messages are finished from the start: their bodies may be gone."""
        for start, stop in gone:
            self.finished.add(start, stop)
            self.note_discarded(start, stop, SETTLED_BEFORE)
        there = list(gone.missing(self.start, next_offset))
        self.next_new = next_offset
        if there and there[-1][1] == next_offset:
            self.next_new, _ = there.pop()
        for start, stop in there:
            self.wait(Span(start, stop, 0, 0, ()))

    def note_discarded(self, start: int, stop: int, reason: str) -> None:
        """Messages have ended without being settled."""
        self.discarded[reason] = self.discarded.get(reason, 0) + stop - start
        self.discarded_ranges.setdefault(reason, RangeSet()).add(start, stop)

    def outcomes(self, start: int, stop: int) -> list[tuple[str, int]]:
        """What became of the messages in [start, stop): finished ones, of which none below was released."""
        counts = [
            (reason, gone.count_below(stop)) for reason, gone in self.discarded_ranges.items()
        ]
        discarded = sum(count for _, count in counts)
        settled = stop - max(start, self.start) - discarded
        return [(name, count) for name, count in ((SETTLED, settled), *counts) if count > 0]

    def note_released(self, start: int, stop: int) -> None:
        """The bodies of messages in [start, stop) may go: only their outcomes are remembered."""
        for name, count in self.outcomes(start, stop):
            self.released[name] = self.released.get(name, 0) + count
        for gone in self.discarded_ranges.values():
            gone.forget_below(stop)
        # An empty one would stand elsewhere in the order after a restore than here.
        self.discarded_ranges = {
            reason: gone for reason, gone in self.discarded_ranges.items() if gone
        }

    def withdraw_below(self, bound: int) -> list[tuple[int, int]]:
        """Takes out what is ready or delayed below `bound`, and gives its ranges, ascending."""
        delayed = [(due, span) for due, span in self.delayed if span.start < bound]
        withdrawn = [span for span in self.waiting if span.start < bound]
        if withdrawn:
            self.waiting = [span for span in self.waiting if span.start >= bound]
            heapify(self.waiting)
            self.waiting_messages -= sum(span.stop - span.start for span in withdrawn)
        if delayed:
            self.delayed = [(due, span) for due, span in self.delayed if span.start >= bound]
            heapify(self.delayed)
            self.delayed_messages -= sum(span.stop - span.start for _, span in delayed)
        for span in withdrawn:
            if span.stop > bound:
                self.wait(span._replace(start=bound))
        for due, span in delayed:
            if span.stop > bound:
                self.delay(due, span._replace(start=bound))
        found = [*withdrawn, *(span for _, span in delayed)]
        gone = [(span.start, min(span.stop, bound)) for span in found]
        if self.next_new < bound:
            gone.append((self.next_new, bound))
            self.next_new = bound
        return sorted(gone)

    def is_done(self, start: int, stop: int) -> bool:
        """Whether none of [start, stop) is ready, delayed, in flight or dead here."""
        start = max(start, self.start)
        finished = start >= stop or self.finished.first_missing(start) >= stop
        return finished and not self.dead.any_in(start, stop)

    def wait(self, span: Span) -> None:
        """The span is ready to be handed out again."""
        heappush(self.waiting, span)
        self.waiting_messages += span.stop - span.start

    def delay(self, due: int, span: Span) -> bool:
        """The span waits for its time; gives whether it is now the first to come."""
        heappush(self.delayed, (due, span))
        self.delayed_messages += span.stop - span.start
        return self.delayed[0][1] is span

    def wake_one(self) -> None:
        """The span that is due first becomes ready."""
        _, span = heappop(self.delayed)
        self.delayed_messages -= span.stop - span.start
        self.wait(span)

    def take(
        self, sizes: MessageBytes, *, messages: int, message_bytes: int, first: bool
    ) -> tuple[list[Span], int, int]:
        """Takes what is handed out next, within both bounds; `first` lets one message pass anyhow.

        Gives the spans, each counted as handed out once more, and what is left of both bounds.
        """
        taken: list[Span] = []
        waiting = self.waiting
        next_offset = sizes.end_offset
        while messages:
            if waiting:
                start, end, delivery_count, failures, history = waiting[0]
            elif self.next_new < next_offset:
                start, end, delivery_count, failures, history = self.next_new, next_offset, 0, 0, ()
            else:
                break
            wanted = min(end, start + messages)
            stop = sizes.fitting(start, wanted, message_bytes)
            if stop == start:
                if not first:
                    break
                stop = start + 1
            if not waiting:
                self.next_new = stop
            else:
                self.waiting_messages -= stop - start
                if stop == end:
                    heappop(waiting)
                else:
                    # What is left still begins below all others: the heap stays one.
                    waiting[0] = Span(stop, end, delivery_count, failures, history)
            messages -= stop - start
            message_bytes -= sizes.between(start, stop)
            if (
                taken
                and taken[-1].stop == start
                and taken[-1][2:] == (delivery_count + 1, failures, history)
            ):
                start = taken.pop().start
            taken.append(Span(start, stop, delivery_count + 1, failures, history))
            if stop < wanted:
                break
            first = False
        return taken, messages, message_bytes
