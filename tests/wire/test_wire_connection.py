"""Both ends of a connection against each other: who may say what when, and which reply fits."""

import pytest

from raftq.errors import ProtocolError
from raftq.limits import MAX_STREAMS
from raftq.wire import connection
from raftq.wire.connection import ClientConnection, ServerConnection
from raftq.wire.frames import FrameKind, encode_frame

K = FrameKind


def give(end, data, step=None):
    """Feed bytes to one end; what it heard as (kind, stream, body)."""
    heard = []
    position = 0
    while position < len(data):
        buffer = end.reader.get_buffer(-1)
        count = min(len(buffer), step or len(buffer), len(data) - position)
        buffer[:count] = data[position : position + count]
        position += count
        heard += [(kind, stream, bytes(body)) for kind, _, stream, body in end.received(count)]
    return heard


def join(vectors):
    return b"".join(vectors)


def pair():
    """A client and a server that have greeted each other."""
    client, server = ClientConnection(), ServerConnection()
    stream, hello = client.request(K.HELLO, b"hello")
    assert give(server, join(hello)) == [(K.HELLO, stream, b"hello")]
    server.welcomed()
    assert give(client, join(server.reply(K.WELCOME, stream, b"welcome")))
    client.welcomed()
    return client, server


def raw(kind, stream=1, body=b""):
    return join(encode_frame(kind, stream, body))


@pytest.mark.parametrize("step", [1, 7, None])
def test_requests_and_replies_in_any_order(step):
    client, server = pair()
    first, one = client.request(K.PUBLISH, b"batch")
    second, two = client.request(K.RECEIVE, b"take")
    third, three = client.request(K.CONTROL, b"map")
    assert give(server, join(one + two + three), step) == [
        (K.PUBLISH, first, b"batch"),
        (K.RECEIVE, second, b"take"),
        (K.CONTROL, third, b"map"),
    ]
    answers = [
        *server.reply(K.ERROR, third, b"no"),
        *server.reply(K.READY, second),
        *server.reply(K.PUBLISHED, first, b"yes"),
    ]
    assert give(client, join(answers), step) == [
        (K.ERROR, third, b"no"),
        (K.READY, second, b""),
        (K.PUBLISHED, first, b"yes"),
    ]
    assert not client.streams
    assert not server.streams


def test_every_pair_of_state_and_kind_in_the_server():
    """The table is the program: what is in it is heard, all else closes the connection."""
    for state, hears in connection.SERVER_HEARS.items():
        for kind in range(256):
            server = ServerConnection()
            server.state = state
            if kind in hears:
                assert give(server, raw(kind))
            else:
                with pytest.raises(ProtocolError):
                    give(server, raw(kind))
                assert server.state == connection.CLOSED


def test_every_reply_kind_for_every_request():
    for request, replies in connection.REPLIES.items():
        for kind in set(range(256)) - {K.PING, K.PONG}:
            client = ClientConnection()
            if request != K.HELLO:
                client.welcomed()
            stream, _ = client.request(request)
            if kind in replies:
                assert give(client, raw(kind, stream)) == [(kind, stream, b"")]
            else:
                with pytest.raises(ProtocolError):
                    give(client, raw(kind, stream))
                assert client.state == connection.CLOSED


def test_answers_to_nobody():
    client, server = pair()
    with pytest.raises(ProtocolError):
        give(client, raw(K.PUBLISHED, 77))
    client, server = pair()
    stream, request = client.request(K.PUBLISH)
    give(server, join(request))
    answer = join(server.reply(K.PUBLISHED, stream))
    give(client, answer)
    with pytest.raises(ProtocolError):
        give(client, answer)


def test_the_servers_last_word_belongs_to_no_stream():
    client, _ = pair()
    assert give(client, raw(K.ERROR, 0, b"bye")) == [(K.ERROR, 0, b"bye")]


def test_streams_may_not_be_used_twice_at_once():
    _, server = pair()
    give(server, raw(K.PUBLISH, 5))
    with pytest.raises(ProtocolError, match="in use"):
        give(server, raw(K.CONTROL, 5))


def test_too_many_requests_in_flight():
    client, server = pair()
    vectors = []
    for _ in range(MAX_STREAMS):
        assert not client.is_full
        vectors += client.request(K.PUBLISH)[1]
    assert client.is_full
    give(server, join(vectors))
    with pytest.raises(ProtocolError, match="in flight"):
        give(server, raw(K.PUBLISH, 1_000_000))


def test_stream_numbers_wrap_around_those_in_use():
    client, _ = pair()
    taken, _ = client.request(K.RECEIVE)
    client._last = 0xFFFF_FFFE
    assert client.request(K.PUBLISH)[0] == 0xFFFF_FFFF
    assert client.request(K.PUBLISH)[0] == 1
    client._last = taken - 1
    assert client.request(K.PUBLISH)[0] == taken + 1


def test_cancel_is_for_waiting_requests():
    client, server = pair()
    waiting, request = client.request(K.RECEIVE)
    publish, other = client.request(K.PUBLISH)
    assert client.cancel(publish) == []
    heard = give(server, join(request + other + client.cancel(waiting)))
    assert heard[-1] == (K.CANCEL, waiting, b"")
    give(client, join(server.reply(K.DELIVERED, waiting)))
    assert client.cancel(waiting) == []


def test_pings_have_no_body():
    client, server = pair()
    assert give(server, connection.PING) == [(K.PING, 0, b"")]
    assert give(client, connection.PONG) == [(K.PONG, 0, b"")]
    for end in (client, server):
        with pytest.raises(ProtocolError, match="body"):
            give(end, raw(K.PING, 0, b"x"))


def test_small_frames_only_before_the_handshake():
    server = ServerConnection()
    with pytest.raises(ProtocolError):
        give(server, raw(K.HELLO, 1, bytes(5_000)))
    client, server = pair()
    _, vectors = client.request(K.PUBLISH, bytes(1 << 20))
    assert len(give(server, join(vectors))[0][2]) == 1 << 20


def test_requests_before_the_welcome():
    server = ServerConnection()
    with pytest.raises(ProtocolError, match="greeting"):
        give(server, raw(K.HELLO, 1) + raw(K.PUBLISH, 2))
