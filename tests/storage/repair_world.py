"""A damaged log with batches in it, and a peer that has everything."""

from storage_world import World, publish
from test_storage_safety import units_of

from raftq.batch import encode
from raftq.errors import Corrupted
from raftq.storage.group_log import Condition, Sizes
from raftq.storage.patch import Patch
from raftq.storage.unit import UNIT_HEADER_BYTES

SMALL = Sizes(2_048, 4_096, 0)


def batch(offset: int) -> bytes:
    return encode([b"body of %d " % offset * 12], queue=5, partition=3)


def make(seed: int = 2, *, keep_indexes: bool = False, **options) -> World:
    """Several sealed segments with a batch in each entry; offsets are indexes less one."""
    world = World(seed, sizes=SMALL, **options)
    world.create()
    for number in range(9):
        world.writer.commit = max(0, 2 * number - 2)
        first = world.writer.last_index
        commands = [[publish(5, 3, offset, batch(offset), 1)] for offset in range(first, first + 2)]
        world.log.write(world.writer.write(commands))
        world.time.run()
    world.idle()
    world.kill()
    if not keep_indexes:
        for path in [path for path in world.disk.paths() if path.endswith(".index")]:
            world.disk.lose_file(path)
    return world


def piece(world: World, first: int, last: int) -> Patch:
    """What a whole peer would give."""
    entries = world.writer.entries[first - 1 : last]
    return Patch(world.writer.chain_at(first - 1), tuple(entries))


def heal(world: World, *, size: int = 100) -> int:
    """Fill all holes from behind, in pieces; the number of patches."""
    written = 0
    while world.log.holes:
        hole = world.log.holes[-1]
        first = max(hole.first, hole.last - size + 1)
        heard = []
        world.log.patches.write(piece(world, first, hole.last), heard.append)
        world.time.run()
        assert heard == [True]
        written += 1
    return written


def served(world: World) -> int:
    """What entries and batches give is what was written; the number of entries refused."""
    log, refused = world.log, 0
    for entry in world.writer.entries:
        try:
            (found,) = log.entries(entry.index, entry.index + 1, 1)
            assert b"".join(map(bytes, found.vectors)) == b"".join(map(bytes, entry.vectors))
        except Corrupted:
            refused += 1
    for offset in range(len(world.writer.entries)):
        try:
            (stored,) = log.batches(5, 3, offset, offset + 1, 1)
            assert (stored.base_offset, bytes(stored.data)) == (offset, batch(offset))
            assert stored.index == offset + 1
        except Corrupted:
            assert log.holes
    return refused


def check_healed(world: World) -> None:
    assert world.log.condition is Condition.OK
    assert served(world) == 0
    assert world.log.offsets(5, 3) == (0, len(world.writer.entries))
    everything = world.log.batches(5, 3, 0, 100, 1 << 20)
    assert [each.base_offset for each in everything] == list(range(len(world.writer.entries)))
    for index in range(1, world.writer.last_index + 1):
        assert world.log.chain(index) == world.writer.chain_at(index)
        assert world.log.term(index) == 1


def flip_header(world, path, unit):
    world.disk.flip_bit(path, unit.position + 60)


def flip_body(world, path, unit):
    world.disk.flip_bit(path, unit.position + UNIT_HEADER_BYTES + unit.body_bytes // 2)


def zero_tail(world, path, unit):
    world.disk.zero(path, unit.position, len(world.disk.contents(path)))


def stale_sector(world, path, unit):
    sector = (unit.position + UNIT_HEADER_BYTES) // 512
    world.disk.lose_sector(path, sector, keep_bytes=max(0, unit.position - sector * 512))


def truncate(world, path, unit):
    world.disk.truncate(path, unit.position + 20)


def empty(world, path, unit):
    world.disk.truncate(path, 0)


def flip_segment_header(world, path, unit):
    world.disk.flip_bit(path, 30)


def lose(world, path, unit):
    world.disk.lose_file(path)


CLASSES = (
    flip_header,
    flip_body,
    zero_tail,
    stale_sector,
    truncate,
    empty,
    flip_segment_header,
    lose,
)


def open_with_hole(**options) -> World:
    world = make(**options)
    path = world.segments()[1]
    zero_unit = units_of(world, path)[3]
    world.disk.zero(path, zero_unit.position, zero_unit.end)
    world.open()
    assert len(world.log.holes) == 1
    return world
