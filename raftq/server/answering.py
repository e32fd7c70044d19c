"""How a request hears of what was proposed, or read, for it: the same for all of them."""

from collections.abc import Callable
from typing import Any

from raftq.errors import RaftqError
from raftq.host import Done, Place
from raftq.server.request import Request


def answer_with(request: Request, answer: Callable[[object, Place], None]) -> Done:
    """For `Group.propose`: a refusal is the request's, a reply of the machine is `answer`'s.

    What `answer` raises as a RaftqError is the request's answer, too.
    """

    def done(reply: object, place: Place | None) -> None:
        if isinstance(reply, RaftqError):
            request.fail(reply)
            return
        assert place is not None, "what was applied has a place"
        try:
            answer(reply, place)
        except RaftqError as error:
            request.fail(error)

    return done


def answer_map(request: Request, of: Callable[[object], dict[str, Any]]) -> Done:
    """The same for a CONTROL request: `of` makes the answer's map of the reply."""
    return answer_with(request, lambda reply, _place: request.answer_map(of(reply)))
