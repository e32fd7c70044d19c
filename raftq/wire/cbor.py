"""CBOR maps for everything cold: control operations, errors, handshakes.

    a map of text -> None, bool, integer of 64 bits, finite double, text, bytes, list, such a map

Rules:

1. Definite lengths, no tags, no key twice, nothing behind the end. Any other length than the
   shortest is fine: encoders differ.
2. Depth, bytes and the number of items are bounded, and a claimed length is compared with the bytes
   that are left before anything is made for it.
3. The decoder knows these few items and no others: a general one would decode tags (bignums of a
   million digits, regular expressions, cycles) before we could refuse them.
"""

from math import isfinite
from struct import Struct
from typing import Any, Final

import cbor2

from raftq.errors import InvalidArgument, ProtocolError
from raftq.limits import MAX_CBOR_BYTES, MAX_CBOR_DEPTH

Buffer = bytes | bytearray | memoryview
Map = dict[str, Any]

MAX_ITEMS: Final = 50_000
"""Items of one map, inner ones included: an empty list takes one byte here and 56 in memory."""

_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _LIST, _MAP = 0, 1, 2, 3, 4, 5
_DOUBLE: Final = 0xFB
_SIMPLE: Final[dict[int, bool | None]] = {0xF4: False, 0xF5: True, 0xF6: None}
_DOUBLE_STRUCT: Final = Struct(">d")


def encode(values: Map, *, max_bytes: int = MAX_CBOR_BYTES) -> bytes:
    """The bytes of a map.

    Raises: InvalidArgument when a value has no place in the format, or all are too long.
    """
    try:
        encoded = cbor2.dumps(values)
    except (cbor2.CBORError, ValueError, OverflowError, TypeError) as error:
        raise InvalidArgument(f"a value cannot be sent: {error}") from error
    if len(encoded) > max_bytes:
        raise InvalidArgument(f"a control message of {len(encoded)} bytes; {max_bytes} are allowed")
    return encoded


def decode(
    data: Buffer, *, max_bytes: int = MAX_CBOR_BYTES, max_depth: int = MAX_CBOR_DEPTH
) -> Map:
    """The map that the bytes are.

    Raises: ProtocolError.
    """
    if len(data) > max_bytes:
        raise ProtocolError(f"a map of {len(data)} bytes; {max_bytes} are allowed")
    decoder = _Decoder(bytes(data))
    try:
        value = decoder.item(max_depth)
    except (IndexError, UnicodeDecodeError) as error:
        raise ProtocolError("a map is cut short, or its text is not UTF-8") from error
    if decoder.position != len(decoder.data):
        raise ProtocolError("a map has bytes behind its end")
    if type(value) is not dict:
        raise ProtocolError("a map was expected, not a single value")
    return value


class _Decoder:
    __slots__ = ("data", "items", "position")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.items = 0

    def item(self, depth: int) -> Any:
        self.items += 1
        if self.items > MAX_ITEMS:
            raise ProtocolError(f"a map holds more than {MAX_ITEMS} items")
        data = self.data
        first = data[self.position]
        if first in _SIMPLE:
            self.position += 1
            return _SIMPLE[first]
        if first == _DOUBLE:
            return self._double()
        major = first >> 5
        number = self._number(first & 31)
        if major == _UNSIGNED:
            return number
        if major == _NEGATIVE:
            return -1 - number
        if major > _MAP:
            raise ProtocolError(f"a map holds an item (0x{first:02x}) that is not allowed")
        left = len(data) - self.position
        if number > left:
            raise ProtocolError(f"an item claims {number} bytes or items; {left} bytes are left")
        if major in {_BYTES, _TEXT}:
            begin = self.position
            self.position = begin + number
            chunk = data[begin : self.position]
            return chunk if major == _BYTES else chunk.decode()
        if depth <= 0:
            raise ProtocolError("a map is nested too deeply")
        if major == _LIST:
            return [self.item(depth - 1) for _ in range(number)]
        return self._map(number, depth)

    def _map(self, pairs: int, depth: int) -> Map:
        values: Map = {}
        for _ in range(pairs):
            key = self.item(0)
            if type(key) is not str:
                raise ProtocolError("a key of a map is not text")
            if key in values:
                raise ProtocolError(f"a map has the key {key[:80]!r} twice")
            values[key] = self.item(depth - 1)
        return values

    def _number(self, number: int) -> int:
        """The number in an item's head; moves behind the head."""
        begin = self.position + 1
        if number < 24:
            self.position = begin
            return number
        if number > 27:
            raise ProtocolError("a map holds an item of indefinite or reserved length")
        end = begin + (1 << number - 24)
        if end > len(self.data):
            raise IndexError(end)
        self.position = end
        return int.from_bytes(self.data[begin:end], "big")

    def _double(self) -> float:
        begin = self.position + 1
        end = begin + 8
        if end > len(self.data):
            raise IndexError(end)
        value = float(_DOUBLE_STRUCT.unpack_from(self.data, begin)[0])
        if not isfinite(value):
            raise ProtocolError("a map holds a number that is not finite")
        self.position = end
        return value
