"""Which node leads what, and the connections to the nodes.

What is known comes from the metadata of any node and is a guess: every node forwards what it does
not lead, so a wrong guess costs a hop and never an error. A node that redirects says whom it
believes in; a connection that breaks takes its node's leaderships along.

Rules:

1. One connection per address, opened once however many ask for it. Nobody waits for one beyond the
   time of his call, nor for a silent node while another one may answer.
2. An address that refused, or could not help, is left alone for a moment, if there is another one.
3. Metadata is asked for when something is not known or turned out wrong, by one asker at a time,
   and not more often than every `REFRESH_PAUSE_US`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, TypeVar

from raftq.client.connection import Connection, open_connection
from raftq.client.ports import SECOND_US, Outside
from raftq.client.retry import Patience
from raftq.client.url import Address, Servers
from raftq.errors import ConnectionFailed, ProtocolError, QueueNotFound, RaftqError
from raftq.ids import GroupId, Partition, QueueId
from raftq.limits import DEFAULT_MESSAGE_BYTES
from raftq.wire.control import check_queue_name
from raftq.wire.errors import Moved, NotLeader, WireError
from raftq.wire.handshake import VERSIONS, Hello

Result = TypeVar("Result")

REFRESH_PAUSE_US: Final = 50_000
REFRESH_SECONDS: Final = 1.0
SLOW_SECONDS: Final = 0.5
"""A node that has not answered a greeting by then may be paused: another one is asked as well."""

DETOUR_SECONDS: Final = 0.3
"""By then the group has a new leader, mostly."""

AVOID_US: Final = 1_000_000
CLUELESS_US: Final = 500_000


class QueueInfo(NamedTuple):
    """What a client needs to know of a queue: `groups[p]` hosts partition p."""

    name: str
    id: QueueId
    groups: tuple[GroupId, ...]
    config: dict[str, Any]

    @property
    def max_message_bytes(self) -> int:
        return int(self.config.get("max_message_bytes") or DEFAULT_MESSAGE_BYTES)

    @property
    def visibility_us(self) -> int:
        return int(self.config.get("visibility_timeout_us") or 30_000_000)

    @property
    def max_handling_us(self) -> int:
        return int(self.config.get("max_handling_time_us") or 0)

    def by_group(self) -> dict[GroupId, tuple[Partition, ...]]:
        """The partitions that each group hosts, groups in the order of their first partition."""
        found: dict[GroupId, tuple[Partition, ...]] = {}
        for partition, group in enumerate(self.groups):
            found[group] = (*found.get(group, ()), Partition(partition))
        return found


class Router:
    """Connections and cached metadata of one client."""

    def __init__(self, outside: Outside, servers: Servers, name: str) -> None:
        self.outside = outside
        self.is_closed = False
        self._servers = servers
        self._hello = Hello(VERSIONS, (), name, servers.user)
        self._connections: dict[Address, Connection] = {}
        self._opening: dict[Address, asyncio.Task[Connection]] = {}
        self._avoid_until: dict[Address, int] = {}
        self._clueless_until: dict[Address, int] = {}
        """Nodes that knew of no leader or could not reach one: cut off, perhaps, while others go on."""
        self._asked: Address | None = None
        """Whom a request for any node went to last."""
        self._addresses: dict[str, Address] = {}
        self._leaders: dict[GroupId, str] = {}
        self._queues: dict[str, QueueInfo] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed_at: int | None = None
        self._detours: dict[GroupId, None] = {}
        self._straightening: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None

    # --- Connections -------------------------------------------------------------------------

    def open_to(self, group: GroupId) -> Connection | None:
        """The open connection to the group's leader, if both are known."""
        leader = self._leaders.get(group)
        if leader is None:
            return None
        connection = self._connections.get(self._addresses.get(leader, Address("", 0)))
        return connection if connection is not None and connection.is_open else None

    async def to_leader(self, group: GroupId, seconds: float) -> Connection:
        """A connection to the group's leader, or to any node if that is not to be had in time.

        Raises: ConnectionFailed (not_applied), and what a handshake is refused with.
        """
        connection = self.open_to(group)
        if connection is not None:
            return connection
        until = self.outside.clock.monotonic() + int(seconds * SECOND_US)
        if group not in self._leaders:
            await self._refresh(min(seconds, REFRESH_SECONDS))
        address = self._addresses.get(self._leaders.get(group, ""))
        if address is not None and not self._is_avoided(address):
            found, _ = await self._first_to_answer([address], min(seconds, SLOW_SECONDS))
            if found is not None:
                return found
            self._leaders.pop(group, None)
        left = max(until - self.outside.clock.monotonic(), 0) / SECOND_US
        found = await self.to_any(left)
        self._end_detour_later(group)
        return found

    def _end_detour_later(self, group: GroupId) -> None:
        """What goes by any node for lack of a leader goes straight again soon: see `open_to`."""
        self._detours[group] = None
        if self._straightening is None:
            loop = asyncio.get_running_loop()
            self._straightening = loop.call_later(DETOUR_SECONDS, self._straighten)

    def _straighten(self) -> None:
        self._straightening = None
        detours, self._detours = self._detours, {}

        async def look() -> None:
            await self._refresh(REFRESH_SECONDS)
            for group in detours:
                address = self._addresses.get(self._leaders.get(group, ""))
                if self.open_to(group) is None and address is not None and not self.is_closed:
                    self._open(address)

        self._looking = asyncio.get_running_loop().create_task(look())

    async def to_any(self, seconds: float) -> Connection:
        """A connection to some node; raises as `to_leader` does."""
        now = self.outside.clock.monotonic()
        clueless = [address for address, until in self._clueless_until.items() if until > now]
        ready = [
            connection
            for address, connection in self._connections.items()
            if connection.is_open and address not in clueless
        ]
        if ready:
            # One that nothing was asked of for a while may be paused, and nobody has noticed.
            best = next((each for each in ready if each.is_lively), ready[0])
            self._asked = best.address
            return best
        known = dict.fromkeys((*self._servers.addresses, *self._addresses.values()))
        candidates = [each for each in known if not self._is_avoided(each) and each not in clueless]
        candidates = candidates or list(known)
        is_connected = any(connection.is_open for connection in self._connections.values())
        if is_connected:
            # One that could not help a moment ago is better than none.
            seconds = min(seconds, SLOW_SECONDS)
        found, failures = await self._first_to_answer(self._shuffled(candidates), seconds)
        if found is None:
            found = next((each for each in self._connections.values() if each.is_open), None)
        if found is None:
            for failure in failures:
                if not isinstance(failure, ConnectionFailed):
                    raise failure
            raise ConnectionFailed(f"no node could be reached: {'; '.join(map(str, failures))}")
        self._asked = found.address
        return found

    def _shuffled(self, addresses: list[Address]) -> list[Address]:
        left = list(addresses)
        return [left.pop(self.outside.entropy.below(len(left))) for _ in addresses]

    async def _first_to_answer(
        self, addresses: list[Address], seconds: float
    ) -> tuple[Connection | None, list[RaftqError]]:
        """The first that answers, or why none did. One is asked after the other, the next one also
        when one is slow: a node may be silent for ever.
        """
        clock = self.outside.clock
        until = clock.monotonic() + int(seconds * SECOND_US)
        waiting, asked = list(addresses), dict[Address, asyncio.Task[Connection]]()
        failures: list[RaftqError] = []
        news = asyncio.Event()
        is_next = True
        while waiting or asked:
            if waiting and (is_next or not asked):
                address = waiting.pop(0)
                asked[address] = self._open(address)
                asked[address].add_done_callback(lambda _: news.set())
            pause = until - clock.monotonic()
            if pause <= 0:
                failures += [
                    ConnectionFailed(f"{each} did not answer within {seconds:.1f} s")
                    for each in asked
                ]
                break
            if waiting:
                pause = min(pause, int(SLOW_SECONDS * SECOND_US))
            is_next = False
            try:
                async with asyncio.timeout(pause / SECOND_US):
                    await news.wait()
            except TimeoutError:
                is_next = True
            news.clear()
            for address in [each for each, opening in asked.items() if opening.done()]:
                opening = asked.pop(address)
                if opening.cancelled():
                    raise ConnectionFailed("the client is closed")
                try:
                    return opening.result(), failures
                except RaftqError as error:
                    failures.append(error)
                    is_next = True
        return None, failures

    def _open(self, address: Address) -> asyncio.Task[Connection]:
        """A connection being made: a task that is shared, so nobody may cancel it."""
        if self.is_closed:
            raise ConnectionFailed("the client is closed")
        opening = self._opening.get(address)
        if opening is None:
            opening = asyncio.get_running_loop().create_task(self._connect(address))
            self._opening[address] = opening
            opening.add_done_callback(lambda task: self._opened(address, task))
        return opening

    def _opened(self, address: Address, task: asyncio.Task[Connection]) -> None:
        self._opening.pop(address, None)
        if not task.cancelled():
            task.exception()  # Whoever waited has it; nobody may have.

    async def _connect(self, address: Address) -> Connection:
        known = self._connections.get(address)
        if known is not None and known.is_open:
            return known
        try:
            connection = await open_connection(
                self.outside, address, self._hello, lambda: self._lost(address)
            )
        except RaftqError:
            self._avoid_until[address] = self.outside.clock.monotonic() + AVOID_US
            raise
        self._avoid_until.pop(address, None)
        self._connections[address] = connection
        # The address that answered is better than an announced one, which may lie behind a wall.
        self._addresses[connection.node] = address
        return connection

    def _lost(self, address: Address) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            if connection.has_fallen_silent:
                # It may still accept connections, and say nothing there either.
                self._avoid_until[address] = self.outside.clock.monotonic() + AVOID_US
            gone = connection.node
            for group in [group for group, node in self._leaders.items() if node == gone]:
                del self._leaders[group]

    def _is_avoided(self, address: Address) -> bool:
        return self._avoid_until.get(address, 0) > self.outside.clock.monotonic()

    async def close(self) -> None:
        """Say goodbye everywhere."""
        self.is_closed = True
        if self._straightening is not None:
            self._straightening.cancel()
        if self._looking is not None:
            self._looking.cancel()
        for opening in list(self._opening.values()):
            opening.cancel()
        for connection in list(self._connections.values()):
            connection.close()
        self._connections.clear()
        # One pass of the loop, so that the goodbyes leave before it may be closed.
        await asyncio.sleep(0)

    # --- Metadata ----------------------------------------------------------------------------

    def heard(self, group: GroupId, error: WireError) -> None:
        """A request to the group failed: what that says about its leader."""
        if isinstance(error, NotLeader):
            if error.leader is not None:
                self._leaders[group] = error.leader
            else:
                # Whoever was taken for the leader has answered, or else the one asked as any node.
                leader = self._leaders.pop(group, "")
                self._leave_alone(self._addresses.get(leader, self._asked))
        elif isinstance(error, Moved):
            self._queues.clear()
        elif error.retriable:
            self._leaders.pop(group, None)

    def _leave_alone(self, address: Address | None) -> None:
        """That node could not help: another one may."""
        if address is not None:
            self._clueless_until[address] = self.outside.clock.monotonic() + CLUELESS_US

    def forget(self, queue: str) -> None:
        """What was known of the queue turned out wrong."""
        self._queues.pop(queue, None)

    def is_known(self, queue: str) -> bool:
        return queue in self._queues

    async def queue(self, name: str, seconds: float) -> QueueInfo:
        """What is known of a queue, asked for if need be.

        Raises: QueueNotFound, InvalidQueueName, and what `call` raises.
        """
        known = self._queues.get(name)
        if known is not None:
            return known
        check_queue_name(name)
        reply = await self.call({"do": "metadata", "queue": name}, seconds)
        self._learn(reply)
        known = self._queues.get(name)
        if known is None:
            raise QueueNotFound(f"no queue is called {name!r}; create it first")
        return known

    async def call(
        self, request: dict[str, Any], seconds: float, *, group: GroupId | None = None
    ) -> dict[str, Any]:
        """One CONTROL operation, tried until it is answered.

        Raises: RaftqError.
        """

        async def attempt(patience: Patience) -> dict[str, Any]:
            seconds = patience.attempt()
            connection = await (
                self.to_any(seconds) if group is None else self.to_leader(group, seconds)
            )
            return await connection.control(request, patience.attempt())

        return await self.until_answered(attempt, seconds, group=group)

    async def until_answered(
        self,
        attempt: Callable[[Patience], Coroutine[Any, Any, Result]],
        seconds: float,
        *,
        group: GroupId | None = None,
    ) -> Result:
        """Repeat an attempt that may be repeated, until it succeeds or the time is over."""
        patience = Patience(self.outside, seconds)
        while True:
            try:
                return await attempt(patience)
            except (RaftqError, NotLeader, Moved) as error:
                if group is not None:
                    self.heard(group, error)
                elif not isinstance(error, RaftqError) or error.retriable:
                    self._leave_alone(self._asked)
                await patience.after(error)

    async def _refresh(self, seconds: float) -> None:
        """Learn who leads, unless that was asked a moment ago."""
        now = self.outside.clock.monotonic()
        if self._refreshed_at is not None and now - self._refreshed_at < REFRESH_PAUSE_US:
            return
        if self._refreshing is None:
            self._refreshed_at = now
            self._refreshing = asyncio.get_running_loop().create_task(self._ask())
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._refreshing)
        except TimeoutError:
            pass  # A guess is missing, as below.

    async def _ask(self) -> None:
        try:
            connection = await self.to_any(REFRESH_SECONDS)
            self._learn(await connection.control({"do": "metadata"}, REFRESH_SECONDS))
        except (RaftqError, NotLeader, Moved):
            self._leave_alone(self._asked)
            # A guess is missing: the request itself goes to any node, which forwards it.
        finally:
            self._refreshing = None

    def _learn(self, reply: dict[str, Any]) -> None:
        try:
            for node in reply["nodes"]:
                address = Address(node["host"], node["port"])
                if self._addresses.get(node["name"]) not in self._connections:
                    self._addresses[node["name"]] = address
            for group in reply["groups"]:
                if group["leader"] is not None:
                    self._leaders[group["group"]] = group["leader"]
                else:
                    self._leaders.pop(group["group"], None)
            for queue in reply["queues"]:
                info = queue_info(queue)
                self._queues[info.name] = info
        except (KeyError, TypeError) as error:
            raise ProtocolError(f"metadata that cannot be read: {error}") from error


def queue_info(queue: dict[str, Any]) -> QueueInfo:
    """A queue as metadata describes it; raises KeyError and TypeError."""
    groups = {each["partition"]: GroupId(each["group"]) for each in queue["partitions"]}
    ordered = tuple(groups[Partition(number)] for number in range(len(groups)))
    return QueueInfo(queue["name"], queue["id"], ordered, queue["config"])
