"""Options are refused when unknown, out of range or not there yet, and never silently ignored."""

import pytest

from raftq.errors import InvalidArgument, InvalidQueueName
from raftq.queue.config import QueueConfig, check_queue_name, check_subscription_name

GIVEN = {
    "partitions": 4,
    "visibility_timeout": 7.5,
    "max_handling_time": 600,
    "audit_retention": 86_400,
    "delivery_limit": None,
    "max_message_bytes": 2**20,
    "max_messages": 1_000,
    "max_bytes": 10**9,
    "dedicated": True,
    "protected": True,
    "labels": {"team": "ä", "empty": ""},
}


def test_people_write_seconds_and_none():
    config = QueueConfig.from_user(GIVEN)
    assert config.visibility_timeout_us == 7_500_000
    assert config.max_handling_time_us == 600_000_000
    assert config.audit_retention_us == 86_400_000_000
    assert config.delivery_limit == 0
    assert config.labels == {"team": "ä", "empty": ""}


def test_the_map_holds_what_differs_and_reads_back():
    config = QueueConfig.from_user(GIVEN)
    assert QueueConfig.from_map(config.to_map()) == config
    assert QueueConfig().to_map() == {}
    assert QueueConfig.from_user({"visibility_timeout": 1}).to_map() == {
        "visibility_timeout_us": 1_000_000
    }


@pytest.mark.parametrize(
    "wish",
    [
        {"ordering": "key"},
        {"ordering": "timestamp"},
        {"priorities": 3},
        {"message_ttl": 60},
        {"delay": 1},
        {"dedup_window": 60},
        {"reorder_window": 1.5},
        {"overflow": "drop_oldest"},
        {"dead_letter_queue": "graveyard"},
        {"compression": "zstd"},
        {"encrypted": True},
        {"backoff": 2.0},
        {"colocate_with": "other"},
        {"min_partitions": 1},
        {"max_partitions": 8},
    ],
)
def test_what_comes_later_is_refused_by_name(wish):
    (name,) = wish
    with pytest.raises(InvalidArgument, match=f"{name}=.* not available in this version"):
        QueueConfig.from_user(wish)


def test_the_only_value_there_is_may_be_said():
    said = {
        "ordering": "arrival",
        "priorities": 1,
        "message_ttl": None,
        "delay": 0,
        "overflow": "reject",
        "dead_letter_queue": None,
        "retain": "until_settled",
        "compression": None,
        "encrypted": False,
        "backoff": None,
        "labels": None,
    }
    assert QueueConfig.from_user(said) == QueueConfig()


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"colour": "red"}, "no option 'colour'"),
        ({"partitions": 0}, "partitions is 1 to 1024"),
        ({"partitions": 1_025}, "partitions is 1 to 1024"),
        ({"partitions": None}, "partitions is a whole number"),
        ({"partitions": 2.5}, "partitions is a whole number"),
        ({"partitions": True}, "partitions is a whole number"),
        ({"visibility_timeout": 0}, "visibility_timeout is 0.001 to 86400 seconds, not 0$"),
        ({"visibility_timeout": -1.5}, "is 0.001 to 86400 seconds, not -1.5$"),
        ({"visibility_timeout": 86_401}, "is 0.001 to 86400 seconds, not 86401$"),
        ({"visibility_timeout": "30"}, "visibility_timeout is a number of seconds"),
        ({"visibility_timeout": float("nan")}, "is 0.001 to 86400 seconds, not nan$"),
        ({"visibility_timeout": float("inf")}, "is 0.001 to 86400 seconds, not inf$"),
        ({"visibility_timeout": 10**9_999}, "is 0.001 to 86400 seconds, not a number of more"),
        ({"audit_retention": -1}, "audit_retention is 0 to 315360000 seconds, not -1$"),
        ({"audit_retention": 10**9}, "audit_retention is 0 to 315360000 seconds"),
        ({"retain": "for ever"}, "retain is one of until_settled, log, not 'for ever'$"),
        ({"retain": ["log"]}, "retain is one of until_settled, log"),
        ({"retain_seconds": 10**9}, "retain_seconds is 0 to 315360000 seconds"),
        ({"retain_bytes": -1}, "retain_bytes is 1 to"),
        ({"retain_bytes": 3, "partitions": 4}, "retain_bytes is split over the partitions"),
        ({"retain": "until_settled", "retain_seconds": 5}, "retain_seconds and retain_bytes bound"),
        ({"retain": "until_settled", "retain_bytes": 5}, "retain_seconds and retain_bytes bound"),
        ({"max_messages": 10**9_999}, "max_messages is a number of more than 64 bits"),
        ({"delivery_limit": 1_001}, "delivery_limit is 1 to 1000, or 0 for none"),
        ({"delivery_limit": -1}, "delivery_limit is 1 to 1000"),
        ({"max_messages": -1}, "max_messages is 1 to"),
        ({"max_messages": 2**63}, "max_messages is 1 to"),
        ({"max_messages": 3, "partitions": 4}, "max_messages is split over the partitions"),
        ({"max_bytes": 3, "partitions": 4}, "max_bytes is split over the partitions"),
        ({"max_message_bytes": 2**30}, "max_message_bytes is 1 to"),
        ({"protected": 1}, "protected is true or false"),
        ({"labels": {"a": 1}}, "label"),
        ({"labels": ["a"]}, "labels is a map"),
        ({"labels": {str(n): "" for n in range(65)}}, "labels is a map of at most 64"),
    ],
)
def test_a_wrong_option_is_refused_by_name_and_range(wish, words):
    with pytest.raises(InvalidArgument, match=words):
        QueueConfig.from_user(wish)


