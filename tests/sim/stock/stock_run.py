"""One seed of a stock pysyncobj cluster under faults: what the checkers saw.

`python stock_run.py MODE SEEDS [cured] [faultless]` runs the seeds from 1 to SEEDS of a mode, with
the mode's bug mended from outside or not, with its faults or without; it prints what each checker
saw first, and in how many runs.

Rule: a mode is made so that its bug alone explains what is seen in it. Where no power fails, nothing
depends on the disk; where logs are not compacted, there are no snapshots; and with the bug mended,
the checkers that spoke of it are silent for the same seeds. (Where there are snapshots, Durability
may go on to speak of another bug: one that is installed again removes what was acknowledged since.)
"""

import collections
import sys
import typing

from stock_node import Cure, Server
from stock_system import SYSTEM, System, simulated_system, write_back
from stock_watch import Watch, WatchedJournal

from raftq.sim.entropy import generator
from raftq.sim.fault_plan import Fault, draw_plan
from raftq.sim.hardware import Hardware
from raftq.sim.loop import SimLoop
from raftq.sim.nemesis import Nemesis
from raftq.sim.network import Fabric, Latency
from raftq.sim.trace import Trace

SECOND = 1_000_000
SECONDS = 10
SETTLE_SECONDS = 5
NODES = 3
FAULTS = 3
WRITE_BACK_MICROS = 5 * SECOND
TIMER_SLACK = 200
NEVER = 1 << 30


class Mode(typing.NamedTuple):
    """How the library is set up and used, what is done to it, and what mends the mode's bug."""

    kinds: tuple = ()
    """Of faults that are drawn."""
    plan: tuple = ()
    """Faults in place of drawn ones."""
    cure: Cure = Cure.NONE
    is_cured_by_durable_disks: bool = False
    compacted_at: int = NEVER
    """Logs are compacted when they have so many entries."""
    batched: bool = True
    message_bytes: int = 100
    pause_micros: int = 20_000
    """Between two puts of a node, on average."""
    latency: Latency = Latency()

    @property
    def options(self):
        """What the library is told, where its defaults are not kept."""
        return {
            "logCompactionMinEntries": self.compacted_at,
            "logCompactionMinTime": NEVER,
            "appendEntriesUseBatch": self.batched,
        }


