"""What the client needs of the outside world: an `Environment` without a disk."""

from dataclasses import dataclass
from typing import Protocol

from raftq.env import Clock, Entropy, Network
from raftq.env.clock import RealClock
from raftq.env.entropy import RealEntropy
from raftq.env.network import RealNetwork

SECOND_US = 1_000_000


class Outside(Protocol):
    """Three of the four ports; a node's `Environment` fits, and so does a simulated one."""

    @property
    def clock(self) -> Clock: ...

    @property
    def network(self) -> Network: ...

    @property
    def entropy(self) -> Entropy: ...


@dataclass(frozen=True, slots=True)
class RealOutside:
    """This machine's clock, network and randomness."""

    clock: Clock
    network: Network
    entropy: Entropy


def real_outside() -> RealOutside:
    return RealOutside(RealClock(), RealNetwork(), RealEntropy())
