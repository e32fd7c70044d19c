"""What a directory of a local cluster holds, and who listens on this machine: asked before a start.

Rule: nothing is written and nothing is kept locked; whoever starts may still lose a race, and says so.
"""

import fcntl
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import cbor2

from raftq.embedded.address import Address
from raftq.errors import Corrupted, InvalidArgument
from raftq.storage import small_file

_IDENTITY: Final = "node"
"""The file in which a data directory says whose it is (see docs/operating/local-cluster.md)."""

_LISTENING: Final = "0A"
"""The state of a listening socket in /proc/net/tcp."""


class Found(NamedTuple):
    """The nodes that belong to a cluster already; its founders and their peer addresses, if known."""

    there: tuple[str, ...]
    founders: dict[str, Address]
    given_up: tuple[str, ...] = ()
    """Those whose data is of the cluster as it was before its majority was given up."""
    is_recovered: bool = False
    """Whether a majority was given up once, so that fewer may be there."""


def look(data: Path) -> Found:
    """Which cluster a directory holds."""
    there: list[str] = []
    founders: dict[str, Address] = {}
    clusters: dict[str, object] = {}
    former: list[object] = []
    for path in sorted(data.glob(f"n[0-9]/{_IDENTITY}")):
        there.append(path.parent.name)
        with suppress(OSError, ValueError, KeyError, TypeError, Corrupted):
            fields = cbor2.loads(small_file.decode(path.read_bytes(), str(path)))
            if fields["state"] == "empty":
                there.pop()  # It has promised nothing to anybody yet.
            else:
                founders = {str(row[0]): Address(row[1], row[2]) for row in fields["members"]}
                clusters[path.parent.name] = fields["cluster"]
                former += fields.get("former", ())
    given_up = tuple(name for name, cluster in clusters.items() if cluster in former)
    return Found(tuple(there), founders, given_up, bool(former))


def check_is_free(directory: Path) -> None:
    """Raises: InvalidArgument when a process has the node's directory."""
    try:
        file = os.open(directory / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return  # There is none yet; what else is wrong the node itself says.
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(file, 32, 0).decode("ascii", "replace").strip() or "unknown"
        raise InvalidArgument(
            f"data directory {directory} is in use by process {holder}; "
            "stop that process, or choose another directory with --data"
        ) from error
    finally:
        os.close(file)


def in_use(addresses: list[Address]) -> list[int]:
    """The ports at which nobody can listen now."""
    ports: list[int] = []
    for host, port in addresses:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # As a node does: connections that have ended are no hindrance.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                ports.append(port)
    return ports


def who_listens(port: int) -> str | None:
    """The process at a port and how it was started; None where this system, or user, cannot tell."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port)}
    for descriptors in Path("/proc").glob("[0-9]*/fd") if sockets else ():
        with suppress(OSError):
            if any(str(each.readlink()) in sockets for each in descriptors.iterdir()):
                process = descriptors.parent
                words = process.joinpath("cmdline").read_bytes().decode("utf-8", "replace")
                return f"process {process.name} ({_shown(words.split(chr(0)))})"
    return None


def _inodes(port: int) -> list[str]:
    inodes: list[str] = []
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path("/proc/net", table).read_text("ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.append(fields[9])
    return inodes


def _shown(words: list[str]) -> str:
    """A command, short; of a node, whose it is."""
    if "node" in words and "--data" in words[:-1]:
        return f"a raftq node on {words[words.index('--data') + 1]}"
    return " ".join(words).strip()[:80]
