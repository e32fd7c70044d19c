"""CONTROL operations: administration and everything cold, in one table.

A CONTROL frame is a cbor map {do: name of the operation, its fields}; a CONTROLLED frame is the map
that answers it. The table below is what the server checks requests against, what the client builds
them from, and what docs/PROTOCOL.md lists.

Rules:

1. A field that the table does not name is refused: a misspelt option must never be ignored.
2. `repeatable` says that doing it twice is doing it once, so a client may repeat it when it does not
   know what became of the first request.
3. What a configuration or an offset means is for the machines; here stand types and bounds.
"""

import re
from typing import Any, Final, Literal, NamedTuple

from raftq.errors import InvalidArgument, InvalidQueueName, ProtocolError
from raftq.limits import MAX_ACK_RANGES, MAX_NODE_NAME, MAX_PARTITIONS, MAX_REASON_BYTES

DEFAULT_SUBSCRIPTION: Final = "default"
_NAME: Final = re.compile(r"(?!\.|__)[A-Za-z0-9._-]{1,80}", re.ASCII)
_SUBSCRIPTION: Final = re.compile(r"[A-Za-z0-9._-]{1,80}", re.ASCII)
_U32: Final = (1 << 32) - 1
_U64: Final = (1 << 64) - 1
LETTERS_MAX: Final = 1_000
"""Dead letters in one answer, which is one frame of control size."""

Shape = Literal["queue name", "subscription", "text", "integer", "boolean", "map", "pairs", "start"]


class Field(NamedTuple):
    """One field of an operation. `low` and `high` bound an integer, or the length of the rest."""

    shape: Shape
    required: bool = True
    low: int = 0
    high: int = _U64


class Operation(NamedTuple):
    """What one operation takes and gives; `asks` says who answers it, any node forwards."""

    asks: Literal["any node", "metadata leader", "group leader", "all group leaders"]
    repeatable: bool
    fields: dict[str, Field]
    reply: str


_QUEUE: Final = Field("queue name")
_SUB: Final = Field("subscription")
_REASON: Final = Field("text", required=False, high=MAX_REASON_BYTES)
_GROUP: Final = Field("integer", high=_U32)
_SESSION: Final = Field("integer", low=1)
_ATTACHMENT: Final = Field("integer", high=_U32)
_PARTITION: Final = Field("integer", high=MAX_PARTITIONS - 1)

_QUEUE_REPLY: Final = "{name, id, config, partitions: [{partition, group}], state}"

OPERATIONS: Final[dict[str, Operation]] = {
    "metadata": Operation(
        "any node",
        True,
        {"queue": Field("queue name", required=False)},
        f"{{version, queues: [{_QUEUE_REPLY}], groups: [{{group, leader: node name or null, term, "
        "voters: [node name]}], nodes: [{name, host, port, incarnation}]}; all queues are left out "
        "when none is asked for",
    ),
    "create_queue": Operation(
        "metadata leader",
        True,
        {"name": _QUEUE, "config": Field("map")},
        f"{{queue: {_QUEUE_REPLY}}}",
    ),
    "update_queue": Operation(
        "metadata leader",
        True,
        {"name": _QUEUE, "config": Field("map")},
        f"{{queue: {_QUEUE_REPLY}}}",
    ),
    "delete_queue": Operation(
        "metadata leader", True, {"name": _QUEUE, "force": Field("boolean")}, "{}"
    ),
    "list_queues": Operation("any node", True, {}, f"{{queues: [{_QUEUE_REPLY}]}}"),
    "describe_queue": Operation(
        "all group leaders",
        True,
        {"name": _QUEUE},
        "{name, id, config, partitions: [{partition, group, leader, next_offset, first_offset, "
        "released, subscriptions: {name: {ready, in_flight, delayed, settled, dead, discarded}}}]}",
    ),
    "purge_queue": Operation("all group leaders", True, {"name": _QUEUE}, "{purged}"),
    "purge_dead": Operation(
        "all group leaders",
        True,
        {"name": _QUEUE, "subscription": _SUB},
        "{purged}",
    ),
    "dead_letters": Operation(
        "all group leaders",
        True,
        {
            "name": _QUEUE,
            "subscription": _SUB,
            "partition": Field("integer", required=False, high=MAX_PARTITIONS - 1),
            "after_offset": Field("integer", required=False),
            "limit": Field("integer", low=1, high=LETTERS_MAX),
        },
        "{letters: [{partition, offset, reason, error, delivery_count, died_at, history, body, key, "
        "headers, timestamp}]}, times in microseconds",
    ),
    "redrive": Operation(
        "all group leaders",
        True,
        {
            "name": _QUEUE,
            "subscription": _SUB,
            "reason": _REASON,
            "offsets": Field("pairs", required=False, high=MAX_ACK_RANGES),
            "dry_run": Field("boolean"),
        },
        "{redriven, by_reason: {reason: count}}",
    ),
    "subscribe": Operation(
        "all group leaders",
        True,
        {"name": _QUEUE, "subscription": _SUB, "start": Field("start")},
        "{}",
    ),
    "unsubscribe": Operation(
        "all group leaders", True, {"name": _QUEUE, "subscription": _SUB}, "{}"
    ),
    "open_session": Operation("group leader", True, {"group": _GROUP}, "{session, attachment}"),
    "attach": Operation(
        "group leader",
        True,
        {
            "group": _GROUP,
            "session": _SESSION,
            "attachment": _ATTACHMENT,
            "last_seen": Field("integer"),
        },
        "{attachment, held: [{delivery, queue, partition, subscription, deadline, ranges: "
        "[[start, stop, delivery_count]]}]}: what the session holds of deliveries above last_seen. "
        "`attachment` is the one asked for: above any that the client asked for before; one below "
        "the session's present attachment is refused with SessionExpired",
    ),
    "close_session": Operation(
        "group leader",
        True,
        {"group": _GROUP, "session": _SESSION, "attachment": _ATTACHMENT},
        "{}",
    ),
    "open_producer": Operation(
        "group leader",
        True,
        {
            "queue": Field("integer", high=_U32),
            "partition": _PARTITION,
            "producer": Field("integer", low=1),
            "epoch": Field("integer", high=_U32),
            "opener": Field("integer", low=1),
        },
        "{opened, epoch, last_sequence: -1 for none, last_offset}: the next epoch is the producer's if `epoch` "
        "is the one in force, or the producer is not known; else `opened` is false and nothing was "
        "changed. Who names the same random `opener` again gets the same answer",
    ),
    "replace_node": Operation(
        "metadata leader",
        False,
        {"name": Field("text", low=1, high=MAX_NODE_NAME)},
        "{node, groups: [group]}: the new, empty data directory that was started under this node's name "
        "takes its place, and the groups listed have still to change their members. Refused while the "
        "node is up, and as long as no such directory has asked for the place. Asked for again before "
        "all groups have changed, it says which have not",
    ),
    "status": Operation(
        "any node",
        True,
        {},
        "{cluster, node, version, nodes: [{name, peer, client, up, replacement: a new data directory "
        "asks for its place}], groups: [{group, leader, term, commit_index, applied_index, replicas: "
        "[{node, role, match_index}]}], changing: [{group, node, joining: replica, created, leaving: "
        "[replica]}], queues}",
    ),
    "digest": Operation(
        "any node",
        True,
        {"group": _GROUP},
        "{applied_index, digest, chain}: of this node's replica",
    ),
}