@pytest.mark.parametrize(
    ("wish", "meant"),
    [
        ({"retain": "log"}, ("log", 0, 0)),
        ({"retain_seconds": 1.5}, ("log", 1_500_000, 0)),
        ({"retain_bytes": 9}, ("log", 0, 9)),
        ({"retain": "log", "retain_seconds": 0, "retain_bytes": None}, ("log", 0, 0)),
        ({"retain": None, "retain_seconds": None}, ("until_settled", 0, 0)),
    ],
)
def test_a_bound_of_what_is_kept_makes_a_log(wish, meant):
    config = QueueConfig.from_user(wish)
    assert (config.retain, config.retain_seconds_us, config.retain_bytes) == meant
    assert config.is_log == (meant[0] == "log")
    assert QueueConfig.from_map(config.to_map()) == config


def test_a_queue_becomes_a_log_and_a_log_a_queue():
    queue = QueueConfig.from_user({"partitions": 2})
    log = queue.updated({"retain_seconds": 60})
    assert (log.retain, log.retain_seconds_us) == ("log", 60_000_000)
    both = log.updated({"retain_bytes": 7})
    assert [both.retained_bytes_share(number) for number in (0, 1)] == [4, 3]
    for_ever = both.updated({"retain_seconds": None, "retain_bytes": 0})
    assert (for_ever.retain, for_ever.retain_seconds_us, for_ever.retain_bytes) == ("log", 0, 0)
    assert both.updated({"retain": "until_settled"}) == queue
    assert both.updated({"retain": "log"}) == both
    with pytest.raises(InvalidArgument):
        both.updated({"retain": "until_settled", "retain_bytes": 7})


@pytest.mark.parametrize(
    "encoded",
    [
        {"retain_seconds_us": 5},
        {"retain": "queue"},
        {"retain_bytes": 5},
        {"visibility_timeout": 5},
        {"partitions": "4"},
        {"name": "x"},
        {"ordering": "key"},
    ],
)
def test_a_map_of_strangers_is_checked_as_well(encoded):
    with pytest.raises(InvalidArgument):
        QueueConfig.from_map(encoded)


@pytest.mark.parametrize("name", ["orders", "a", "A.b_c-9", "-", "_x", "x" * 80])
def test_names_of_queues_and_subscriptions(name):
    assert name == check_queue_name(name) == check_subscription_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".hidden",
        "__audit",
        "a b",
        "ä",
        "a/b",
        "a\n",
        "x" * 81,
        "a\x00",
        None,
        5,
        b"a",
        "\N{FULLWIDTH DIGIT ONE}",
    ],
)
def test_what_is_no_name_is_refused(name):
    with pytest.raises(InvalidQueueName):
        check_queue_name(name)
    with pytest.raises(InvalidArgument):
        check_subscription_name(name)
