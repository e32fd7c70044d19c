"""Goal: addresses are read as people write them, and free ones are free."""

import asyncio

import pytest

from raftq.embedded.address import Address, format_address, free_addresses, parse_address
from raftq.env.entropy import RealEntropy
from raftq.env.network import RealNetwork
from raftq.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7400", Address("127.0.0.1", 7400)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:7400", Address("::1", 7400)),
    ],
)
def test_addresses_are_read_and_written(text, address):
    assert parse_address(text) == address
    assert format_address(address) == text


@pytest.mark.parametrize(
    "text", ["", "7400", "host", "host:", ":7400", "::1:7400", "h:65536", "h:-1"]
)
def test_others_are_refused(text):
    with pytest.raises(InvalidArgument, match="7400"):
        parse_address(text)


def test_free_addresses_can_be_listened_at():
    async def main():
        network = RealNetwork()
        found = await free_addresses(network, RealEntropy(), 3)
        assert len(set(found)) == 3
        listener = await network.listen(*found[0], asyncio.BufferedProtocol)
        listener.close()
        return found

    # Below where connections get their source ports from.
    assert all(20_000 <= address.port < 32_000 for address in asyncio.run(main()))
