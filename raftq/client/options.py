"""What calls take besides their subject, and how people's times become microseconds.

Durations are given in seconds; moments in seconds since 1970, or as an aware `datetime`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from math import isfinite
from typing import Any, Final, TypedDict

from raftq.client.outgoing import PLAIN, Extras
from raftq.client.ports import SECOND_US
from raftq.errors import InvalidArgument
from raftq.limits import RETENTION_MICROS_MAX, VISIBILITY_MICROS_MAX

Moment = float | datetime

ACKS: Final = "quorum"
PRIORITY_MAX: Final = 255
_MOMENT_US_MAX: Final = 1 << 62

_SECONDS_MAX: Final = {
    "visibility_timeout": VISIBILITY_MICROS_MAX // SECOND_US,
    "max_handling_time": VISIBILITY_MICROS_MAX // SECOND_US,
    "audit_retention": RETENTION_MICROS_MAX // SECOND_US,
    "retain_seconds": RETENTION_MICROS_MAX // SECOND_US,
}

LATER: Final = frozenset(
    {
        "backoff",
        "colocate_with",
        "compression",
        "dead_letter_queue",
        "dedup_id",
        "dedup_window",
        "delay",
        "deliver_at",
        "encrypted",
        "max_partitions",
        "message_ttl",
        "min_partitions",
        "ordering",
        "overflow",
        "priorities",
        "priority",
        "reorder_window",
        "ttl",
    }
)
"""Known, and refused by this version unless they say what is so anyway: nobody is advised to try."""


class MessageOptions(TypedDict, total=False):
    """Options of one message."""

    delay: float
    deliver_at: Moment | None
    ttl: float
    priority: int
    dedup_id: str | bytes | None
    timestamp: Moment | None
    acks: str


class ManyOptions(TypedDict, total=False):
    """Options of many messages: one value for all, or a list with one for each."""

    delay: float | list[float]
    deliver_at: Moment | list[Moment | None] | None
    ttl: float | list[float]
    priority: int | list[int]
    dedup_id: list[str | bytes | None] | None
    timestamp: Moment | list[Moment | None] | None
    acks: str


class QueueOptions(TypedDict, total=False):
    """What a queue can be told to be; durations in seconds, None for "no limit"."""

    partitions: int
    min_partitions: int
    max_partitions: int
    retain: str
    retain_seconds: float | None
    retain_bytes: int | None
    audit_retention: float
    visibility_timeout: float
    max_handling_time: float | None
    delivery_limit: int | None
    dead_letter_queue: str | None
    message_ttl: float | None
    delay: float
    priorities: int
    ordering: str
    reorder_window: float
    dedup_window: float
    max_message_bytes: int
    max_messages: int | None
    max_bytes: int | None
    overflow: str
    compression: str | None
    encrypted: bool
    backoff: float | None
    colocate_with: str | None
    dedicated: bool
    protected: bool
    labels: dict[str, str]


def duration_us(seconds: float, name: str) -> int:
    """Raises: InvalidArgument."""
    if not isinstance(seconds, int | float) or not 0 <= seconds < _MOMENT_US_MAX / SECOND_US:
        raise InvalidArgument(f"{name} is in seconds and not negative, not {seconds!r}")
    return round(seconds * SECOND_US)


def visibility_us(seconds: float | None) -> int:
    """A visibility timeout; 0 for None, which is the queue's own.

    Raises: InvalidArgument.
    """
    if seconds is None:
        return 0
    high = VISIBILITY_MICROS_MAX // SECOND_US
    if not isinstance(seconds, int | float) or not 0 <= seconds <= high:
        raise InvalidArgument(f"visibility_timeout is 0 to {high} seconds, not {seconds!r}")
    return max(duration_us(seconds, "visibility_timeout"), 1)


def moment_us(moment: Moment | None, name: str) -> int:
    """Microseconds since 1970; 0 for None.

    Raises: InvalidArgument.
    """
    if moment is None:
        return 0
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidArgument(f"{name} needs a time zone: use datetime.now(UTC)")
        moment = moment.timestamp()
    return duration_us(moment, name)


def check_acks(acks: object) -> None:
    """Raises: InvalidArgument."""
    if acks != ACKS:
        raise InvalidArgument(f"acks={acks!r} is not available in this version, only {ACKS!r}")


def check_names(options: Mapping[str, object], known: type) -> None:
    """Whether all options are known: a misspelt one must not be ignored.

    Raises: InvalidArgument.
    """
    names = known.__annotations__
    for name in options:
        if name not in names:
            there_are = ", ".join(each for each in names if each not in LATER)
            raise InvalidArgument(f"there is no option {name!r}; there are {there_are}")


def check_queue_options(options: Mapping[str, object]) -> None:
    """Names, and what cannot be sent; all else the cluster judges.

    Raises: InvalidArgument.
    """
    check_names(options, QueueOptions)
    for name, value in options.items():
        if isinstance(value, float) and not isfinite(value):
            high = _SECONDS_MAX.get(name)
            bounds = f"at most {high} seconds" if high else "a finite number"
            raise InvalidArgument(f"{name} is {bounds}, not {value!r}")


def read_options(options: Mapping[str, Any]) -> tuple[Extras, int, int]:
    """The extras of a message, its delay and its time to live.

    Raises: InvalidArgument.
    """
    check_names(options, MessageOptions)
    check_acks(options.get("acks", ACKS))
    priority = options.get("priority", 0)
    if not isinstance(priority, int) or not 0 <= priority <= PRIORITY_MAX:
        raise InvalidArgument(f"priority is 0 to {PRIORITY_MAX}, not {priority!r}")
    dedup = options.get("dedup_id")
    if not isinstance(dedup, str | bytes | None):
        raise InvalidArgument(f"dedup_id is text or bytes, not {dedup!r:.100}")
    extras = Extras(
        moment_us(options.get("timestamp"), "timestamp"),
        moment_us(options.get("deliver_at"), "deliver_at"),
        priority,
        dedup.encode() if isinstance(dedup, str) else dedup,
    )
    delay_us = duration_us(options.get("delay", 0.0), "delay")
    ttl_us = duration_us(options.get("ttl", 0.0), "ttl")
    return (PLAIN if extras == PLAIN else extras), delay_us, ttl_us


def each_key(keys: object, count: int) -> Sequence[bytes | None] | None:
    """A key for each of `count` messages: one each, one for all, or None where there are none.

    Raises: InvalidArgument.
    """
    if keys is None or isinstance(keys, list | tuple):
        return each(keys, count, "keys")
    if isinstance(keys, bytes):
        return [keys] * count
    raise InvalidArgument(
        f"keys is a list with a key for each message, or one key, not {keys!r:.100}"
    )


def each(value: object, count: int, name: str) -> Sequence[Any] | None:
    """A list of one value per message, or None where one value is meant for all.

    Raises: InvalidArgument.
    """
    if not isinstance(value, list | tuple):
        return None
    if len(value) != count:
        raise InvalidArgument(f"{name} has {len(value)} items for {count} messages")
    return value
