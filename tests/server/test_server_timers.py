"""A node that has closed leaves nothing behind that would wake up later."""

from server_world import World

from raftq.server.reconcile import Reconciler
from raftq.wire import cbor, requests
from raftq.wire.frames import FrameKind


def timers_left(world):
    """What is still to be called of a node, by name; there is one node in this world."""
    callbacks = [handle._callback for _, _, handle in world.loop._timers if not handle._cancelled]
    return sorted(
        callback.__qualname__
        for callback in callbacks
        if callback.__module__.startswith(("raftq.server", "raftq.host"))
    )


def test_no_timer_outlives_its_node(monkeypatch):
    with World("n1") as world:
        client = world.connect("n1")
        queue = client.create("q", partitions=1)
        group = queue["partitions"][0]["group"]
        client.publish(queue, [b"a", b"b", b"c"])
        sessions = [client.open_session(group) for _ in range(3)]
        client.receive(sessions[0], queue)
        gone = world.connect("n1")
        gone.open_session(group)
        client.ask_receive(sessions[1], queue, wait_us=60_000_000)
        client.ask_receive(sessions[2], queue, wait_us=60_000_000, notify_only=True)
        read = requests.Read(queue["id"], 0, 3, 1_000, 60_000_000)
        client.ask(FrameKind.READ, *requests.encode_read(read))
        # A queue that no group takes over, a handshake that does not come, a socket that is lost.
        monkeypatch.setattr(Reconciler, "_reconcile_group", lambda self, machine, group: None)
        create = {"do": "create_queue", "name": "other", "config": {}}
        client.ask(FrameKind.CONTROL, cbor.encode(create))
        world.connect("n1", greet=False)
        gone.transport.abort()
        world.run(0.2)
        expected = {
            "Admin._wait.<locals>.give_up",
            "ClientConnection._look_at_rest",
            "Host._on_timer",
            "Receiving._give_up",
            "Reconciler._look",
            "Releases.later.<locals>.due",
            "Replay._wait.<locals>.give_up",
        }
        assert expected <= set(timers_left(world)), "the story does not cover all timers"
        node = world.nodes["n1"]
        world.machines["n1"].process.call(node.close)
        world.run(0.1)
        assert timers_left(world) == []
