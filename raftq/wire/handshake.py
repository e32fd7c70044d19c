"""The first two frames of a connection, on either port, as cbor maps.

Client port   HELLO         {magic, versions, features, client, user?}
              WELCOME       {version, features, cluster, node, limits}
Peer port     PEER_HELLO    {magic, versions, features, cluster, node, incarnation, boot}
              PEER_WELCOME  the same, with `version` in the place of `versions`

`magic` is the bytes "raftq" (peers: "raftq-peer", so that neither port takes the other's callers).
`versions` are all protocol versions the caller speaks; the answer names the highest that both do.
`features` are names; each side uses only what both named. `cluster` is 16 bytes, big-endian.
`limits` says what this node allows (bytes of a frame, requests in flight).

Who does not fit is answered with an ERROR frame (UnsupportedVersion, ClusterMismatch, ...) and the
connection is closed. Whether a cluster or a node is the expected one is for the caller to judge.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from raftq.errors import ProtocolError, UnsupportedVersion
from raftq.ids import ClusterId, NodeIncarnation
from raftq.limits import MAX_FRAME_BYTES, MAX_FRAME_BYTES_BEFORE_AUTH, MAX_NODE_NAME, MAX_STREAMS
from raftq.wire import cbor
from raftq.wire.frames import PROTOCOL_VERSION

MAGIC: Final = b"raftq"
PEER_MAGIC: Final = b"raftq-peer"
VERSIONS: Final = (PROTOCOL_VERSION,)
LIMITS: Final = {"frame_bytes": MAX_FRAME_BYTES, "streams": MAX_STREAMS}
_NAMES_MAX: Final = 32
_NAME_LENGTH_MAX: Final = 128
_CLUSTER_BYTES: Final = 16
_DEPTH_MAX: Final = 2
"""Less than elsewhere: these maps come from strangers."""


class Hello(NamedTuple):
    """A client introduces itself; `client` is free text for logs."""

    versions: tuple[int, ...]
    features: tuple[str, ...]
    client: str
    user: str | None = None


class Welcome(NamedTuple):
    """The node introduces itself."""

    version: int
    features: tuple[str, ...]
    cluster: ClusterId
    node: str
    limits: dict[str, int]


class PeerHello(NamedTuple):
    """A node introduces itself to another; `boot` changes with every start of the process.

    `cluster` is 0 for a node that does not belong to any yet.
    """

    versions: tuple[int, ...]
    features: tuple[str, ...]
    cluster: ClusterId
    node: str
    incarnation: NodeIncarnation
    boot: int


class PeerWelcome(NamedTuple):
    """The other node's answer."""

    version: int
    features: tuple[str, ...]
    cluster: ClusterId
    node: str
    incarnation: NodeIncarnation
    boot: int


def choose_version(theirs: Sequence[int]) -> int:
    """The highest protocol version that both sides speak.

    Raises: UnsupportedVersion.
    """
    common = [version for version in VERSIONS if version in theirs]
    if not common:
        raise UnsupportedVersion(
            f"the other side speaks protocol versions {list(theirs)}, this one {list(VERSIONS)}"
        )
    return max(common)


def encode_hello(hello: Hello) -> bytes:
    values: dict[str, Any] = {
        "magic": MAGIC,
        "versions": list(hello.versions),
        "features": list(hello.features),
        "client": hello.client,
    }
    if hello.user is not None:
        values["user"] = hello.user
    return cbor.encode(values)


def decode_hello(body: memoryview | bytes) -> Hello:
    fields = _Fields(body, MAGIC)
    user = fields.text("user") if "user" in fields.values else None
    return Hello(fields.versions(), fields.names("features"), fields.text("client"), user)


def encode_welcome(welcome: Welcome) -> bytes:
    return cbor.encode(
        {
            "magic": MAGIC,
            "version": welcome.version,
            "features": list(welcome.features),
            "cluster": welcome.cluster.to_bytes(_CLUSTER_BYTES, "big"),
            "node": welcome.node,
            "limits": welcome.limits,
        }
    )


