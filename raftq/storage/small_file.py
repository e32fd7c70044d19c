"""A small file that is there whole or not at all: identity of a node, of a replica.

    0      4   5        8               12              16            24
    +------+---+--------+---------------+---------------+-------------+-----------+
    |"rqsf"|ver| zeros  | payload_bytes | zeros         | checksum    | payload   |
    |      |u8 | 3 bytes| u32           | u32           | u64         |           |
    +------+---+--------+---------------+---------------+-------------+-----------+

checksum = xxh3_64(bytes 0..16 | payload). Saved by: write to a temporary name, sync, rename, sync
of the directory. Whatever happens in between, the old content or the new one is found.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final

from xxhash import xxh3_64_intdigest

from raftq.env import Disk
from raftq.errors import Corrupted
from raftq.limits import FORMAT_VERSION, MIB

TEMPORARY: Final = ".tmp"
"""What a name ends in while its file is not finished; such files are dropped at start."""

MAX_PAYLOAD_BYTES: Final = 16 * MIB
"""Guards against reading a wrong file into memory."""

_HEADER: Final = Struct("<4sB3xI4x")
_CHECKSUM: Final = Struct("<Q")
_MAGIC: Final = b"rqsf"


def directory_of(path: str) -> str:
    return path.rpartition("/")[0]


def encode(payload: bytes) -> bytes:
    head = _HEADER.pack(_MAGIC, FORMAT_VERSION, len(payload))
    return head + _CHECKSUM.pack(xxh3_64_intdigest(head + payload)) + payload


def decode(data: bytes, path: str) -> bytes:
    """The payload.

    Raises: Corrupted.
    """
    overhead = _HEADER.size + _CHECKSUM.size
    if len(data) < overhead:
        raise Corrupted(f"{path} has {len(data)} bytes, at least {overhead} are needed")
    magic, version, payload_bytes = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != FORMAT_VERSION:
        raise Corrupted(f"{path} begins with {magic!r} and version {version}")
    payload = data[overhead:]
    (checksum,) = _CHECKSUM.unpack_from(data, _HEADER.size)
    if len(payload) != payload_bytes or (
        xxh3_64_intdigest(data[: _HEADER.size] + payload) != checksum
    ):
        raise Corrupted(f"{path} fails its checksum; restore it, or replace this replica")
    return payload


def save(disk: Disk, path: str, payload: bytes) -> None:
    """Durable when it returns. Blocks: only for what changes rarely.

    Raises: OSError; the old content is then still there.
    """
    assert len(payload) <= MAX_PAYLOAD_BYTES
    directory, temporary = directory_of(path), path + TEMPORARY
    name = temporary.rpartition("/")[2]
    if name in disk.names(directory):
        disk.remove(temporary)
    file = disk.open(temporary, create=True)
    try:
        file.write(0, (encode(payload),))
        file.sync_now()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_directory(directory)


def save_later(
    disk: Disk, path: str, payload: bytes, done: Callable[[OSError | None], None]
) -> None:
    """The same without waiting for the disk, but for the name; `done` is called once, at last.

    Two of one path must not be on their way at once.
    """
    assert len(payload) <= MAX_PAYLOAD_BYTES
    directory, temporary = directory_of(path), path + TEMPORARY
    try:
        if temporary.rpartition("/")[2] in disk.names(directory):
            disk.remove(temporary)
        file = disk.open(temporary, create=True)
    except OSError as error:
        done(error)
        return

    def synced(error: OSError | None) -> None:
        file.close()
        if error is None:
            try:
                disk.rename(temporary, path)
                disk.sync_directory(directory)
            except OSError as problem:
                error = problem
        done(error)

    try:
        file.write(0, (encode(payload),))
    except OSError as error:
        file.close()
        done(error)
        return
    file.sync(synced)


def load(disk: Disk, path: str) -> bytes | None:
    """The payload last saved, or None if there is no such file.

    Raises: Corrupted, OSError.
    """
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        return decode(file.read(0, MAX_PAYLOAD_BYTES + 64), path)
    finally:
        file.close()
