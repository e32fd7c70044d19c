"""Plain values as bytes: the subset of CBOR in which commands and snapshots are written.

    None, bool, integer of 64 bits, text, bytes, list of such, map of text to such

Rules:

1. A value has one encoding, but for the order of a map's keys: shortest lengths, no key twice,
   nothing behind the end. No floats, no tags, no indefinite lengths.
2. What `decode` gives has its keys in ascending order at every depth, so that equal values are
   encoded alike wherever they are encoded again. Nothing here depends on a sorting option of the
   CBOR library, which has changed its order between versions.
3. The library's decoder is general: it would make dates, patterns and cycles of tags. So it only
   sees bytes that the scan below has passed.
"""

from typing import Any, Final

import cbor2

from raftq.errors import InvalidArgument

_BYTES, _TEXT, _LIST, _MAP = 2, 3, 4, 5
_SIMPLE: Final = (0xF4, 0xF5, 0xF6)
"""False, True, None."""


def encode(value: Any) -> bytes:
    """The bytes of a value; maps are written in the order that they have.

    Raises: InvalidArgument when the library cannot encode it. That it is plain is for decode to say.
    """
    try:
        return cbor2.dumps(value)
    except (cbor2.CBOREncodeError, TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"a value is not plain: {error}") from error


def decode(data: bytes, max_depth: int) -> Any:
    """The value that the bytes are.

    Raises: InvalidArgument.
    """
    try:
        _scan(data, max_depth)
    except IndexError as error:
        raise InvalidArgument("a value is cut short") from error
    try:
        value = cbor2.loads(data)
    except cbor2.CBORDecodeError as error:
        raise InvalidArgument("a text is not UTF-8") from error
    if encode(value) != data:
        raise InvalidArgument("a value has a longer encoding than it needs, or a key twice")
    return _ordered(value)


def _scan(data: bytes, max_depth: int) -> None:
    """Takes as long as there are bytes, whatever number of items they claim.

    Raises: InvalidArgument, IndexError.
    """
    position = 0
    left = [1]  # Items to come, for each open container; a map's keys count.
    is_map = [False]
    while left:
        if left[-1] == 0:
            left.pop()
            is_map.pop()
            continue
        is_key = is_map[-1] and left[-1] % 2 == 0
        left[-1] -= 1
        first = data[position]
        position += 1
        major, short = first >> 5, first & 31
        if is_key and major != _TEXT:
            raise InvalidArgument("a key of a map is not text")
        if first in _SIMPLE:
            continue
        if major > _MAP or short > 27:
            raise InvalidArgument(f"an item (0x{first:02x}) that is not allowed")
        number = short
        if short > 23:
            width = 1 << short - 24
            number = int.from_bytes(data[position : position + width], "big")
            position += width
        if major in {_BYTES, _TEXT}:
            position += number
        elif major in {_LIST, _MAP}:
            if len(left) > max_depth:
                raise InvalidArgument(f"nested more than {max_depth} deep")
            left.append(number * 2 if major == _MAP else number)
            is_map.append(major == _MAP)
    if position != len(data):
        raise InvalidArgument("a value is cut short, or has bytes behind its end")


def _ordered(value: Any) -> Any:
    if type(value) is dict:
        return {key: _ordered(value[key]) for key in sorted(value)}
    if type(value) is list:
        return [_ordered(item) for item in value]
    return value
