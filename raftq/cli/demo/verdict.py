"""The demo's figures, and whether all is right."""

from dataclasses import asdict, dataclass
from typing import Any

from raftq.cli.demo.audit import Audited


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What the last line says. None stands for what was not found out."""

    messages: int
    acknowledged: int
    consumed: int
    lost: int
    duplicated: int
    out_of_order: int
    files: int
    files_identical: int
    replicas_identical: bool | None
    failover_ms: int | None
    publish_per_second: int
    audit_seconds: float | None
    redelivered: int = 0
    phantom: int = 0
    """Consumed, but never sent or with another body."""
    killed: str | None = None
    lines: int = 0
    bytes: int = 0
    publish_seconds: float = 0.0
    drain_seconds: float = 0.0
    total_seconds: float = 0.0
    audit: str = "not run"
    audit_violations: tuple[str, ...] = ()
    data: str | None = None

    def add_audit(self, audited: Audited) -> None:
        """What the audit adds; of the replicas, both must think well."""
        self.audit = audited.verdict
        self.audit_seconds = audited.seconds
        self.audit_violations = audited.violations
        if audited.replicas_identical is False:
            self.replicas_identical = False

    def faults(self) -> list[str]:
        """What is not right, in words; empty when all is."""
        found = []
        for name in ("lost", "duplicated", "out_of_order", "phantom"):
            count = getattr(self, name)
            if count:
                found.append(f"{count} messages {name.replace('_', ' ')}")
        if self.acknowledged != self.messages:
            found.append(f"{self.messages - self.acknowledged} messages were not acknowledged")
        if self.consumed != self.messages:
            found.append(f"{self.consumed} of {self.messages} messages were consumed")
        if self.files_identical != self.files:
            found.append(f"{self.files - self.files_identical} files are not identical")
        if not self.replicas_identical:
            found.append("the replicas are not identical, or could not be compared")
        if self.failover_ms is None:
            found.append("the failover was not seen")
        if self.audit == "failed":
            first = self.audit_violations[0] if self.audit_violations else "see raftq audit"
            found.append(f"the audit failed: {first}")
        return found

    def to_map(self) -> dict[str, Any]:
        faults = self.faults()
        return {**asdict(self), "right": not faults, "faults": faults}

    def rows(self) -> list[tuple[str, str]]:
        """The small table at the end."""
        millions = self.bytes / 1_000_000
        return [
            ("input", f"{self.files:,} files, {self.lines:,} lines, {millions:.1f} MB"),
            ("messages", f"{self.messages:,}"),
            ("acknowledged", f"{self.acknowledged:,}"),
            ("consumed", f"{self.consumed:,}"),
            ("lost", f"{self.lost:,}"),
            ("duplicated", f"{self.duplicated:,}"),
            ("out of order", f"{self.out_of_order:,}"),
            ("handed out again", f"{self.redelivered:,}"),
            ("files identical", f"{self.files_identical:,} of {self.files:,}"),
            (
                "replicas identical",
                {True: "yes", False: "no", None: "not known"}[self.replicas_identical],
            ),
            ("leader killed", f"{self.killed}; longest gap {self.failover_ms} ms"),
            (
                "published",
                f"{self.publish_per_second:,} messages/s in {self.publish_seconds:.1f} s",
            ),
            ("drained after", f"{self.drain_seconds:.1f} s more"),
            ("audit", self._audit_text()),
            ("in all", f"{self.total_seconds:.1f} s"),
        ]

    def _audit_text(self) -> str:
        if self.audit_seconds is None:
            return self.audit
        return f"{self.audit} in {self.audit_seconds:.1f} s"
