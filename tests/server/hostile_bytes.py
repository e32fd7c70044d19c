"""What strangers send: named, for both ports."""

import random
import struct

from raftq.limits import MAX_FRAME_BYTES
from raftq.wire.frames import HEADER, FrameKind

HELLO, PEER_HELLO = FrameKind.HELLO, FrameKind.PEER_HELLO
PORTS = {"client": (70, HELLO), "peer": (7, PEER_HELLO)}


def frame(kind, body=b"", *, stream=1, version=1, flags=0, length=None):
    if length is None:
        length = len(body) + 8
    return HEADER.pack(length, version, kind, flags, stream) + body


def text(value):
    return struct.pack(">BH", 0x79, len(value)) + value.encode()


NOT_RAFTQ = {
    "http": b"GET / HTTP/1.1\r\nHost: queue\r\n\r\n",
    "tls": bytes.fromhex("16030100f8010000f40303") + bytes(240),
    "ssh": b"SSH-2.0-OpenSSH_9.2p1\r\n",
    "smb": b"\x00\x00\x00\x54\xffSMB" + bytes(80),
    "kafka": bytes.fromhex("00000021001200030000000100") + b"x" * 40,
    "amqp": b"AMQP\x00\x00\x09\x01",
    "zeros": bytes(4_096),
    "ones": b"\xff" * 4_096,
    **{f"random {seed}": random.Random(seed).randbytes(500) for seed in range(30)},
}

LENGTHS = [0, 1, 7, 4_093, 1 << 24, MAX_FRAME_BYTES, 1 << 31, (1 << 32) - 1]

CBOR_BOMBS = {
    "not a map": b"\x01",
    "empty": b"",
    "nested lists": b"\x81" * 3_000 + b"\x01",
    "nested maps": b"\xa1\x61\x61" * 1_000 + b"\x01",
    "a list of 2^63": b"\xa1\x61\x61\x9b\x7f" + b"\xff" * 7,
    "a map of 2^63": b"\xbb\x7f" + b"\xff" * 7,
    "a text of 2^63": b"\xa1\x61\x61\x7b\x7f" + b"\xff" * 7,
    "a text of 2^32 - 1": b"\xa1\x61\x61\x7a\xff\xff\xff\xff",
    "indefinite map": b"\xbf\x61\x61\x01\xff",
    "indefinite text": b"\xa1\x61\x61\x7f\x61\x61\xff",
    "a key twice": b"\xa2\x61\x61\x01\x61\x61\x02",
    "a bignum": b"\xa1\x61\x61\xc2\x59\x03\xe8" + b"\xff" * 1_000,
    "a regular expression": b"\xa1\x61\x61\xd8\x23\x69(a+)+$aaa",
    "a shared reference": b"\xa1\x61\x61\xd8\x1c\x81\xd8\x1d\x00",
    "not a number": b"\xa1\x61\x61\xfb\x7f\xf8" + bytes(6),
    "half a float": b"\xa1\x61\x61\xf9\x3c\x00",
    "not UTF-8": b"\xa1\x61\x61\x62\xff\xfe",
    "a surrogate": b"\xa1\x61\x61\x63\xed\xa0\x80",
    "bytes behind the end": b"\xa1\x61\x61\x01\x01",
    "a key that is no text": b"\xa1\x01\x01",
    "cut short": b"\xa3\x61\x61\x01",
    "other magic": b"\xa1" + text("magic") + b"\x45xxxxx",
    "no versions": b"\xa2" + text("magic") + b"\x45raftq" + text("versions") + b"\x80",
}


def strangers():
    """(port, name, bytes) for all that must be refused at once."""
    for port, (_, hello) in PORTS.items():
        for name, data in NOT_RAFTQ.items():
            yield port, name, data
        for length in LENGTHS:
            yield port, f"length {length}", frame(hello, length=length)
        for name, body in CBOR_BOMBS.items():
            yield port, name, frame(hello, body)
        yield port, "future version", frame(hello, b"x", version=2)
        yield port, "flags", frame(hello, b"x", flags=1)
        yield (
            port,
            "stream 0" if port == "client" else "unknown kind 0",
            frame(hello if port == "client" else 0, b"x", stream=0),
        )
        for kind in (6, 7, 33, 99, 255):
            yield port, f"unknown kind {kind}", frame(kind, b"x")
        yield port, "a request before the greeting", frame(FrameKind.CONTROL, b"\xa0")
        yield port, "the other port's greeting", frame(HELLO + PEER_HELLO - hello, b"\xa0")
