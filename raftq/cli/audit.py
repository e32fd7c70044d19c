"""`raftq audit`: a cluster's files, replayed and judged by Spark on this machine or on a cluster."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raftq.cli.options import JsonOption
from raftq.cli.output import print_error, print_json, print_table, print_text
from raftq.cli.progress import Progress

if TYPE_CHECKING:
    from raftq.spark.report import AuditReport, AuditSummary

FAILED = 1
NOTHING = "-"


def audit(
    directories: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Data directories of nodes, or what holds them."),
    ],
    ledger: Annotated[
        Path | None,
        typer.Option(help="What was acknowledged to clients; `raftq bench` and `demo` write one."),
    ] = None,
    complete: Annotated[
        bool,
        typer.Option(
            "--complete", help="Nothing was sent but what the ledger holds: look for more, too."
        ),
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Only this audit, e.g. replicas; may be repeated."),
    ] = None,
    master: Annotated[
        str, typer.Option(help="A Spark master: local[CORES], or the URL of a cluster.")
    ] = "local[2]",
    as_json: JsonOption = False,
) -> None:
    """Judge a cluster by its files: checksums, chains, offsets, replicas, what was acknowledged.

    The nodes may be stopped or running. It needs the extra `raftq[spark]`; a Java comes with it.
    Ends with status 1 if anything is wrong.

    ```
    raftq audit raftq-data
    raftq audit raftq-data/n1 raftq-data/n2 --only replicas --json
    raftq demo --keep ./d && raftq audit ./d --ledger ./d/ledger.jsonl --complete
    ```
    """
    # Nobody else needs Spark, and it may not be installed.
    from raftq.spark.java import SparkUnavailableError  # noqa: PLC0415
    from raftq.spark.run import audit as run  # noqa: PLC0415
    from raftq.spark.session import SparkQueryError  # noqa: PLC0415

    try:
        with Progress() as progress:
            report = run(
                directories,
                ledger=ledger,
                ledger_is_complete=complete,
                master=master,
                only=only or None,
                progress=progress.step,
            )
    except (SparkUnavailableError, SparkQueryError) as error:
        print_error(type(error).__name__, str(error))
        raise typer.Exit(FAILED) from error
    if as_json:
        print_json(report.to_map())
    else:
        _show(report)
    if report.verdict != "passed":
        print_error("AuditFailed", f"{report.violations} violations were found")
        raise typer.Exit(FAILED)


def _show(report: "AuditReport") -> None:
    print_table(
        ("audit", "looked at", "violations", "notes", "seconds", "question"),
        [
            (
                each.name,
                each.skipped or f"{each.checked:,} {each.unit}",
                NOTHING if each.skipped else each.violations,
                each.notes or NOTHING,
                NOTHING if each.skipped else f"{each.seconds:.1f}",
                each.question,
            )
            for each in report.audits
        ],
    )
    for each in report.audits:
        _show_findings(each)
    extent = "" if report.is_whole else " as far as history is held (see the audit released)"
    print_text(
        f"{report.verdict}{extent}: {report.messages:,} messages, {report.copies:,} with all copies, on "
        f"{len(report.nodes)} nodes in {report.groups} groups, in {report.seconds:.1f} s"
    )


def _show_findings(audit: "AuditSummary") -> None:
    for finding in audit.findings:
        kind = "note" if finding.is_note else "VIOLATION"
        print_text(f"{kind} ({audit.name}) {finding}")
    told = len(audit.findings)
    if audit.violations + audit.notes > told:
        print_text(f"({audit.name}) and {audit.violations + audit.notes - told} more")
