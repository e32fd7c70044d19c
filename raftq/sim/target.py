"""What a nemesis can do to a cluster, whatever that is made of."""

import random
from collections.abc import Sequence
from typing import Protocol

from raftq.ids import Micros
from raftq.sim.network import Latency


class Target(Protocol):
    """What a nemesis can do to a cluster."""

    @property
    def nodes(self) -> Sequence[str]:
        """The servers, up or down."""
        ...

    @property
    def clients(self) -> Sequence[str]:
        """Hosts that only talk to servers; they are cut off, never killed."""
        ...

    def leader(self) -> str | None:
        """A node that leads something, if any does."""
        ...

    def kill(self, node: str) -> None:
        """SIGKILL: the page cache and the kernel's connections survive."""
        ...

    def power_loss(self, node: str) -> None:
        """The machine stops: what was not synced may be lost, and it is silent."""
        ...

    def restart(self, node: str) -> None: ...

    def pause(self, node: str) -> None: ...

    def resume(self, node: str) -> None: ...

    def block(self, source: str, target: str) -> None: ...

    def unblock(self, source: str, target: str) -> None: ...

    def reset_connections(self, one: str, other: str) -> None: ...

    def stall_syncs(self, node: str, duration: Micros) -> None:
        """The next sync of the node's disk takes so much longer."""
        ...

    def fail_syncs(self, node: str) -> None:
        """Syncs fail with EIO from now on; a node that meets that stops."""
        ...

    def fail_next_sync(self, node: str) -> None:
        """One sync fails with EIO, and no other; a node that meets that stops."""
        ...

    def mend_syncs(self, node: str) -> None:
        """Syncs work again, and the node is started if it has stopped."""
        ...

    def fill_disk(self, node: str) -> None: ...

    def empty_disk(self, node: str) -> None: ...

    def slow_network(self, latency: Latency | None) -> None:
        """The whole network is like that from now on, or as usual."""
        ...

    def replace_disk(self, node: str) -> None:
        """The node's disk is lost; it comes back empty, and takes its own place as a new member."""
        ...

    def rot(self, node: str, choose: random.Random) -> str:
        """Bytes in a file of the node change, up or down; what was done."""
        ...

    def jump_wall(self, node: str, by: Micros) -> None: ...

    def set_clock_rate(self, node: str, rate: int) -> None:
        """In parts per million of true speed."""
        ...
