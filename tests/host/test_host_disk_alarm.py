"""A disk that becomes full, and has room again, is said; at the edge not all the time."""

from raftq.host import disk_alarm
from raftq.host.disk_alarm import QUIET_MICROS, DiskAlarm
from raftq.ids import METADATA_GROUP


def test_both_are_said_once_and_seldom(monkeypatch):
    said = []

    class Log:
        def error(self, event, **keys):
            said.append((event, keys["node"]))

        warning = error

    monkeypatch.setattr(disk_alarm, "_log", Log())
    DiskAlarm(1, "n1").look(is_full=True, now=0)
    alarm = DiskAlarm(METADATA_GROUP, "n1")
    alarm.look(is_full=False, now=0)
    assert said == []
    for now in range(10):
        alarm.look(is_full=now % 2 == 0, now=now)
    assert said == [("disk full", "n1")]
    alarm.look(is_full=False, now=QUIET_MICROS)
    alarm.look(is_full=False, now=3 * QUIET_MICROS)
    assert said == [("disk full", "n1"), ("disk has room again", "n1")]
