"""A seeded run over all commands: what tests replay, cut into prefixes, and feed to other processes.

As a program it reads a pickled log from the path it is given and prints the machine's digest after
every command, one in hexadecimal a line.
"""

import pickle
import sys
from pathlib import Path
from random import Random

from queue_world import QUEUE, SECOND, Client, World, replay

from raftq.queue import commands
from raftq.queue.machine import QueueMachine

PARTITIONS = 3
SUBSCRIPTIONS = ("default", "default", "billing", "billing", "audit")


class RandomRun:
    """A world and what its clients believe to hold; `step` does one thing."""

    def __init__(self, seed):
        self.random = Random(seed)
        self.world = World(
            partitions=PARTITIONS, delivery_limit=2, visibility_timeout=20, max_messages=200
        )
        self.clients = [Client(self.world) for _ in range(3)]
        self.held = []
        for partition in range(PARTITIONS):
            self.world.operate(
                commands.encode_subscribe, partition=partition, subscription="billing"
            )
        self.sequences = {}

    def step(self):
        actions = {
            self.publish: 20,
            self.receive: 20,
            self.ack: 20,
            self.nack: 20,
            self.extend: 4,
            self.pass_time: 6,
            self.reconnect: 4,
            self.subscribe: 2,
            self.operate: 4,
            self.open_producer: 2,
            self.replace_partition: 1,
            self.retain: 3,
        }
        (action,) = self.random.choices(list(actions), weights=list(actions.values()))
        action()

    def where(self):
        return {
            "partition": self.random.randrange(PARTITIONS),
            "subscription": self.random.choice(SUBSCRIPTIONS),
        }

    def publish(self):
        partition, producer = self.random.randrange(PARTITIONS), self.random.randrange(4)
        epoch, sequence = self.sequences.get((partition, producer), (0, 0))
        sequence = max(0, sequence - self.random.choice([0, 0, 0, 1]))
        count = self.random.randrange(1, 9)
        reply = self.world.publish(
            count,
            partition=partition,
            producer=producer,
            epoch=epoch if producer else 0,
            sequence=sequence if producer else 0,
            size=self.random.randrange(30),
        )
        if getattr(reply, "base_offset", None) is not None:
            self.sequences[partition, producer] = (epoch, sequence + count)

    def receive(self):
        client = self.random.choice(self.clients)
        found = client.receive(
            self.random.randrange(1, 12),
            subscription=self.random.choice(SUBSCRIPTIONS),
            max_bytes=self.random.choice([1, 50, 10_000, 10_000]),
            visibility_us=self.random.choice([0, 0, SECOND]),
        )
        if isinstance(found, list):
            self.held = [*self.held[-15:], *((client, delivery) for delivery in found)]

    def chosen(self):
        """A client, one of the deliveries it may hold, and some of its messages."""
        if not self.held:
            return None
        at = self.random.randrange(len(self.held))
        client, delivery = self.held[at]
        if self.random.random() < 0.5:
            del self.held[at]
            return client, delivery, ()
        low, high = delivery.ranges[0].start, delivery.ranges[-1].stop
        start = self.random.randrange(low, high)
        return client, delivery, ((start, self.random.randrange(start + 1, high + 2)),)

    def ack(self):
        if chosen := self.chosen():
            client, delivery, ranges = chosen
            client.ack(delivery, *ranges)

    def nack(self):
        if chosen := self.chosen():
            client, delivery, ranges = chosen
            client.nack(
                delivery,
                *ranges,
                delay_us=self.random.choice([0, 0, 5 * SECOND]),
                reason=self.random.choice(["", "no route"]),
                count=self.random.random() < 0.8,
                reject=self.random.random() < 0.2,
            )

    def extend(self):
        if chosen := self.chosen():
            client, delivery, ranges = chosen
            client.extend(
                delivery, *ranges, visibility_us=self.random.choice([SECOND, 30 * SECOND])
            )

    def pass_time(self):
        if self.random.random() < 0.2:
            self.world.change_leader(self.random.randrange(8) * SECOND)
        self.world.tick(self.random.choice([0, 0, 1, 1, 1, 3, 3, 7, 7, 25, 4_000]))

    def reconnect(self):
        at = self.random.randrange(len(self.clients))
        client = self.clients[at]
        ending = self.random.randrange(4)
        if ending < 2:
            client.attach(self.random.randrange(50))
        elif ending == 2:
            client.release(attachment=self.random.choice([client.attachment, 0]))
        else:
            client.release(goodbye=True)
            self.clients[at] = Client(self.world)
        if not self.world.machine.session_exists(client.session):
            self.clients[at] = Client(self.world)

    def subscribe(self):
        self.world.operate(
            commands.encode_subscribe,
            **self.where(),
            start=self.random.choice(["earliest", "latest", 3]),
        )

    def operate(self):
        where = self.where()
        number = self.random.randrange(8)
        if number == 0:
            self.world.operate(commands.encode_purge, **where)
        elif number == 1:
            self.world.operate(commands.encode_purge, **where, dead=True)
        elif number == 2:
            self.world.operate(commands.encode_unsubscribe, **where)
        else:
            options = self.random.choice([{}, {"reason": "rejected"}, {"ranges": [(2, 9)]}])
            self.world.operate(commands.encode_redrive, **where, **options)

    def retain(self):
        """Releases, expiries and changes of what is kept, some of them refused."""
        partition, number = self.random.randrange(PARTITIONS), self.random.randrange(6)
        stats = self.world.partition(partition=partition)
        if number == 0:
            self.world.update(retain=self.random.choice(["log", "until_settled", "log"]))
        elif number < 3:
            ahead = self.random.choice([1, 5, 50])
            self.world.expire((partition, stats.first_offset + ahead))
        else:
            others = [
                self.world.partition(partition=other).needed_from for other in range(PARTITIONS)
            ]
            others[partition] = self.random.randrange(stats.next_offset + 1)
            self.world.release(
                *enumerate(others), through=self.world.index - self.random.randrange(-2, 5)
            )

    def open_producer(self):
        partition, producer = self.random.randrange(PARTITIONS), self.random.randrange(1, 4)
        known, _ = self.sequences.get((partition, producer), (0, 0))
        opening = commands.encode_open_producer(
            QUEUE,
            partition,
            producer,
            epoch=known - self.random.randrange(2) if known else 0,
            opener=self.random.randrange(1, 4),
        )
        reply = self.world.apply(opening)
        self.sequences[partition, producer] = (reply.epoch, reply.last_sequence + 1)

    def replace_partition(self):
        self.world.publish(3, queue=QUEUE)
        self.world.apply(commands.encode_drop(QUEUE + 1, 0, force=self.random.random() < 0.5))
        self.world.partitions = 1
        self.world.configure(queue=QUEUE + 1, delivery_limit=2)
        self.world.partitions = PARTITIONS


def random_log(seed, steps):
    run = RandomRun(seed)
    for _ in range(steps):
        run.step()
    return run.world


if __name__ == "__main__":
    MACHINE = QueueMachine()
    for line in pickle.loads(Path(sys.argv[1]).read_bytes()):
        replay(MACHINE, *line)
        print(MACHINE.digest().hex())
