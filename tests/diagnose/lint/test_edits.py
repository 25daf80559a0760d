"""Autofixes change what they say and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from torchtriage.diagnose.lint import lint, lint_text
from torchtriage.diagnose.lint.edits import Autofix, add_keyword, apply


def call(text: str) -> ast.Call:
    return next(node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))


def added(text: str) -> str | None:
    edit = add_keyword(text, call(text), "new", "1")
    return None if edit is None else apply(text, [Autofix((edit,), "")])[0]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f(a)\n", "f(a, new=1)\n"),
        ("f(a,)\n", "f(a, new=1)\n"),
        ("f((a))\n", "f((a), new=1)\n"),
        ("f((a, b))\n", "f((a, b), new=1)\n"),
        ("f(a, b=(c) )\n", "f(a, b=(c), new=1 )\n"),
        ("f(\n    a,\n    b=2,\n)\n", "f(\n    a,\n    b=2,\n    new=1,\n)\n"),
        ("f(\n    a,  # why)\n)\n", "f(\n    a,  # why)\n    new=1,\n)\n"),
        ("f(\n\ta,\n\tb,\n)\n", "f(\n\ta,\n\tb,\n\tnew=1,\n)\n"),
        ("f(\n    a,\n    b)\n", "f(\n    a,\n    b, new=1)\n"),
        ('f("ä", "→")\n', 'f("ä", "→", new=1)\n'),
        ("x = f(a); y = 2\n", "x = f(a, new=1); y = 2\n"),
        ("f(a, new=0)\n", "f(a, new=1)\n"),
        ("f(a if b else\n  c)\r\n", "f(a if b else\n  c, new=1)\r\n"),
        ("f( )\n", "f( new=1)\n"),
    ],
)
def test_a_keyword_is_added_where_it_belongs(before: str, after: str) -> None:
    assert added(before) == after
    ast.parse(after)


@pytest.mark.parametrize("text", ["f(**o)\n", "f(*a)\n", "f(x for x in y)\n", "f(a, new=b)\n"])
def test_no_edit_where_it_might_mean_something_else(text: str) -> None:
    assert added(text) is None


TRAIN = """import torch
from torch.utils.data import DataLoader
device = torch.device("cuda")
model = torch.nn.Linear(3, 3).to(device)
loader = DataLoader(files, num_workers=4)  # größe
opt = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
for epoch in range(10):
    for x in loader:
        loss = model(x.to(device)).mean()
        opt.zero_grad(set_to_none=False)
        loss.backward()
        opt.step()
def evaluate(model, loader):
    for x in loader:
        print(model(x.to(device, non_blocking=True)).shape)
"""
MENDED = TRAIN.replace("num_workers=4)", "num_workers=4, pin_memory=True)")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_fix_writes_files_as_they_were(tmp_path: Path, newline: str, encoding: str) -> None:
    head = "# -*- coding: latin-1 -*-\n" if encoding == "latin-1" else ""
    file = tmp_path / "train.py"
    file.write_bytes((head + TRAIN).replace("\n", newline).encode(encoding))
    result = lint([str(file)], fix=True)
    assert result.patches[0].applied
    assert result.patches[0].codes == ("CPY007",)
    assert all(result.patches[0].safe_because.values())
    assert file.read_bytes() == (head + MENDED).replace("\n", newline).encode(encoding)
    # with the loader pinned, its copies need not wait; then nothing is left to mend
    assert lint([str(file)], fix=True).patches[0].codes == ("CPY008",)
    assert "x.to(device, non_blocking=True)).mean()" in file.read_bytes().decode(encoding)
    assert lint([str(file)]).patches == ()


def test_without_fix_the_file_stays_and_the_diff_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(TRAIN, encoding="utf-8")
    (patch,) = lint([str(file)]).patches
    assert not patch.applied
    assert file.read_text(encoding="utf-8") == TRAIN
    assert "-loader = DataLoader(files, num_workers=4)  # größe" in patch.diff.split("\n")
    assert "+loader = DataLoader(files, num_workers=4, pin_memory=True)  # größe" in patch.diff.split("\n")


def fixable(text: str) -> set[str]:
    return {code for patch in lint_text(text).patches for code in patch.codes}


def test_what_may_change_results_is_found_and_not_edited() -> None:
    found = {finding.code for finding in lint_text(TRAIN).findings}
    assert found >= {"DAT019", "OPT040", "CFG043", "LCH016"}
    assert fixable(TRAIN) == {"CPY007"}


def test_pinning_given_by_its_place_is_replaced_there() -> None:
    text = TRAIN.replace("DataLoader(files, num_workers=4)", "DataLoader(files, 2, True, None, None, 0, None, False)")
    (patch,) = lint_text(text).patches
    assert "+loader = DataLoader(files, 2, True, None, None, 0, None, True)  # größe\n" in patch.diff


def test_batches_of_a_class_of_their_own_may_not_know_non_blocking() -> None:
    pinned = TRAIN.replace("num_workers=4", "pin_memory=True")
    assert "CPY008" in fixable(pinned)
    assert "CPY008" not in fixable(pinned.replace("pin_memory", "collate_fn=nested, pin_memory"))
    nested = "class Nested:\n    def to(self, device):\n        return self\n"
    assert "CPY008" not in fixable(pinned.replace("device =", f"{nested}device =", 1))


def test_pinning_is_not_offered_for_tensors_of_a_dataset_that_may_be_on_the_device() -> None:
    text = TRAIN.replace("DataLoader(files,", "DataLoader(torch.utils.data.TensorDataset(x, y),")
    assert "CPY007" not in fixable(text)
