"""Which run of the machine this is: it changes when the page cache is lost, and only then."""

from pathlib import Path

from xxhash import xxh3_64_intdigest

from raftq.env import Entropy

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_number(entropy: Entropy) -> int:
    """The kernel's boot id as a number; where there is none, every process is a run of its own."""
    try:
        return xxh3_64_intdigest(_BOOT_ID.read_bytes()) or 1
    except OSError:
        return entropy.bits(64)
