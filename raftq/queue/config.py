"""What a queue is told to be: every option, its range, and what this version can do of it.

Rules:

1. One table holds all options. It refuses what is unknown, out of range, or not available in this
   version: an option is never silently ignored.
2. People write seconds and None; inside, durations are whole microseconds in fields that end in
   `_us`, and 0 stands for "none".
3. A machine splits limits over partitions exactly: the shares add up to the limit.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from numbers import Real
from typing import Any, Final, NamedTuple

from raftq.errors import InvalidArgument, InvalidQueueName
from raftq.ids import Partition
from raftq.limits import (
    DEFAULT_MESSAGE_BYTES,
    MAX_DELIVERY_LIMIT,
    MAX_MESSAGE_BYTES,
    MAX_PARTITIONS,
    MAX_QUEUE_NAME,
    RETENTION_MICROS_MAX,
    SECOND,
    VISIBILITY_MICROS_MAX,
)

DEFAULT_SUBSCRIPTION: Final = "default"
COUNT_MAX: Final = 1 << 50
"""Largest max_messages and max_bytes: sums of them stay within 64 bits."""
MAX_LABELS: Final = 64
MAX_LABEL_CHARACTERS: Final = 256
UNTIL_SETTLED: Final = "until_settled"
LOG: Final = "log"
"""What `retain` may be: messages stay until all subscriptions are done with them, or beyond that."""
_NAME: Final = re.compile(rf"(?!\.|__)[A-Za-z0-9._-]{{1,{MAX_QUEUE_NAME}}}", re.ASCII)
_LABEL_PREFIX: Final = "label:"


def check_queue_name(name: object) -> str:
    """Raises: InvalidQueueName."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidQueueName(f"{name!r} is no queue name. {InvalidQueueName.__doc__}")
    return name


