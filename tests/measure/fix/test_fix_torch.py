"""``torchtriage fix`` on real programs: whatever ends it, the project is as it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

PROGRAM = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
open("log.txt", "w").write("started")
for _ in range(100000):
    sum(k * k for k in range(30_000))
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def state(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "torchtriage", "fix", *words]


def fix(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "text", "said"),
    [
        (["train.py"], "def broken(:\n", "exit code 1"),
        (["train.py"], "raise SystemExit(3)", "exit code 3"),
        (["train.py"], "import torch\ninput('name? ')", "exit code 1"),
        (["gone.py"], "", "gone.py"),
        (["train.ipynb"], "{}", "train.ipynb"),
        (["--only", "nonsense", "train.py"], "", "nonsense"),
        (["--evidence", "train.py"], "", "--proposer llm"),
        (["--model", "x", "train.py"], "", "--proposer llm"),
        (["--proposer", "llm", "train.py"], "", "needs --model"),
    ],
)
def test_what_cannot_be_fixed_is_refused_with_its_reason(tmp_path, words, text, said):
    (tmp_path / words[-1]).write_text(text) if words[-1] != "gone.py" else None
    before = state(tmp_path)
    ended = fix(tmp_path, *words)
    assert ended.returncode == 2, ended.stderr
    assert said in ended.stderr
    assert "Traceback (most recent call last)" not in ended.stderr.partition("in a copy of its project")[0]
    assert state(tmp_path) == before


@pytest.mark.parametrize(("ended_by", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_whatever_ends_it_the_project_is_as_before(tmp_path, ended_by, code):
    project, temporary = tmp_path / "a project", tmp_path / "tmp"
    project.mkdir()
    temporary.mkdir()
    (project / "train.py").write_text(PROGRAM)
    before = state(project)
    environment = {**os.environ, "TMPDIR": str(temporary)}
    running = subprocess.Popen(command("train.py"), cwd=project, env=environment, start_new_session=True)
    try:
        limit_s = time.monotonic() + 60
        while not list(temporary.rglob("log.txt")) and time.monotonic() < limit_s:
            time.sleep(0.05)
        assert list(temporary.rglob("log.txt"))
        os.killpg(running.pid, ended_by)
        assert running.wait(30) == code
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
    assert state(project) == before
    if ended_by == signal.SIGINT:
        assert not list(temporary.glob("torchtriage-*"))
