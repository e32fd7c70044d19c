"""The CONTROL operations of the fake cluster."""

from raftq.queue import commands
from raftq.queue.config import QueueConfig

SECOND = 1_000_000
PORT = 7400


class Controls:
    """Mixed into a connection of the fake cluster."""

    def do_metadata(self, wanted):
        queues = []
        if wanted.get("queue"):
            queues = [self.cluster.queue(wanted["queue"]).as_map()]
        return {
            "version": 1,
            "queues": queues,
            "groups": [
                {"group": group.number, "leader": group.leader, "term": 1, "voters": []}
                for group in self.cluster.groups.values()
            ],
            "nodes": [
                {"name": name, "host": host, "port": port, "incarnation": 1}
                for name in self.cluster.nodes
                for host, port in [self.cluster.addresses.get(name, (name, PORT))]
            ],
        }

    def do_open_session(self, wanted):
        reply = self.apply(self.group(wanted["group"]), commands.encode_open_session())
        self.sessions[wanted["group"], reply.session] = 0
        return {"session": reply.session, "attachment": 0}

    def do_attach(self, wanted):
        header = commands.encode_attach(
            wanted["session"], wanted["attachment"], wanted["last_seen"]
        )
        reply = self.apply(self.group(wanted["group"]), header)
        self.sessions[wanted["group"], reply.session] = reply.attachment
        held = [
            {
                "delivery": each.delivery,
                "queue": each.queue,
                "partition": each.partition,
                "subscription": each.subscription,
                "deadline": each.deadline,
                "ranges": [list(each_range) for each_range in each.ranges],
            }
            for each in reply.held
        ]
        return {"attachment": reply.attachment, "held": held}

    def do_open_producer(self, wanted):
        number = self.cluster.group_of[wanted["queue"], wanted["partition"]]
        header = commands.encode_open_producer(
            wanted["queue"],
            wanted["partition"],
            wanted["producer"],
            epoch=wanted["epoch"],
            opener=wanted["opener"],
        )
        reply = self.apply(self.group(number), header)
        return {
            "opened": reply.opened,
            "epoch": reply.epoch,
            "last_sequence": reply.last_sequence,
            "last_offset": reply.last_offset,
        }

    def do_create_queue(self, wanted):
        config = QueueConfig.from_user(wanted["config"])
        return {"queue": self.cluster.create_queue(wanted["name"], config).as_map()}

    def do_update_queue(self, wanted):
        return {"queue": self.cluster.queue(wanted["name"]).as_map()}

    def do_delete_queue(self, wanted):
        self.cluster.delete_queue(wanted["name"])
        return {}

    def do_list_queues(self, wanted):
        return {"queues": [queue.as_map() for queue in self.cluster.queues.values()]}

    def do_describe_queue(self, wanted):
        queue = self.cluster.queue(wanted["name"])
        rows = []
        for number, group in enumerate(queue.groups):
            group = self.cluster.groups[group]
            stats = group.machine.describe(queue.id, number)
            rows.append(
                {
                    "partition": number,
                    "group": group.number,
                    "leader": group.leader,
                    "first_offset": stats.first_offset,
                    "next_offset": stats.next_offset,
                    "released": stats.released,
                    "subscriptions": {
                        each.name: {
                            name: getattr(each, name)
                            for name in (
                                "ready",
                                "in_flight",
                                "delayed",
                                "settled",
                                "dead",
                                "discarded",
                            )
                        }
                        for each in stats.subscriptions
                    },
                }
            )
        return queue.as_map() | {"partitions": rows}

    def do_purge_queue(self, wanted):
        return {"purged": 3}

    def do_purge_dead(self, wanted):
        return {"purged": 2}

    def do_redrive(self, wanted):
        return {"redriven": 2, "by_reason": {"delivery_limit": 2}}

    def do_subscribe(self, wanted):
        return {}

    do_unsubscribe = do_subscribe

    def do_dead_letters(self, wanted):
        letter = {
            "partition": 0, "offset": 4, "reason": "delivery_limit", "error": "boom",
            "delivery_count": 5, "died_at": 7 * SECOND, "history": [[1, 2]], "body": b"x",
            "key": None, "headers": {"a": 1}, "timestamp": 5 * SECOND,
        }  # fmt: skip
        return {"letters": [letter]}

    def do_status(self, wanted):
        return {"cluster": "c", "node": self.node.name}
