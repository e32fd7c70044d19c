"""Goal: `raftq queue`, `dead` and `cluster` ask what they were told to, and show what they got."""

import copy
import json

import cli_fakes
import pytest
from cli_fakes import STATUS

from raftq.cli import connect
from raftq.errors import Timeout


def test_create_passes_only_what_was_given(client, objects):
    (made,) = objects("queue", "create", "orders", "-p", 2, "--label", "a=b", "--label", "c=")
    assert client.calls == [
        ("create_queue", ("orders",), {"partitions": 2, "labels": {"a": "b", "c": ""}})
    ]
    assert made == {
        "name": "orders",
        "id": 3,
        "partitions": 2,
        "state": "active",
        "config": {"partitions": 2},
    }


def test_create_knows_every_option(client, run):
    result = run(
        *("queue", "create", "orders", "--visibility-timeout", "1.5", "--delivery-limit", "0"),
        *("--max-messages", 10, "--max-bytes", 20, "--max-message-bytes", 5),
        *("--retain", "log", "--retain-seconds", 5, "--retain-bytes", 7),
        *("--audit-retention", 60, "--protected"),
    )
    assert result.exit_code == 0
    assert client.calls[0][2] == {
        "visibility_timeout": 1.5,
        "delivery_limit": 0,
        "max_messages": 10,
        "max_bytes": 20,
        "max_message_bytes": 5,
        "retain": "log",
        "retain_seconds": 5.0,
        "retain_bytes": 7,
        "audit_retention": 60.0,
        "protected": True,
    }
    assert result.stdout == "created orders: 2 partitions, active\n"


def test_update_wants_something_to_change(client, run):
    assert run("queue", "update", "orders").exit_code == 2
    assert client.calls == []
    assert run("queue", "update", "orders", "--unprotected").exit_code == 0
    assert client.calls == [("update_queue", ("orders",), {"protected": False})]


def test_list_is_sorted_and_one_a_line(client, objects, run):
    assert [queue["name"] for queue in objects("queue", "list")] == ["a", "orders"]
    assert run("queue", "list").stdout.splitlines()[1].split() == ["a", "1", "creating", "4"]


def test_describe(client, objects, run):
    (found,) = objects("queue", "describe", "orders", "-s", "billing")
    assert client.calls == [("describe_queue", ("orders",), {"subscription": "billing"})]
    assert (found["depth"], found["ready"], found["settled"]) == (3, 3, 1)
    assert found["partitions"][0]["leader"] == "n2"
    assert "3 to do for 'default'" in run("queue", "describe", "orders").stdout


def test_delete_and_purge(client, objects):
    assert objects("queue", "delete", "orders", "--force") == [{"name": "orders", "deleted": True}]
    assert objects("queue", "purge", "orders") == [{"name": "orders", "purged": 12}]
    assert client.calls[0] == ("delete_queue", ("orders",), {"force": True})


def test_dead_letters(client, objects, run):
    (listed,) = objects("dead", "list", "orders")
    assert (listed["reason"], listed["key"]) == ("delivery_limit", "key")
    assert "body_base64" not in listed
    (peeked,) = objects("dead", "peek", "orders")
    assert (peeked["body_base64"], peeked["headers"], peeked["history"]) == (
        "/w==",
        {"a": 1},
        [
            {
                "delivery": 40,
                "session": 9,
                "handed_out_at": 1_700_000_000.0,
                "ended_at": 1_700_000_030.5,
                "outcome": "expired",
                "error": "",
            },
            {
                "delivery": 41,
                "session": 9,
                "handed_out_at": 1_700_000_031.0,
                "ended_at": 1_700_000_032.0,
                "outcome": "nacked",
                "error": "boom",
            },
        ],
    )
    shown = run("dead", "peek", "orders").stdout.splitlines()
    assert "died_at: 2023-11-14T22:13:52.000Z" in shown
    at = shown.index("history:")
    handed = "2023-11-14T22:13:20.000Z handed out, 2023-11-14T22:13:50.500Z expired"
    assert shown[at + 1] == f"  {handed} (delivery 40, session 9)"
    handed = "2023-11-14T22:13:51.000Z handed out, 2023-11-14T22:13:52.000Z nacked: boom"
    assert shown[at + 2] == f"  {handed} (delivery 41, session 9)"
    assert objects("dead", "list", "orders", "--reason", "other") == []
    assert "1 by delivery_limit" in run("dead", "list", "orders").stdout


