"""What every report of a comparison shows: rows that add up to the change, causes told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from torchtriage.finding import Cause, Comparison, FindingChange, Part, Run
from torchtriage.names import visible
from torchtriage.report.words import count, event_name, saving
from torchtriage.units import format_both_ns, format_bytes, format_change_ns, format_ns

__all__ = ["Row", "cost", "file_name", "inside", "notes", "per", "rows", "run"]

N_CAUSES = 12
MIN_PART = 0.1
"""Share of a cause's change below which a part is not worth a line."""


@dataclass(frozen=True)
class Row:
    """One line of the table; the rows' changes add up to the total."""

    label: str
    before_ns: int
    after_ns: int
    told: bool
    cause: Cause | None = None
    small: tuple[Cause, ...] = ()
    """The causes a remainder is the sum of, largest change first."""

    @property
    def delta_ns(self) -> int:
        """After minus before."""
        return self.after_ns - self.before_ns


def rows(result: Comparison, limit: int = N_CAUSES) -> tuple[Row, ...]:
    """Return the causes that are told apart, then one row for each kind of remainder."""
    told = [one for one in result.causes if one.change.told]
    shown = [_row(one) for one in told[:limit]]
    more = told[limit:]
    small = [one for one in result.causes if not one.change.told]
    if more:
        shown.append(_sum(f"{count(len(more), 'more cause')}", more, told=True))
    if small:
        shown.append(_sum(f"{count(len(small), 'cause')} within the noise", small, told=False))
    return tuple(shown)


def _row(cause: Cause) -> Row:
    change = cause.change
    return Row(visible(cause.label), change.before_ns, change.after_ns, change.told, cause)


def _sum(label: str, causes: Sequence[Cause], *, told: bool) -> Row:
    changes = [one.change for one in causes]
    return Row(
        label,
        sum(one.before_ns for one in changes),
        sum(one.after_ns for one in changes),
        told,
        small=tuple(causes),
    )


def inside(row: Row, limit: int = 3) -> tuple[str, ...]:
    """Return what moved most inside a row: kernels, operators or functions, or small causes."""
    if row.cause is not None:
        return _parts(row.cause, limit)
    least = MIN_PART * abs(row.delta_ns)
    moved = [one for one in row.small if abs(one.change.delta_ns) >= max(least, 1)]
    return tuple(
        f"{visible(one.label)} {format_change_ns(one.change.delta_ns)}" for one in moved[:limit]
    )


def _parts(cause: Cause, limit: int) -> tuple[str, ...]:
    least = MIN_PART * abs(cause.change.delta_ns)
    moved = [one for one in cause.parts if abs(one.after_ns - one.before_ns) >= least]
    if len(cause.parts) == 1 or cause.change.delta_ns == 0:
        return ()
    return tuple(_part(one) for one in moved[:limit])


def _part(part: Part) -> str:
    before, after, unit = format_both_ns(part.before_ns, part.after_ns)
    name = event_name(part.name)
    if not part.before_ns:
        return f"{name} new, {after} {unit}"
    if not part.after_ns:
        return f"{name} gone, {before} {unit}"
    return f"{name} {before} to {after} {unit}"


def per(result: Comparison) -> str:
    """Return what amounts are given over: ``per step`` or ``in the window``."""
    return "per step" if result.before.per == "step" else "in the window"


def file_name(side: Run) -> str:
    """Return the last part of a path: reports get shared, folders of a machine should not."""
    return PurePosixPath(side.path.replace("\\", "/")).name or side.path


def run(side: Run) -> str:
    """Return one run in few words: device, size, steps and their mean."""
    parts = [visible(side.device)] if side.device else []
    parts += [format_bytes(side.size_bytes), count(side.n_events, "event")]
    if side.n_steps and side.per == "step":
        parts.append(f"{count(side.n_steps, 'steady step')} of {format_ns(side.mean_ns)}")
    elif side.n_steps:
        parts.append(f"a window of {format_ns(side.mean_ns)}")
    return ", ".join(parts)


def cost(change: FindingChange) -> str:
    """Return what a finding cost before and after: ``9.10-11.9 ms of 48.2 ms per step (…)``."""
    if change.status == "stayed" and change.before and change.after:
        one, other, unit = format_both_ns(change.before.high_ms * 1e6, change.after.high_ms * 1e6)
        return f"up to {one} {unit} before, {other} {unit} after"
    known = change.before if change.status == "went" else change.after
    known = known or change.before or change.after
    return saving(known) if known is not None and known.high_ms > 0 else "not costed"


def notes(result: Comparison) -> tuple[tuple[str, str, str], ...]:
    """Return limits as (level, message, what to do)."""
    return tuple((one.level, visible(one.message), visible(one.fix)) for one in result.limits)
