"""Goal: the admin port answers what it should, refuses the rest, and costs strangers nothing.

Method: the parser on bytes; the connection over a transport that only remembers.
"""

import asyncio
import json

import pytest

from raftq.observability import admin_port
from raftq.observability.admin_port import AdminPort, Answer, BadRequest, Request


class RememberingTransport:
    def __init__(self):
        self.written = b""
        self.is_closed = False

    def write(self, data):
        self.written += data

    def close(self):
        self.is_closed = True

    def abort(self):
        self.is_closed = True


def feed(connection, data):
    while data:
        buffer = connection.get_buffer(-1)
        count = min(len(buffer), len(data), 100)
        assert count
        buffer[:count] = data[:count]
        connection.buffer_updated(count)
        data = data[count:]


async def exchange(port, data):
    connection, transport = port(), RememberingTransport()
    connection.connection_made(transport)
    feed(connection, data)
    connection.connection_lost(None)
    return transport


def answer_to(data, pages=None):
    port = AdminPort(pages or {"/page": lambda: Answer(200, "text/plain", b"hello")})
    transport = asyncio.run(exchange(port, data))
    assert not port.connections
    head, _, body = transport.written.partition(b"\r\n\r\n")
    assert transport.is_closed
    return int(head.split()[1]), head, body


@pytest.mark.parametrize(
    ("head", "request_line"),
    [
        (b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n", Request("GET", "/health/live")),
        (b"HEAD /metrics?name=a HTTP/1.0\r\n\r\n", Request("HEAD", "/metrics")),
    ],
)
def test_a_head_is_parsed_once_it_is_complete(head, request_line):
    assert admin_port.parse_head(head[:-1]) is None
    assert admin_port.parse_head(head) == request_line


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"\r\n\r\n", 400),
        (b"GET / HTTP/2\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\n\r\n", 400),
        (b"GET http://x/ HTTP/1.1\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n\r\n", 405),
        (b"x" * admin_port.HEAD_BYTES_MAX, 431),
    ],
)
def test_what_is_no_request_is_refused(head, status):
    with pytest.raises(BadRequest) as caught:
        admin_port.parse_head(head)
    assert caught.value.status == status


def test_a_page_is_served_and_the_connection_closed():
    status, head, body = answer_to(b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (status, body) == (200, b"hello")
    assert b"Content-Length: 5" in head


def test_head_gives_no_body():
    status, head, body = answer_to(b"HEAD /page HTTP/1.1\r\n\r\n")
    assert (status, body) == (200, b"")
    assert b"Content-Length: 5" in head


def test_an_unknown_page_names_the_known_ones():
    status, _, body = answer_to(b"GET /nothing HTTP/1.1\r\n\r\n")
    assert status == 404
    assert json.loads(body)["pages"] == ["/page"]


def test_a_head_that_fills_the_buffer_is_refused():
    status, _, _ = answer_to(b"GET /page HTTP/1.1\r\n" + b"x" * admin_port.HEAD_BYTES_MAX)
    assert status == 431


def test_bytes_behind_the_request_are_dropped():
    status, _, body = answer_to(b"GET /page HTTP/1.1\r\n\r\n" + b"x" * 20_000)
    assert (status, body) == (200, b"hello")


def test_a_slow_head_is_refused(monkeypatch):
    monkeypatch.setattr(admin_port, "HEAD_SECONDS", 0.0)

    async def main():
        connection, transport = AdminPort({})(), RememberingTransport()
        connection.connection_made(transport)
        while not transport.is_closed:  # noqa: ASYNC110 - one pass of the loop at a time.
            await asyncio.sleep(0)
        return transport.written

    assert b" 408 " in asyncio.run(main())


def test_one_connection_too_many_is_refused(monkeypatch):
    monkeypatch.setattr(admin_port, "CONNECTIONS_MAX", 1)

    async def main():
        port = AdminPort({})
        first, second = RememberingTransport(), RememberingTransport()
        connections = [port(), port()]
        for connection, transport in zip(connections, (first, second), strict=True):
            connection.connection_made(transport)
        assert not first.is_closed
        assert b" 503 " in second.written
        for connection in connections:
            connection.connection_lost(None)
        assert not port.connections

    asyncio.run(main())


def test_ready_tells_its_reasons():
    reasons = []
    pages = admin_port.health_pages(lambda: reasons)
    assert pages["/health/ready"]().status == 200
    reasons.append("no leader")
    answer = pages["/health/ready"]()
    assert answer.status == 503
    assert json.loads(answer.body) == {"ready": False, "reasons": ["no leader"]}
    assert pages["/health/live"]().status == 200


def test_what_is_not_http_is_refused_before_a_head_could_end():
    with pytest.raises(BadRequest, match="begins with GET or HEAD"):
        admin_port.parse_head(b"\x1f\x00\x00\x00\x01")