def test_redrive_and_purge_of_dead_letters(client, objects):
    assert objects("dead", "redrive", "orders", "--reason", "x", "--dry-run") == [
        {
            "name": "orders",
            "subscription": "default",
            "redriven": 2,
            "by_reason": {"delivery_limit": 2},
            "dry_run": True,
        }
    ]
    assert objects("dead", "purge", "orders")[0]["purged"] == 4
    assert client.calls[0][2] == {"subscription": "default", "reason": "x", "dry_run": True}


def test_status(client, objects, run):
    assert objects("cluster", "status")[0]["groups"][0]["leader"] == "n1"
    assert "n2:2" in run("cluster", "status").stdout


def test_an_option_that_no_cluster_takes_is_not_offered(run):
    assert run("queue", "create", "orders", "--dedicated").exit_code == 2
    assert run("dead", "purge", "orders", "--reason", "x").exit_code == 2


class Failing:
    """A client that can do nothing."""

    def __init__(self, error):
        self.error = error

    async def __aenter__(self):
        raise self.error

    async def __aexit__(self, *_):
        raise AssertionError("it was never entered")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Timeout("no answer within 10 s"), True),
        (Timeout("no answer within 10 s", outcome="not_applied"), False),
    ],
)
def test_an_error_says_whether_it_may_have_been_done(monkeypatch, run, error, said):
    monkeypatch.setattr(connect, "open_client", lambda servers: Failing(error))
    shown = run("queue", "purge", "orders")
    assert shown.exit_code == 1
    assert shown.stderr.startswith("Timeout: no answer within 10 s")
    assert ("it may have been done" in shown.stderr) is said
    told = run("queue", "purge", "orders", "--json")
    assert (told.exit_code, told.stdout) == (1, "")
    assert json.loads(told.stderr) == {
        "error": "Timeout",
        "message": "no answer within 10 s",
        "outcome": error.outcome,
        "retriable": True,
    }


def test_status_says_who_asks_for_a_place_and_what_still_changes(client, run, monkeypatch):
    found = copy.deepcopy(STATUS)
    found["nodes"][0]["replacement"] = True
    found["changing"] = [
        {"group": 4, "node": "n1", "joining": 9, "created": False, "leaving": [2]},
        {"group": 5, "node": "n1", "joining": 10, "created": True, "leaving": [3]},
    ]
    monkeypatch.setattr(cli_fakes, "STATUS", found)
    lines = run("cluster", "status").stdout.splitlines()
    assert any("raftq cluster replace n1" in line for line in lines)
    assert "group 4: a new replica on n1 is being made" in lines
    assert "group 5: a new replica on n1 catches up, then votes" in lines


def test_replace(client, objects, run):
    assert objects("cluster", "replace", "n3") == [{"node": "n3", "groups": [0, 4]}]
    assert "being replaced, in 2 groups" in run("cluster", "replace", "n3").stdout
    assert client.calls[0][:2] == ("replace_node", ("n3",))


@pytest.mark.parametrize(
    "arguments",
    [
        ("queue", "describe", "missing"),
        ("queue", "delete", "missing"),
        ("send", "missing", "body"),
        ("receive", "missing"),
        ("dead", "peek", "missing"),
    ],
)
def test_an_error_is_one_line_on_stderr(client, run, arguments):
    result = run(*arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == "QueueNotFound: no queue is called 'missing'; create it first\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("nothing",),
        ("queue", "create"),
        ("queue", "create", "orders", "--partitions", "0"),
        ("queue", "create", "orders", "--unknown"),
        ("cluster", "nothing"),
    ],
)
def test_what_is_not_understood_ends_with_2(client, run, arguments):
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert client.calls == []


def test_a_label_needs_a_name(client, run):
    result = run("queue", "create", "orders", "--label", "=x")
    assert result.exit_code == 1
    assert result.stderr.startswith("InvalidArgument: --label")


def test_the_url_comes_from_option_or_environment(client, run):
    run("queue", "list")
    assert client.servers.url == "raftq://127.0.0.1:7400"
    run("queue", "list", env={"RAFTQ_URL": "raftq://other:1"})
    assert client.servers.url == "raftq://other:1"
    run("queue", "list", "--url", "raftq://third:1", "--timeout", "2")
    assert client.servers == ("raftq://third:1", 2.0)
