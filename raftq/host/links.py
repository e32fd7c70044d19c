"""Links to the other nodes: one connection per pair, dialled by the node whose name sorts first.

A link carries the raft messages of all groups, forwarded client requests and bootstrap. Its two
ends name cluster, node and incarnation once, in the handshake; a frame then needs only its group
and replicas. What is sent in one pass of the loop leaves as one write; heartbeats leave as one
frame of rows, however many groups they are of.

A forwarded request waits for its answer under a stream number; if the link breaks, the answer is
unknown and the asker hears so at once.

A partition is silent, and TCP takes many seconds to notice. So each end says something in every
tick, a PING if there is nothing else, and who hears nothing for some ticks breaks the connection.
A PING is not answered: the other end speaks by itself, even if what it is sent takes long to come.
"""

import asyncio
from asyncio import AbstractEventLoop, BufferedProtocol
from typing import Protocol, cast

from raftq.env import Buffer, Environment, Listener, Transport
from raftq.errors import ClusterMismatch, ProtocolError, RaftqError
from raftq.host.identity import UNKNOWN, Identity
from raftq.host.link import Link
from raftq.ids import GroupId, Micros, NodeIncarnation
from raftq.limits import HANDSHAKE_MICROS, MIB
from raftq.observability.logs import logger
from raftq.observability.repeats import Repeats
from raftq.raft import Message
from raftq.wire import errors, handshake, raft_messages, repair_messages
from raftq.wire.connection import PING
from raftq.wire.frames import Frame, FrameKind, FrameReader, encode_frame
from raftq.wire.repair_messages import RepairMessage

_log = logger("raftq.host")

REDIAL_SECONDS_MIN = 0.02
REDIAL_SECONDS_MAX = 1.0
CONNECT_SECONDS = 1.0
"""To dial anew is quicker than to wait for TCP, which repeats a lost SYN less and less often."""

TICK_SECONDS = 0.15
SILENT_TICKS_MAX = 4
"""Silent for so many ticks is dead: about as long as the most patient replica waits for its leader."""

LINK_BUFFER_MAX = 64 * MIB
"""A peer that reads this much too slowly is cut off; the core sends again what it needs."""

LINES_PER_MINUTE = 5
"""Of one event and one peer: a link that comes and goes for ever is news only at first."""

CANDIDATE_MICROS = 5_000_000
"""Who was refused is dialled again every second or so; one that is silent for longer is gone."""

COPY_BELOW_BYTES = 16 * 1024
"""Smaller frames are copied: a slice kept by the log's window would pin its receive chunk."""


class Events(Protocol):
    """What a node does with what arrives (the host)."""

    def link_up(self, node: str) -> None: ...

    def link_lost(self, node: str) -> None: ...

    def raft_message(self, node: str, group: GroupId, message: Message) -> None: ...

    def repair_message(self, node: str, group: GroupId, message: RepairMessage) -> None: ...

    def forwarded(self, link: "Link", stream: int, body: memoryview) -> None: ...

    def bootstrap(self, node: str, body: memoryview) -> None: ...

    def refused(self, reason: str) -> None:
        """A link to a member did not come to be, because the two do not belong together."""
        ...


