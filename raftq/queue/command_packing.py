"""Writing numbers and texts into the headers of commands; what does not fit raises InvalidArgument."""

from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class, only named like a module.

from raftq.errors import InvalidArgument
from raftq.queue.config import DEFAULT_SUBSCRIPTION


def packed(fields: Struct, *values: int | bytes) -> bytes:
    try:
        found: bytes = fields.pack(*values)
    except StructError as error:
        raise InvalidArgument(f"a number does not fit its field in a command: {error}") from error
    return found


class Names:
    """The texts of one command, in the order of their first use."""

    __slots__ = ("_numbers", "_parts")

    def __init__(self) -> None:
        self._numbers = {DEFAULT_SUBSCRIPTION: 0}
        self._parts: list[bytes] = []

    def number(self, name: str) -> int:
        known = self._numbers.get(name)
        return self.add(name) if known is None else known

    def add(self, name: str) -> int:
        encoded = name.encode()
        if len(encoded) > 255:
            raise InvalidArgument(f"a name has at most 255 bytes, {name[:40]!r}... has more")
        self._parts += (bytes((len(encoded),)), encoded)
        number = self._numbers[name] = len(self)
        return number

    def __len__(self) -> int:
        return len(self._parts) // 2

    def encoded(self) -> bytes:
        return b"".join(self._parts)
