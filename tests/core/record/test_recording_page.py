"""The examples of docs/recording.md run, in the order of the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "recording.md"


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # the trainers' own
def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 8
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)  # what a reader would do
    printed = capsys.readouterr().out
    assert printed.count("CPU only") == 5
    assert "captures=1" in printed
    assert list((tmp_path / "curves").glob("events.*"))
    assert {one.name for one in (tmp_path / "recordings" / "rank0").iterdir()} == {
        "heavy.json.gz",
        "light.json.gz",
        "recording.json",
    }
