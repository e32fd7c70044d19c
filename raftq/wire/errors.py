"""Errors on the wire: the body of an ERROR frame.

    {code: int, message: text, outcome: "not_applied" | "unknown", retry_after_us: int,
     failed: list, leader: text}          the last three are left out where they say nothing

Codes are those of `raftq.errors`; an unknown one becomes a plain RaftqError. Two codes never reach a
user: `NotLeader` and `Moved` tell a client, or a node that forwarded, where to go instead. A
request answered with either was not applied.
"""

from typing import Any, Final

from raftq.errors import ProtocolError, RaftqError, from_code
from raftq.wire import cbor

NOT_LEADER: Final = 1_001
MOVED: Final = 1_002
_MESSAGE_LENGTH_MAX: Final = 800
"""Characters: an error must fit the frame of a connection that is not authenticated yet."""

_RETRY_AFTER_US_MAX: Final = 3_600 * 1_000_000
_OUTCOMES: Final = ("not_applied", "unknown")


class NotLeader(Exception):
    """This node does not lead the group; `leader` does, by name, if anybody is known to."""

    code: Final = NOT_LEADER

    def __init__(self, leader: str | None = None) -> None:
        super().__init__(f"not the leader; {leader or 'nobody'} is known to be")
        self.leader = leader


class Moved(Exception):
    """The partition lives in another group now: ask for the metadata again."""

    code: Final = MOVED
    leader: None = None


WireError = RaftqError | NotLeader | Moved


def encode_error(error: WireError) -> bytes:
    """The body of the ERROR frame for `error`."""
    values: dict[str, Any] = {
        "code": error.code,
        "message": str(error)[:_MESSAGE_LENGTH_MAX],
        "outcome": "not_applied",
    }
    if isinstance(error, RaftqError):
        values["outcome"] = error.outcome
        if error.retry_after > 0:
            values["retry_after_us"] = min(int(error.retry_after * 1e6), _RETRY_AFTER_US_MAX)
        if error.failed:
            values["failed"] = list(error.failed)
    elif error.leader is not None:
        values["leader"] = error.leader
    return cbor.encode(values)


def decode_error(body: memoryview | bytes) -> WireError:
    """The error that an ERROR frame carries.

    Raises: ProtocolError when it carries none.
    """
    values = cbor.decode(body)
    code = values.get("code")
    message = values.get("message", "")
    outcome = values.get("outcome")
    retry_after_us = values.get("retry_after_us", 0)
    failed = values.get("failed", [])
    leader = values.get("leader")
    if (
        type(code) is not int
        or type(message) is not str
        or outcome not in _OUTCOMES
        or type(retry_after_us) is not int
        or type(failed) is not list
        or not isinstance(leader, str | None)
    ):
        raise ProtocolError("an ERROR frame has fields of the wrong type")
    if code == NOT_LEADER:
        return NotLeader(leader)
    if code == MOVED:
        return Moved()
    retry_after = min(max(retry_after_us, 0), _RETRY_AFTER_US_MAX) / 1e6
    error = from_code(code, message, outcome=outcome, retry_after=retry_after)
    error.failed = tuple(failed)
    return error
