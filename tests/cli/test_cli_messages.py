"""Goal: what goes in as arguments, files or lines comes out as messages, and the other way round."""

import dataclasses
import json

import cli_fakes
from cli_fakes import DESCRIPTION, make_messages


def sent(client):
    return [
        body
        for name, _, options in client.calls
        if name == "send_many"
        for body in options["bodies"]
    ]


def test_arguments_are_messages(client, objects):
    receipts = objects("send", "orders", "a", "ä", "-k", "key", "-H", "n=1=2")
    assert sent(client) == [b"a", "ä".encode()]
    options = client.calls[0][2]
    assert options["keys"] == [b"key", b"key"]
    assert options["headers"] == {"n": "1=2"}
    assert [receipt["offset"] for receipt in receipts] == [0, 1]
    assert receipts[0]["chain"] == "01" * 16


def test_a_file_is_one_message_or_its_lines(client, run, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"one\ntwo\r\n\nlast")
    assert run("send", "orders", "--file", path).exit_code == 0
    assert sent(client) == [b"one\ntwo\r\n\nlast"]
    client.calls.clear()
    assert run("send", "orders", "--file", path, "--lines").stderr == "sent 4 messages to orders\n"
    assert sent(client) == [b"one", b"two", b"", b"last"]


def test_lines_of_standard_input_are_messages(client, run, monkeypatch):
    monkeypatch.setattr("raftq.cli.messages.READ_BYTES", 3)
    result = run("send", "orders", input=b"one\ntwo\n\xff\n")
    assert (result.exit_code, result.stdout) == (0, "")
    assert sent(client) == [b"one", b"two", b"\xff"]


def test_contradictions_are_usage_errors(client, run, tmp_path):
    assert run("send", "orders", "a", "--file", tmp_path).exit_code == 2
    assert run("send", "orders", "--lines").exit_code == 2
    assert run("send", "orders", "--file", tmp_path / "nothing").exit_code == 1
    assert run("send", "orders", "a", "-H", "x").exit_code == 1
    assert client.calls == []


def test_a_file_that_cannot_be_read_is_named_with_what_to_do(client, run, tmp_path):
    path = tmp_path / "nothing"
    said = run("send", "orders", "--file", path).stderr
    assert said.startswith(f"InvalidArgument: cannot read {path} (No such file or directory); ")
    assert "give the message itself" in said


def test_what_cannot_be_printed_is_not_acknowledged(client, run, monkeypatch):
    def refuse(message, *, as_json):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("raftq.cli.messages._print_message", refuse)
    client.messages = make_messages([b"one", b"two"])
    result = run("receive", "orders", "-n", "2")
    assert result.exit_code == 1
    assert "cannot print (No space left on device); the last 2 messages" in result.stderr
    assert client.acked == []


def test_received_messages_are_printed_and_acknowledged(client, run):
    client.messages = make_messages([b"one", b"\xff", b"three"])
    result = run("receive", "orders", "-n", "2", "--wait", "0.5")
    assert result.exit_code == 0
    assert result.stdout_bytes == b"one\n\xff\n"
    assert [message.offset for message in client.acked] == [10, 11]
    assert client.calls[0][2] == {
        "max_messages": 2,
        "wait": 0.5,
        "subscription": "default",
        "visibility_timeout": None,
    }


def test_received_messages_as_json(client, objects):
    client.messages = make_messages([b"one", b"\xff"], keys=[b"k", None], headers=[{"a": 1}, None])
    first, second = objects("receive", "orders", "-n", "9", "--no-ack")
    assert first == {
        "queue": "orders",
        "partition": 0,
        "offset": 10,
        "timestamp": 2.0,
        "delivery_count": 1,
        "key": "k",
        "headers": {"a": 1},
        "body": "one",
    }
    assert (second["key"], second["body_base64"]) == (None, "/w==")
    assert client.acked == []


def test_an_empty_queue_says_so_to_people_only(client, run):
    result = run("receive", "orders")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "nothing is ready in orders\n"
    assert run("receive", "orders", "--json").stderr == ""


def test_tail_reads_all_partitions_unless_one_is_named(client, run, monkeypatch):
    rows = tuple(dataclasses.replace(DESCRIPTION.partitions[0], partition=n) for n in range(3))
    described = dataclasses.replace(DESCRIPTION, partitions=rows)
    monkeypatch.setattr(cli_fakes, "DESCRIPTION", described)
    client.messages = make_messages([b"one"])
    result = run("tail", "orders", "--no-follow", "--start", "earliest")
    assert result.exit_code == 0
    assert result.stdout == "one\n" * 3
    read = [options["partition"] for name, _, options in client.calls if name == "reader"]
    assert read == [0, 1, 2]
    assert run("tail", "orders", "-n", "2", "--start", "earliest").stdout == "one\n" * 2
    assert run("tail", "orders", "--start", "5").exit_code == 2


def test_tail_reads_without_taking(client, run):
    client.messages = make_messages([b"one", b"two", b"three"])
    result = run("tail", "orders", "--start", "10", "-p", "1", "--no-follow", "-n", "2", "--json")
    assert result.exit_code == 0
    assert [json.loads(line)["body"] for line in result.stdout.splitlines()] == ["one", "two"]
    assert client.calls == [("reader", ("orders",), {"partition": 1, "start": 10, "follow": False})]
    assert client.acked == []
