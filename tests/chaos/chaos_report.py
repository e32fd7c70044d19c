"""The report of a run: a table for people, one JSON object for machines.

Rule: both say the same. A fault that was wanted and could not be had is named with what is missing.
"""

import statistics
from typing import Any

from chaos_judge import Counts
from chaos_run import Outcome

_COLUMNS = ("fault", "runs", "acked", "lost", "duplicated", "median gap ms", "longest gap ms")


def as_object(
    outcome: Outcome, *, seed: int, nodes: int, seconds: float, missing: dict[str, str], kept: str
) -> dict[str, Any]:
    """The report as JSON shows it."""
    verdict = outcome.verdict
    gaps: dict[str, list[float]] = {}
    for episode in outcome.episodes:
        gaps.setdefault(episode.fault, []).append(round(episode.gap * 1e3, 1))
    rows = []
    for name in sorted({*gaps, *verdict.counts}):
        counts, found = verdict.counts.get(name, Counts()), gaps.get(name, [])
        rows.append(
            {
                "fault": name,
                "runs": len(found),
                "acked": counts.acked,
                "lost": counts.lost,
                "duplicated": counts.duplicated,
                "median_unavailable_ms": statistics.median(found) if found else None,
                "longest_unavailable_ms": max(found, default=None),
                "unavailable_ms": found,
            }
        )
    return {
        "status": "failed" if verdict.violations else "passed",
        "seed": seed,
        "nodes": nodes,
        "seconds": seconds,
        "faults": rows,
        "acked": sum(row["acked"] for row in rows),
        "lost": sum(row["lost"] for row in rows),
        "duplicated": sum(row["duplicated"] for row in rows),
        "delivered": verdict.delivered,
        "calls_failed": dict(sorted(verdict.failed.items())),
        "skipped": missing,
        "damaged": outcome.damaged,
        "violations": verdict.violations,
        "kept": kept,
        "repeat": f"tools/chaos --seconds {seconds:g} --seed {seed} --nodes {nodes}",
    }


def as_text(report: dict[str, Any]) -> str:
    """The report as people read it."""
    rows = [
        [str(row[key]) for key in ("fault", "runs", "acked", "lost", "duplicated")]
        + [
            "-" if row[key] is None else f"{row[key]:.0f}"
            for key in ("median_unavailable_ms", "longest_unavailable_ms")
        ]
        for row in report["faults"]
    ]
    totals = ["all", "", *(str(report[key]) for key in ("acked", "lost", "duplicated")), "", ""]
    table = [list(_COLUMNS), *rows, totals]
    widths = [max(len(row[column]) for row in table) for column in range(len(_COLUMNS))]
    lines = [
        "  ".join(
            cell.ljust(width) if not column else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    lines += [f"skipped {name}: {reason}" for name, reason in report["skipped"].items()]
    if report["damaged"]:
        lines.append(f"damaged on purpose: {report['damaged']}")
    lines += [f"VIOLATION: {text}" for text in report["violations"]]
    if report["kept"]:
        lines.append(f"data, logs and histories are kept in {report['kept']}")
    lines.append(
        f"{report['status']}: seed {report['seed']}, {report['nodes']} nodes, "
        f"{report['delivered']} deliveries; again with: {report['repeat']}"
    )
    return "\n".join(lines)
