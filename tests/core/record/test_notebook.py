"""The magics, in IPython's own shell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchtriage.core.errors import UsageError
from torchtriage.integrations.notebook import CellReport, _read

LOOP = """
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for n in range({n}):
    optimizer.zero_grad()
    loss = model(torch.ones(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("line", "cell", "read"),
    [
        ("", "f()", (False, None, "f()")),
        ("--window", "f()", (True, None, "f()")),
        ("-o out -w f(-1, '--window')", None, (True, Path("out"), "f(-1, '--window')")),
        ("--out 'a b' f()", None, (False, Path("a b"), "f()")),
    ],
)
def test_options_stand_before_the_statement(line: str, cell: str | None, read: object) -> None:
    assert _read(line, cell) == read


@pytest.mark.parametrize(("line", "cell"), [("", None), ("--widow", "f()"), ("g()", "f()"), ("-o 'a f()", None)])
def test_what_cannot_be_read_is_refused(line: str, cell: str | None) -> None:
    with pytest.raises(UsageError, match=r"%%torchtriage"):
        _read(line, cell)


@pytest.fixture
def shell() -> Iterator[Any]:
    from IPython.testing.globalipapp import start_ipython

    shell = start_ipython() or __import__("IPython").get_ipython()
    shell.run_line_magic("load_ext", "torchtriage")
    yield shell
    shell.reset(new_session=False)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # IPython's own
def test_a_cell_is_run_recorded_and_judged(shell: Any, tmp_path: Path) -> None:
    shown = shell.run_cell_magic("torchtriage", f"-o {tmp_path}", LOOP.format(n=150))
    assert isinstance(shown, CellReport)
    assert shown.report.recorded.n_steps > 0
    assert "CPU only" in repr(shown)
    assert re.search(r"^loop +one step of SGD, ", repr(shown), re.MULTILINE)
    assert not re.search(r"^ran ", repr(shown), re.MULTILINE)  # a cell has no command
    assert shown.report.recorded.file.startswith("<ipython-input")
    assert (shown.report.recorded.line, shown.report.recorded.function) == (10, "<module>")
    assert "<iframe" in shown._repr_html_()
    assert "model" in shell.user_ns  # what the cell made is the notebook's
    assert len(list(tmp_path.glob("**/light.json.gz"))) == 1


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_a_cell_without_a_loop_is_one_window(shell: Any, capsys: Any) -> None:
    assert shell.run_cell_magic("torchtriage", "", "import torch; y = torch.ones(3)") is None
    assert "--window" in capsys.readouterr().err
    assert shell.user_ns["y"].sum() == 3
    shown = shell.run_cell_magic("torchtriage", "--window", LOOP.format(n=2))
    assert "one window" in repr(shown)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_a_line_and_a_cell_that_raises(shell: Any, capsys: Any) -> None:
    shell.run_cell("import torch")
    shown = shell.run_line_magic("torchtriage", "--window z = torch.ones(8) @ torch.ones(8)")
    assert shell.user_ns["z"] == 8
    assert "one window" in repr(shown)
    cell = LOOP.format(n=150) + "raise ValueError('of the cell')"
    shown = shell.run_cell_magic("torchtriage", "", cell)
    assert "of the cell" in capsys.readouterr().out
    assert isinstance(shown, CellReport)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_each_cell_keeps_its_recording(shell: Any, tmp_path: Path) -> None:
    shell.run_cell("import torch")
    for _ in range(2):
        shell.run_line_magic("torchtriage", f"--window -o {tmp_path} torch.ones(8) @ torch.ones(8)")
    assert len(list(tmp_path.glob("cell-*/**/recording.json"))) == 2


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", ["", "--window"])
def test_code_that_did_not_run_has_no_report(shell: Any, capsys: Any, options: str) -> None:
    assert shell.run_cell_magic("torchtriage", options, "x = (\n") is None
    assert capsys.readouterr().err == ""


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_a_window_that_raised_says_so(shell: Any, capsys: Any) -> None:
    shell.run_cell_magic("torchtriage", "--window", "import torch\ntorch.ones(8)\n1 / 0")
    assert "the code raised ZeroDivisionError; what ran before is judged" in capsys.readouterr().err
