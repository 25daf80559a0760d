"""What lint found as SARIF 2.1.0, for code scanning."""

from __future__ import annotations

from torchtriage.lint.result import LintResult
from torchtriage.report.sarif import log, notification

__all__ = ["encode"]


def encode(result: LintResult) -> bytes:
    """Return one SARIF run as UTF-8; odd sources and idle comments are notifications."""
    said = [
        notification("odd-source", "warning", f"{one.file}:{one.line}: {one.message}")
        for one in result.odd
    ]
    said += [
        notification("allow", "note", f"{one.file}:{one.line}: {one.message}")
        for one in result.unused
    ]
    said += [
        notification(one.code, "note", f"{one.title}: in the trace only")
        for one in result.trace_only
    ]
    findings = [(result.trace, one) for one in result.findings]
    return log(result.version, findings, said, successful=True)