def check_queue_name(name: object) -> str:
    """The name itself, if it is one.

    Raises: InvalidQueueName.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidQueueName(
            f"{repr(name)[:100]} is not a queue name: 1 to 80 of A-Z a-z 0-9 . _ -, and it starts "
            "neither with '.' nor with '__'"
        )
    return name


def check_subscription(name: object) -> str:
    """The name itself, if it may name a subscription.

    Raises: InvalidArgument.
    """
    if not isinstance(name, str) or not _SUBSCRIPTION.fullmatch(name):
        raise InvalidArgument(
            f"{repr(name)[:100]} is not a subscription name: 1 to 80 of A-Z a-z 0-9 . _ -"
        )
    return name


def check_request(request: dict[str, Any]) -> Operation:
    """The operation that a CONTROL map asks for, with every field checked.

    Raises: ProtocolError when there is no such operation; InvalidArgument, InvalidQueueName.
    """
    name = request.get("do")
    operation = OPERATIONS.get(name) if type(name) is str else None
    if operation is None:
        raise ProtocolError(f"no operation is called {str(name)[:80]!r}; upgrade the older side")
    for given in request:
        if given != "do" and given not in operation.fields:
            raise InvalidArgument(f"{name} has no field {given[:80]!r}")
    for field_name, field in operation.fields.items():
        value = request.get(field_name)
        if value is not None:
            _check_field(f"{field_name} of {name}", field, value)
        elif field.required:
            raise InvalidArgument(f"{name} needs {field_name}")
    return operation


_TYPES: Final[dict[str, type]] = {
    "queue name": str,
    "subscription": str,
    "text": str,
    "integer": int,
    "boolean": bool,
    "map": dict,
    "pairs": list,
}


def _check_field(where: str, field: Field, value: Any) -> None:
    shape = field.shape
    if shape == "start":
        is_name = type(value) is str and value in {"earliest", "latest"}
        if not is_name and (type(value) is not int or value < 0):
            raise InvalidArgument(f"{where} is 'earliest', 'latest' or an offset")
        return
    # Not isinstance: True is an int to Python, and must not pass for a number here.
    given: type = type(value)
    if given is not _TYPES[shape]:
        raise InvalidArgument(f"{where} must be of shape {shape!r}, not {given.__name__}")
    if shape == "queue name":
        check_queue_name(value)
    elif shape == "subscription":
        check_subscription(value)
    elif shape == "integer":
        if not field.low <= value <= field.high:
            raise InvalidArgument(f"{where} is {field.low} to {field.high}, not {value}")
    elif shape in {"text", "pairs"} and not field.low <= len(value) <= field.high:
        raise InvalidArgument(f"{where} has a length of {field.low} to {field.high}")
    if shape == "pairs" and not all(map(_is_pair, value)):
        raise InvalidArgument(f"{where} is a list of [partition, offset]")


def _is_pair(value: Any) -> bool:
    return (
        type(value) is list
        and len(value) == 2
        and all(type(number) is int and number >= 0 for number in value)
    )
