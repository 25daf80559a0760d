"""Findings are ranked as docs/definitions.md says."""

from __future__ import annotations

from dataclasses import replace

from torchtriage.core.finding import Calibration, Cost, Finding, Fix, Place, Severity, rank_order


def _finding(message: str, severity: Severity, interval_ms: tuple[float, float] | None) -> Finding:
    cost = None
    if interval_ms is not None:
        low_ms, high_ms = interval_ms
        cost = Cost(low_ms, high_ms, "step", 100.0, low_ms / 100, high_ms / 100, high_ms, "modelled", "replay", "A")
    return Finding("SYN001", "name", "sync", "Title", severity, "likely", message, Place(), cost, {}, Fix("fix"))


def test_the_sure_saving_ranks_before_severity_and_what_is_grave_before_all() -> None:
    ranked = [
        _finding("severe, no saving", "high", None),
        _finding("sure", "medium", (4.0, 5.0)),
        _finding("wide", "high", (1.0, 60.0)),
        _finding("narrow", "high", (1.0, 2.0)),
        _finding("nothing sure", "low", (0.0, 3.0)),
        _finding("costs nothing", "low", (0.0, 0.0)),
    ]
    for shuffled in (ranked[::-1], ranked[3:] + ranked[:3]):
        assert [finding.message for finding in sorted(shuffled, key=rank_order)] == [
            finding.message for finding in ranked
        ]


def test_what_calibration_took_away_ranks_nothing_below_a_hundredth() -> None:
    tiny, wide = _finding("tiny", "low", (0.0, 1.0)), _finding("wide", "low", (0.0, 13.0))
    assert tiny.cost is not None
    known = Calibration(family="replay", coverage=0.8, share_low=0.002, share_high=0.01)
    tiny = replace(tiny, cost=replace(tiny.cost, calibration=known))
    assert sorted([tiny, wide], key=rank_order) == [wide, tiny]
