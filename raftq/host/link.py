"""The way to one other node: what waits to be sent, and who waits for an answer.

What is sent in one pass of the loop leaves as one write; heartbeats leave as one frame of rows,
however many groups they are of. While no connection is up, raft messages are dropped (the core
expects loss) and requests are refused at once. A request whose connection breaks has an unknown
outcome, and its asker hears so.
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import TYPE_CHECKING

from raftq.env import Buffer
from raftq.errors import ConnectionFailed, RaftqError
from raftq.ids import GroupId
from raftq.raft import Message
from raftq.raft.messages import Heartbeat, HeartbeatReply
from raftq.wire import forwarding, raft_messages
from raftq.wire.frames import FrameKind, encode_frame

if TYPE_CHECKING:
    from raftq.host.links import PeerConnection

Answer = Callable[[int, Buffer | RaftqError], None]
"""How a forwarded request's asker hears: (reply kind, body), or (ERROR, what went wrong)."""


class Link:
    """The way to one other node: at most one connection at a time, and what waits for it."""

    def __init__(self, node: str, loop: AbstractEventLoop) -> None:
        self.node = node
        self.epoch = 0
        """Counts its connections: an answer belongs to the connection that the question came by."""
        self._loop = loop
        self._connection: PeerConnection | None = None
        self._out: list[Buffer] = []
        self._heartbeats: list[tuple[GroupId, Heartbeat]] = []
        self._heartbeat_replies: list[tuple[GroupId, HeartbeatReply]] = []
        self._flush_wanted = False
        self._answers: dict[int, Answer] = {}
        self._next_stream = 1

    @property
    def is_up(self) -> bool:
        return self._connection is not None

    @property
    def is_lively(self) -> bool:
        """Whether the other end was heard a moment ago: one that was cut off is up for longer."""
        return self._connection is not None and self._connection.silent_ticks < 2

    def send_raft(self, group: GroupId, message: Message) -> None:
        """Send, or drop if the link is down: the core expects loss."""
        if self._connection is None:
            return
        if isinstance(message, Heartbeat):
            self._heartbeats.append((group, message))
        elif isinstance(message, HeartbeatReply):
            self._heartbeat_replies.append((group, message))
        else:
            self._out += encode_frame(FrameKind.RAFT, 0, *raft_messages.encode_raft(group, message))
        self._want_flush()

    def send(self, kind: int, *parts: Buffer, stream: int = 0) -> None:
        if self._connection is not None:
            self._out += encode_frame(kind, stream, *parts)
            self._want_flush()

    def request(self, kind: int, hops: int, body: Buffer, answer: Answer) -> int:
        """Forward a client's request; `answer` hears exactly once.

        Returns a number for `cancel`.
        """
        if self._connection is None:
            answer(FrameKind.ERROR, ConnectionFailed(f"node {self.node} cannot be reached"))
            return 0
        stream = self._next_stream
        self._next_stream = stream % 0xFFFF_FFFF + 1
        self._answers[stream] = answer
        parts = forwarding.encode_forward(kind, body, hops=hops)
        self.send(FrameKind.FORWARD, *parts, stream=stream)
        return stream

    def cancel(self, stream: int) -> None:
        """Ask for the answer of a waiting request now."""
        parts = forwarding.encode_forward(FrameKind.CANCEL)
        self.send(FrameKind.FORWARD, *parts, stream=stream)

    def _want_flush(self) -> None:
        if not self._flush_wanted:
            self._flush_wanted = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_wanted = False
        out, self._out = self._out, []
        if self._heartbeats:
            rows, self._heartbeats = self._heartbeats, []
            out += encode_frame(FrameKind.HEARTBEATS, 0, raft_messages.encode_heartbeats(rows))
        if self._heartbeat_replies:
            replies, self._heartbeat_replies = self._heartbeat_replies, []
            out += encode_frame(
                FrameKind.HEARTBEAT_REPLIES, 0, raft_messages.encode_heartbeat_replies(replies)
            )
        if out and self._connection is not None:
            self._connection.write(out)

    def attach(self, connection: "PeerConnection") -> None:
        assert self._connection is None, "drop the older connection first"
        self._connection = connection
        self.epoch += 1

    def drop(self) -> bool:
        """The other end has dialled anew: the older connection broke, although nobody noticed."""
        connection = self._connection
        if connection is None:
            return False
        connection.abort("replaced by a newer connection")
        return self.detach(connection)

    def detach(self, connection: "PeerConnection") -> bool:
        """Whether this was the link's connection; its askers hear that the outcome is unknown."""
        if self._connection is not connection:
            return False
        self._connection = None
        self._out.clear()
        self._heartbeats.clear()
        self._heartbeat_replies.clear()
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer(
                FrameKind.ERROR,
                ConnectionFailed(f"the link to node {self.node} broke", outcome="unknown"),
            )
        return True

    def answered(self, stream: int, body: memoryview) -> None:
        reply = forwarding.decode_forward(body)
        answer = self._answers.pop(stream, None)
        if answer is not None:
            answer(reply.kind, reply.body)

    def close(self, reason: str) -> None:
        if self._connection is not None:
            self._connection.abort(reason)
