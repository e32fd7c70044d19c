"""raftq: a Raft-replicated log store with a queue layer. The public names, and nothing else.

A name is loaded when it is first asked for: whoever wants the command line, or one error, does not
wait for the whole client.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from raftq.version import VERSION as __version__  # noqa: N811 - the name that Python gives it.

if TYPE_CHECKING:
    from raftq.client.admin import (
        DeadLetter,
        PartitionDescription,
        QueueDescription,
        QueueSummary,
        Redriven,
        SubscriptionCounts,
    )
    from raftq.client.blocking import BlockingMessage
    from raftq.client.blocking_client import Client
    from raftq.client.client import AsyncClient
    from raftq.client.message import DeliveryReceipt, Message
    from raftq.client.receipts import PendingReceipt, Receipt, Receipts
    from raftq.errors import (
        AccessDenied,
        AuthenticationFailed,
        Busy,
        ClusterMismatch,
        ConnectionFailed,
        Corrupted,
        CrossGroupTransaction,
        InvalidArgument,
        InvalidQueueName,
        MessageTooLarge,
        NoQuorum,
        OffsetOutOfRange,
        ProducerFenced,
        ProtocolError,
        QueueExists,
        QueueFull,
        QueueNotEmpty,
        QueueNotFound,
        RaftqError,
        ReplicaDamaged,
        SequenceGap,
        SessionExpired,
        StaleReceipt,
        StorageFull,
        Throttled,
        Timeout,
        TransactionAborted,
        UnsupportedVersion,
    )

__all__ = [
    "AccessDenied",
    "AsyncClient",
    "AuthenticationFailed",
    "BlockingMessage",
    "Busy",
    "Client",
    "ClusterMismatch",
    "ConnectionFailed",
    "Corrupted",
    "CrossGroupTransaction",
    "DeadLetter",
    "DeliveryReceipt",
    "InvalidArgument",
    "InvalidQueueName",
    "Message",
    "MessageTooLarge",
    "NoQuorum",
    "OffsetOutOfRange",
    "PartitionDescription",
    "PendingReceipt",
    "ProducerFenced",
    "ProtocolError",
    "QueueDescription",
    "QueueExists",
    "QueueFull",
    "QueueNotEmpty",
    "QueueNotFound",
    "QueueSummary",
    "RaftqError",
    "Receipt",
    "Receipts",
    "Redriven",
    "ReplicaDamaged",
    "SequenceGap",
    "SessionExpired",
    "StaleReceipt",
    "StorageFull",
    "SubscriptionCounts",
    "Throttled",
    "Timeout",
    "TransactionAborted",
    "UnsupportedVersion",
    "__version__",
]

_MODULES = {
    "raftq.client.admin": (
        "DeadLetter",
        "PartitionDescription",
        "QueueDescription",
        "QueueSummary",
        "Redriven",
        "SubscriptionCounts",
    ),
    "raftq.client.blocking": ("BlockingMessage",),
    "raftq.client.blocking_client": ("Client",),
    "raftq.client.client": ("AsyncClient",),
    "raftq.client.message": (
        "DeliveryReceipt",
        "Message",
    ),
    "raftq.client.receipts": (
        "PendingReceipt",
        "Receipt",
        "Receipts",
    ),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # All names that no other module gives are errors.
    value = getattr(import_module(_PLACES.get(name, "raftq.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
