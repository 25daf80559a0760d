"""The live watch on planted programs that run torch."""

from __future__ import annotations

import inspect
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.memory.leaks.watching import quiet

from torchtriage.memory.leaks import leak_report
from torchtriage.memory.leaks.leak_watch import Watch

pytestmark = pytest.mark.torch


def planted(name: str, kind: str) -> Callable[[Watch, random.Random, int], object]:
    from memory.leaky import healthy, leaks

    return getattr(leaks if kind == "leak" else healthy, name)  # type: ignore[no-any-return]


def run(name: str, kind: str, seed: int = 0) -> leak_report.WatchReport:
    import torch

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    program = planted(name, kind)
    with quiet() as watch:
        program(watch, random.Random(seed), 200)
    return watch.report()


@pytest.mark.parametrize(
    "name",
    [
        "graph_in_validation",
        "graph_after_backward",
        "state_never_detached",
        "global_cache",
        "unbounded_lru_cache",
        "forward_hooks",
        "tensor_hooks",
        "tensor_that_grows",
        "sets_in_closure",
    ],
)
def test_planted_leaks_are_found_with_their_line(name: str) -> None:
    from memory.leaky import leaks

    lines = inspect.getsource(leaks).splitlines()
    report = run(name, "leak")
    assert report.answer == "leak"
    assert any(
        leak.file == leaks.__file__ and leak.line and lines[leak.line - 1].endswith("# HOLDS") for leak in report.leaks
    ), report
    assert all(leak.found_step <= 200 for leak in report.leaks)


@pytest.mark.parametrize(
    "name",
    [
        "nothing",
        "cache_that_fills",
        "sawtooth_of_cycles",
        "rings_that_wait_for_the_collector",
        "list_cleared_every_epoch",
        "accumulated_loss",
        "graph_made_once",
        "numbers_logged",
        "load_swing",
        "best_and_average",
        "hooks_removed",
    ],
)
def test_healthy_look_alikes_stay_quiet(name: str) -> None:
    report = run(name, "healthy")
    assert report.answer == "no leak", report


def test_where_something_is_compiled_tensors_are_not_followed_and_that_is_said() -> None:
    import torch

    torch.compile(torch.sin, backend="eager")(torch.ones(2))
    report = run("graphs_in_list", "leak")
    (leak,) = report.leaks
    assert leak.holder == "losses"
    assert leak.made_line is None
    assert [note.rpartition(": ")[2] for note in report.notes] == ["torch.compile is in use"]


def test_sampled_steps_compute_the_same() -> None:
    import torch

    def train(watch: Watch | None) -> torch.Tensor:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(60):
            loss = model(torch.randn(4, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if watch is not None:
                watch.step()
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    with quiet() as watch:
        assert torch.equal(train(watch), train(None))
    assert watch.report().n_looks >= 3


def test_a_graph_names_the_line_that_made_its_tensors() -> None:
    report = run("graphs_in_list", "leak")
    (leak,) = report.leaks
    assert leak.made_line is not None
    assert leak.bytes_per_step > 1000


def test_start_counts_optimizer_steps_and_leaves_a_report(tmp_path: Path) -> None:
    import subprocess

    script = tmp_path / "train.py"
    script.write_text(
        "from pathlib import Path\n"
        "import torch\n"
        "from torchtriage.memory.leaks import leak_watch\n"
        "leak_watch.start(Path(__file__).parent / 'out')\n"
        "model = torch.nn.Linear(32, 32)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "outputs = []\n"
        "for _ in range(1000):\n"
        "    out = model(torch.randn(16, 32))\n"
        "    out.square().mean().backward()\n"
        "    outputs.append(out)\n"
        "    optimizer.step()\n"
    )
    ran = subprocess.run([sys.executable, str(script)], check=False, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    assert "LeakWarning: growing list `outputs`" in ran.stderr
    told = json.loads((tmp_path / "out" / "memory_watch.json").read_text())
    assert told["n_steps"] == 1000
    assert (told["leaks"][0]["holder"], told["leaks"][0]["line"]) == ("outputs", 11)
