"""Receiving from the groups of a queue in fair turns.

Theory of operation. Each group is asked for what is still wanted, without waiting, beginning with
another one each time. If all are empty, a watch is left at each of them: a request that hands out
nothing and is answered when something is ready. The first answer withdraws the other watches, and
the groups are asked again, that one first.

Rule. Never more than `max_messages` are on their way: only one group at a time is asked for messages,
for what is still wanted, and watches take nothing.
"""

import asyncio
from functools import partial
from typing import Final, Generic

from raftq.client.connection import Connection
from raftq.client.message import AnyMessage, Settler, Target, messages_of, sources_of
from raftq.client.ports import SECOND_US
from raftq.client.retry import Patience, pause_before
from raftq.client.routing import QueueInfo, Router
from raftq.client.session import By, Sessions
from raftq.client.settle import runs_of
from raftq.errors import InvalidArgument, RaftqError
from raftq.ids import GroupId, SessionId
from raftq.limits import MAX_RECEIVE_BYTES, MAX_RECEIVE_MESSAGES, MAX_WAIT_MICROS
from raftq.wire import requests
from raftq.wire.errors import WireError
from raftq.wire.frames import Frame, FrameKind
from raftq.wire.requests import Receive

WATCH_SECONDS_MAX: Final = 20.0
"""A watch is renewed after this: should it be lost, nothing is missed for longer."""

WATCH_GRACE_SECONDS: Final = 2.0
"""How much later than asked for a watch may be answered before its connection is not trusted."""


class Receiver(Generic[AnyMessage]):
    """Takes from one subscription of one queue."""

    def __init__(
        self,
        router: Router,
        sessions: Sessions,
        info: QueueInfo,
        subscription: str,
        settler: Settler,
        kind: type[AnyMessage],
    ) -> None:
        self._router = router
        self._sessions = sessions
        self._info = info
        self._subscription = subscription
        self._settler = settler
        self._kind = kind
        self._partitions = info.by_group()
        self._groups = list(self._partitions)
        self._turn = router.outside.entropy.below(len(self._groups))

    async def receive(
        self,
        *,
        max_messages: int,
        wait: float,
        seconds: float,
        visibility_us: int = 0,
        max_bytes: int = MAX_RECEIVE_BYTES,
    ) -> list[AnyMessage]:
        """What is ready, at most `max_messages`; if nothing is, wait for the first of it.

        Raises: RaftqError.
        """
        clock = self._router.outside.clock
        until = clock.monotonic() + int(wait * SECOND_US)
        tries = 0
        while True:
            found = await self._take(max_messages, visibility_us, max_bytes, seconds)
            left = until - clock.monotonic()
            if found or left <= 0:
                return found
            ready, problem = await self._watch(min(left / SECOND_US, WATCH_SECONDS_MAX))
            if ready is not None:
                self._turn = self._groups.index(ready)
                tries = 0
            elif problem is not None:
                # Watches cost nothing to leave again, but not in a hurry.
                pause = pause_before(self._router.outside, tries, problem)
                tries += 1
                await asyncio.sleep(min(pause, left) / SECOND_US)

    async def _take(
        self, max_messages: int, visibility_us: int, max_bytes: int, seconds: float
    ) -> list[AnyMessage]:
        found: list[AnyMessage] = []
        order = self._groups[self._turn :] + self._groups[: self._turn]
        self._turn = (self._turn + 1) % len(self._groups)
        for group in order:
            wanted = max_messages - len(found)
            if wanted <= 0 or max_bytes <= 0:
                break
            patience = Patience(self._router.outside, seconds)
            try:
                some = await self._take_from(group, wanted, visibility_us, max_bytes, patience)
            except RaftqError:
                if not found:
                    raise
                break  # What was taken must not be lost for the sake of what was not.
            except asyncio.CancelledError:
                for target, items in runs_of(found).items():
                    session = self._sessions.of(target.group)
                    session.give_back(target.queue_id, target.subscription, items)
                raise
            found += some
            max_bytes -= sum(len(message.body) for message in some) if len(order) > 1 else 0
        return found

    async def _take_from(
        self, group: GroupId, wanted: int, visibility_us: int, max_bytes: int, patience: Patience
    ) -> list[AnyMessage]:
        def request(by: By) -> Receive:
            return Receive(
                group, by.session, by.attachment, by.number, by.wanted, self._info.id,
                self._subscription, wanted, max_bytes, visibility_us, 0,
            )  # fmt: skip

        session, reply = await self._sessions.of(group).receive(request, patience)
        target = Target(self._info.name, self._info.id, self._subscription, group, session)
        found: list[AnyMessage] = []
        for source in sources_of(reply, target, self._settler):
            found += messages_of(source, self._kind)
        return found

    # --- Watches -----------------------------------------------------------------------------

    async def _watch(self, seconds: float) -> tuple[GroupId | None, WireError | None]:
        """Wait until a group has something ready; which one, or why the waiting ended early."""
        connections = {}
        for group in self._groups:
            try:
                connections[group] = await self._router.to_leader(group, seconds)
            except RaftqError as error:
                if not error.retriable:
                    raise
                return None, error
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[GroupId | None, WireError | None]] = loop.create_future()
        streams: list[tuple[Connection, int]] = []
        waiting = len(connections)

        def answered(group: GroupId, reply: Frame | WireError) -> None:
            nonlocal waiting
            waiting -= 1
            if future.done():
                return
            if not isinstance(reply, Frame):
                self._router.heard(group, reply)
                future.set_result((None, reply))
            elif reply.kind == FrameKind.READY:
                future.set_result((group, None))
            elif not waiting:
                future.set_result((None, None))

        try:
            for group, connection in connections.items():
                parts = requests.encode_receive(self._watch_request(group, seconds))
                stream = connection.send(FrameKind.RECEIVE, parts, partial(answered, group))
                streams.append((connection, stream))
            async with asyncio.timeout(seconds + WATCH_GRACE_SECONDS):
                ready, problem = await future
        except TimeoutError:
            return None, None
        except RaftqError as error:
            return None, error
        finally:
            if not future.done():
                future.cancel()
            for connection, stream in streams:
                connection.cancel(stream)
        if isinstance(problem, RaftqError) and not problem.retriable:
            raise problem
        return ready, problem

    def _watch_request(self, group: GroupId, seconds: float) -> Receive:
        return Receive(
            group, SessionId(0), 0, 0, 0, self._info.id, self._subscription, 1, 1, 0,
            int(seconds * SECOND_US), notify_only=True,
        )  # fmt: skip


def check_receive(max_messages: int, wait: float) -> None:
    """Raises: InvalidArgument."""
    if not isinstance(max_messages, int) or not 1 <= max_messages <= MAX_RECEIVE_MESSAGES:
        raise InvalidArgument(
            f"max_messages is 1 to {MAX_RECEIVE_MESSAGES}, not {max_messages!r:.100}"
        )
    longest = MAX_WAIT_MICROS // SECOND_US
    if not isinstance(wait, int | float) or not 0 <= wait <= longest:
        raise InvalidArgument(f"wait is 0 to {longest} seconds, not {wait!r:.100}")
