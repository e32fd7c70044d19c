"""What this machine lets the harness do: each fault names what it needs, and each need is tried.

Rule: a missing capability is told by its exact name and never guessed at; trying one leaves nothing
behind. `enter` gives this process namespaces of its own, which vanish with their last process:
whatever happens, no interface, mount or process of a run stays.
"""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
_MS_PRIVATE_EVERYWHERE = 0x40000 | 0x4000

LAYER_SOURCE = Path(__file__).with_name("fault_layer.c")


class MissingError(Exception):
    """A capability that the machine does not have; the message names it."""


def missing_for_all() -> str | None:
    """What is missing for any run at all; None when nothing is."""
    if sys.platform != "linux":
        return f"Linux is needed, this is {sys.platform}"
    if os.geteuid() != 0:
        return "root is needed, to make network namespaces (try: sudo tools/chaos ...)"
    for program, package in (("ip", "iproute2"), ("nsenter", "util-linux")):
        if shutil.which(program) is None:
            return f"the program {program!r} is needed (package {package})"
    probe = (
        "import sys; sys.path.insert(0, sys.argv[1]); import chaos_capabilities as c; c.try_all()"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe, str(Path(__file__).parent)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return (
            done.stderr.strip().splitlines()[-1].removeprefix("chaos_capabilities.MissingError: ")
        )
    return None


def try_all() -> None:
    """Make namespaces, a veth pair and a bridge, in a process that ends then.

    Raises: MissingError.
    """
    enter(processes=False)
    for kind in (["type", "bridge"], ["type", "veth", "peer", "name", "chaos-b"]):
        done = subprocess.run(
            ["ip", "link", "add", "chaos-a", *kind], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise MissingError(f"ip link add {' '.join(kind)}: {done.stderr.strip()}")
        subprocess.run(["ip", "link", "del", "chaos-a"], check=True)


def enter(*, processes: bool) -> None:
    """Go into namespaces of one's own: of mounts and networks; of processes, for children.

    Raises: MissingError.
    """
    _unshare(CLONE_NEWNS | CLONE_NEWNET | (CLONE_NEWPID if processes else 0))


def enter_mounts() -> None:
    """What this process mounts vanishes with it, and not only with its parent.

    Raises: MissingError.
    """
    _unshare(CLONE_NEWNS)


def _unshare(flags: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(flags) != 0:
        raise MissingError(f"unshare of namespaces: {os.strerror(ctypes.get_errno())}")
    # Nothing that is mounted from here on is seen outside.
    if library.mount(None, b"/", None, _MS_PRIVATE_EVERYWHERE, None) != 0:
        raise MissingError(f"private mounts: {os.strerror(ctypes.get_errno())}")


def build_layer(directory: Path) -> Path:
    """The preloaded fault layer, compiled.

    Raises: MissingError.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise MissingError("a C compiler ('cc') is needed")
    library = directory / "fault_layer.so"
    done = subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", library, LAYER_SOURCE, "-ldl", "-lpthread"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise MissingError(f"cc cannot build the fault layer: {done.stderr.strip()[:300]}")
    return library


def check_filter() -> None:
    """Whether packets can be filtered; call it inside the namespaces.

    Raises: MissingError.
    """
    if shutil.which("nft") is None:
        raise MissingError("the program 'nft' is needed (package nftables)")
    rules = (
        "add table inet chaos_try\nadd chain inet chaos_try input\n"
        "add rule inet chaos_try input meta l4proto tcp numgen random mod 100 < 5 "
        "reject with tcp reset\ndelete table inet chaos_try\n"
    )
    done = subprocess.run(
        ["nft", "-f", "-"], input=rules, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise MissingError(f"nft: {done.stderr.strip().splitlines()[0]}")


def check_small_disks(directory: Path) -> None:
    """Whether a file can be mounted as a disk; call it inside the namespaces.

    Raises: MissingError.
    """
    if shutil.which("mkfs.ext4") is None:
        raise MissingError("the program 'mkfs.ext4' is needed (package e2fsprogs)")
    place, image = directory / "try", directory / "try.image"
    place.mkdir()
    try:
        make_small_disk(image, place, size=16 << 20)
        subprocess.run(["umount", place], check=True)
    finally:
        place.rmdir()
        image.unlink(missing_ok=True)


def make_small_disk(image: Path, place: Path, *, size: int) -> None:
    """A disk of that size, mounted at `place`.

    Raises: MissingError.
    """
    with image.open("wb") as file:
        file.truncate(size)
    for command in (["mkfs.ext4", "-q", "-F", image], ["mount", "-o", "loop", image, place]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MissingError(f"{command[0]}: {done.stderr.strip()}")
