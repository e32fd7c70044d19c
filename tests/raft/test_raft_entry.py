"""An entry's bytes and chain, against a naive reading of their description."""

from struct import pack, pack_into

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_128_digest as xxh

from raftq.errors import Corrupted
from raftq.ids import Index, Micros, Term
from raftq.raft.entry import (
    BODY_IS_DIGEST,
    COMMANDS,
    ENTRY_HEADER_BYTES,
    GENESIS,
    Command,
    build,
    commands,
    is_whole,
    parse,
    replaced,
    verify,
    without_bodies,
)

ITEMS = st.lists(
    st.builds(Command, st.binary(min_size=1, max_size=20), st.binary(max_size=40)), max_size=70
)


def naive(previous, index, term, kind, log_time, items):
    """The bytes of an entry, as the diagram says."""
    headers = b"".join(header for header, _ in items)
    bodies = b"".join(body for _, body in items)
    table = b"".join(pack("<II", len(header), len(body)) for header, body in items)
    fixed = pack("<BBBBQQqII", 1, kind, 1, 0, index, term, log_time, len(items), len(headers))
    digests = b"".join(xxh(header + xxh(body)) for header, body in items)
    chain = xxh(previous + xxh(fixed + digests))
    size = 4 + len(fixed) + 16 + len(table) + len(headers) + len(bodies)
    return pack("<I", size) + fixed + chain + table + headers + bodies


def make(items, previous=GENESIS):
    return build(
        previous_chain=previous,
        index=Index(7),
        term=Term(3),
        kind=COMMANDS,
        log_time=Micros(-5),
        commands=items,
    )


@settings(deadline=None, max_examples=150, derandomize=True)
@given(items=ITEMS, previous=st.binary(min_size=16, max_size=16))
def test_bytes_are_as_described(items, previous):
    entry = make(items, previous)
    whole = b"".join(entry.vectors)
    assert whole == naive(previous, 7, 3, COMMANDS, -5, items)
    assert len(whole) == entry.size
    assert commands(entry) == items
    assert verify(entry, previous)
    read = parse(memoryview(b"??" + whole + b"more"), 2)
    assert commands(read) == items
    assert verify(read, previous)
    assert read[:5] == entry[:5]
    assert not verify(read, bytes(15) + b"!")


@settings(deadline=None, max_examples=150, derandomize=True)
@given(items=ITEMS.filter(bool), position=st.integers(0), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found(items, position, bit):
    entry = make(items)
    whole = bytearray(b"".join(entry.vectors))
    position %= len(whole)
    if position == 7:
        # The flags speak of how an entry is kept, not of what it says.
        return
    whole[position] ^= 1 << bit
    try:
        read = parse(memoryview(whole))
    except Corrupted:
        return
    changed = read[:4] != entry[:4] or read.size != entry.size
    assert changed or not verify(read, GENESIS)
    assert not verify(read, GENESIS) or read[:4] == entry[:4]


def test_replaced_body_still_verifies():
    """A body may give way to its digest; the chain does not change."""
    one, two = b"body one " * 3, b"body two"
    entry = make([Command(b"\x01a", one), Command(b"\x02b", two)])
    whole = bytearray(b"".join(entry.vectors)[: -len(two)])
    del whole[-len(one) :]
    whole += xxh(one) + two
    pack_into("<II", whole, ENTRY_HEADER_BYTES, 2 | BODY_IS_DIGEST, 16)
    pack_into("<I", whole, 0, len(whole))
    assert not verify(parse(memoryview(whole)), GENESIS), "it must say that it is not whole"
    whole[7] = 1
    read = parse(memoryview(whole))
    assert verify(read, GENESIS)
    assert read.chain == entry.chain
    assert not is_whole(read)
    assert is_whole(entry)
    made = without_bodies(entry, lambda header: header == b"\x01a")
    assert b"".join(made.vectors) == bytes(whole)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(items=ITEMS, dead=st.sets(st.integers(0, 70)), dead_later=st.sets(st.integers(0, 70)))
def test_bodies_go_in_any_order_and_the_chain_stays(items, dead, dead_later):
    def dies(numbers):
        it = iter(range(len(items)))
        longer = [n for n, (_, body) in zip(it, items, strict=False) if len(body) > 16]
        return lambda _: longer.pop(0) in numbers if longer else False

    entry = make(items)
    once = without_bodies(entry, dies(dead))
    assert verify(once, GENESIS)
    kept = {n for n, (_, body) in enumerate(items) if len(body) > 16 and n in dead}
    assert is_whole(once) == (not kept)
    assert replaced(once) == [number in kept for number in range(len(items))]
    assert replaced(entry) == [False] * len(items)
    for number, (old, new) in enumerate(zip(commands(entry), commands(once), strict=True)):
        assert new.header == old.header
        assert bytes(new.body) == (xxh(old.body) if number in kept else bytes(old.body))
    again = without_bodies(once, lambda _: bool(dead_later))
    assert verify(again, GENESIS)
    assert again.chain == entry.chain
    assert parse(memoryview(b"".join(again.vectors)))[:5] == entry[:5]


@pytest.mark.parametrize("cut", [0, 3, ENTRY_HEADER_BYTES - 1, ENTRY_HEADER_BYTES + 3, -1])
def test_cut_short(cut):
    whole = b"".join(make([Command(b"\x01", b"body")]).vectors)
    with pytest.raises(Corrupted):
        parse(memoryview(whole[:cut]))


def test_golden_entry():
    """These bytes are on disks: they never change."""
    entry = make([Command(b"\x01head", b"body"), Command(b"\x02")])
    assert b"".join(entry.vectors).hex() == GOLDEN


GOLDEN = (
    "520000000101010007000000000000000300000000000000fbffffffffffffff02000000060000005a"
    "28c1355f590a5f116c32f7335a6ced05000000040000000100000000000000016865616402626f6479"
)