class PeerConnection(BufferedProtocol):
    """One connection of the peer port, either end. `dialled` is the node it was made to, or None."""

    def __init__(self, links: "Links", dialled: str | None) -> None:
        self._links = links
        self._dialled = dialled
        self._reader = FrameReader()
        self._transport: Transport | None = None
        self._link: Link | None = None
        self._deadline: asyncio.TimerHandle | None = None
        """Until the greeting, when it must have come; from then on the next tick."""
        self._has_heard = False
        self._has_spoken = False
        self.silent_ticks = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("Transport", transport)
        loop = self._links.loop
        self._deadline = loop.call_later(
            HANDSHAKE_MICROS / 1_000_000, self.abort, "no handshake in time"
        )
        if self._dialled is not None:
            self._greet_with(FrameKind.PEER_HELLO, self._hello())

    def _greet_with(self, frame_kind: int, greeting: bytes) -> None:
        assert self._transport is not None
        self._transport.writelines(encode_frame(frame_kind, 0, greeting))

    def _hello(self) -> bytes:
        identity = self._links.identity
        return handshake.encode_peer_hello(
            handshake.PeerHello(
                versions=handshake.VERSIONS,
                features=(),
                cluster=identity.cluster,
                node=identity.name,
                incarnation=identity.incarnation,
                boot=identity.boot,
            )
        )

    def _welcome(self, version: int) -> bytes:
        identity = self._links.identity
        return handshake.encode_peer_welcome(
            handshake.PeerWelcome(
                version=version,
                features=(),
                cluster=identity.cluster,
                node=identity.name,
                incarnation=identity.incarnation,
                boot=identity.boot,
            )
        )

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._has_heard = True
        try:
            if self._link is None:
                # What follows a greeting in the same read has its full size already.
                for frame in self._reader.received(nbytes, one=True):
                    self._take(frame)
                nbytes = 0
                if self._link is None:
                    return
            for frame in self._reader.received(nbytes):
                self._take(frame)
        except RaftqError as error:
            self._links.say_refused(self._name(), self._host(), str(error))
            if isinstance(error, ClusterMismatch):
                self._links.events.refused(str(error))
            if self._link is None:
                self._refuse(error)
            else:
                self.abort("it broke the protocol")

    def _name(self) -> str:
        if self._link is not None:
            return self._link.node
        if self._dialled is not None:
            return self._dialled
        return str(self._transport.get_extra_info("peername") if self._transport else "?")

    def _host(self) -> str:
        """Whom the same refusals are counted of: a stranger comes from another port each time."""
        if self._link is None and self._dialled is None and self._transport is not None:
            address: object = self._transport.get_extra_info("peername")
            return str(address[0] if isinstance(address, tuple) else address)
        return self._name()

    def _take(self, frame: Frame) -> None:
        if frame.kind == FrameKind.ERROR and (self._link or self._dialled):
            # Whoever dialled may refuse only after it was greeted.
            raise ClusterMismatch(str(errors.decode_error(frame.body)))
        if self._link is None:
            self._greet(frame)
            return
        events = self._links.events
        node = self._link.node
        kind, body = frame.kind, frame.body
        if kind == FrameKind.RAFT:
            if len(body) < COPY_BELOW_BYTES:
                body = memoryview(bytes(body))
            group, message = raft_messages.decode_raft(body)
            events.raft_message(node, group, message)
        elif kind == FrameKind.HEARTBEATS:
            for group, heartbeat in raft_messages.decode_heartbeats(body):
                events.raft_message(node, group, heartbeat)
        elif kind == FrameKind.HEARTBEAT_REPLIES:
            for group, reply in raft_messages.decode_heartbeat_replies(body):
                events.raft_message(node, group, reply)
        elif kind == FrameKind.FORWARD:
            events.forwarded(self._link, frame.stream, body)
        elif kind == FrameKind.FORWARDED:
            self._link.answered(frame.stream, body)
        elif kind == FrameKind.REPAIR:
            events.repair_message(node, *repair_messages.decode_repair(body))
        elif kind == FrameKind.BOOTSTRAP:
            events.bootstrap(node, body)
        elif kind != FrameKind.PING:
            raise ProtocolError(f"frame kind {kind} has no place on the peer port")

    def _greet(self, frame: Frame) -> None:
        hello: handshake.PeerHello | handshake.PeerWelcome
        if self._dialled is None:
            if frame.kind == FrameKind.HELLO:
                raise ProtocolError(
                    "this is a node's port for the other nodes; clients use the port of --listen "
                    "(with raftq dev 7400, not 7500; `raftq cluster status` names them)"
                )
            if frame.kind != FrameKind.PEER_HELLO:
                raise ProtocolError(f"expected a peer's greeting, got frame kind {frame.kind}")
            hello = handshake.decode_peer_hello(frame.body)
            version = handshake.choose_version(hello.versions)
            self._links.check(hello, None)
            self._greet_with(FrameKind.PEER_WELCOME, self._welcome(version))
        else:
            if frame.kind != FrameKind.PEER_WELCOME:
                raise ProtocolError(f"expected a peer's greeting, got frame kind {frame.kind}")
            hello = handshake.decode_peer_welcome(frame.body)
            self._links.check(hello, self._dialled)
        self._reader.authenticated()
        assert self._deadline is not None
        self._deadline.cancel()
        link = self._links.link(hello.node)
        if link.drop():
            self._links.events.link_lost(hello.node)
        self._link = link
        link.attach(self)
        self._deadline = self._links.loop.call_later(TICK_SECONDS, self._tick)
        self._links.greeted(hello)

    def _tick(self) -> None:
        """Count the silence of the other end, and break this end's own."""
        assert self._transport is not None
        self.silent_ticks = 0 if self._has_heard else self.silent_ticks + 1
        if self.silent_ticks >= SILENT_TICKS_MAX:
            self.abort("the peer has fallen silent")
            return
        if not self._has_spoken:
            self._transport.write(PING)
        self._has_heard = self._has_spoken = False
        self._deadline = self._links.loop.call_later(TICK_SECONDS, self._tick)

    def write(self, vectors: list[Buffer]) -> None:
        assert self._transport is not None
        self._has_spoken = True
        if self._transport.get_write_buffer_size() > LINK_BUFFER_MAX:
            self.abort("the peer reads too slowly")
            return
        self._transport.writelines(vectors)

    def abort(self, reason: str) -> None:
        """End it now, also if it is closing already: what a peer never reads would delay that for ever."""
        if self._transport is not None:
            self._links.say("link closes", self._name(), self._host(), reason=reason)
            self._transport.abort()

    def _refuse(self, error: RaftqError) -> None:
        """Close after the refusal, so that it is heard; the deadline of the greeting goes on."""
        assert self._transport is not None
        self._greet_with(FrameKind.ERROR, errors.encode_error(error))
        self._transport.close()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature.
        self._transport = None
        if self._deadline is not None:
            self._deadline.cancel()
        if self._link is not None and self._link.detach(self):
            self._links.events.link_lost(self._link.node)
        if self._dialled is not None:
            self._links.redial(self._dialled)


