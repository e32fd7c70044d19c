"""Log time that does not go as time does is noticed."""

import pytest
from host_world import SECOND, World

from raftq.host import log_time_alarm
from raftq.host.log_time_alarm import QUIET_MICROS, LogTimeAlarm
from raftq.limits import LOG_TIME_ALARM_MICROS as LIMIT

EPOCH = 1_700_000_000 * SECOND


@pytest.fixture
def said(monkeypatch):
    lines = []

    class Log:
        def warning(self, event, **keys):
            lines.append(keys)

    monkeypatch.setattr(log_time_alarm, "_log", Log())
    return lines


def entry(alarm, now, *, off=0, wall_off=0):
    """An entry at `now` with log time `off` beside the true time, on a leader whose wall is off."""
    alarm.entry(EPOCH + now + off, now=now, wall=EPOCH + now + wall_off)


def test_time_that_goes_as_time_does_is_no_alarm(said):
    alarm = LogTimeAlarm(1)
    for now, off in ((0, 0), (1, LIMIT), (3_600 * SECOND, 0), (7_200 * SECOND, -LIMIT)):
        entry(alarm, now, off=off)
    assert (alarm.count, said) == (0, [])


def test_a_jump_between_entries_is_an_alarm_even_if_the_wall_goes_along(said):
    alarm = LogTimeAlarm(1)
    entry(alarm, 0)
    entry(alarm, SECOND, off=LIMIT + 1, wall_off=LIMIT + 1)
    assert alarm.count == 1
    assert said == [{"group": 1, "jump_us": LIMIT + 1, "behind_own_clock_us": 0, "entries": 1}]
    entry(alarm, 2 * SECOND, off=LIMIT + 1, wall_off=LIMIT + 1)
    assert alarm.count == 1


def test_a_new_leadership_knows_no_jump_but_its_own_wall(said):
    alarm = LogTimeAlarm(1)
    entry(alarm, 0)
    alarm.leadership_begins()
    entry(alarm, SECOND, off=2 * LIMIT, wall_off=2 * LIMIT)
    assert alarm.count == 0
    alarm.leadership_begins()
    entry(alarm, 2 * SECOND, wall_off=LIMIT + 1)
    assert alarm.count == 1


def test_what_stays_wrong_is_counted_each_time_and_said_now_and_then(said):
    alarm = LogTimeAlarm(1)
    for number in range(100):
        entry(alarm, number * SECOND, wall_off=LIMIT + 1)
    assert alarm.count == 100
    assert [line["entries"] for line in said] == [1, QUIET_MICROS // SECOND + 1]


def test_the_wall_of_a_leader_that_is_set_forward_is_noticed(said):
    with World() as world:
        world.start()
        leader = world.led()
        alarm = world.group(leader).log_time_alarm

        def acked(header):
            heard = world.propose(leader, header)
            world.until(lambda: heard)

        acked(b"a")
        world.run(15)
        acked(b"b")
        assert (alarm.count, said) == (0, [])
        world.machines[leader].clock.jump_wall(3_600 * SECOND)
        acked(b"c")
        assert alarm.count == 1
        assert said[0]["group"] == 1
        assert said[0]["behind_own_clock_us"] > 3_500 * SECOND
        assert world.leaders() == [leader]
