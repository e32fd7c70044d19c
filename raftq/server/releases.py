"""What a client held when its socket closed goes back, by the node whose own socket it was.

A release is a command in the group's log, so it may have to travel to the leader, and to wait for
one. It names the attachment: if the client has attached again meanwhile, it does nothing. After a
while without a leader it is given up: the visibility timeout does the same, later.
"""

from asyncio import TimerHandle
from collections.abc import Callable
from typing import TYPE_CHECKING

from raftq.ids import SessionId
from raftq.machine import Buffer
from raftq.queue import commands
from raftq.server.answering import answer_map
from raftq.server.request import Request
from raftq.wire import cbor
from raftq.wire.frames import FrameKind

if TYPE_CHECKING:
    from raftq.server.node import Node

_TRIES = 20
_PAUSE_SECONDS = 0.25


class Releases:
    """Sees releases through."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._timers: set[TimerHandle] = set()

    def stop(self) -> None:
        """What waits is given up with the node."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def later(self, seconds: float, release: Callable[[], None]) -> None:
        """Call `release` then, unless the node has stopped."""

        def due() -> None:
            self._timers.discard(timer)
            release()

        if not self._node.stopped:
            timer = self._node.loop.call_later(seconds, due)
            self._timers.add(timer)

    def release(self, group: int, session: int, attachment: int, *, goodbye: bool) -> None:
        """Give back what the session holds, unless it was attached anew."""
        body = cbor.encode(
            {
                "do": "release",
                "group": group,
                "session": session,
                "attachment": attachment,
                "goodbye": goodbye,
            }
        )
        self._try(body, _TRIES)

    def _try(self, body: bytes, tries: int) -> None:
        def answered(kind: int, _parts: tuple[Buffer, ...]) -> None:
            if kind == FrameKind.ERROR and tries > 1:
                self.later(_PAUSE_SECONDS, lambda: self._try(body, tries - 1))

        if not self._node.stopped:
            request = Request(FrameKind.CONTROL, memoryview(body), answered)
            self._node.admin.handle_internal(request)

    def apply(self, request: Request, wanted: dict[str, int]) -> None:
        """The internal operation, at the group's leader (or on the way there)."""
        group_id = self._node.router.queue_group(wanted["group"])
        group = self._node.router.leading(group_id)
        if group is None:
            self._node.router.forward(request, group_id)
            return

        header = commands.encode_release(
            SessionId(wanted["session"]), wanted["attachment"], goodbye=bool(wanted["goodbye"])
        )
        group.propose(header, b"", answer_map(request, lambda _: {}), reserve=True)
