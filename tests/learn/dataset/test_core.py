"""The benchmark's core, which is in the repository, is whole and has some of everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchtriage.learn.dataset.recordings import DatasetItem, dataset_items
from torchtriage_benchmark.recording.checksums import differences
from torchtriage_benchmark.recording.program_generator import faults, lookalikes, programs

CORE = Path(__file__).parents[3] / "benchmarks" / "core"


@pytest.fixture(scope="module")
def core() -> dict[str, DatasetItem]:
    return {item.id: item for item in dataset_items(CORE)}


def test_the_core_is_as_recorded_and_small() -> None:
    assert list(differences(CORE)) == []
    assert sum(path.stat().st_size for path in CORE.iterdir()) <= 20e6


def test_the_core_has_each_family_fault_and_part(core: dict[str, DatasetItem]) -> None:
    known = {fault.code for part in ("eager", "compiled", "ranks") for fault in faults(part).values()}
    assert {one.code for one in core.values()} == {"", *known}
    assert {one.about["family"] for one in core.values()} == set(programs())
    assert {one.about.get("lookalike", "") for one in core.values()} == {"", *lookalikes()}


def test_its_faults_are_in_windows_and_its_clean_programs_have_none(core: dict[str, DatasetItem]) -> None:
    for one in core.values():
        assert one.faulty.any() == bool(one.code), one.id
        if one.code:
            assert core[one.about["twin"]].code == ""
            lines = one.about["script"].splitlines()
            twin = core[one.about["twin"]].about["script"].splitlines()
            assert {lines[at - 1] for at in one.about["fault_lines"]} - set(twin)
