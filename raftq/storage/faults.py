"""Known bugs that the simulator switches on, to prove that its checkers see them. All off."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Faults:
    """Which promises a log breaks on purpose."""

    recovered_tail_unsynced: bool = False
    """Recovery renames the rewritten tail into place without having synced it."""

    completion_for_other_file: bool = False
    """A roll does not wait; a completion of the new segment is taken for the old one too."""

    failed_sync_repeated: bool = False
    """A sync that failed is asked for again; if that succeeds, all is taken for synced."""

    patch_not_joined_behind: bool = False
    """What a peer gave for a hole is taken although the log does not go on from it."""


NO_FAULTS = Faults()