def decode_welcome(body: memoryview | bytes) -> Welcome:
    fields = _Fields(body, MAGIC)
    limits = fields.values.get("limits")
    if type(limits) is not dict or not all(type(value) is int for value in limits.values()):
        raise ProtocolError("a handshake has no limits")
    return Welcome(
        fields.version(),
        fields.names("features"),
        fields.cluster(),
        fields.text("node", MAX_NODE_NAME),
        limits,
    )


def encode_peer_hello(hello: PeerHello) -> bytes:
    return cbor.encode({"versions": list(hello.versions)} | _peer(hello))


def decode_peer_hello(body: memoryview | bytes) -> PeerHello:
    fields = _Fields(body, PEER_MAGIC)
    return PeerHello(
        fields.versions(),
        fields.names("features"),
        fields.cluster(),
        fields.text("node", MAX_NODE_NAME),
        NodeIncarnation(fields.number("incarnation")),
        fields.number("boot"),
    )


def encode_peer_welcome(welcome: PeerWelcome) -> bytes:
    return cbor.encode({"version": welcome.version} | _peer(welcome))


def decode_peer_welcome(body: memoryview | bytes) -> PeerWelcome:
    fields = _Fields(body, PEER_MAGIC)
    return PeerWelcome(
        fields.version(),
        fields.names("features"),
        fields.cluster(),
        fields.text("node", MAX_NODE_NAME),
        NodeIncarnation(fields.number("incarnation")),
        fields.number("boot"),
    )


def _peer(side: PeerHello | PeerWelcome) -> dict[str, Any]:
    return {
        "magic": PEER_MAGIC,
        "features": list(side.features),
        "cluster": side.cluster.to_bytes(_CLUSTER_BYTES, "big"),
        "node": side.node,
        "incarnation": side.incarnation,
        "boot": side.boot,
    }


class _Fields:
    """The fields of one handshake map, checked as they are taken out. Unknown ones are ignored."""

    __slots__ = ("values",)

    def __init__(self, body: memoryview | bytes, magic: bytes) -> None:
        self.values = cbor.decode(body, max_bytes=MAX_FRAME_BYTES_BEFORE_AUTH, max_depth=_DEPTH_MAX)
        if self.values.get("magic") != magic:
            raise ProtocolError(f"a handshake without the magic {magic!r}: is this the right port?")

    def text(self, name: str, longest: int = _NAME_LENGTH_MAX) -> str:
        value = self.values.get(name)
        if type(value) is not str or len(value) > longest:
            raise ProtocolError(f"a handshake needs {name}, a text of at most {longest} characters")
        return value

    def number(self, name: str) -> int:
        value = self.values.get(name)
        if type(value) is not int or value < 0:
            raise ProtocolError(f"a handshake needs the number {name}")
        return value

    def version(self) -> int:
        version = self.number("version")
        if version not in VERSIONS:
            raise UnsupportedVersion(
                f"the other side chose protocol version {version}, which was not offered"
            )
        return version

    def versions(self) -> tuple[int, ...]:
        versions = self.values.get("versions")
        if (
            type(versions) is not list
            or not 1 <= len(versions) <= _NAMES_MAX
            or not all(type(version) is int for version in versions)
        ):
            raise ProtocolError("a handshake names no versions")
        return tuple(versions)

    def names(self, name: str) -> tuple[str, ...]:
        names = self.values.get(name)
        if (
            type(names) is not list
            or len(names) > _NAMES_MAX
            or not all(type(each) is str and len(each) <= _NAME_LENGTH_MAX for each in names)
        ):
            raise ProtocolError(f"a handshake needs {name}, a list of short texts")
        return tuple(names)

    def cluster(self) -> ClusterId:
        cluster = self.values.get("cluster")
        if type(cluster) is not bytes or len(cluster) != _CLUSTER_BYTES:
            raise ProtocolError("a handshake needs cluster, 16 bytes")
        return ClusterId(int.from_bytes(cluster, "big"))
