"""What repeats is said seldom, counted, and costs bounded memory."""

from raftq.observability.repeats import KEYS_MAX, QUIET_MICROS, Repeats


def test_the_first_is_said_and_then_one_a_minute_with_how_many_were_not():
    repeats = Repeats()
    key = ("n2", "wiped")
    assert repeats.due(key, now=5) == 0
    assert [repeats.due(key, now=6 + n) for n in range(40)] == [None] * 40
    assert repeats.due(("n3", "wiped"), now=50) == 0
    assert repeats.due(key, now=5 + QUIET_MICROS) == 40
    assert repeats.due(key, now=6 + QUIET_MICROS) is None
    assert repeats.due(key, now=9 * QUIET_MICROS) == 1


def test_a_burst_is_said():
    repeats = Repeats(burst=3)
    assert [repeats.due(("a", "b"), now=n) for n in range(5)] == [0, 0, 0, None, None]
    assert repeats.due(("a", "b"), now=QUIET_MICROS) == 2


def test_strangers_do_not_fill_the_memory():
    repeats = Repeats()
    said = [repeats.due((str(n), ""), now=0) for n in range(3 * KEYS_MAX)]
    assert said.count(0) == KEYS_MAX + 1
    assert len(repeats._said) == KEYS_MAX + 1
    assert repeats.due(("new", ""), now=QUIET_MICROS) == 0
    assert len(repeats._said) == 1
