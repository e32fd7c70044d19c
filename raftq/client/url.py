"""Where the servers are: `raftq://[user:secret@]host[:port][,host[:port]...]`, or RAFTQ_URL.

This is the one place of the library that reads the process environment. User and secret may hold
percent-escapes; IPv6 addresses stand in brackets.
"""

import os
from typing import Final, NamedTuple
from urllib.parse import unquote

from raftq.errors import InvalidArgument

VARIABLE: Final = "RAFTQ_URL"
DEFAULT_PORT: Final = 7400
_SCHEME: Final = "raftq://"


class Address(NamedTuple):
    """A host name or IP literal, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Servers(NamedTuple):
    """What a url says. The secret is kept out of every message and representation."""

    addresses: tuple[Address, ...]
    user: str | None = None
    secret: str | None = None

    def __repr__(self) -> str:
        return f"Servers({', '.join(map(str, self.addresses))})"


def parse_url(url: str | None) -> Servers:
    """What `url` says, or what RAFTQ_URL says if it is None.

    Raises: InvalidArgument.
    """
    if url is None:
        url = os.environ.get(VARIABLE)
        if not url:
            raise InvalidArgument(
                f"no server is named: give AsyncClient a url like raftq://host:{DEFAULT_PORT}, "
                f"or set {VARIABLE}"
            )
    if not url.startswith(_SCHEME):
        raise InvalidArgument(f"a url begins with {_SCHEME}")
    rest = url.removeprefix(_SCHEME).rstrip("/")
    credentials, at, hosts = rest.rpartition("@")
    user: str | None = None
    secret: str | None = None
    if at:
        name, colon, word = credentials.partition(":")
        user = unquote(name)
        secret = unquote(word) if colon else None
    addresses = tuple(_address(part) for part in hosts.split(","))
    return Servers(addresses, user, secret)


def _address(text: str) -> Address:
    host, port = text, str(DEFAULT_PORT)
    if text.startswith("["):
        host, bracket, behind = text[1:].partition("]")
        if not bracket or (behind and not behind.startswith(":")):
            raise InvalidArgument(f"{text!r} is not an address like [::1]:{DEFAULT_PORT}")
        port = behind[1:] or port
    elif ":" in text:
        host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise InvalidArgument(f"{text!r} is not an address like host:{DEFAULT_PORT}")
    return Address(host, int(port))
