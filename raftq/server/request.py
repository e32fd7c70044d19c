"""One request on its way to its answer, whoever asked: a client's connection or another node."""

from collections.abc import Callable
from typing import Any

from raftq.errors import ConnectionFailed, InvalidArgument, RaftqError
from raftq.host import Redirect
from raftq.limits import MAX_ANSWER_BYTES
from raftq.machine import Buffer
from raftq.wire import cbor, errors
from raftq.wire.frames import FrameKind

Answer = Callable[[int, tuple[Buffer, ...]], None]


class Request:
    """What came, and how to answer it; answering twice is a bug."""

    __slots__ = ("_answer", "body", "hops", "is_internal", "kind", "on_cancel")

    def __init__(self, kind: int, body: memoryview, answer: Answer, *, hops: int = 0) -> None:
        self.kind = kind
        self.body = body
        self.hops = hops
        self.is_internal = hops > 0
        """Asked by a node, not by a client."""
        self.on_cancel: Callable[[], None] | None = None
        """Set by a handler that waits: called when the asker wants the answer now, or is gone."""
        self._answer: Answer | None = answer

    @property
    def is_answered(self) -> bool:
        return self._answer is None

    def answer(self, kind: int, *parts: Buffer) -> None:
        assert self._answer is not None, "a request is answered once"
        size = sum(map(len, parts))
        if size > MAX_ANSWER_BYTES:
            # Sent, it would cost the connection, or the link to another node.
            error = InvalidArgument(
                f"the answer has {size} bytes, a frame takes {MAX_ANSWER_BYTES}; ask for less"
            )
            kind, parts = FrameKind.ERROR, (errors.encode_error(error),)
        answer, self._answer = self._answer, None
        self.on_cancel = None
        answer(kind, parts)

    def answer_map(self, values: dict[str, Any]) -> None:
        """Answer a CONTROL request; values that cannot be sent are answered with an error."""
        try:
            encoded = cbor.encode(values, max_bytes=MAX_ANSWER_BYTES)
        except RaftqError as error:
            self.fail(error)
        else:
            self.answer(FrameKind.CONTROLLED, encoded)

    def fail(self, error: BaseException) -> None:
        """Answer with an error; what no client may see becomes what it can act on."""
        self.answer(FrameKind.ERROR, errors.encode_error(as_wire_error(error)))

    def cancel(self) -> None:
        """The asker wants the answer now: a waiting request ends empty."""
        if self.on_cancel is not None:
            self.on_cancel()


def as_wire_error(error: BaseException) -> errors.WireError:
    """The error as an answer. A lost leadership is a detour if nothing was proposed."""
    if isinstance(error, Redirect):
        if error.outcome == "not_applied":
            return errors.NotLeader(error.leader)
        return ConnectionFailed(
            "the leader changed while the request was in its log; ask again", outcome="unknown"
        )
    if isinstance(error, RaftqError | errors.NotLeader | errors.Moved):
        return error
    return RaftqError(f"internal error: {type(error).__name__}", outcome="unknown")