def check_subscription_name(name: object) -> str:
    """Subscriptions are named as queues are.

    Raises: InvalidArgument.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{name!r} is no subscription name: 1 to {MAX_QUEUE_NAME} of A-Z a-z 0-9 . _ - , "
            "starting neither with '.' nor with '__'"
        )
    return name


class _Duration(NamedTuple):
    low: int
    high: int


class _Count(NamedTuple):
    low: int
    high: int
    or_none: bool = True


class _Flag(NamedTuple):
    pass


class _Choice(NamedTuple):
    values: tuple[str, ...]
    """The first is what None stands for."""


class _Only(NamedTuple):
    """An option whose other values come in a later version."""

    value: object


_OPTIONS: Final[dict[str, _Duration | _Count | _Flag | _Choice | _Only]] = {
    "partitions": _Count(1, MAX_PARTITIONS, or_none=False),
    "min_partitions": _Only(0),
    "max_partitions": _Only(0),
    "retain": _Choice((UNTIL_SETTLED, LOG)),
    "retain_seconds": _Duration(0, RETENTION_MICROS_MAX),
    "retain_bytes": _Count(1, COUNT_MAX),
    "audit_retention": _Duration(0, RETENTION_MICROS_MAX),
    "visibility_timeout": _Duration(SECOND // 1000, VISIBILITY_MICROS_MAX),
    "max_handling_time": _Duration(0, VISIBILITY_MICROS_MAX),
    "delivery_limit": _Count(1, MAX_DELIVERY_LIMIT),
    "dead_letter_queue": _Only(""),
    "message_ttl": _Only(0),
    "delay": _Only(0),
    "priorities": _Only(1),
    "ordering": _Only("arrival"),
    "reorder_window": _Only(0),
    "dedup_window": _Only(0),
    "max_message_bytes": _Count(1, MAX_MESSAGE_BYTES, or_none=False),
    "max_messages": _Count(1, COUNT_MAX),
    "max_bytes": _Count(1, COUNT_MAX),
    "overflow": _Only("reject"),
    "compression": _Only("none"),
    "encrypted": _Only(value=False),
    "backoff": _Only(0),
    "colocate_with": _Only(""),
    "dedicated": _Flag(),
    "protected": _Flag(),
}


@dataclass(slots=True, frozen=True, kw_only=True)
class QueueConfig:
    """A queue's configuration. Make it with `from_user` or `from_map`, which check it."""

    partitions: int = 1
    min_partitions: int = 0
    max_partitions: int = 0
    retain: str = UNTIL_SETTLED
    retain_seconds_us: int = 0
    retain_bytes: int = 0
    audit_retention_us: int = 24 * 3_600 * SECOND
    visibility_timeout_us: int = 30 * SECOND
    max_handling_time_us: int = 0
    delivery_limit: int = 5
    dead_letter_queue: str = ""
    message_ttl: int = 0
    delay: int = 0
    priorities: int = 1
    ordering: str = "arrival"
    reorder_window: int = 0
    dedup_window: int = 0
    max_message_bytes: int = DEFAULT_MESSAGE_BYTES
    max_messages: int = 0
    max_bytes: int = 0
    overflow: str = "reject"
    compression: str = "none"
    encrypted: bool = False
    backoff: int = 0
    colocate_with: str = ""
    dedicated: bool = False
    protected: bool = False
    labels: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_user(cls, options: Mapping[str, Any]) -> "QueueConfig":
        """Options as people write them: seconds, None, True.

        Raises: InvalidArgument, which names the option and its range.
        """
        values: dict[str, Any] = {}
        for name, value in options.items():
            if name == "labels":
                values["labels"] = _checked_labels(value)
                continue
            option = _OPTIONS.get(name)
            if option is None:
                raise InvalidArgument(f"a queue has no option {name!r}")
            if isinstance(option, _Duration):
                value = _microseconds(name, value)
                name += "_us"
            values[name] = _checked(name, value)
        if "retain" not in values and _bounds_a_log(values):
            values["retain"] = LOG
        return _consistent(cls(**values))

    def updated(self, options: Mapping[str, Any]) -> "QueueConfig":
        """This configuration with some options changed, as people write them.

        Raises: InvalidArgument.
        """
        changed = asdict(QueueConfig.from_user(options))
        names = [name if name in changed else f"{name}_us" for name in options]
        if _bounds_a_log(changed):
            names.append("retain")
        elif "retain" in options and changed["retain"] == UNTIL_SETTLED:
            names += _LOG_BOUNDS
        return _consistent(replace(self, **{name: changed[name] for name in names}))

    def to_map(self) -> dict[str, str | int | bool]:
        """A flat map for the log: what differs from the defaults, durations in microseconds."""
        result: dict[str, str | int | bool] = {}
        for name, default in _DEFAULTS.items():
            value = getattr(self, name)
            if value != default:
                result[name] = value
        result |= {_LABEL_PREFIX + name: self.labels[name] for name in sorted(self.labels)}
        return result

    @classmethod
    def from_map(cls, encoded: Mapping[str, Any]) -> "QueueConfig":
        """What `to_map` made, perhaps by another version, perhaps by a stranger.

        Raises: InvalidArgument.
        """
        values: dict[str, Any] = {}
        labels: dict[str, str] = {}
        for name, value in encoded.items():
            if name.startswith(_LABEL_PREFIX):
                labels[name.removeprefix(_LABEL_PREFIX)] = value
            elif name in _DEFAULTS:
                values[name] = _checked(name, value)
            else:
                raise InvalidArgument(f"a queue has no option {name!r}; upgrade raftq")
        return _consistent(cls(**values, labels=_checked_labels(labels)))

    @property
    def is_log(self) -> bool:
        """Whether messages stay when they are settled."""
        return self.retain == LOG

    def retained_bytes_share(self, partition: Partition) -> int:
        """What `partition` keeps of retain_bytes; 0 is no limit."""
        return _share(self.retain_bytes, self.partitions, partition)

    def messages_share(self, partition: Partition) -> int:
        """What `partition` may hold of max_messages; 0 is no limit."""
        return _share(self.max_messages, self.partitions, partition)

    def bytes_share(self, partition: Partition) -> int:
        """What `partition` may hold of max_bytes; 0 is no limit."""
        return _share(self.max_bytes, self.partitions, partition)


