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

from heapq import heappop, heappush

from raftq.ids import QueueId
from raftq.queue.dead_letters import DeadLetters
from raftq.queue.effects import Available
from raftq.queue.message_bytes import MessageBytes
from raftq.queue.ranges import RangeSet
from raftq.queue.spans import Span


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
        "finished",
        "in_flight",
        "in_flight_messages",
        "name",
        "next_new",
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
