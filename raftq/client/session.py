"""This client's identity in one group: numbered commands that are safe to repeat.

Theory of operation. The group's machine knows a session by an id, an *attachment* and the numbers
of its commands. A number it has seen is answered with what it answered before, so a command whose
answer was lost is repeated under its number. A session belongs to a connection: through another one
it is attached again first, which voids the release that the end of the old connection brings about.

    command: reserve a number -> attach, if the connection is new -> send -> reply
                    ^                                                  |
                    +---- pause <---- broken, redirected, busy <-------+

Rules:

1. `wanted`, the lowest number whose reply is still awaited, lets the machine forget the older ones;
   no number is more than SESSION_REPLIES above it.
2. Delivery ids ascend. A delivery made for a command has a higher id than all that were seen when
   the command was numbered: that bounds what must be remembered as seen.
3. What was delivered and has no taker any more goes back uncounted: the reply of a receive that was
   cancelled, and what an attach names as held although no reply brought it.
4. An expired session is replaced; its deliveries are over, and the caller is told.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

from raftq.client.connection import Connection
from raftq.client.retry import Patience
from raftq.client.routing import Router
from raftq.env import Buffer
from raftq.errors import ConnectionFailed, ProtocolError, RaftqError, SessionExpired, Timeout
from raftq.ids import GroupId, QueueId, SessionId
from raftq.limits import MAX_ACK_RANGES, SESSION_REPLIES
from raftq.wire import requests
from raftq.wire.errors import Moved, NotLeader, WireError
from raftq.wire.frames import Frame, FrameKind
from raftq.wire.requests import Delivered, Item, Settle

Result = TypeVar("Result")
Made = tuple[int, list[Buffer]]
"""A request's kind and parts."""

GIVE_BACK_SECONDS: Final = 10.0
EXPIRED_TRIES: Final = 2
"""A refused attachment looks like an expired session once; then it has been attached again."""


class By:
    """What every command of a session begins with."""

    __slots__ = ("attachment", "number", "session", "wanted")

    def __init__(self, session: SessionId, attachment: int, number: int, wanted: int) -> None:
        self.session = session
        self.attachment = attachment
        self.number = number
        self.wanted = wanted


