"""How long the clients' operations take while something is done to the nodes, in simulated time."""

from raftq.errors import ProducerFenced, StaleReceipt
from raftq.sim.workers import WAIT_SECONDS, Worker

MILLISECOND = 1_000


class Stopwatch:
    """Times the operations of all workers, and keeps the errors that users had to handle."""

    def __init__(self, monkeypatch):
        self.operations = []
        self.errors = []
        self.hurt_at = self.healed_at = None
        call, send, failed = Worker.call, Worker.send, Worker.failed

        async def timed_call(worker, kind, work):
            begun = worker.workload.loop.now
            result = await call(worker, kind, work)
            wait = WAIT_SECONDS * 1e6 if kind == "receive" else 0
            self.operations.append((begun, worker.workload.loop.now - wait, kind))
            return result

        async def timed_send(worker, kind, *args):
            begun = worker.workload.loop.now
            await send(worker, kind, *args)
            self.operations.append((begun, worker.workload.loop.now, kind))

        def noted(worker, kind, error, *rest):
            if not isinstance(error, ProducerFenced | StaleReceipt):
                self.errors.append((worker.workload.loop.now, kind, error))
            failed(worker, kind, error, *rest)

        monkeypatch.setattr(Worker, "call", timed_call)
        monkeypatch.setattr(Worker, "send", timed_send)
        monkeypatch.setattr(Worker, "failed", noted)

    def longest(self):
        """Milliseconds of the longest operation that was under way between the two moments."""
        return max(
            (end - begun) // MILLISECOND
            for begun, end, _ in self.operations
            if end >= self.hurt_at and begun < self.healed_at
        )
