"""Where edits are asked."""

from __future__ import annotations

from dataclasses import replace

from torchtriage.core.finding import Cost, Finding, Fix, Frame, Place
from torchtriage.diagnose.lint.edits import SourceEdit
from torchtriage.measure.fix import candidates as module
from torchtriage.measure.fix.candidates import Edit, Files, candidates_of
from torchtriage.measure.fix.proposal import Proposal

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


def test_a_finding_without_edits_of_its_own_is_a_hot_line(tmp_path):
    (tmp_path / "train.py").write_text("import gc\n\nfor batch in loader:\n    step(batch)\n    gc.collect()\n")
    known = finding("KRN104", 5)
    assert candidates_of([known], Files(tmp_path)) == ([], [known])
    saves = replace(known, cost=Cost(1.0, 2.0, "step", 4.0, 0.25, 0.5, 2.0, "measured", "", "A"))
    found, without = candidates_of([saves], Files(tmp_path))
    assert [candidate.edit for candidate in found] == ["needless-calls-out"]
    assert not without


def test_changes_at_the_line_come_before_those_elsewhere(tmp_path, monkeypatch):
    def at(line):
        return lambda _site: iter([Proposal((SourceEdit(line, 0, line, 1, "y"),), "")])

    codes = frozenset({"HST020"})
    edits = (
        Edit("in-long-runs", codes, frozenset(), at(19), last=True),
        Edit("elsewhere", codes, frozenset(), at(1)),
        Edit("near", codes, frozenset(), at(20)),
    )
    monkeypatch.setattr(module, "known_edits", lambda: edits)
    (tmp_path / "train.py").write_text("x = 1\n" * 30)
    found, _ = candidates_of([finding("HST020", 20)], Files(tmp_path))
    assert [candidate.edit for candidate in found] == ["near", "elsewhere", "in-long-runs"]
