"""One run of the simulator: a seed becomes a cluster, a workload, faults, and a verdict.

    start -> queues are made -> faults under load -> healed -> load ends -> drained -> compared

A run is *clean* when no checker saw a violation and no exception went unhandled. Everything that
happens follows from the seed and the arguments; `trace_hash` says whether two runs were the same.
"""

import asyncio
import collections
import contextlib
import logging
import traceback
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from raftq.client.client import AsyncClient
from raftq.env import Environment
from raftq.host.tuning import Tuning
from raftq.ids import Micros
from raftq.sim.checkers import ViolationError
from raftq.sim.cluster import NO_BUGS, Bugs, SimCluster, draw_tuning
from raftq.sim.entropy import generator
from raftq.sim.fault_plan import QUIET_SHARE, Fault, draw_plan
from raftq.sim.final import compare, has_converged, is_scrubbed, scrub
from raftq.sim.ledger import Availability
from raftq.sim.loop import MICROS, SimLoop, SimulationError
from raftq.sim.nemesis import Nemesis
from raftq.sim.process import PROCESS
from raftq.sim.stage import Scenario, Stage
from raftq.sim.trace import Event, Trace
from raftq.sim.workers import CRASHING, HOSTS
from raftq.sim.workload import Workload

SECONDS = 30
OPERATIONS = 2_000
FAULTS = 5

START_SECONDS_MAX = 20
UNAVAILABLE_SECONDS_MAX = 5
FINISH_SECONDS_MAX = 60
"""After the faults: the rest of the operations, and draining."""

CONVERGE_SECONDS_MAX = 10
SCENARIO_SECONDS_MAX = 60
TERMS_MIN = 2
TERMS_PER_FAULT = 2
TERMS_PER_COMBINATION = 6
COMBINED = ("combination", "lose_disk")
TERMS_PER_SCENARIO = 20
TERMS_PER_CRASH_SECOND = 3
"""Terms that faults explain: the first and a split vote; one when each begins, one when it ends."""

MESSAGE_BYTES = 200
TIMER_SLACK = Micros(200)
CLIENT_CRASHES_MAX = 3


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a run."""

    seed: int
    nodes: int
    trace_hash: str
    violations: tuple[str, ...]
    counters: dict[str, int]
    events: list[Event] = field(default_factory=list, repr=False)

    @property
    def is_clean(self) -> bool:
        return not self.violations


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run consists of; the seed decides the rest.

    `nodes` 0: the seed chooses 3 or 5. `kinds` limits the faults that are drawn. A `scenario` takes
    their place, lasts as long as it does, and explains up to `terms`. Bodies have up to
    `message_bytes`.
    """

    nodes: int = 0
    seconds: int = SECONDS
    operations: int = OPERATIONS
    faults: int = FAULTS
    kinds: tuple[str, ...] = ()
    bugs: Bugs = NO_BUGS
    scenario: Scenario | None = None
    message_bytes: int = MESSAGE_BYTES
    terms: int = TERMS_PER_SCENARIO
    tuning: Tuning | None = None


def simulate(
    seed: int,
    *,
    nodes: int | None = None,
    seconds: int = SECONDS,
    operations: int = OPERATIONS,
    faults: int = FAULTS,
    kinds: Iterable[str] = (),
    table: bool = False,
) -> Result:
    """Run one seed under faults that are drawn; with a `table`, the result has the events."""
    return carry_out(seed, Plan(nodes or 0, seconds, operations, faults, tuple(kinds)), table=table)


def carry_out(seed: int, plan: Plan, *, table: bool = False) -> Result:
    """Run a plan with a seed."""
    trace = Trace(keeps_events=table)
    violations: list[str] = []
    with _loop(seed, trace) as loop, _logs_into(loop):
        run = _Run(loop, seed, plan)
        try:
            run.carry_out()
        except (SimulationError, ViolationError) as error:
            violations += run.cluster.watch.violations or [_described(error)]
        counters = run.counters()
        trace.event(loop.now, "", "; ".join(violations) or "clean")
    return Result(
        seed, len(run.cluster.nodes), trace.digest(), tuple(violations), counters, trace.events
    )


