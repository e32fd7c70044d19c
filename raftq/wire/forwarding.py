"""Requests that travel on to the node that leads: FORWARD and FORWARDED, on the peer port.

    kind u8 | hops u8 | zeros u16 | the body of the client's request, or of the reply, as it came

`hops` counts the nodes that sent the request on; at `HOPS_MAX` it is answered with NotLeader, so
that two nodes that each believe in the other do not play ball with it. A CANCEL travels like this
too, on the stream of what it cancels.
"""

from struct import Struct
from typing import Final, NamedTuple

from raftq.errors import ProtocolError

Buffer = bytes | bytearray | memoryview

HOPS_MAX: Final = 2
_HEAD: Final = Struct("<BBH")


class Forward(NamedTuple):
    """A client's request, or the reply to one, on its way between two nodes."""

    kind: int
    hops: int
    body: Buffer


def encode_forward(kind: int, *parts: Buffer, hops: int = 1) -> list[Buffer]:
    """The parts of a FORWARD or FORWARDED frame's body; those given are not copied."""
    return [_HEAD.pack(kind, hops, 0), *parts]


def decode_forward(body: memoryview) -> Forward:
    """The inverse; the inner body is a slice.

    Raises: ProtocolError.
    """
    if len(body) < _HEAD.size:
        raise ProtocolError("a FORWARD is cut short")
    kind, hops, zeros = _HEAD.unpack_from(body)
    if zeros or hops > HOPS_MAX:
        raise ProtocolError(f"a FORWARD with {hops} hops, or with its spare bytes set")
    return Forward(kind, hops, body[_HEAD.size :])
