"""What `audit` answers: a verdict, and for each audit what it looked at and what it found."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Verdict = Literal["passed", "failed"]


class Finding(NamedTuple):
    """One violation, or a note; places that make no sense for it are None."""

    audit: str
    is_note: bool
    node: str | None
    group: int | None
    queue: int | None
    partition: int | None
    offset: int | None
    detail: str

    def __str__(self) -> str:
        places = ("node", "group", "queue", "partition", "offset")
        named = [(name, getattr(self, name)) for name in places]
        where = ", ".join(f"{name} {value}" for name, value in named if value is not None)
        return f"{where}: {self.detail}" if where else self.detail


@dataclass(frozen=True, slots=True)
class AuditSummary:
    """One audit's answer. `violations` counts all, `findings` holds the first ones."""

    name: str
    question: str
    checked: int
    """Entries, batches or messages: whatever the audit is about."""
    unit: str
    violations: int
    notes: int
    seconds: float
    figures: dict[str, int]
    findings: tuple[Finding, ...]
    skipped: str = ""
    """Why it was not asked; empty when it was."""

    @property
    def passed(self) -> bool:
        return not self.violations


@dataclass(frozen=True, slots=True)
class AuditReport:
    """All answers together."""

    directories: tuple[str, ...]
    nodes: tuple[str, ...]
    groups: int
    messages: int
    """In the longest replica of each group."""
    copies: int
    """Messages on all replicas: what was looked at."""
    seconds: float
    audits: tuple[AuditSummary, ...]
    history: tuple[dict[str, Any], ...] = ()
    """Of each replica that has let go of something: where its history begins, and what is gone."""

    @property
    def is_whole(self) -> bool:
        """Nothing is gone: the verdict is one about everything that ever was."""
        return not self.history

    @property
    def verdict(self) -> Verdict:
        return "passed" if all(audit.passed for audit in self.audits) else "failed"

    @property
    def violations(self) -> int:
        return sum(audit.violations for audit in self.audits)

    def to_map(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "verdict": self.verdict,
            "violations": self.violations,
            "directories": list(self.directories),
            "nodes": list(self.nodes),
            "groups": self.groups,
            "messages": self.messages,
            "copies": self.copies,
            "seconds": round(self.seconds, 3),
            "is_whole": self.is_whole,
            "history": list(self.history),
            "audits": [
                {
                    "name": audit.name,
                    "question": audit.question,
                    "checked": audit.checked,
                    "unit": audit.unit,
                    "violations": audit.violations,
                    "notes": audit.notes,
                    "seconds": round(audit.seconds, 3),
                    "figures": audit.figures,
                    "skipped": audit.skipped,
                    "findings": [finding._asdict() for finding in audit.findings],
                }
                for audit in self.audits
            ],
        }
