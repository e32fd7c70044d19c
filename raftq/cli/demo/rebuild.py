"""The demo's consumers: each a client of its own, together building every file anew.

A message is noted by partition and offset. It may come twice: a consumer that did not settle it in
time gives it to another, which `delivery_count` says. What comes again as if for the first time is
a duplicate, and a fault.
"""

import hashlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from raftq.cli.demo.input import LINE_HEADER, Manifest, decode_manifest
from raftq.cli.demo.record import Record, digest
from raftq.client.client import AsyncClient
from raftq.client.message import Message
from raftq.errors import StaleReceipt

RECEIVE_MESSAGES: Final = 1_000
"""A portion is handled within some 10 ms, so that nobody else on this loop waits for long."""

WAIT_SECONDS: Final = 1.0


@dataclass(slots=True)
class RebuiltFile:
    """Lines and their offsets, by the number of the line."""

    lines: list[bytes | None] = field(default_factory=list)
    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    manifest: Manifest | None = None

    def put(self, number: int, line: bytes, offset: int) -> None:
        missing = number - len(self.lines)
        if missing > 0:
            self.lines.extend([None] * missing)
            self.offsets.extend([-1] * missing)
        self.lines[number - 1] = line
        self.offsets[number - 1] = offset

    def is_identical(self, original: Manifest) -> bool:
        """To the original file, by the manifest that the producer kept and the one that arrived."""
        if self.manifest != original or len(self.lines) != original.lines:
            return False
        whole = hashlib.sha256()
        for line in self.lines:
            if line is None:
                return False
            whole.update(line)
        return whole.hexdigest() == original.sha256

    def out_of_order(self) -> int:
        """Lines that stand in the log before the line they follow in the file."""
        offsets = self.offsets
        return sum(1 for before, after in pairwise(offsets) if -1 < after <= before)


class Rebuild:
    """What all consumers have received."""

    def __init__(self) -> None:
        self.record = Record()
        self.files: dict[bytes, RebuiltFile] = {}
        self.duplicated = 0
        self.redelivered = 0
        self.stale = 0

    def take(self, messages: list[Message]) -> None:
        """Note messages that were received."""
        note = self.record.note
        files = self.files
        for message in messages:
            body, offset = message.body, message.offset
            if not note(message.partition, offset, digest(body)):
                if message.delivery_count == 1:
                    self.duplicated += 1
                else:
                    self.redelivered += 1
            name = message.key or b""
            file = files.get(name)
            if file is None:
                file = files[name] = RebuiltFile()
            number: Any = message.headers.get(LINE_HEADER)
            if number is None:
                file.manifest = decode_manifest(body)
            else:
                file.put(number, body, offset)

    def identical(self, originals: Mapping[bytes, Manifest]) -> int:
        """How many files are identical to the originals."""
        return sum(
            1
            for name, original in originals.items()
            if name in self.files and self.files[name].is_identical(original)
        )

    def out_of_order(self) -> int:
        return sum(file.out_of_order() for file in self.files.values())


async def consume(client: AsyncClient, queue: str, rebuild: Rebuild) -> None:
    """Receive, note and acknowledge until cancelled."""
    while True:
        messages = await client.receive(queue, max_messages=RECEIVE_MESSAGES, wait=WAIT_SECONDS)
        if not messages:
            continue
        rebuild.take(messages)
        try:
            await client.ack(messages)
        except StaleReceipt as error:
            # Somebody else gets these again; that they come with a higher count is checked above.
            rebuild.stale += len(error.failed)
