"""The mark of `raftq cluster recover` in a log: what an entry says that a person decided.

It is a membership with a second command, which says whose group goes on from which replica, and who
had been its members. Entries are chained, so it cannot be taken out again.
"""

from typing import Any, Final

import cbor2

from raftq.raft.entry import MEMBERSHIP, Command, Entry, commands

_RECOVERED: Final = "recovered"


def encode_recovered(fields: dict[str, Any]) -> Command:
    """The command that says so."""
    return Command(cbor2.dumps({"do": _RECOVERED, **fields}))


def recovered_in(entry: Entry) -> dict[str, Any] | None:
    """What the entry says; None for all others."""
    if entry.kind != MEMBERSHIP:
        return None
    items = commands(entry)
    if len(items) < 2:
        return None
    fields = cbor2.loads(items[1].header)
    return fields if isinstance(fields, dict) and fields.get("do") == _RECOVERED else None
