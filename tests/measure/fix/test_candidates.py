"""Where edits are asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

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


NET = """
import torch

ROWS = ["a", "b"]

class Net(torch.nn.Module):
    def __init__(self, n, beta):
        super().__init__()
        self.n, self.beta = n, beta

    def forward(self, x, row):
        ramp = torch.exp(torch.linspace(0, self.beta, 4))
        return x * ramp

def known(row):
    return row in ROWS

class Replay:
    def __init__(self):
        self.items = []

    def add(self, item):
        self.items.append(item)
        if len(self.items) > 9:
            self.items.pop(0)

class Rows(torch.utils.data.Dataset):
    def __init__(self, paths):
        self.paths, self.epoch = paths, 0

    def __getitem__(self, i):
        return load_picture(self.paths[i], self.epoch)

def loaders(paths):
    return torch.utils.data.DataLoader(Rows(paths), num_workers=2)
"""


@pytest.mark.parametrize(
    ("edit", "code", "line", "use"),
    [
        ("hoist-to-setup", "LCH105", "ramp =", "net.beta = 0.5"),
        ("hoist-to-setup", "LCH105", "ramp =", "trainer.net.beta *= 2"),
        ("hoist-to-setup", "LCH105", "ramp =", "setattr(net, 'beta', 0.5)"),
        ("hoist-to-setup", "LCH105", "ramp =", "class Wide(net.Net): pass"),
        ("list-lookups", "HST106", "row in ROWS", "net.ROWS.append('c')"),
        ("list-lookups", "HST106", "row in ROWS", "setattr(net, 'ROWS', [])"),
        ("list-lookups", "HST106", "row in ROWS", "from models.net import ROWS as rows; rows += ['c']"),
        ("list-lookups", "HST106", "pop(0)", "print(replay.items[:3])"),
        ("loader-workers", "DAT019", "num_workers", "for epoch in range(9): data.epoch = epoch"),
        ("loader-workers", "DAT019", "num_workers", "for epoch in range(9): loader.dataset.set_epoch(epoch)"),
    ],
)
def test_what_another_file_changes_does_not_stay(tmp_path, edit, code, line, use):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "net.py").write_text(NET)
    number = next(number for number, row in enumerate(NET.splitlines(), start=1) if line in row)
    known = finding(code, number)
    known = replace(known, place=Place(frame=Frame("models/net.py", number, "", lines=(number,))))
    for script in (frozenset(), frozenset({"train.py"})):
        for text, n_expected in (("print(net)", 1), (use, 0)):
            (tmp_path / "train.py").write_text(f"from models import net\n{text}\n")
            found, _ = candidates_of([known], Files(tmp_path, script))
            assert len({item.edit for item in found if item.edit == edit}) == n_expected
