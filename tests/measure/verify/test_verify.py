"""Two real programs on trial."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from torchtriage.core.record.launch import find_command
from torchtriage.measure.verify.agreement import Answer, agreement, read_answers
from torchtriage.measure.verify.paired_runs import sample

pytestmark = pytest.mark.torch

# what torch made at its import is frozen: to collect it would be a finding of its own
PROGRAM = """
import gc
import torch
gc.freeze()
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
    slow, fixed = write(tmp_path, "a.py", work=60_000), write(tmp_path, "b.py", work=2_000)
    out = tmp_path / "kept"
    ended = verify(slow, fixed, "--rounds", "3", "--steps", "12", "--out", str(out))
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    assert result["outcome"] == "faster"
    assert result["per"] == "step"
    assert result["told"]
    assert result["ratio_high"] < 0.6
    assert result["answers"]["status"] == "same"
    assert result["answers"]["n"] == 16
    assert result["promise"]["codes"] == ["HST020"]
    assert "noise" in (out / "before1" / "output.txt").read_text()


TRAINING = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data, labels = torch.randn(60, 8, 3, 8, 8), torch.randint(10, (60, 8))
for x, y in zip(data, labels):
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
WRONG = {
    "no-zero-grad": ("    optimizer.zero_grad()\n", "", "gradients 2"),
    "learning-rate": ("lr=1e-3", "lr=1e-4", "update 1"),
    "weight-decay": ("lr=1e-3", "lr=1e-3, weight_decay=0.5", "update 1"),
    "logits": ("logits = model(x)", "logits = model(x) * 1.03", "gradients 1"),
    "labels": ("zip(data, labels)", "zip(data, labels.flip(1))", "gradients 1"),
    "half": ("    logits = model(x)", "    with torch.autocast('cpu'):\n        logits = model(x)", "gradients 1"),
}
RIGHT = {
    "fused": ("lr=1e-3", "lr=1e-3, fused=True"),
    "foreach": ("lr=1e-3", "lr=1e-3, foreach=True"),
    "channels-last": ("data, labels =", "model = model.to(memory_format=torch.channels_last)\ndata, labels ="),
    "zero-by-hand": ("optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=False)"),
}


ALL = """
import json, sys
from pathlib import Path
from torchtriage.core.record.output_digest import Answers
for name, text in json.load(sys.stdin).items():
    folder = Path(name)
    folder.mkdir()
    Answers(folder).start()
    exec(compile(text, name, "exec"), {"__name__": "__main__"})
"""


def test_wrong_fixes_are_caught_where_they_first_show_and_right_ones_agree(tmp_path):
    programs = {"reference": TRAINING}
    programs |= {name: TRAINING.replace(old, new) for name, (old, new, *_) in (WRONG | RIGHT).items()}
    command = [sys.executable, "-c", ALL]
    subprocess.run(command, cwd=tmp_path, input=json.dumps(programs), text=True, check=True, capture_output=True)

    def answers(name: str) -> tuple[Answer, ...]:
        (path,) = (tmp_path / name).glob("answers-*.json")
        return read_answers(json.loads(path.read_text()))

    verdicts = {name: agreement([answers("reference")] * 2, [answers(name)]) for name in programs}
    assert {name: verdict.first for name, verdict in verdicts.items() if verdict.status == "differ"} == {
        name: first for name, (*_, first) in WRONG.items()
    }
    assert {name for name, verdict in verdicts.items() if verdict.status == "same"} == {"reference", *RIGHT}
    assert verdicts["reference"].worst == 0
    assert {verdict.n for name, verdict in verdicts.items() if name in RIGHT} == {16}


ODD = """
import sys, torch
from pathlib import Path
from torchtriage.core.record.output_digest import Answers
torch.is_autocast_enabled = lambda: False  # as before torch 2.4
Answers(Path(sys.argv[1])).start()
model = torch.nn.Linear(4, 4, device="meta")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 4, device="meta")).sum().backward()
optimizer.step()
print("went on")
"""


def test_what_cannot_be_noted_does_not_stop_the_program(tmp_path):
    ended = subprocess.run([sys.executable, "-c", ODD, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "went on\n"), ended.stderr


ENDED = """
import sys, torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
try:
    for step in range(3000):
        loss = model(torch.ones(2, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        print("step", step)
        print("loss", loss.item(), file=sys.stderr)
        optimizer.step()
finally:
    print("ended after", step)
"""


def test_what_a_run_printed_is_whole_and_in_order_up_to_where_it_was_ended(tmp_path):
    script = tmp_path / "a.py"
    script.write_text(ENDED, encoding="utf-8")
    printed = sample(find_command([str(script)]), tmp_path / "run", steps=6).printed
    lines = printed.splitlines()
    assert printed.endswith("\n")
    assert [line.split()[0] for line in lines] == ["step", "loss"] * (len(lines) // 2)
    assert "ended after" in (tmp_path / "run" / "output.txt").read_text(encoding="utf-8")


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


def test_steps_of_a_script_that_profiles_itself_are_timed(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(8, 8)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "with torch.profiler.profile():\n"
        "    for _ in range(30):\n"
        "        optimizer.zero_grad()\n"
        "        model(torch.ones(4, 8)).sum().backward()\n"
        "        optimizer.step()\n"
    )
    run = sample(find_command([str(script)]), tmp_path / "out", steps=10)
    assert run.step_ms is not None
    assert run.n_steps >= 10
