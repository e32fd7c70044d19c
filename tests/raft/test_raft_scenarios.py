"""Scenario files: a story of a group as commands and what they change, to be read by people.

A file is a list of blocks: command lines, a line of four dashes, what came of it, an empty line.
After a block every replica that changed is shown; `messages` shows what is on the way. Commands:

    group 3 [learner 4]       replicas 1..3              advance 50ms      time and messages
    wait 50ms                 time alone
    elect 1                   1 campaigns until it leads  deliver [KIND]    messages, no time
    propose 1 TEXT            sync 1 [COUNT]              disk 1 slow|fast
    cut 1 | heal              isolate; undo all cuts      drop KIND | drop nothing
    crash 1 [KEPT] | restart 1                            link lost|up 2 1  2's link to 1
    read 1 NAME | transfer 1 2 | compact 1                messages | log

Rewrite the outputs with RAFTQ_REWRITE_SCENARIOS=1. Only commit the changes if you understand what
caused them and if they are wanted.
"""

import os
from pathlib import Path

import pytest
from raft_harness import Cluster

from raftq.ids import ReplicaId
from raftq.raft.entry import commands
from raftq.raft.messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    SnapshotChunk,
    SnapshotReply,
    VoteReply,
    VoteRequest,
)

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


def describe(message):
    """One line."""
    head = f"{message.sender}->{message.to} {type(message).__name__} term {message.term}"
    match message:
        case VoteRequest():
            kind = "pre " if message.pre else ""
            return f"{head} {kind}log ends {message.last_index}@{message.last_term}"
        case VoteReply():
            kind = "pre " if message.pre else ""
            return f"{head} {kind}{'granted' if message.granted else 'refused'}"
        case Append():
            indexes = ",".join(f"{entry.index}@{entry.term}" for entry in message.entries)
            place = f"after {message.prev_index}@{message.prev_term}"
            return f"{head} {place} [{indexes}] commit {message.commit_index}"
        case AppendReply() if message.success:
            return f"{head} match {message.match_index}"
        case AppendReply():
            hint = f"{message.hint_index}@{message.hint_term}"
            return f"{head} refused {message.refused_index}, perhaps {hint}"
        case Heartbeat():
            return f"{head} round {message.round} commit {message.commit_index}"
        case HeartbeatReply():
            return f"{head} round {message.round} log ends {message.last_index}"
        case SnapshotChunk():
            done = " done" if message.done else ""
            return f"{head} snapshot {message.index}@{message.snapshot_term} from {message.position}{done}"
        case SnapshotReply():
            what = "installed" if message.installed else f"has {message.received}"
            return f"{head} snapshot {message.index} {what}"
    return head


class Story:
    """One scenario while it runs."""

    def __init__(self):
        self.cluster = None
        self.shown = {}

    def run(self, line):
        """Give what the command itself prints."""
        name, *arguments = line.split()
        return getattr(self, "do_" + name)(*arguments) or []

    def changes(self):
        lines = []
        for replica, node in self.cluster.nodes.items():
            core = node.core
            state = "dead"
            if node.alive:
                state = (
                    f"{core.role.value} term {core.term} leader {core.leader or '-'} "
                    f"log {core.last_index} durable {core.durable_index} "
                    f"commit {core.commit_index}"
                )
            if self.shown.get(replica) != state:
                self.shown[replica] = state
                lines.append(f"{replica}: {state}")
        return lines

    def do_group(self, size, *learner):
        self.cluster = Cluster(int(size), learners=[int(i) for i in learner[1:]])

    def do_elect(self, replica):
        self.cluster.elect(int(replica))
        self.cluster.deliver()

    def do_propose(self, replica, text):
        index = self.cluster.propose(int(replica), text.encode())
        return [f"index {index}"]

    def do_advance(self, time):
        self.cluster.advance(int(time.removesuffix("ms")) * 1_000)

    def do_wait(self, time):
        self.cluster.advance(int(time.removesuffix("ms")) * 1_000, deliver=False)

    def do_deliver(self, *kinds):
        self.cluster.deliver(only=lambda m: not kinds or type(m).__name__ in kinds)

    def do_sync(self, replica, *count):
        self.cluster.sync(int(replica), *(int(c) for c in count))

    def do_disk(self, replica, speed):
        self.cluster[int(replica)].auto_sync = speed == "fast"

    def do_cut(self, replica):
        self.cluster.isolate(int(replica))

    def do_heal(self):
        self.cluster.heal()

    def do_drop(self, kind):
        self.cluster.drop = lambda m: type(m).__name__ == kind

    def do_lose(self):
        self.cluster.wire.clear()

    def do_crash(self, replica, kept="0"):
        self.cluster.crash(int(replica), int(kept))

    def do_restart(self, replica):
        self.cluster.restart(int(replica))

    def do_link(self, event, one, other):
        getattr(self.cluster.core(int(one)), "link_" + event)(ReplicaId(int(other)))
        self.cluster.pump(self.cluster[int(one)])

    def do_read(self, replica, name):
        self.cluster.core(int(replica)).read_index(name)
        self.cluster.pump(self.cluster[int(replica)])

    def do_reads(self, replica):
        return [f"{name} at {i}" for name, i in self.cluster[int(replica)].reads.items()]

    def do_transfer(self, replica, to):
        self.cluster.core(int(replica)).transfer_leadership(ReplicaId(int(to)))
        self.cluster.pump(self.cluster[int(replica)])

    def do_compact(self, replica):
        self.cluster.compact(int(replica))

    def do_messages(self):
        return [describe(message) for message in self.cluster.wire]

    def do_log(self):
        lines = []
        for replica, node in self.cluster.nodes.items():
            disk = node.log.cache
            entries = " ".join(
                f"{entry.index}@{entry.term}"
                + "".join(":" + bytes(c.body).decode() for c in commands(entry) if entry.kind == 1)
                for entry in disk.entries_held
            )
            snapshot = f"snapshot {disk.snapshot.index} " if disk.snapshot.index else ""
            lines.append(f"{replica}: {snapshot}{entries}".rstrip())
        return lines


def play(text):
    """The same file with what really comes of its commands."""
    story = Story()
    blocks = []
    for block in text.strip().split("\n\n"):
        lines = block.split("\n")
        if all(line.startswith("#") for line in lines):
            blocks.append(block)
            continue
        asked = lines[: lines.index("----")]
        output = []
        for line in asked:
            if not line.startswith("#"):
                output += story.run(line)
        blocks.append("\n".join([*asked, "----", *output, *story.changes()]))
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path):
    written = path.read_text()
    found = play(written)
    if os.environ.get("RAFTQ_REWRITE_SCENARIOS"):
        path.write_text(found)
    else:
        assert found == written


def test_there_are_scenarios():
    assert len(FILES) >= 8