class Links:
    """All links of this node, the listening port, and the dialling."""

    def __init__(
        self,
        environment: Environment,
        identity: Identity,
        events: Events,
        loop: AbstractEventLoop,
    ) -> None:
        self.identity = identity
        self.events = events
        self.loop = loop
        self._environment = environment
        self._links: dict[str, Link] = {}
        self._greeted: dict[str, NodeIncarnation] = {}
        self._candidates: dict[str, tuple[NodeIncarnation, Micros]] = {}
        self._backoff: dict[str, float] = {}
        self._dials: dict[str, asyncio.Task[None]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._listener: Listener | None = None
        self._closed = False
        self._events_said = Repeats(burst=LINES_PER_MINUTE)
        self._refusals_said = Repeats()

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen for peers and begin dialling; returns the address listened on."""
        self._listener = await self._environment.network.listen(
            host, port, lambda: PeerConnection(self, None)
        )
        for member in self.identity.members:
            if self.identity.name < member.name:
                self._dial(member.name)
        return self._listener.address

    def link(self, node: str) -> Link:
        found = self._links.get(node)
        if found is None:
            found = self._links[node] = Link(node, self.loop)
        return found

    def candidate(self, node: str) -> NodeIncarnation | None:
        """A new, empty data directory that asked for the node's place a moment ago, and was refused."""
        incarnation, seen = self._candidates.get(node, (UNKNOWN, Micros(0)))
        if not incarnation or self._environment.clock.monotonic() - seen > CANDIDATE_MICROS:
            return None
        return incarnation

    def members_changed(self) -> None:
        """The identity has other members: cut off who is none of them any more."""
        for member in self.identity.members:
            link = self._links.get(member.name)
            if link is not None and self._greeted.get(member.name) != member.incarnation:
                self._candidates.pop(member.name, None)
                link.close("its data directory was replaced")

    def up(self) -> list[str]:
        return [name for name, link in self._links.items() if link.is_up]

    def check(
        self, hello: handshake.PeerHello | handshake.PeerWelcome, dialled: str | None
    ) -> None:
        """Whether that node may be linked to this one.

        Raises: ClusterMismatch.
        """
        identity = self.identity
        member = identity.member(hello.node)
        if member is None or hello.node == identity.name:
            raise ClusterMismatch(f"node {hello.node!r} is not a member of this cluster")
        if dialled is not None and hello.node != dialled:
            raise ClusterMismatch(f"dialled {dialled!r}, but {hello.node!r} answers there")
        if identity.state != "active":
            return  # Nothing has been promised here yet; bootstrap sorts it out.
        if hello.cluster not in (0, identity.cluster):
            if hello.cluster in identity.former:
                raise ClusterMismatch(
                    f"node {hello.node!r} is of this cluster as it was before its majority was given "
                    "up: what it holds counts no more; empty its data directory, and let that take "
                    f"its place: raftq cluster replace {hello.node}"
                )
            raise ClusterMismatch(f"node {hello.node!r} belongs to another cluster")
        if member.incarnation != hello.incarnation:
            if hello.cluster == 0:
                now = self._environment.clock.monotonic()
                self._candidates[hello.node] = (hello.incarnation, now)
            raise ClusterMismatch(
                f"the data directory of node {hello.node!r} is not the one that this cluster knows "
                "(it was wiped or replaced): it never votes; restore the directory it had, or let "
                f"the new one take its place: raftq cluster replace {hello.node}"
            )

    def greeted(self, hello: handshake.PeerHello | handshake.PeerWelcome) -> None:
        self._backoff.pop(hello.node, None)
        self._greeted[hello.node] = hello.incarnation
        self.say("link up", hello.node, hello.node)
        self.events.link_up(hello.node)

    def say(self, event: str, peer: str, host: str, **keys: str) -> None:
        """A line about a link, unless there were many of its kind just now."""
        now = self._environment.clock.monotonic()
        unsaid = self._events_said.due((host, event), now=now)
        if unsaid is not None:
            _log.info(event, peer=peer, **keys, **({"unsaid": unsaid} if unsaid else {}))

    def say_refused(self, peer: str, host: str, reason: str) -> None:
        """Whoever does not belong here tries again and again: said once a minute."""
        now = self._environment.clock.monotonic()
        unsaid = self._refusals_said.due((host, reason), now=now)
        if unsaid is not None:
            _log.warning("peer connection refused", peer=peer, reason=reason, unsaid=unsaid)

    def _dial(self, node: str) -> None:
        self._timers.pop(node, None)
        if not self._closed and node not in self._dials:
            task = self.loop.create_task(self._connect(node))
            self._dials[node] = task
            task.add_done_callback(lambda _: self._dials.pop(node, None))

    async def _connect(self, node: str) -> None:
        member = self.identity.member(node)
        assert member is not None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._environment.network.connect(
                    member.host, member.port, lambda: PeerConnection(self, node)
                )
        except OSError:  # A TimeoutError is one too.
            self.redial(node)

    def redial(self, node: str) -> None:
        """Dial again after a pause that doubles while the node stays away."""
        if self._closed or node in self._timers:
            return
        pause = self._backoff.get(node, REDIAL_SECONDS_MIN)
        self._backoff[node] = min(pause * 2, REDIAL_SECONDS_MAX)
        jitter = self._environment.entropy.below(1_000) / 4_000
        self._timers[node] = self.loop.call_later(pause * (1 + jitter), self._dial, node)

    def close(self) -> None:
        self._closed = True
        if self._listener is not None:
            self._listener.close()
        for timer in self._timers.values():
            timer.cancel()
        for task in list(self._dials.values()):
            task.cancel()
        for link in self._links.values():
            link.close("the node stops")
