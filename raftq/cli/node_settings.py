"""What `raftq node` is started with: options, then RAFTQ_... variables, then a file, then defaults.

Rule: an unknown or wrongly typed key of the file is refused; a misspelt one must never be ignored.
"""

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from raftq.errors import InvalidArgument


class NodeSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One node. The file has these keys; `cluster` may be a table or the text of the option."""

    name: str
    data: str
    listen: str = "127.0.0.1:7400"
    peer_listen: str | None = None
    admin_listen: str | None = None
    cluster: dict[str, str] | str | None = None
    groups: int = 0
    labels: dict[str, str] = {}

    def members(self) -> dict[str, str]:
        """The founding nodes and their peer addresses.

        Raises: InvalidArgument.
        """
        members = parse_cluster(self.cluster) if isinstance(self.cluster, str) else self.cluster
        if not members:
            if self.peer_listen is None:
                raise InvalidArgument(
                    "who belongs to the cluster? give --cluster n1=HOST:PEERPORT,..., "
                    "or --peer-listen HOST:PORT for a cluster of one"
                )
            return {self.name: self.peer_listen}
        own = members.get(self.name)
        if own is None:
            raise InvalidArgument(
                f"--cluster names {', '.join(members)}, but not this node, {self.name!r}"
            )
        if self.peer_listen not in {None, own}:
            raise InvalidArgument(
                f"--peer-listen is {self.peer_listen}, but --cluster says {self.name}={own}; "
                "a node listens for its peers where they look for it"
            )
        return members


def parse_cluster(text: str) -> dict[str, str]:
    """`n1=HOST:PORT,n2=HOST:PORT`.

    Raises: InvalidArgument.
    """
    members: dict[str, str] = {}
    for part in text.split(","):
        name, equals, address = part.strip().partition("=")
        if not equals or not name or not address:
            raise InvalidArgument(f"{part!r} in --cluster is not like n1=127.0.0.1:7500")
        if name in members:
            raise InvalidArgument(f"--cluster names {name!r} twice")
        members[name] = address
    return members


def load_settings(path: Path | None, given: dict[str, Any]) -> NodeSettings:
    """The settings of a file, if there is one, overridden by what was given.

    Raises: InvalidArgument.
    """
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"cannot read {path}: {error}") from error
    values |= {name: value for name, value in given.items() if value is not None}
    for name in ("name", "data"):
        if name not in values:
            raise InvalidArgument(
                f"a node needs --{name} (or RAFTQ_{name.upper()}, or {name} = ...)"
            )
    try:
        return msgspec.convert(values, NodeSettings)
    except msgspec.ValidationError as error:
        where = f" in {path}" if path is not None else ""
        raise InvalidArgument(f"{error}{where}") from error
