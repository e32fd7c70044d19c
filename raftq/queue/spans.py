"""Spans: messages next to each other that share a past.

State is kept per span, never per message: a thousand messages handed out together and nacked
together stay one span. Acknowledging one in the middle makes two of it.
"""

from bisect import bisect_right
from operator import itemgetter
from typing import Final, NamedTuple

HISTORY_ATTEMPTS: Final = 10
"""Attempts that a span remembers, the newest: enough to see why it failed, bounded in memory."""


class Attempt(NamedTuple):
    """One handing-out that did not end in an acknowledgement."""

    delivery: int
    session: int
    handed_out_at: int
    ended_at: int
    outcome: str
    """"nacked", "rejected", "expired" or "released"."""
    error: str


class Span(NamedTuple):
    """Offsets [start, stop) and what they have been through."""

    start: int
    stop: int
    delivery_count: int
    """Handings-out so far."""
    failures: int
    """Those that count against the delivery limit. Invariant: failures <= delivery_count."""
    history: tuple[Attempt, ...]


_start = itemgetter(0)


def cut(spans: list[Span], start: int, stop: int) -> list[Span]:
    """Takes [start, stop) out of ascending spans, in place, and gives the pieces that were there."""
    first = max(bisect_right(spans, start, key=_start) - 1, 0) if len(spans) > 1 else 0
    last = first
    taken: list[Span] = []
    kept: list[Span] = []
    while last < len(spans) and spans[last].start < stop:
        span = spans[last]
        low, high, delivery_count, failures, history = span
        last += 1
        if start <= low and high <= stop:
            taken.append(span)
            continue
        inside_low, inside_high = max(low, start), min(high, stop)
        if inside_low >= inside_high:
            kept.append(span)
            continue
        if low < inside_low:
            kept.append(Span(low, inside_low, delivery_count, failures, history))
        taken.append(Span(inside_low, inside_high, delivery_count, failures, history))
        if inside_high < high:
            kept.append(Span(inside_high, high, delivery_count, failures, history))
    spans[first:last] = kept
    return taken


def not_taken(taken: list[Span], start: int, stop: int) -> list[tuple[int, int]]:
    """The parts of [start, stop) that `cut` did not find."""
    gaps = []
    for span in taken:
        if start < span.start:
            gaps.append((start, span.start))
        start = span.stop
    if start < stop:
        gaps.append((start, stop))
    return gaps
