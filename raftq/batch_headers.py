"""A message's headers: one flat cbor map, str -> str | bytes | int | bool | None.

Rules:

1. Definite lengths, no tags, no floats, nothing nested, no key twice, nothing behind the map.
2. No headers are no bytes: an empty map is never written.
3. Only producers and consumers come here. What arrives was written by strangers, so the decoder
   knows these few items and no others; a general decoder would first have to be kept from tags.
"""

from collections.abc import Mapping
from typing import Final

import cbor2

from raftq.errors import InvalidArgument, ProtocolError
from raftq.limits import MAX_HEADERS_BYTES

HeaderValue = str | bytes | int | bool | None
Headers = Mapping[str, HeaderValue]

_VALUE_TYPES: Final = (str, bytes, int, bool, type(None))
_INT_BITS: Final = 64
_SIMPLE: Final[dict[int, HeaderValue]] = {0xF4: False, 0xF5: True, 0xF6: None}
_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _MAP = 0, 1, 2, 3, 5


def encode_headers(headers: Headers | None) -> bytes:
    """The bytes of one message's headers.

    Raises: InvalidArgument.
    """
    if not headers:
        return b""
    for name, value in headers.items():
        if type(name) is not str or type(value) not in _VALUE_TYPES:
            raise InvalidArgument(
                f"headers map str to str, bytes, int, bool or None; {name!r} has {value!r}"
            )
        if type(value) is int and not -1 << _INT_BITS <= value < 1 << _INT_BITS:
            raise InvalidArgument(f"header {name!r} is an integer of more than {_INT_BITS} bits")
    try:
        encoded = cbor2.dumps(dict(headers))
    except ValueError as error:
        raise InvalidArgument(f"headers are not Unicode text: {error}") from error
    if len(encoded) > MAX_HEADERS_BYTES:
        raise InvalidArgument(
            f"the headers of a message may take {MAX_HEADERS_BYTES} bytes, these take {len(encoded)}"
        )
    return encoded


def decode_headers(encoded: bytes) -> dict[str, HeaderValue]:
    """The headers of one message.

    Raises: ProtocolError when the bytes are anything but one flat map.
    """
    if not encoded:
        return {}
    if len(encoded) > MAX_HEADERS_BYTES:
        raise ProtocolError(f"the headers of a message take more than {MAX_HEADERS_BYTES} bytes")
    headers: dict[str, HeaderValue] = {}
    try:
        major, pairs, position = _head(encoded, 0)
        if major != _MAP or 2 * pairs > len(encoded) - position:
            raise ProtocolError(
                "the headers of a message are not a map, or claim more than they hold"
            )
        for _ in range(pairs):
            name, position = _item(encoded, position)
            value, position = _item(encoded, position)
            if type(name) is not str or name in headers:
                raise ProtocolError(f"a header's name is not text, or is there twice: {name!r}")
            headers[name] = value
    except (IndexError, UnicodeDecodeError) as error:
        raise ProtocolError("the headers of a message are cut short or not Unicode text") from error
    if position != len(encoded):
        raise ProtocolError("the headers of a message have bytes behind their end")
    return headers


def _head(encoded: bytes, position: int) -> tuple[int, int, int]:
    """Major type and number of the item at `position`, and where it goes on."""
    first = encoded[position]
    major, number = first >> 5, first & 31
    position += 1
    if number < 24:
        return major, number, position
    if number > 27:
        raise ProtocolError("the headers of a message have an item of indefinite length")
    end = position + (1 << number - 24)
    if end > len(encoded):
        raise IndexError(end)
    return major, int.from_bytes(encoded[position:end], "big"), end


def _item(encoded: bytes, position: int) -> tuple[HeaderValue, int]:
    """The scalar at `position`, and where it ends."""
    first = encoded[position]
    if first in _SIMPLE:
        return _SIMPLE[first], position + 1
    major, number, position = _head(encoded, position)
    if major == _UNSIGNED:
        return number, position
    if major == _NEGATIVE:
        return -1 - number, position
    end = position + number
    if major not in {_BYTES, _TEXT}:
        raise ProtocolError("the headers of a message hold more than text, bytes and integers")
    if end > len(encoded):
        raise IndexError(end)
    chunk = encoded[position:end]
    return (chunk if major == _BYTES else chunk.decode()), end
