"""The outside world of a node, or of a tool that works on a node's directory, on this machine."""

from raftq.env import Environment
from raftq.env.boot import boot_number
from raftq.env.clock import RealClock
from raftq.env.disk import RealDisk
from raftq.env.entropy import RealEntropy
from raftq.env.network import RealNetwork


def environment_of(disk: RealDisk) -> Environment:
    """The four ports, with this disk."""
    entropy = RealEntropy()
    return Environment(
        clock=RealClock(),
        disk=disk,
        network=RealNetwork(),
        entropy=entropy,
        boot=boot_number(entropy),
    )
