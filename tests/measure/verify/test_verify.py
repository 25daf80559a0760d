"""Two real programs on trial."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from torchtriage.core.record.launch import find_command
from torchtriage.measure.verify.paired_runs import agreement, sample

pytestmark = pytest.mark.torch

PROGRAM = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr={lr})
print("noise on standard output")
for _ in range(300):
    sum(k * k for k in range({work}))
    loss = model(torch.ones(4, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def write(folder: Path, name: str, *, work: int, lr: float = 0.1) -> str:
    path = folder / name
    path.write_text(PROGRAM.format(work=work, lr=lr), encoding="utf-8")
    return str(path)


def verify(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torchtriage", "verify", *words, "--json", "-q"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_python_work_taken_away_is_time_saved(tmp_path):
    slow, fixed = write(tmp_path, "a.py", work=300_000), write(tmp_path, "b.py", work=10_000)
    out = tmp_path / "kept"
    ended = verify(slow, fixed, "--rounds", "3", "--steps", "12", "--out", str(out))
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    assert result["per"] == "step"
    assert result["told"]
    assert result["ratio_high"] < 0.6
    assert result["answers"]["status"] == "same"
    assert result["answers"]["n"] == 8
    assert result["promise"]["codes"] == ["HST020"]
    assert "noise" in (out / "before1" / "output.txt").read_text()


def test_another_learning_rate_is_other_results(tmp_path):
    taken = []
    for lr in (0.1, 0.5):
        command = find_command([write(tmp_path, f"{lr}.py", work=10, lr=lr)])
        taken.append(sample(command, tmp_path / str(lr), steps=4))
    assert all(one.n_steps == 4 for one in taken)
    assert agreement(taken[:1], taken[1:]).status == "differ"


def test_a_program_that_fails_shows_its_last_words(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("import torch\nraise ValueError('no such dataset')\n", encoding="utf-8")
    ended = verify(str(bad), str(bad), "--no-record")
    assert ended.returncode == 2
    assert "no such dataset" in ended.stderr
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr.split("exit code", 1)[0]


def test_one_script_alone_says_what_is_missing(tmp_path):
    ended = verify(write(tmp_path, "a.py", work=10))
    assert ended.returncode == 2
    assert "expected two scripts, or --before and --after" in ended.stderr
