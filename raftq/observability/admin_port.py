"""A node's admin port: a few pages over the smallest useful part of HTTP/1.1.

    GET /health/live    200 while the process answers
    GET /health/ready   200, or 503 with the reasons, as JSON
    GET /metrics        the Prometheus text format

Rules

1. One request a connection, GET or HEAD, no body. A head that is longer than `HEAD_BYTES_MAX`, comes
   slower than `HEAD_SECONDS`, or is one connection too many is refused and closed.
2. Pages are made when they are asked for; what they say is the business of whoever gives them.
3. This file opens no socket: it is a protocol for the network port.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, cast

HEAD_BYTES_MAX: Final = 8 * 1024
"""Scrapers and load balancers send a few hundred bytes; browsers some thousand."""

HEAD_SECONDS: Final = 5.0
CONNECTIONS_MAX: Final = 64
"""Whoever watches a node needs one connection; this many make no difference to it."""

_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
_JSON: Final = "application/json"
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Answer(NamedTuple):
    """What a page says."""

    status: int
    content_type: str
    body: bytes


Page = Callable[[], Answer]


class Request(NamedTuple):
    """The line that matters of a request's head."""

    method: str
    path: str


class BadRequest(Exception):
    """The head is not a request that this port answers; `status` says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def parse_head(received: bytes) -> Request | None:
    """The request, once its head is complete; None before that.

    Raises: BadRequest.
    """
    if b"\0" in received[:4]:
        # A raftq client, or TLS: told at once, it can say what is wrong.
        raise BadRequest(400, "a request begins with GET or HEAD; clients use the port of --listen")
    end = received.find(b"\r\n\r\n")
    if end < 0:
        if len(received) >= HEAD_BYTES_MAX:
            raise BadRequest(431, f"the head of a request may take {HEAD_BYTES_MAX} bytes")
        return None
    line = received[: received.index(b"\r\n")]
    parts = line.split(b" ")
    if not line.isascii() or len(parts) != 3 or parts[2] not in {b"HTTP/1.0", b"HTTP/1.1"}:
        raise BadRequest(400, "not an HTTP/1.1 request line")
    method, target, _ = (part.decode("ascii") for part in parts)
    if not target.startswith("/"):
        raise BadRequest(400, "the target of a request is a path")
    if method not in {"GET", "HEAD"}:
        raise BadRequest(405, f"{method} is not allowed, only GET and HEAD")
    return Request(method, target.partition("?")[0])


def encode_answer(answer: Answer, *, head_only: bool = False) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "Cache-Control: no-store",
        "Connection: close",
    ]
    if answer.status == 405:
        lines.append("Allow: GET, HEAD")
    head = "\r\n".join([*lines, "", ""]).encode("ascii")
    return head if head_only else head + answer.body


def json_answer(status: int, value: object) -> Answer:
    return Answer(status, _JSON, json.dumps(value).encode() + b"\n")


def health_pages(reasons: Callable[[], Sequence[str]]) -> dict[str, Page]:
    """Liveness, and readiness: ready while there is no reason against it."""

    def ready() -> Answer:
        found = list(reasons())
        return json_answer(503 if found else 200, {"ready": not found, "reasons": found})

    return {
        "/health/live": lambda: json_answer(200, {"live": True}),
        "/health/ready": ready,
    }


class AdminPort:
    """Counts the connections; give it to a network as a factory of protocols."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self.pages = dict(pages)
        self.connections: dict[int, AdminConnection] = {}

    def __call__(self) -> "AdminConnection":
        return AdminConnection(self)

    def close(self) -> None:
        """Break what is open; the listener is closed by whoever has it."""
        for connection in list(self.connections.values()):
            connection.abort()

    def answer(self, request: Request) -> Answer:
        page = self.pages.get(request.path)
        if page is None:
            return json_answer(404, {"error": "no such page", "pages": sorted(self.pages)})
        return page()


class AdminConnection(asyncio.BufferedProtocol):
    """One connection: one request, one answer."""

    def __init__(self, port: AdminPort) -> None:
        self._port = port
        self._buffer = bytearray(HEAD_BYTES_MAX)
        self._filled = 0
        self._answered = False
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if len(self._port.connections) >= CONNECTIONS_MAX:
            self._refuse(503, f"more than {CONNECTIONS_MAX} connections")
            return
        self._port.connections[id(self)] = self
        late = (408, "the head of the request did not come in time")
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(HEAD_SECONDS, self._refuse, *late)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature.
        # What follows the one request is read into the void: a port that stops reading would
        # reset the connection, and the answer with it.
        start = 0 if self._answered else self._filled
        return memoryview(self._buffer)[start:]

    def buffer_updated(self, nbytes: int) -> None:
        if self._answered:
            return
        self._filled += nbytes
        try:
            request = parse_head(bytes(self._buffer[: self._filled]))
        except BadRequest as error:
            self._refuse(error.status, str(error))
            return
        if request is not None:
            self._send(self._port.answer(request), head_only=request.method == "HEAD")

    def _refuse(self, status: int, message: str) -> None:
        self._send(json_answer(status, {"error": message}), head_only=False)

    def _send(self, answer: Answer, *, head_only: bool) -> None:
        if self._answered or self._transport is None:
            return
        self._answered = True
        self._transport.write(encode_answer(answer, head_only=head_only))
        self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature.
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._port.connections.pop(id(self), None)
