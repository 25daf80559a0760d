"""On every shared recording: what an expert found by hand is found, and nothing that is false."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torchtriage as tt
from torchtriage.core.errors import TraceFormatError
from torchtriage.core.toml import read_toml
from torchtriage.diagnose.patterns import catalogue

VERDICTS: dict[str, dict[str, Any]] = read_toml(Path(__file__).parent / "expected" / "verdicts.toml")
KNOWN = {entry.pattern.code for entry in catalogue()}

Judge = Callable[[Path], tt.Report]


def test_verdicts_name_patterns_that_exist_and_none_twice() -> None:
    for name, entry in VERDICTS.items():
        must, must_not = set(entry["must"]), set(entry["must_not"])
        assert not must & must_not, name
        assert must | must_not <= KNOWN, name


@pytest.mark.data
def test_every_recording_has_a_verdict(recordings: Path) -> None:
    files = {
        path.relative_to(recordings).as_posix()
        for path in recordings.rglob("*")
        if path.name.endswith((".json", ".json.gz"))
    }
    assert files == set(VERDICTS)


@pytest.fixture(params=sorted(VERDICTS))
def name(request: pytest.FixtureRequest) -> str:
    one: str = request.param
    return one


@pytest.fixture
def result(name: str, recordings: Path, judge: Judge) -> tt.Report | None:
    """Return the verdict; None for files that are refused as no trace, which is right for them."""
    if {"refused", "empty"} & set(VERDICTS[name]["doctor"]):
        with pytest.raises(TraceFormatError):
            judge(recordings / name)
        return None
    return judge(recordings / name)


@pytest.mark.data
def test_no_pattern_fails(result: tt.Report | None) -> None:
    assert result is None or result.crashes == ()


@pytest.mark.data
def test_findings_agree_with_the_review(name: str, result: tt.Report | None) -> None:
    found = {} if result is None else {finding.code: finding.message for finding in result.findings}
    missed = set(VERDICTS[name]["must"]) - set(found)
    false = {code: found[code] for code in VERDICTS[name]["must_not"] if code in found}
    assert (sorted(missed), false) == ([], {})


@pytest.mark.data
def test_costs_are_shares_of_one_step(result: tt.Report | None) -> None:
    if result is None:
        return
    for one in result.findings:
        if one.cost is None:
            continue
        assert 0 <= one.cost.low_ms <= one.cost.high_ms <= one.cost.of_ms
        assert one.cost.share_high == pytest.approx(one.cost.high_ms / one.cost.of_ms, abs=1e-4)
    joint = result.joint_cost
    if joint is not None:
        highs = sum(finding.cost.high_ms for finding in result.findings if finding.cost)
        # per-step figures are averages, so their sum may pass the median step by its spread
        assert joint.high_ms <= highs + 1e-3
        assert joint.high_ms <= joint.of_ms


@pytest.mark.data
def test_refused_and_healthy_never_meet_findings(result: tt.Report | None) -> None:
    if result is None:
        return
    assert not (result.healthy and (result.findings or result.refused))
    assert not (result.refused and result.findings)
    assert all(line.strip() for line in result.verdict)