class GroupSession:
    """One session in one group. All methods repeat themselves until their patience ends."""

    def __init__(self, router: Router, group: GroupId) -> None:
        self.group = group
        self.id = SessionId(0)
        """0 until it is opened."""
        self._router = router
        self._attachment = 0
        self._connection: Connection | None = None
        self._attaching = asyncio.Lock()
        self._number = 0
        self._outstanding: dict[int, int] = {}
        """Each number whose reply is awaited, ascending, with the highest delivery seen before."""
        self._abandoned: list[int] = []
        self._room: list[asyncio.Future[None]] = []
        self._highest = 0
        self._seen: dict[int, None] = {}
        self._orphans: dict[int, tuple[QueueId, str, list[Item]]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    # --- Commands ----------------------------------------------------------------------------

    async def receive(
        self, wanted: Callable[[By], requests.Receive], patience: Patience
    ) -> tuple[SessionId, Delivered]:
        """Take messages without waiting for any; in which session, and what.

        If the caller is cancelled meanwhile, what arrives is given back.
        """
        session = SessionId(0)

        def make(by: By) -> Made:
            nonlocal session
            session = by.session
            return FrameKind.RECEIVE, requests.encode_receive(wanted(by))

        sample = wanted(By(SessionId(0), 0, 0, 0))
        late = (sample.queue, sample.subscription)
        while True:
            try:
                reply = await self._command(make, self._delivered, patience, late)
            except SessionExpired as error:
                # Whatever it held went back by itself: take anew, under a new session.
                await patience.after(ConnectionFailed(str(error)))
            else:
                return session, reply

    def _delivered(self, frame: Frame) -> Delivered:
        reply = requests.decode_delivered(frame.body)
        self._saw(reply)
        return reply

    async def settle(
        self,
        patience: Patience,
        *,
        session: SessionId,
        queue: QueueId,
        subscription: str,
        action: int,
        items: list[Item],
        time_us: int = 0,
        count: bool = True,
        reason: str = "",
        reject: bool = False,
    ) -> list[Item]:
        """Ack, nack or extend; what was stale."""
        stale: list[Item] = []
        for begin in range(0, len(items), MAX_ACK_RANGES):
            some = tuple(items[begin : begin + MAX_ACK_RANGES])
            if session != self.id:
                stale += some
                continue

            def make(by: By, part: tuple[Item, ...] = some) -> Made:
                request = Settle(
                    self.group, by.session, by.attachment, by.number, by.wanted, queue,
                    subscription, action, part, time_us, count, reason, reject,
                )  # fmt: skip
                return FrameKind.SETTLE, requests.encode_settle(request)

            try:
                stale += await self._command(make, _stale_items, patience, None)
            except SessionExpired:
                stale += some
        return stale

    async def _command(
        self,
        make: Callable[[By], Made],
        read: Callable[[Frame], Result],
        patience: Patience,
        late: tuple[QueueId, str] | None,
    ) -> Result:
        """One numbered command, repeated until it is answered; its reply is read before its number is
        given back, so that what it delivered is known by then.

        Raises: SessionExpired (the session is replaced), RaftqError.
        """
        number = 0
        session = SessionId(0)
        expired = 0
        uncertain = False
        try:
            while True:
                try:
                    if not number and self._is_stuck():
                        self._connection = None  # Attaching makes room: see `_attach`.
                    connection = await self._attached(patience)
                    if not number:
                        number, session = await self._reserve(), self.id
                        continue  # A wait for room may have cost the connection.
                    if session != self.id:
                        raise SessionExpired("the session was replaced meanwhile")
                    by = By(session, self._attachment, number, next(iter(self._outstanding)))
                    kind, parts = make(by)
                    frame = await self._exchange(connection, kind, parts, number, patience, late)
                    uncertain = False
                    return read(frame)
                except SessionExpired:
                    self._connection = None
                    expired += 1
                    if expired >= EXPIRED_TRIES or session != self.id:
                        self._replace(session)
                        raise
                except (RaftqError, NotLeader, Moved) as error:
                    uncertain |= isinstance(error, RaftqError) and error.outcome == "unknown"
                    if number in self._abandoned:
                        # It is asked for again: neither attaching nor a late reply may end it.
                        self._abandoned.remove(number)
                    self._router.heard(self.group, error)
                    await patience.after(error)
        finally:
            if uncertain:
                self._forsake(number, late)
            if number and number not in self._abandoned:
                self._finished(number)

    async def _exchange(
        self,
        connection: Connection,
        kind: int,
        parts: list[Buffer],
        number: int,
        patience: Patience,
        late: tuple[QueueId, str] | None,
    ) -> Frame:
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()

        def answer(reply: Frame | WireError) -> None:
            if future.done():
                if late is not None:
                    self._came_late(number, reply, late)
            elif isinstance(reply, Frame):
                future.set_result(reply)
            else:
                future.set_exception(reply)

        stream = connection.send(kind, parts, answer)
        seconds = patience.attempt()
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError as error:
            if isinstance(error, RaftqError):
                raise
            self._forsake(number, late)
            raise Timeout(f"no answer within {seconds:g} s") from error
        except asyncio.CancelledError:
            self._forsake(number, late)
            connection.cancel(stream)
            if late is not None and _has_result(future):
                # The reply came in the very turn in which the caller was cancelled.
                self._came_late(number, future.result(), late)
            raise

    # --- Attaching ---------------------------------------------------------------------------

    async def _attached(self, patience: Patience) -> Connection:
        """A connection through which this session may speak."""
        mine = self._connection
        if mine is not None and mine.is_open and mine is self._router.open_to(self.group):
            return mine
        async with self._attaching:
            connection = await self._router.to_leader(self.group, patience.attempt())
            if connection is not self._connection:
                await self._attach(connection, patience)
            return connection

    async def _attach(self, connection: Connection, patience: Patience) -> None:
        seconds = patience.attempt()
        if not self.id:
            reply = await connection.control({"do": "open_session", "group": self.group}, seconds)
            self.id, self._attachment = SessionId(reply["session"]), int(reply["attachment"])
            self._highest = 0
            self._seen.clear()
        else:
            last_seen = min(self._outstanding.values(), default=self._highest)
            # Never asked for twice: one that was lost on its way may still arrive.
            self._attachment += 1
            request = {
                "do": "attach",
                "group": self.group,
                "session": self.id,
                "attachment": self._attachment,
                "last_seen": last_seen,
            }
            try:
                reply = await connection.control(request, seconds)
            except SessionExpired:
                self._replace(self.id)
                raise
            self._attachment = int(reply["attachment"])
            self._adopt(reply["held"])
        abandoned, self._abandoned = self._abandoned, []
        for number in abandoned:
            self._finished(number)
        self._connection = connection
        self._give_back_orphans()

    def _replace(self, session: SessionId) -> None:
        if self.id == session:
            self.id = SessionId(0)
            self._connection = None
            self._outstanding.clear()
            self._abandoned.clear()
            self._orphans.clear()
            self._number = 0
            self._make_room()

    # --- Numbers -----------------------------------------------------------------------------

    def _is_stuck(self) -> bool:
        """Whether all numbers wait for one whose reply nobody waits for, and which may never come."""
        first = next(iter(self._outstanding), None)
        return first in self._abandoned and self._number + 1 - (first or 0) >= SESSION_REPLIES

    async def _reserve(self) -> int:
        """The next number, or 0 if there will be none before the session is attached anew."""
        while self._outstanding and (
            self._number + 1 - next(iter(self._outstanding)) >= SESSION_REPLIES
        ):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._room.append(future)
            await future
            if self._is_stuck():
                return 0
        self._number += 1
        self._outstanding[self._number] = self._highest
        return self._number

    def _finished(self, number: int) -> None:
        self._outstanding.pop(number, None)
        floor = min(self._outstanding.values(), default=self._highest)
        for delivery in [each for each in self._seen if each <= floor]:
            del self._seen[delivery]
        self._make_room()
        self._give_back_orphans()

    def _make_room(self) -> None:
        waiting, self._room = self._room, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _forsake(self, number: int, late: tuple[QueueId, str] | None) -> None:
        """Nobody waits for the reply any more, but it may bring a delivery."""
        if late is not None and number in self._outstanding and number not in self._abandoned:
            self._abandoned.append(number)
            self._make_room()

    # --- What nobody takes -------------------------------------------------------------------

    def _saw(self, reply: Delivered) -> None:
        for delivery in reply.deliveries:
            self._seen[delivery.delivery] = None
            self._highest = max(self._highest, delivery.delivery)
            self._orphans.pop(delivery.delivery, None)

    def _came_late(self, number: int, reply: Frame | WireError, late: tuple[QueueId, str]) -> None:
        if number not in self._abandoned:
            return  # It was sent again, and that reply counted.
        if not isinstance(reply, Frame):
            return  # The next attach tells what was delivered all the same.
        try:
            delivered = requests.decode_delivered(reply.body)
        except ProtocolError:
            return
        self._saw(delivered)
        self._abandoned.remove(number)
        self._finished(number)
        items = [
            Item(each.partition, each.delivery, start, stop)
            for each in delivered.deliveries
            for start, stop, _ in each.ranges
        ]
        if items:
            self.give_back(*late, items)

    def _adopt(self, held: list[dict[str, Any]]) -> None:
        """What an attach says that this session holds: unknown deliveries are orphans for now."""
        for each in held:
            delivery = each["delivery"]
            if delivery not in self._seen:
                items = [
                    Item(each["partition"], delivery, start, stop)
                    for start, stop, _ in each["ranges"]
                ]
                self._orphans[delivery] = (each["queue"], each["subscription"], items)

    def _give_back_orphans(self) -> None:
        """When no receive is under way any more that might claim them, orphans go back."""
        if self._orphans and not self._outstanding:
            orphans, self._orphans = self._orphans, {}
            for queue, subscription, items in orphans.values():
                self.give_back(queue, subscription, items)

    def give_back(self, queue: QueueId, subscription: str, items: list[Item]) -> None:
        """Nack, uncounted, in the background."""
        task = asyncio.get_running_loop().create_task(
            self._giving_back(self.id, queue, subscription, items)
        )
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def _giving_back(
        self, session: SessionId, queue: QueueId, subscription: str, items: list[Item]
    ) -> None:
        try:
            await self.settle(
                Patience(self._router.outside, GIVE_BACK_SECONDS),
                session=session,
                queue=queue,
                subscription=subscription,
                action=requests.NACK,
                items=items,
                count=False,
            )
        except (RaftqError, NotLeader, Moved):
            pass  # Then the visibility timeout gives them back.


class Sessions:
    """One session per group, made when it is first needed."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.by_group: dict[GroupId, GroupSession] = {}

    def of(self, group: GroupId) -> GroupSession:
        session = self.by_group.get(group)
        if session is None:
            session = self.by_group[group] = GroupSession(self._router, group)
        return session

    async def close(self) -> None:
        for session in self.by_group.values():
            await session.close()


def _has_result(future: asyncio.Future[Frame]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _stale_items(frame: Frame) -> tuple[Item, ...]:
    return requests.decode_settled(frame.body).stale
