"""The demo's last question, asked by somebody else: Spark reads what the nodes have left behind."""

from pathlib import Path
from typing import NamedTuple

from raftq.cli.progress import Progress


class Audited(NamedTuple):
    """What the audit said. `verdict` is "passed", "failed", or why there is none."""

    verdict: str
    seconds: float | None = None
    replicas_identical: bool | None = None
    violations: tuple[str, ...] = ()


def run_audit(data: Path, ledger: Path, progress: Progress) -> Audited:
    """All audits over the data of all nodes, and the ledger of the one producer there was."""
    # Spark comes with an extra.
    from raftq.spark.java import SparkUnavailableError  # noqa: PLC0415
    from raftq.spark.run import audit  # noqa: PLC0415
    from raftq.spark.session import SparkQueryError  # noqa: PLC0415

    try:
        report = audit([data], ledger=ledger, ledger_is_complete=True, progress=progress.step)
    except SparkUnavailableError as error:
        return Audited(f"not run: {error}")
    except SparkQueryError as error:
        return Audited("failed", violations=(str(error),))
    return Audited(
        report.verdict,
        round(report.seconds, 1),
        next(each.passed for each in report.audits if each.name == "replicas"),
        tuple(
            f"{each.name}: {finding}"
            for each in report.audits
            for finding in each.findings
            if not finding.is_note
        ),
    )
