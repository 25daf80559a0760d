"""What collected records of requests say: by version, device, size and hour, the slowest, what drifted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

from torchtriage.core.units import format_count, format_ms, format_share
from torchtriage.operate.collected.result import CollectedModel, Drift, LatencyGroup, RecordsReport, SlowRecord
from torchtriage.report import blocks as b

N_DEVICES, N_HOURS, N_SIZES, N_SLOWEST = 20, 48, 24, 10
COLUMNS = ("requests", "failed", "p50", "p90", "p99")


def document(result: RecordsReport) -> b.Document:
    """Return the report of ``torchtriage monitor report``."""
    facts = [
        ("from", _when(result.begin_s)),
        ("to", _when(result.end_s)),
        ("logs", format_count(len(result.logs), "file")),
    ]
    blocks: list[b.Block] = [
        b.Head("torchtriage monitor report", result.verdict, facts=facts),
        *(b.Section(model.model, list(_model(model)), heading=b.bold(model.model)) for model in result.models),
        b.Notes(result.notes, style="dim"),
        b.Foot(f"torchtriage {result.version}"),
    ]
    return b.Document(result.verdict[0], result.version, result.schema, blocks)


def _model(model: CollectedModel) -> Iterator[b.Block]:
    slowest_first = sorted(model.devices, key=lambda group: -(group.beside or 0.0))
    for what, groups, limit in (
        ("version", model.versions, 50),
        ("device", slowest_first, N_DEVICES),
        ("size", model.sizes, N_SIZES),
        ("hour, UTC", model.hours, N_HOURS),
        ("torch.compile", model.compiling, 2),
    ):
        yield _groups(what, groups, limit)
    yield _slowest(model.slowest)
    yield _drifts(model.drifts)


def _groups(what: str, groups: Sequence[LatencyGroup], limit: int) -> b.Table:
    compared = any(group.beside is not None for group in groups)
    rows = [
        (
            group.name,
            f"{group.requests:,}",
            format_share(group.failed / group.requests) if group.failed else "",
            *(_time(value) for value in (group.p50_ms, group.p90_ms, group.p99_ms)),
            *(("" if group.beside is None else f"{group.beside:.2f} x",) if compared else ()),
        )
        for group in groups
    ]
    columns = (f"by {what}", *COLUMNS, *(("vs the others",) if compared else ()))
    return b.Table(columns, rows, limit=limit, drop=(2, 4))


def _slowest(slowest: Sequence[SlowRecord]) -> b.Table:
    rows = [
        (
            f"{record.times:.1f} x",
            _time(record.took_ms),
            "" if record.size is None else f"{record.size:,}",
            record.version,
            record.device,
            _when(record.at_s),
            ", ".join(f"{name}={value}" for name, value in record.fields.items()),
        )
        for record in slowest
    ]
    columns = ("slowest, vs their size's median", "took", "size", "version", "device", "when, UTC", "fields")
    return b.Table(columns, rows, align="lrrllll", limit=N_SLOWEST, drop=(6, 3))


def _drifts(drifts: Sequence[Drift]) -> b.Table:
    rows = [
        (drift.what, f"{drift.between[0]} → {drift.between[1]}", drift.change(), f"{drift.psi:.2f}") for drift in drifts
    ]
    return b.Table(("drift of", "between", "change", "stability index"), rows, align="lllr")


def _time(value: float | None) -> str:
    return "" if value is None else format_ms(value)


def _when(at_s: float) -> str:
    try:
        return datetime.fromtimestamp(at_s, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"
