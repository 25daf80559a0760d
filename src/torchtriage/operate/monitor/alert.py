"""An alarm of one model, as channels get it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtriage.core.finding import Finding

__all__ = ["Alert"]


@dataclass(frozen=True)
class Alert:
    """An alarm of a model, as channels get it."""

    model: str
    version: str
    kind: str
    message: str
    cause: str
    evidence: float
    at_s: float
    """Wall-clock time."""
    n_before: int = 0
    """Equal alarms since the last one that was sent."""
    shares: dict[str, float] = field(default_factory=dict, hash=False)
    """Share of the excess time that each cause explains, 0 to 1; empty where that says nothing."""
    facts: dict[str, Any] = field(default_factory=dict, hash=False)
    """Measured: requests, collections, compilations, use of the machine."""
    capture: str = ""
    """The recording of a request after the alarm, in the follow-up of an earlier alert."""
    captured: tuple[str, ...] = ()
    """The recording's first findings, a sentence each."""

    def title(self) -> str:
        """Return one line for people."""
        name = f"{self.model} {self.version}".strip()
        cause = f" ({self.cause})" if self.cause not in ("", "unknown") else ""
        if self.capture:
            shows = "; ".join(self.captured) or "nothing costly"
            return f"{name}, recorded after {self.message}{cause}: {shows}"
        return f"{name}: {self.message}{cause}"

    @property
    def quicker(self) -> bool:
        """Whether requests take less than expected: no trouble."""
        return float(self.facts.get("excess_s", 0.0)) < 0

    def finding(self) -> Finding:
        """Return the alert as a finding, with a fix."""
        from torchtriage.operate.monitor.alert_finding import finding_of

        return finding_of(self)

    def document(self) -> dict[str, Any]:
        """Return the alert with its finding as JSON's types: ``torchtriage-alert/1``."""
        from torchtriage.operate.monitor.alert_finding import document_of

        return document_of(self)