MODES = {
    # A follower cuts off what is behind the entries of any append. Many appends are under way at
    # once here, on lines that take their time, so that it is seen between one and the next.
    "truncation": Mode(
        kinds=("isolate_leader",),
        cure=Cure.TRUNCATION,
        batched=False,
        message_bytes=20_000,
        pause_micros=60_000,
        latency=Latency(micros_min=20_000, micros_max=60_000, bytes_per_micro=2),
    ),
    # A piece of a snapshot commits whatever its receiver has. Logs are compacted often here, so
    # that a deposed leader is given a snapshot.
    "snapshot": Mode(kinds=("isolate_leader",), cure=Cure.SNAPSHOT_COMMIT, compacted_at=100),
    # Nothing is synced: the log vanishes with the power.
    "power": Mode(kinds=("power_loss", "power_loss_of_all"), is_cured_by_durable_disks=True),
    # As above, and soon after elections, so that votes and terms vanish.
    "votes": Mode(
        plan=tuple(
            Fault(at * SECOND // 2, SECOND // 2, "power_loss_of_all") for at in (2, 5, 8, 11)
        ),
        is_cured_by_durable_disks=True,
    ),
}


class Result(typing.NamedTuple):
    """What became of a run."""

    seen: dict
    """What each checker saw first, by the checker's name."""
    applied: int
    acknowledged: int
    leaders: int
    in_step: int
    """How many nodes had applied all in the end."""
    digest: str
    events: list


class Cluster:
    """Three machines with a stock node each, as the nemesis sees them."""

    clients = ()

    def __init__(self, loop, seed, mode, *, is_cured):
        self.loop = loop
        self.mode = mode
        self.cure = mode.cure if is_cured else Cure.NONE
        self.is_durable = is_cured and mode.is_cured_by_durable_disks
        self.watch = Watch(loop)
        self.fabric = Fabric(loop, seed=seed, latency=mode.latency)
        self.nodes = tuple(f"n{number + 1}" for number in range(NODES))
        self.servers = {}
        self.is_loaded = True
        self._numbers = {name: number + 1 for number, name in enumerate(self.nodes)}
        self._machines = {name: Hardware(loop, self.fabric, name, seed=seed) for name in self.nodes}
        choose = generator(seed, "kernels")
        for name in self.nodes:
            self.restart(name)
            self._later(choose.randrange(WRITE_BACK_MICROS), self._write_back, name)

    def tell(self, node, text):
        self.loop.trace.event(self.loop.now, node, text)

    def starts(self, name):
        return self._machines[name].starts

    def _later(self, delay, function, *args):
        self.loop.call_at_micros(self.loop.now + delay, function, *args)

    def _write_back(self, name):
        write_back(self._machines[name].disk)
        self._later(WRITE_BACK_MICROS, self._write_back, name)

    # --- What a nemesis does -------------------------------------------------------------------

    def leader(self):
        leading = [
            (server.machine.raftCurrentTerm, name)
            for name, server in self.servers.items()
            if server.machine is not None and server.machine._isLeader()
        ]
        return max(leading)[1] if leading else None

    def restart(self, node):
        process, environment = self._machines[node].start()
        process.context.run(SYSTEM.set, System(node, environment, is_durable=self.is_durable))
        self.servers[node] = server = Server(self, node, self._numbers)
        process.spawn(server.run(environment, self.mode.options))

    def kill(self, node):
        del self.servers[node]
        self._machines[node].kill()

    def power_loss(self, node):
        del self.servers[node]
        self._machines[node].power_loss()

    def pause(self, node):
        self._machines[node].pause()

    def resume(self, node):
        self._machines[node].resume()

    def block(self, source, target):
        self.fabric.block(source, target)

    def unblock(self, source, target):
        self.fabric.unblock(source, target)

    def reset_connections(self, one, other):
        self.fabric.reset_connections(one, other)

    def slow_network(self, latency):
        self.fabric.set_latency(latency or self.mode.latency)

    # --- The end -------------------------------------------------------------------------------

    def in_step(self):
        """The nodes that have applied all that their leader's log holds."""
        leader = self.leader()
        if leader is None:
            return []
        end = self.servers[leader].machine.journal.last_index
        return [
            name
            for name, server in self.servers.items()
            if server.machine is not None and server.machine.raftLastApplied == end
        ]

    def compare(self):
        """Let the ledger see what the nodes in step have; how many they are.

        A minority proves nothing: the library may take long to repair a log, and be right.
        """
        in_step = self.in_step()
        if len(in_step) > NODES // 2:
            for name in in_step:
                self.watch.log(name, self.servers[name].machine.payloads)
        return len(in_step)


def drawn(seed, kinds):
    return draw_plan(generator(seed, "plan"), SECONDS * SECOND, faults=FAULTS, kinds=kinds)


def simulate(seed, mode, *, is_faulty=True, is_cured=False, table=False):
    """Run one seed of a mode: with its faults or without, with its bug or without."""
    trace = Trace(keeps_events=table)
    with SimLoop(seed=seed, timer_slack=TIMER_SLACK, trace=trace) as loop:

        def create_journal(path):
            return WatchedJournal(path, cluster.watch, SYSTEM.get().name)

        with simulated_system(create_journal):
            cluster = Cluster(loop, seed, mode, is_cured=is_cured)
            nemesis = Nemesis(loop, cluster, generator(seed, "nemesis"))
            if is_faulty:
                nemesis.start(mode.plan or drawn(seed, mode.kinds))
            loop.run_until(SECONDS * SECOND)
            nemesis.heal()
            cluster.is_loaded = False
            for _ in range(SETTLE_SECONDS):
                loop.run_for(SECOND)
                if len(cluster.in_step()) == NODES:
                    break
            in_step = cluster.compare()
        watch = cluster.watch
        return Result(
            watch.seen,
            watch.applied_count,
            watch.ledger.acknowledged_count,
            watch.elections.elections,
            in_step,
            trace.digest(),
            trace.events,
        )


def main(name, seeds, *options):
    counts = collections.Counter()
    for seed in range(1, int(seeds) + 1):
        result = simulate(
            seed,
            MODES[name],
            is_faulty="faultless" not in options,
            is_cured="cured" in options,
        )
        counts.update(result.seen.keys() or ["clean"])
        print(seed, result.digest, *result[1:5])
        for checker, text in result.seen.items():
            print(f"    {checker}: {text}")
    print(name, *options, dict(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
