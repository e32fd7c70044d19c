"""Stories about a queue, as text: a command, `----`, what it answered, and an empty line.

Run with RAFTQ_REWRITE_SCENARIOS=1 to write the answers anew; look at every line that changes and keep
it only if you understand why it changed and want it so. Verbs are the methods of `Story`; arguments are
words or name=value; times are seconds.
"""

import os
from pathlib import Path

import pytest
from queue_world import DEFAULT, NOON, SECOND, Client, World

from raftq.errors import RaftqError
from raftq.machine import Bound, DuplicateOf
from raftq.queue import commands
from raftq.queue.command_reader import decode

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


def shown(ranges):
    return " ".join(
        f"{start}-{stop - 1}" if stop - start > 1 else f"{start}" for start, stop in ranges
    )


def seconds(time):
    return f"{time / SECOND:g}s"


class Story:
    """What the verbs of a scenario do; each gives the lines of its answer."""

    def __init__(self):
        self.world = None
        self.clients = {}
        self.deliveries = {}
        self.sequences = {}

    def run(self, line):
        verb, *words = line.split()
        named = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        answer = getattr(self, verb.replace("-", "_"))(*plain, **named)
        effects = [self.effect(effect) for effect in self.world.effects]
        self.world.effects = ()
        return "\n".join([*answer, *(f"  > {effect}" for effect in effects)])

    @staticmethod
    def effect(effect):
        ranges = getattr(effect, "ranges", ())
        rest = [str(value) for value in effect[1:] if not isinstance(value, tuple)]
        return " ".join([type(effect).__name__, *rest, shown(ranges)]).strip()

    @staticmethod
    def error(error):
        return [f"{type(error).__name__} ({error.outcome}): {error}"]

    def queue(self, **options):
        """Options of a queue; numbers are numbers."""
        values = {
            name: float(v) if "." in v else int(v) if v.isdigit() else v
            for name, v in options.items()
        }
        self.world = World(partitions=values.pop("partitions", 1), **values)
        return ["ok"]

    def client(self, *names):
        for name in names:
            self.clients[name] = Client(self.world)
            self.clients[name].wanted = 0
        return ["ok"]

    def publish(self, count="1", *, producer=None, sequence=None, epoch=0, partition=0, size=10):
        options = {"partition": int(partition), "size": int(size)}
        if producer is not None:
            number = sum(producer.encode())
            first = self.sequences.get(producer, 0) if sequence is None else int(sequence)
            options |= {"producer": number, "sequence": first, "epoch": int(epoch)}
            self.sequences[producer] = first + int(count)
        reply = self.world.publish(int(count), **options)
        if isinstance(reply, DuplicateOf):
            return [f"duplicate of index {reply.index}: offset {reply.reply.base_offset}"]
        if isinstance(reply, RaftqError):
            return self.error(reply)
        return [f"offset {shown([(reply.base_offset, reply.base_offset + reply.count)])}"]

    def open_producer(self, name, *, opener=1, epoch=0, partition=0):
        header = commands.encode_open_producer(
            1, int(partition), sum(name.encode()), epoch=int(epoch), opener=int(opener)
        )
        reply = self.world.apply(header)
        result = "opened" if reply.opened else "told"
        return [f"{result}: epoch {reply.epoch}, last sequence {reply.last_sequence}"]

    def receive(
        self, name, messages="10", *, subscription=DEFAULT, visibility=0, size=10**6, number=None
    ):
        found = self.clients[name].receive(
            int(messages),
            subscription=subscription,
            visibility_us=round(float(visibility) * SECOND),
            max_bytes=int(size),
            number=None if number is None else int(number),
        )
        return self.error(found) if isinstance(found, RaftqError) else self.handed_out(found)

    def handed_out(self, deliveries):
        lines = []
        for delivery in deliveries:
            name = f"d{delivery.delivery}"
            self.deliveries[name] = delivery
            ranges = ", ".join(
                f"{shown([found[:2]])} (x{found.delivery_count})" for found in delivery.ranges
            )
            until = seconds(delivery.deadline - NOON)
            lines.append(f"{name}: partition {delivery.partition}: {ranges} until {until}")
        return lines or ["nothing"]

    def settle(self, verb, name, delivery, *offsets, **options):
        ranges = [(int(offset), int(offset) + 1) for offset in offsets]
        reply = getattr(self.clients[name], verb)(self.deliveries[delivery], *ranges, **options)
        if isinstance(reply, RaftqError):
            return self.error(reply)
        return ["ok" if not reply.stale else f"stale: {shown(row[3:] for row in reply.stale)}"]

    def ack(self, *words):
        return self.settle("ack", *words)

    def nack(self, *words, delay=0, reason="", count="yes", reject="no"):
        options = {"delay_us": round(float(delay) * SECOND), "reason": reason.replace("_", " ")}
        return self.settle("nack", *words, **options, count=count == "yes", reject=reject == "yes")

    def extend(self, *words, visibility):
        return self.settle("extend", *words, visibility_us=round(float(visibility) * SECOND))

    def attach(self, name, seen="d0"):
        reply = self.clients[name].attach(int(seen[1:]))
        return self.error(reply) if isinstance(reply, RaftqError) else self.handed_out(reply.held)

    def release(self, name, *, goodbye="no", attachment=None):
        reply = self.clients[name].release(
            goodbye=goodbye == "yes", attachment=None if attachment is None else int(attachment)
        )
        return [f"{reply.messages} messages given back"]

    def wait(self, duration):
        self.world.tick(float(duration))
        return [f"now {seconds(self.world.now - NOON)}"]

    def leader_changes(self, *, gap):
        self.world.change_leader(round(float(gap) * SECOND))
        return [f"now {seconds(self.world.now - NOON)}"]

    def subscribe(self, name, start="earliest"):
        reply = self.world.subscribe(name, int(start) if start.isdigit() else start)
        return self.error(reply) if isinstance(reply, RaftqError) else [f"from {reply.start}"]

    def unsubscribe(self, name):
        reply = self.world.operate(commands.encode_unsubscribe, subscription=name)
        return self.error(reply) if isinstance(reply, RaftqError) else ["ok"]

    def keep(self, **options):
        self.world.update(**{name: int(v) if v.isdigit() else v for name, v in options.items()})
        return ["ok"]

    def expire(self, below):
        reply = self.world.expire((0, int(below)))
        return [f"{reply.messages} messages discarded"]

    def release_history(self, below, *, through=None):
        through = None if through is None else int(through)
        header = self.world.machine.release_command(
            self.world.index if through is None else through,
            bytes(16),
            (Bound(1, 0, int(below)),),
        )
        reply = self.world.apply(header)
        if isinstance(reply, RaftqError):
            return self.error(reply)
        (found,) = decode(header).ranges
        said = ", ".join(
            f"{row.messages} {row.outcome} ({row.subscription})" for row in found.outcomes
        )
        return [f"{reply.messages} messages through index {reply.through}: {said or 'nothing'}"]

    def settled(self, *ranges):
        """Whether nobody needs the bodies of first-last."""
        lines = []
        for text in ranges:
            first, last = map(int, text.split("-"))
            lines.append(f"{text}: {'yes' if self.world.is_settled(first, last + 1) else 'no'}")
        return lines

    def purge(self, *, dead="no", subscription=DEFAULT):
        options = {"dead": dead == "yes", "subscription": subscription}
        return [f"{self.world.operate(commands.encode_purge, **options).count} messages discarded"]

    def redrive(self, *, reason="", dry_run="no", limit=0, subscription=DEFAULT):
        options = {"reason": reason, "dry_run": dry_run == "yes", "limit": int(limit)}
        reply = self.world.operate(commands.encode_redrive, subscription=subscription, **options)
        if isinstance(reply, RaftqError):
            return self.error(reply)
        return [f"{reply.count} messages: {shown(reply.ranges)}"]

    def dead_letters(self):
        lines = []
        for letter in self.world.dead():
            story = ", ".join(
                f"d{attempt.delivery} {attempt.outcome}"
                + f" {attempt.error!r}" * bool(attempt.error)
                for attempt in letter.history
            )
            lines.append(f"{letter.offset}: {letter.reason} {letter.error!r} [{story}]")
        return lines or ["none"]

    def state(self):
        lines = []
        for queue, number, _ in self.world.machine.partitions():
            partition = self.world.machine.describe(queue, number)
            lines.append(
                f"partition {number}: next {partition.next_offset}, first {partition.first_offset}, "
                + f"released {partition.released}, " * bool(partition.released)
                + f"{partition.messages} messages of {partition.message_bytes} bytes"
            )
            for found in partition.subscriptions:
                counts = ", ".join(
                    f"{getattr(found, name)} {name.replace('_', ' ')}"
                    for name in ("ready", "delayed", "in_flight", "settled", "dead", "discarded")
                    if getattr(found, name)
                )
                lines.append(f"  {found.name}: {counts or 'nothing'}")
        due = self.world.machine.next_deadline()
        return [*lines, f"next deadline {'none' if due is None else seconds(due - NOON)}"]


def played(text):
    """The scenario with the answers that the machine gives now."""
    story, written = Story(), []
    for block in text.strip().split("\n\n"):
        command = block.partition("\n----")[0]
        lines = [line for line in command.splitlines() if not line.startswith("#")]
        if not lines:
            written.append(command)
            continue
        answers = [story.run(line) for line in lines]
        written.append("\n".join([command, "----", *answers]))
    return "\n\n".join(written) + "\n"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_story_goes_as_it_is_told(path):
    text = path.read_text()
    now = played(text)
    if os.environ.get("RAFTQ_REWRITE_SCENARIOS"):
        path.write_text(now)
    else:
        assert now == text


def test_there_are_stories():
    assert len(SCENARIOS) >= 8