class _Run:
    """The parts of a run, and the order in which they are put to work."""

    def __init__(self, loop: SimLoop, seed: int, plan: Plan) -> None:
        self.loop = loop
        self.seed = seed
        self.plan = plan
        self.choose = choose = generator(seed, "run")
        self.duration = Micros(plan.seconds * MICROS)
        self.quiet = Micros(self.duration // QUIET_SHARE)
        self.cluster = SimCluster(
            loop,
            seed,
            nodes=plan.nodes or choose.choice((3, 3, 3, 5)),
            clients=len(HOSTS),
            groups=choose.choice((1, 1, 2)),
            bugs=plan.bugs,
            tuning=plan.tuning or draw_tuning(generator(seed, "tuning")),
        )
        self.availability = Availability(bound=Micros(UNAVAILABLE_SECONDS_MAX * MICROS))
        self.workload = Workload(
            self.cluster,
            seed,
            operations=plan.operations,
            duration=self.duration,
            message_bytes=plan.message_bytes,
            availability=self.availability,
        )
        self.nemesis = Nemesis(loop, self.cluster, generator(seed, "nemesis"))
        self._are_queues_made = False

    def carry_out(self) -> None:
        """All of it.

        Raises: ViolationError, SimulationError.
        """
        loop, workload, cluster = self.loop, self.workload, self.cluster
        cluster.start()
        self._spawn("c1", self._make_queues)
        self._wait("the queues to be made", START_SECONDS_MAX, lambda: self._are_queues_made)
        cluster.kill_client("c1")
        workload.begin()
        for host in HOSTS:
            self._start_client(host)
        if self.plan.scenario is not None:
            self._play(self.plan.scenario)
        else:
            self._let_nemesis()
        self.availability.healed(loop.now)
        loop.trace.event(loop.now, "", "healed")
        loop.run_for(self.quiet)
        self._check_terms()
        self._wait("enough operations", FINISH_SECONDS_MAX, lambda: workload.is_enough)
        workload.is_ending = True
        self._wait("empty queues", FINISH_SECONDS_MAX, lambda: workload.is_drained)
        self.availability.finish(loop.now)
        for host in HOSTS:
            cluster.kill_client(host)
        if cluster.rotten.strikes:
            scrub(cluster)
            self._wait("files without rot", CONVERGE_SECONDS_MAX, lambda: is_scrubbed(cluster))
        self._wait("equal replicas", CONVERGE_SECONDS_MAX, lambda: has_converged(cluster))
        compare(cluster, workload)

    def _let_nemesis(self) -> None:
        plan, choose = self.plan, generator(self.seed, "plan")
        self.nemesis.start(draw_plan(choose, self.duration, faults=plan.faults, kinds=plan.kinds))
        self._plan_client_crashes()
        self.loop.run_for(Micros(self.duration - self.quiet))
        self.nemesis.heal()
        self.cluster.end_stalls()

    def _play(self, scenario: Scenario) -> None:
        stage = Stage(self.cluster, generator(self.seed, "stage"))
        task = self.loop.create_task(scenario(stage))
        self._wait("the scenario to end", SCENARIO_SECONDS_MAX, task.done)
        stage.heal()

    def _check_terms(self) -> None:
        """Elections are rare events: a node that cannot win one must not force others to vote."""
        allowed = TERMS_MIN + sum(_terms_of(fault) for fault in self.nemesis.begun)
        if self.plan.scenario is not None:
            allowed = self.plan.terms
        for group, term in self.cluster.watch.highest_term.items():
            if term > allowed:
                raise ViolationError(f"group {group} went through {term} terms")

    def _wait(self, what: str, seconds: int, predicate: Callable[[], bool]) -> None:
        """No fault is left: this must come true in time."""
        try:
            self.loop.run_until_true(predicate, limit=Micros(seconds * MICROS))
        except SimulationError as error:
            if error.__cause__ is not None:
                raise
            raise ViolationError(f"waited {seconds} s for {what}, in vain") from None

    def counters(self) -> dict[str, int]:
        ledger, watch = self.workload.ledger, self.cluster.watch
        return {
            "operations": self.workload.operations,
            "acknowledged": ledger.acknowledged_count,
            "delivered": ledger.delivered_count,
            "faults": len(self.nemesis.begun),
            "elections": watch.elections.elections,
            "terms": max(watch.highest_term.values(), default=0),
            "entries applied": watch.entries_applied,
            "callbacks": self.loop.callbacks,
            "milliseconds": self.loop.now // 1_000,
            "unavailable milliseconds": self.availability.waited // 1_000,
            **_counted("fault", (fault.kind for fault in self.nemesis.begun)),
            **dict(sorted(self.workload.outcomes.items())),
        }

    # --- Clients -------------------------------------------------------------------------------

    def _spawn(self, host: str, work: Callable[[Environment], Coroutine[Any, Any, None]]) -> None:
        process, environment = self.cluster.start_client(host)
        process.spawn(work(environment))

    async def _make_queues(self, environment: Environment) -> None:
        client = AsyncClient(self.cluster.url, outside=environment)
        for plan in self.workload.queues:
            await client.create_queue(
                plan.name,
                partitions=plan.partitions,
                visibility_timeout=plan.visibility_seconds,
                delivery_limit=None,
                audit_retention=plan.audit_seconds,
            )
        self._are_queues_made = True

    def _start_client(self, host: str) -> None:
        self._spawn(host, lambda environment: self._work(host, environment))

    async def _work(self, host: str, environment: Environment) -> None:
        workload = self.workload
        client = workload.client(environment, workload.generator(host))
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(kind(workload, client, host).run()) for kind in HOSTS[host]]
        for task in tasks:
            await task
        await client.close()

    def _plan_client_crashes(self) -> None:
        end = self.duration - self.quiet
        for _ in range(self.choose.randint(1, CLIENT_CRASHES_MAX)):
            at = Micros(self.loop.now + self.choose.randrange(end))
            self.loop.call_at_micros(at, self._crash_client, self.choose.choice(CRASHING))

    def _crash_client(self, host: str) -> None:
        self.loop.trace.event(self.loop.now, "", f"client {host} crashes")
        self.cluster.kill_client(host)
        self.workload.producing[host] = 0
        self._start_client(host)


