"""Where edits are asked."""

from __future__ import annotations

from torchtriage.core.finding import Finding, Fix, Frame, Place
from torchtriage.measure.fix.candidates import Files, candidates_of

TRAIN = """import torch
from models.net import configure

optimizer = configure(model)
for batch in loader:
    model(batch).sum().backward()
    optimizer.step()
"""
CONFIGURE = "import torch\n\n\ndef configure(model):\n    return torch.optim.AdamW(model.parameters())\n"


def finding(code: str, line: int) -> Finding:
    place = Place(frame=Frame("train.py", line, "<module>", lines=(line,)))
    return Finding(code, "", "", "", "high", "certain", "", place, None, {}, Fix(""))


def test_an_optimizer_is_looked_for_in_the_files_that_are_imported(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "models" / "net.py").write_text(CONFIGURE)
    (tmp_path / "other.py").write_text(CONFIGURE)
    found, without = candidates_of([finding("LCH016", 7)], Files(tmp_path))
    assert [list(candidate.edits) for candidate in found] == [["models/net.py"]]
    assert not without


def test_other_findings_are_mended_where_they_are(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "models" / "net.py").write_text(CONFIGURE)
    found, without = candidates_of([finding("HST114", 7)], Files(tmp_path))
    assert not found
    assert len(without) == 1
