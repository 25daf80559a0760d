"""Scripts that run torch: the loop is found and recorded, and nothing else changes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchtriage.core.record.launch import BOOTSTRAP

pytestmark = pytest.mark.torch

MODEL = """
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    optimizer.zero_grad()
    loss = model(torch.randn(16, 32)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()
"""
TRAINING = MODEL + "print([step() for _ in range(90)])\n"
FORWARDS = (
    MODEL.replace("optimizer =", "unused = lambda:")
    + """
import itertools, os, time
from pathlib import Path
def turns():
    # twenty; where somebody watches, until all is recorded: forwards are found by their time
    end = time.monotonic() + 60
    for n in itertools.count():
        watched = os.path.exists("out") and not any(Path("out").glob("*/heavy.json.gz"))
        if n >= 20 and not (watched and time.monotonic() < end):
            return
        yield n
"""
)
MODEL_ON_LINE = MODEL.count("\n", 0, MODEL.index("optimizer.step()")) + 1


def run(
    folder: Path, source: str, *options: str, watched: bool = True, code: int | None = 0
) -> subprocess.CompletedProcess[str]:
    """Run a script plainly or watched, in a folder of its own; expect an exit code."""
    (folder / "train.py").write_text(source)
    before = [sys.executable]
    if watched:
        before += ["-m", "torchtriage", "run", "-q", "--out", "out", *options]
    out = subprocess.run(
        [*before, "train.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(BOOTSTRAP.parents[2])},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if code is not None:
        assert out.returncode == code, out.stderr
    return out


def judged(folder: Path, source: str, *options: str, code: int = 0) -> dict[str, Any]:
    """Run a script watched and return its report."""
    run(folder, source, "--json", "-o", "report.json", *options, code=code)
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def recorded(report: dict[str, Any]) -> dict[str, Any]:
    """Return how the first result was recorded."""
    found: dict[str, Any] = report["results"][0]["recorded"]
    return found


def test_losses_are_the_same_to_the_last_bit_and_the_report_says_what_was_run(tmp_path: Path) -> None:
    plain = run(tmp_path, TRAINING, watched=False)
    watched = run(tmp_path, TRAINING, "--json", "-o", "report.json")
    assert watched.stdout == plain.stdout
    assert plain.stdout.count(",") == 89
    facts = recorded(json.loads((tmp_path / "report.json").read_text()))
    assert facts["command"] == "train.py"
    assert facts["exit_code"] == 0
    assert facts["loop"] == "one step of SGD"
    assert (facts["line"], facts["function"]) == (MODEL_ON_LINE, "step")
    assert facts["step_ms"] > 0
    assert facts["light_ms"] > 0
    assert facts["heavy_ms"] > 0
    assert facts["environment"]["torch"]
    names = {path.name for path in (tmp_path / "out").glob("*/*")}
    assert {"light.json.gz", "heavy.json.gz", "recording.json"} <= names


@pytest.mark.parametrize(
    "before", ["for n in turns():\n    model(torch.randn(16, 32))\n", "for n in turns():\n    step()\n"]
)
def test_training_that_goes_on_for_longer_than_what_was_before_it_is_the_loop(before: str, tmp_path: Path) -> None:
    source = (
        FORWARDS
        + (
            "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n" * ("step" in before)
            + before
            + "optimizer = torch.optim.Adam(model.parameters(), lr=0.1)\n"
            "end = time.monotonic() + 300\n"  # only where nothing is found
            "while len(list(Path('out').glob('*/heavy.json.gz'))) < 2 and time.monotonic() < end:\n    step()\n"
        )
    )
    assert recorded(judged(tmp_path, source))["loop"].startswith("one step of Adam")


def test_the_rarest_optimizer_ends_an_iteration(tmp_path: Path) -> None:
    source = MODEL + (
        "other = torch.optim.Adam(model.parameters())\n"
        "for _ in range(60):\n    step(); step(); step(); step(); other.step()\n"
    )
    facts = recorded(judged(tmp_path, source))
    assert facts["loop"] == "one step of Adam, the rarest of 2 optimizers (beside SGD)"


def test_an_optimizer_made_anew_for_each_fit_goes_on_with_the_loop(tmp_path: Path) -> None:
    source = MODEL.replace("def step():", "def step(optimizer):") + (
        "for fit in range(20):\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    for _ in range(5):\n        step(optimizer)\n"
    )
    facts = recorded(judged(tmp_path, source))
    assert facts["loop"] == "one step of SGD"
    assert facts["n_steps"] > 50
    assert facts["heavy_ms"] > 0


def test_two_optimizers_that_step_at_one_line_are_one_loop(tmp_path: Path) -> None:
    source = MODEL.replace("def step():", "def step(optimizer):") + (
        "other = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(10):\n    step(optimizer)\n"
        "for _ in range(50):\n    step(optimizer); step(other)\n"
    )
    facts = recorded(judged(tmp_path, source))
    assert 55 < facts["n_steps"] < 65


def test_an_inference_loop_is_found_by_its_module(tmp_path: Path) -> None:
    source = FORWARDS + (
        "class Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__(); self.inner = model\n"
        "    def forward(self, x):\n        time.sleep(0.01); return self.inner(x)\n"
        "net = Net()\n"
        "with torch.inference_mode():\n"
        "    for _ in turns():\n        net(torch.randn(4, 32))\n"
        "print(len(net._forward_pre_hooks))\n"
    )
    facts = recorded(judged(tmp_path, source))
    assert facts["loop"].startswith("one forward of Net")
    assert facts["function"] == "<module>"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="calls are not compared on Python 3.10")
def test_an_encoder_that_runs_twice_in_an_iteration_begins_one_step_and_is_the_same_work_again(tmp_path: Path) -> None:
    source = FORWARDS + (
        "encoder = nn.Sequential(*[nn.Linear(128, 128) for _ in range(8)])\n"
        "net = nn.Linear(128, 128)\n"
        "prompt, empty = torch.ones(2048, 128), torch.zeros(2048, 128)\n"
        "with torch.inference_mode():\n"
        "    x = torch.randn(2048, 128)\n"
        "    for n in range(400):\n"
        "        cond = encoder(prompt)\n"
        "        uncond = encoder(empty)\n"
        "        x = net(x + cond - uncond)\n"
    )
    report = judged(tmp_path, source, "--exit-after")
    assert recorded(report)["loop"].startswith("one forward of Sequential")
    again = [found for found in report["results"][0]["findings"] if found["code"] == "LCH105"]
    lines = source.splitlines()
    # which of the two enough looks fall on is the machine's affair
    at = {lines[found["place"]["frame"]["line"] - 1].strip() for found in again}
    assert at
    assert at <= {"cond = encoder(prompt)", "uncond = encoder(empty)"}


def test_optimizers_that_step_in_backward_are_left_alone_and_forwards_are_the_steps(tmp_path: Path) -> None:
    source = FORWARDS + (
        "import warnings\n"
        "warnings.simplefilter('error')\n"
        "optimizers = {one: torch.optim.SGD([one], lr=0.1) for one in model.parameters()}\n"
        "def take(one):\n    optimizers[one].step(); optimizers[one].zero_grad()\n"
        "for one in model.parameters():\n    one.register_post_accumulate_grad_hook(take)\n"
        "for _ in turns():\n    model(torch.randn(4096, 32)).square().mean().backward()\n"
    )
    watched = run(tmp_path, source)
    assert watched.stderr == ""
    assert "called; optimizers step in backward" in " ".join(watched.stdout.split())
    assert [*(tmp_path / "out").glob("*/heavy.json.gz")]


def test_a_forward_too_short_to_be_seen_is_heard(tmp_path: Path) -> None:
    # sum() keeps the interpreter to itself: another thread hardly ever sees the forward
    source = FORWARDS + (
        "with torch.inference_mode():\n"
        "    for _ in turns():\n        sum(range(1_000_000)); model(torch.randn(1, 32))\n"
        "print(len(torch.nn.modules.module._global_forward_pre_hooks))\n"
    )
    ended = run(tmp_path, source)
    assert "one forward of Sequential" in ended.stdout
    assert ended.stdout.startswith("0\n")


@pytest.mark.parametrize("how", ["net = torch.compile(model, backend='eager')", "model.compile(backend='eager')"])
def test_a_compiled_model_is_compiled_once(how: str, tmp_path: Path) -> None:
    source = FORWARDS + (
        "import gc, torch._dynamo.utils as utils\n"
        "gc.set_threshold(50)  # collections fall into compiled calls\n"
        f"{how}\n"
        "net = globals().get('net', model)\n"
        "with torch.no_grad():\n"
        "    for _ in turns():\n        net(torch.randn(4096, 32))\n"
        "print(dict(utils.counters['frames']), dict(utils.counters['stats']))\n"
    )
    plain = run(tmp_path, source, watched=False)
    watched = run(tmp_path, source)
    assert watched.stdout.startswith(plain.stdout)
    assert "one forward of Sequential" in watched.stdout


def test_a_compiled_optimizer_step_is_left_as_it_is(tmp_path: Path) -> None:
    source = MODEL + (
        "import torch._dynamo.utils as utils\n"
        "compiled = torch.compile(lambda: plain(), backend='eager')\n"
        "plain, optimizer.step = optimizer.step, compiled\n"
        "print([step() for _ in range(20)])\n"
        "print(dict(utils.counters['stats']), len(utils.counters['graph_break']))\n"
    )
    plain = run(tmp_path, source, watched=False)
    watched = run(tmp_path, source)
    assert watched.stdout == plain.stdout
    assert watched.stderr.count("Warning") == plain.stderr.count("Warning")


def test_torch_may_be_patched(tmp_path: Path) -> None:
    source = (
        """
import torch
calls = [0, 0]
call, step_ = torch.nn.Module.__call__, torch.optim.SGD.step
def counted(self, *args, **kwargs):
    calls[0] += 1
    return call(self, *args, **kwargs)
def stepped(self, closure=None):
    calls[1] += 1
    return step_(self, closure)
torch.nn.Module.__call__ = counted
torch.optim.SGD.step = stepped
"""
        + TRAINING
        + "print(calls, torch.nn.Module.__call__ is counted)\n"
    )
    plain = run(tmp_path, source, watched=False)
    watched = run(tmp_path, source)
    assert watched.stdout.startswith(plain.stdout)
    assert "one step of SGD" in watched.stdout


def test_a_crash_keeps_its_traceback_and_its_report(tmp_path: Path) -> None:
    source = MODEL + "for n in range(90):\n    step()\nraise RuntimeError('at the end')\n"
    plain = run(tmp_path, source, watched=False, code=1)
    watched = run(tmp_path, source, code=1)
    assert watched.stderr == plain.stderr
    assert "ran       train.py (ended with exit code 1)" in watched.stdout


def test_what_was_recorded_survives_a_kill(tmp_path: Path) -> None:
    source = MODEL + ("import os, signal\nfor n in range(90):\n    step()\nos.kill(os.getpid(), signal.SIGKILL)\n")
    watched = run(tmp_path, source, code=-9)
    assert "ran       train.py (ended by SIGKILL)" in watched.stdout
    assert "one step of SGD" in watched.stdout


@pytest.mark.parametrize(
    "source",
    [
        "import shutil; shutil.rmtree('out', True)\n" + TRAINING,
        MODEL.replace("optimizer =", "unused = lambda:")
        + "import shutil; shutil.rmtree('out', True)\n"
        + "layer = nn.Linear(1000, 1000)\n"
        + "with torch.inference_mode():\n"
        + "    for _ in range(200):\n        y = layer(torch.ones(200, 1000))\n"
        + "print(y.shape)\n",
    ],
)
def test_a_script_that_removes_the_recordings_goes_on(source: str, tmp_path: Path) -> None:
    watched = run(tmp_path, source)
    plain = run(tmp_path, source, watched=False).stdout
    assert plain != ""
    assert watched.stdout.startswith(plain)


def test_a_loop_that_is_too_short_is_said(tmp_path: Path) -> None:
    watched = run(tmp_path, MODEL + "step()\nprint('done')\n")
    assert watched.stdout == "done\n"
    assert "the script ended after 1 optimizer step" in watched.stderr
    watched_twice = run(tmp_path, MODEL + "step()\n", "--warmup", "0", code=2)
    assert "expected a new or an empty folder" in watched_twice.stderr


def test_the_script_ends_after_the_recordings_if_asked(tmp_path: Path) -> None:
    source = MODEL + (
        "try:\n    for n in range(100_000):\n        step()\n"
        "finally:\n    step()\n    step()\n    print('cleaned', n < 99_999)\n"
    )
    watched = run(tmp_path, source, "--exit-after", "-v")
    assert watched.stdout.startswith("cleaned True\n")
    assert "one step of SGD" in watched.stdout
    looks = re.search(r"steps, ([\d,]+) stack samples", " ".join(watched.stdout.split()))
    assert looks is not None
    assert int(looks[1].replace(",", "")) > 200  # the recordings of such steps take a tenth of a second


def test_a_script_whose_loop_is_in_another_thread_ends_as_with_sys_exit(tmp_path: Path) -> None:
    source = MODEL + (
        "import atexit, threading\n"
        "atexit.register(print, 'at exit')\n"
        "def work():\n"
        "    try:\n        for n in range(1_000_000):\n            step()\n"
        "    finally:\n        print('cleaned')\n"
        "thread = threading.Thread(target=work)\n"
        "thread.start()\n"
        "try:\n    thread.join()\n    while True:\n        pass\n"
        "finally:\n    print('joined')\n"
    )
    watched = run(tmp_path, source, "--exit-after")
    assert watched.stdout.startswith("cleaned\njoined\nat exit\n")
    assert "Traceback" not in watched.stderr


def test_a_script_that_profiles_itself_is_looked_at_all_the_same(tmp_path: Path) -> None:
    source = MODEL + (
        "n = 0\nimport time\nfrom torch.profiler import profile\ntry:\n    with profile():\n"
        "        for n in range(1_000):\n            step(); time.sleep(0.01)\n"
        "finally:\n    print('steps', n)\n"
    )
    watched = run(tmp_path, source, "--exit-after")
    n_steps = int(watched.stdout.split()[1])
    assert 30 <= n_steps < 900
    said = " ".join(watched.stdout.split())
    assert "the script profiles itself" in said
    assert f"{n_steps} steps seen" in said


def test_threads_and_forks_are_left_alone(tmp_path: Path) -> None:
    source = MODEL + (
        "import os, threading\n"
        "pid = os.fork()\n"
        "losses = [step() for _ in range(90)]\n"
        "if not pid:\n    os._exit(6)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), threading.active_count())\n"
        "print(losses)\n"
    )
    plain = run(tmp_path, source, watched=False)
    watched = run(tmp_path, source)
    assert watched.stdout.startswith(plain.stdout)
    assert len([*(tmp_path / "out").glob("process-*.json")]) == 1


def test_a_model_saved_while_it_is_watched_needs_nothing_of_ours(tmp_path: Path) -> None:
    source = FORWARDS + (
        "import copy\n"
        "with torch.no_grad():\n"
        "    for n in turns():\n"
        "        model(torch.randn(4096, 32))\n"
        "        if model._forward_pre_hooks and n:\n"
        "            torch.save(model, 'model.pt'); twin = copy.deepcopy(model)\n"
        "            print(torch.equal(twin(torch.ones(1, 32)), model(torch.ones(1, 32))))\n"
        "            break\n"
    )
    run(tmp_path, source)
    loading = (
        MODEL + "import sys\nother = torch.load('model.pt', weights_only=False)\n"
        "print('torchtriage' in sys.modules, torch.equal(other(torch.ones(1, 32)),"
        " model(torch.ones(1, 32))))\n"
    )
    assert run(tmp_path, loading, watched=False).stdout == "False True\n"


def test_ranks_are_judged_together(tmp_path: Path) -> None:
    source = MODEL.replace("\nmodel =", "\nmodel = nn.parallel.DistributedDataParallel(").replace(
        "nn.Linear(32, 1))", "nn.Linear(32, 1)))"
    ).replace(
        "torch.manual_seed(0)",
        "import os, torch.distributed as dist\n"
        "def main(rank):\n"
        "    os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT='29517')\n"
        "    dist.init_process_group('gloo', rank=rank, world_size=2)\n"
        "    exec(compile(BODY, __file__, 'exec'), globals())\n"
        "    dist.destroy_process_group()\n"
        "BODY = '''",
    ) + (
        "for n in range(60):\n    step()\n'''\n"
        "if __name__ == '__main__':\n    torch.multiprocessing.spawn(main, nprocs=2)\n"
    )
    report = judged(tmp_path, source)
    assert [len(job["ranks"]) for job in report["jobs"]] == [2]
    assert [one["recorded"]["environment"]["distributed"]["rank"] for one in report["results"]] == [0, 1]


LOADED = """
import time
import torch
from torch.utils.data import DataLoader, TensorDataset
import torchtriage.core.record.loop_finder as watch
watch.PATIENCE_S = 0.5
data = DataLoader(TensorDataset(torch.arange(64.0)), batch_size=2)
def scan(epochs):
    total = 0.0
    for _ in range(epochs):
        for (batch,) in data:
            total += float((batch * 2).sum())
            time.sleep(0.004)
    return total
print(scan(10))
"""


def test_a_loop_without_module_and_optimizer_is_found_by_its_loader(tmp_path: Path) -> None:
    facts = recorded(judged(tmp_path, LOADED))
    assert "one fetch from a DataLoader" in facts["loop"]
    assert facts["function"] == "scan"
    assert facts["n_steps"] >= 20


def test_a_training_takes_the_place_of_a_pass_over_the_data(tmp_path: Path) -> None:
    facts = recorded(judged(tmp_path, LOADED + TRAINING))
    assert facts["loop"] == "one step of SGD"