def _counted(what: str, kinds: Iterable[str]) -> dict[str, int]:
    return {f"{what} {kind}": count for kind, count in sorted(collections.Counter(kinds).items())}


def _terms_of(fault: Fault) -> int:
    """How many terms a fault explains."""
    if fault.kind == "crash_loop":
        return TERMS_PER_FAULT + TERMS_PER_CRASH_SECOND * fault.duration // MICROS
    return TERMS_PER_COMBINATION if fault.kind in COMBINED else TERMS_PER_FAULT


def _described(error: BaseException) -> str:
    """The violation, or where the exception came from that nobody handled."""
    cause = error.__cause__ or error
    if isinstance(cause, ViolationError) or cause is error:
        return str(cause)
    frame = traceback.extract_tb(cause.__traceback__)[-1]
    return f"{error} ({frame.filename}:{frame.lineno})"


class _TraceHandler(logging.Handler):
    """What the product logs, as rows of the table."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__()
        self._loop = loop

    def emit(self, record: logging.LogRecord) -> None:
        process = PROCESS.get()
        text = record.msg if isinstance(record.msg, str) else _facts(record.msg)
        self._loop.trace.note(self._loop.now, process.name if process else "", text)


def _facts(values: Any) -> str:
    """A structured record without what all have."""
    kept = {k: v for k, v in values.items() if k not in {"event", "level", "logger", "timestamp"}}
    return f"{values.get('event', '')} {' '.join(f'{k}={v}' for k, v in kept.items())}"


@contextlib.contextmanager
def _logs_into(loop: SimLoop) -> Iterator[None]:
    """The product's log goes into the table, if there is one, and nowhere else."""
    log = logging.getLogger("raftq")
    level, propagate, handlers = log.level, log.propagate, log.handlers[:]
    log.handlers[:] = [_TraceHandler(loop)]
    log.setLevel(logging.INFO if loop.trace.keeps_events else logging.CRITICAL + 1)
    log.propagate = False
    try:
        yield
    finally:
        log.handlers[:] = handlers
        log.setLevel(level)
        log.propagate = propagate


def _loop(seed: int, trace: Trace) -> SimLoop:
    # The type stubs call methods abstract that the simulation must not have.
    return SimLoop(seed=seed, timer_slack=TIMER_SLACK, trace=trace)  # type: ignore[abstract]
