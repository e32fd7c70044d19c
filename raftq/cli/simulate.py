"""`raftq simulate`: whole clusters in virtual time, with faults, each run made of a seed."""

import itertools
import time
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raftq.cli.options import JsonOption
from raftq.cli.output import print_error, print_json, print_note, print_table, print_text

if TYPE_CHECKING:
    from raftq.sim.run import Result

FAILED = 1


def simulate(
    seed: Annotated[
        int | None, typer.Option(min=0, help="One seed: the same as --first SEED --seeds 1.")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", "-n", min=1, help="How many seeds.")] = 20,
    lasting: Annotated[
        int | None,
        typer.Option("--for", min=1, help="Go on with seeds for so many seconds, and sum up."),
    ] = None,
    first: Annotated[int, typer.Option("--first", min=0, help="The first of them.")] = 1,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=9, help="Nodes; without, the seed decides.")
    ] = None,
    seconds: Annotated[int, typer.Option(min=5, help="Virtual seconds under load.")] = 30,
    operations: Annotated[int, typer.Option(min=1, help="Client operations.")] = 2_000,
    faults: Annotated[int, typer.Option(min=0, help="Faults that are drawn.")] = 5,
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", help="Only faults of this kind, e.g. kill; may be repeated."),
    ] = None,
    bug: Annotated[
        str | None,
        typer.Option(help="Switch a known bug on, in the scenario that finds it, by its name."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Seeds at a time.")] = 1,
    table: Annotated[
        bool, typer.Option("--table", help="Print what happened, a column for each node.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run the real code of nodes and clients over simulated disks, networks and clocks.

    A seed is a run: the same seed gives the same run, down to the last message, so a failure is
    repeated by repeating its seed. Checkers watch for lost, doubled and reordered messages, for two
    leaders, for logs that differ. Ends with status 1 if any of them saw something.

    ```
    raftq simulate --seeds 100 --jobs 2
    raftq simulate --for 3600 --jobs 8
    raftq simulate --seed 4711 --table
    raftq simulate --seeds 8 --bug ack-before-fsync
    ```
    """
    # Nobody else needs the simulator, and it starts this process anew with fixed hashes.
    from raftq.sim.reexec import fix_hashes  # noqa: PLC0415

    _check_names(kind or (), bug)
    if seed is not None:
        first, seeds = seed, 1
    fix_hashes()
    options: dict[str, Any] = {
        "nodes": nodes,
        "seconds": seconds,
        "operations": operations,
        "faults": faults,
        "kinds": tuple(kind or ()),
        "table": table,
    }
    if bug is not None:
        options = {"bug": bug}
    if lasting is not None:
        _soak(lasting, first, jobs, options, as_json=as_json)
        return
    failed = []
    for result in _results(range(first, first + seeds), jobs, options):
        if not result.is_clean:
            failed.append(result.seed)
        _show(result, as_json=as_json)
    _judge(failed, seeds, as_json=as_json)


def _check_names(kinds: Iterable[str], bug: str | None) -> None:
    from raftq.sim.bugs import BUGS  # noqa: PLC0415
    from raftq.sim.fault_plan import KINDS  # noqa: PLC0415

    for name in kinds:
        if name not in KINDS:
            raise typer.BadParameter(f"--kind {name}: there are {', '.join(KINDS)}")
    if bug is not None and bug not in BUGS:
        raise typer.BadParameter(f"--bug {bug}: there are {', '.join(BUGS)}")


def _judge(failed: Collection[int], seeds: int, *, as_json: bool) -> None:
    if failed:
        again = f"raftq simulate --seed {min(failed)} --table"
        print_error(
            "Violation", f"{len(failed)} of {seeds} seeds are not clean; see one again: {again}"
        )
        raise typer.Exit(FAILED)
    if not as_json:
        print_text(f"{seeds} seeds are clean")


def _results(seeds: range, jobs: int, options: dict[str, Any]) -> "Iterator[Result]":
    if jobs == 1 or len(seeds) == 1:
        for seed in seeds:
            yield _run((seed, options))
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_run, [(seed, options) for seed in seeds])


def _results_until(
    deadline: float, first: int, jobs: int, options: dict[str, Any]
) -> "Iterator[Result]":
    """In the order in which they end. No run begins after `deadline` (monotonic seconds)."""
    seeds = itertools.count(first)
    running: set[Future[Result]] = set()
    with ProcessPoolExecutor(jobs) as pool:
        while True:
            while len(running) < jobs and time.monotonic() < deadline:
                running.add(pool.submit(_run, (next(seeds), options)))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for each in done:
                yield each.result()


def _soak(seconds: int, first: int, jobs: int, options: dict[str, Any], *, as_json: bool) -> None:
    """Seeds from `first` on, for so many seconds: those that are not clean, and the sums."""
    from raftq.sim.summary import Summary  # noqa: PLC0415

    summary = Summary()
    begun = time.monotonic()
    for result in _results_until(begun + seconds, first, jobs, options):
        summary.add(result)
        if not result.is_clean:
            print_note(f"seed {result.seed}: {result.violations[0]}")
    totals = summary.as_map(time.monotonic() - begun)
    if as_json:
        print_json(totals)
    else:
        faults: Iterable[tuple[str, int]] = totals.pop("faults").items()
        del totals["failed_seeds"]
        rows = [(name.replace("_", " "), value) for name, value in totals.items()]
        print_table(("", "total"), rows)
        print_table(("fault", "times"), faults)
    _judge(summary.failed, summary.seeds, as_json=as_json)


def _run(work: tuple[int, dict[str, Any]]) -> "Result":
    from raftq.sim.bugs import look_for  # noqa: PLC0415
    from raftq.sim.run import simulate as run  # noqa: PLC0415

    seed, options = work
    if "bug" in options:
        return look_for(options["bug"], seed)
    return run(seed, **options)


def _show(result: "Result", *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "seed": result.seed,
                "nodes": result.nodes,
                "clean": result.is_clean,
                "violations": list(result.violations),
                "trace_hash": result.trace_hash,
                "counters": result.counters,
                "events": [event._asdict() for event in result.events],
            }
        )
        return
    if result.events:
        from raftq.sim.trace import table  # noqa: PLC0415

        names = [f"n{number}" for number in range(1, result.nodes + 1)]
        for line in table(result.events, names):
            print_text(line)
    counters = result.counters
    print_text(
        f"seed {result.seed}: {'clean' if result.is_clean else 'VIOLATION'}, {result.nodes} nodes, "
        f"{counters.get('operations', 0)} operations, {counters.get('faults', 0)} faults, "
        f"trace {result.trace_hash}"
    )
    for violation in result.violations:
        print_text(f"  {violation}")