_DEFAULTS: Final[dict[str, Any]] = {
    option.name: option.default for option in fields(QueueConfig) if option.name != "labels"
}


_LOG_BOUNDS: Final = ("retain_seconds_us", "retain_bytes")


def _bounds_a_log(values: Mapping[str, Any]) -> bool:
    return any(values.get(name) for name in _LOG_BOUNDS)


def _consistent(config: QueueConfig) -> QueueConfig:
    if not config.is_log and (config.retain_seconds_us or config.retain_bytes):
        raise InvalidArgument(
            f"retain_seconds and retain_bytes bound a log: they do not go with retain={config.retain!r}"
        )
    for name in ("max_messages", "max_bytes", "retain_bytes"):
        limit = getattr(config, name)
        if limit and limit < config.partitions:
            raise InvalidArgument(
                f"{name} is split over the partitions: {limit} is less than the "
                f"{config.partitions} partitions"
            )
    return config


def _share(limit: int, partitions: int, partition: Partition) -> int:
    return limit // partitions + (partition < limit % partitions)


def _microseconds(name: str, value: object) -> int:
    if value is None:
        return 0
    if type(value) is bool or not isinstance(value, Real):
        raise InvalidArgument(f"{name} is a number of seconds, not {value!r}")
    try:
        return round(value * SECOND)  # type: ignore[call-overload, no-any-return]
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(f"{name} is {_seconds_range(name)}, not {value!r}") from error


def _seconds_range(name: str) -> str:
    option = _OPTIONS[name]
    assert isinstance(option, _Duration)
    return f"{_seconds(option.low)} to {_seconds(option.high)} seconds"


def _seconds(micros: int) -> str:
    """Microseconds as people write them, exactly."""
    sign, rest = "-" * (micros < 0), abs(micros)
    return sign + f"{rest // SECOND}.{rest % SECOND:06}".rstrip("0").rstrip(".")


def _checked(name: str, value: object) -> object:
    """The value of one field, in the units of the field.

    Raises: InvalidArgument.
    """
    shown = name.removesuffix("_us")
    option = _OPTIONS[shown]
    if isinstance(option, _Flag):
        if type(value) is not bool:
            raise InvalidArgument(f"{shown} is true or false, not {value!r}")
        return value
    if isinstance(option, _Only):
        if (value or option.value) == option.value:
            return option.value
        raise InvalidArgument(
            f"{shown}={value!r} is not available in this version, only {option.value!r}"
        )
    if isinstance(option, _Choice):
        value = option.values[0] if value is None else value
        if value in option.values:
            return value
        raise InvalidArgument(f"{shown} is one of {', '.join(option.values)}, not {value!r}")
    if value is None and isinstance(option, _Count) and option.or_none:
        return 0
    if type(value) is not int:
        raise InvalidArgument(f"{shown} is a whole number, not {value!r}")
    # Python refuses to write very long numbers.
    is_long = abs(value) >> 64
    if isinstance(option, _Duration):
        if option.low <= value <= option.high:
            return value
        written = "a number of more than 64 bits" if is_long else _seconds(value)
        raise InvalidArgument(f"{shown} is {_seconds_range(shown)}, not {written}")
    if is_long:
        raise InvalidArgument(f"{shown} is a number of more than 64 bits")
    if option.low <= value <= option.high or (not value and option.or_none):
        return value
    none = ", or 0 for none" if option.or_none else ""
    raise InvalidArgument(f"{shown} is {option.low} to {option.high}{none}, not {value}")


def _checked_labels(labels: object) -> dict[str, str]:
    if labels is None:
        return {}
    if not isinstance(labels, Mapping) or len(labels) > MAX_LABELS:
        raise InvalidArgument(f"labels is a map of at most {MAX_LABELS} texts")
    for name, value in labels.items():
        for text in (name, value):
            if not isinstance(text, str) or len(text) > MAX_LABEL_CHARACTERS:
                raise InvalidArgument(
                    f"a label's name and value are texts of at most {MAX_LABEL_CHARACTERS} "
                    f"characters, not {text!r}"
                )
    return dict(labels)
