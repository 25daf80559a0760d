"""Counts are torch_xla's own, and each graph beyond one has the reason that the model gives it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.conftest import xla_python

from torchtriage.cli.main import cli
from torchtriage.compile.xla import run
from torchtriage.compile.xla.forks import ForkServer
from torchtriage.compile.xla.programs import read_dumps
from torchtriage.compile.xla.python_env import fork_server
from torchtriage.compile.xla.result import HloGraph, Route, XlaModel
from torchtriage.compile.xla.run import XlaPlan, measure, run_script
from torchtriage.core.errors import UsageError

pytestmark = pytest.mark.xla

TARGETS = Path(__file__).with_name("xla_targets.py")

# The counts once more, by nothing of ours: metrics of torch_xla around plain steps. A fork for each, after the imports:
# what one has compiled is not there for the next.
CASES = [
    (name, train, which)
    for name, train in (("plain", True), ("not_lowered", False), ("reads", True))
    for which in ("lazy", "openxla")
]
COUNTED = """
import importlib.util, json, os, sys, torch, torch_xla
import torch_xla.core.xla_model as xm, torch_xla.debug.metrics as metrics
spec = importlib.util.spec_from_file_location("targets", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
for name, train, which in json.loads(sys.argv[2]):
    if os.fork():
        assert os.wait()[1] == 0
        continue
    torch.set_grad_enabled(train)
    model, x = getattr(module, name)()
    model, x = model.train(train).to(torch_xla.device()), x.to(torch_xla.device())
    run = torch.compile(model, backend="openxla") if which == "openxla" else model
    optimizer = torch.optim.SGD(model.parameters(), 1e-4) if train else None
    seen = []
    for _ in range(3):
        if train:
            optimizer.zero_grad(set_to_none=True)
            out = run(x)
            loss = out.square().mean()
            loss.backward()
            optimizer.step()
        else:
            out = run(x)
        torch_xla.sync()
        xm.wait_device_ops()
        seen.append([(metrics.metric_data(n) or [0])[0] for n in ("CompileTime", "ExecuteTime")])
    print(json.dumps([[name, train, which], seen]), flush=True)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with fork_server(xla_python(), tmp_path_factory.mktemp("forks"), {}, None) as server:
        yield server


@pytest.fixture(autouse=True)
def imported_once(forks: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "fork_server", lambda *_: nullcontext(forks))


@cache
def model(name: str, *, train: bool = False, steps: int = 3) -> XlaModel:
    plan = XlaPlan((f"{TARGETS}:{name}",), (train,), xla_python(), steps=steps, rounds=0)
    (found,), _ = measure(plan)
    return found


def route(name: str, which: str, *, train: bool = False) -> Route:
    found = model(name, train=train).route(which)  # type: ignore[arg-type]
    assert found is not None
    assert all(step.executed == step.executed_told for step in found.steps)
    return found


def extra(one: Route) -> list[tuple[str, str]]:
    return [(graph.cause, graph.op) for graph in one.graphs if graph.extra]


@cache
def own_counts() -> dict[tuple[str, bool, str], list[list[int]]]:
    done = subprocess.run(
        [xla_python(), "-c", COUNTED, str(TARGETS), json.dumps(CASES)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PJRT_DEVICE": "CPU"},
    )
    counts = {}
    for line in done.stdout.splitlines():
        if line.startswith("[["):
            case, found = json.loads(line)
            steps = [[b - a for a, b in zip(one, two, strict=True)] for one, two in pairwise(found)]
            counts[tuple(case)] = [found[0], *steps]
    return counts


@pytest.mark.parametrize(("name", "train", "which"), CASES)
def test_counts_are_those_of_torch_xla_without_us(name: str, train: bool, which: str) -> None:
    found = route(name, which, train=train)
    counted = [[step.compiled, step.executed] for step in found.steps]
    assert counted == own_counts()[name, train, which]
    assert found.n_compiled == len(found.graphs)


def test_a_fresh_process_counts_what_a_fork_does() -> None:
    (fresh,), _ = measure(XlaPlan((f"{TARGETS}:reads",), (True,), xla_python(), steps=3, rounds=0, thorough=True))
    forked = model("reads", train=True)
    assert (fresh.n_dynamo_graphs, fresh.n_breaks) == (forked.n_dynamo_graphs, forked.n_breaks)
    for name in ("lazy", "openxla"):
        counts = [
            [[step.compiled, step.executed] for step in one.steps] for one in (_of(fresh, name), _of(forked, name))
        ]
        assert counts[0] == counts[1]
        causes = [[(graph.cause, graph.op, graph.frame) for graph in _of(one, name).graphs] for one in (fresh, forked)]
        assert causes[0] == causes[1]


def _of(found: XlaModel, name: str) -> Route:
    (one,) = [route for route in found.routes if route.name == name]
    assert one.steps
    return one


def test_a_plain_model_is_one_graph_either_way() -> None:
    found = model("plain")
    assert (found.n_dynamo_graphs, found.n_breaks, len(found.fx)) == (1, 0, 1)
    assert found.fx[0].hlo == (0,)
    for which in ("lazy", "openxla"):
        one = route("plain", which)
        assert (one.n_compiled, one.executed_per_step, extra(one)) == (1, 1.0, [])
        assert one.graphs[0].per_step == 1.0
        assert one.answers is not None
        assert one.answers.verdict in ("exact", "rounding")


def test_training_is_one_graph_for_lazy_and_several_for_dynamo() -> None:
    lazy, dynamo = (route("plain", which, train=True) for which in ("lazy", "openxla"))
    assert (lazy.n_compiled, lazy.executed_per_step) == (1, 1.0)
    kinds = [one.kind for one in model("plain", train=True).fx]
    assert kinds == ["forward", "backward"]
    # the loss is sent off with lowering in step 1, and as an input of the backward from then on
    causes = ["pending", "outside", "input", "new operations"]
    assert [cause for cause, _ in extra(dynamo)] == causes
    assert dynamo.executed_per_step == 4.0
    (update,) = [graph for graph in dynamo.graphs if graph.cause == "outside"]
    assert update.n_aliased == 4  # parameters, updated in place
    assert "optimizer" in update.reason
    assert dynamo.answers is not None
    assert (dynamo.answers.verdict, dynamo.answers.of) == ("rounding", "outputs and gradients")


def test_item_ends_a_graph_and_its_line_is_told() -> None:
    lazy = route("reads", "lazy")
    (one,) = [graph for graph in lazy.graphs if graph.extra]
    assert (one.cause, one.op) == ("read", "aten::_local_scalar_dense")
    line = TARGETS.read_text().splitlines()[one.frame.line - 1] if one.frame else ""
    assert ".item()" in line
    found = model("reads")
    assert (found.n_dynamo_graphs, found.n_breaks) == (2, 1)
    assert extra(route("reads", "openxla")) == []  # the break is where the value is read
    (read,) = lazy.fallbacks
    assert (read.name, read.kind, read.per_step) == ("aten::_local_scalar_dense", "read", 1.0)


def test_an_operator_that_is_not_lowered_cuts_the_fx_graph() -> None:
    assert extra(route("not_lowered", "lazy")) == [("fallback", "aten::median")]
    dynamo = route("not_lowered", "openxla")
    assert extra(dynamo) == [("probe", "aten::median"), ("pending", ""), ("part", "")]
    (fx,) = model("not_lowered").fx
    assert [one.name for one in fx.not_lowered] == ["aten.median.default"]
    assert len(fx.parts) == 2
    # the first part is what was compiled when the operator was tried out
    assert [dynamo.graphs[at].cause for at in fx.hlo] == ["part"]
    (host,) = dynamo.fallbacks
    assert (host.name, host.kind, host.per_step) == ("aten::median", "not lowered", 1.0)
    assert host.first_step > 1  # tried out, too


def test_a_size_that_depends_on_values() -> None:
    assert ("dynamic shape", "aten::nonzero") in extra(route("dynamic", "lazy"))


def test_what_differs_from_step_to_step_is_told() -> None:
    growing, sliding = route("growing", "lazy"), route("sliding", "lazy")
    assert [graph.cause for graph in growing.graphs] == ["step", "new sizes", "new sizes"]
    assert [graph.cause for graph in sliding.graphs] == ["step", "new constants", "new constants"]
    assert growing.n_steady == 0
    assert growing.executed_per_step is None


def test_a_sync_of_the_programs_own() -> None:
    assert extra(route("synced", "lazy")) == [("sync", "")]


def test_tied_weights_stay_tied_on_the_device() -> None:
    found = route("tied", "lazy", train=True)
    assert found.answers is not None
    assert found.answers.verdict == "rounding"


def test_zeros_are_no_other_gradient_than_none() -> None:
    found = route("ranked", "openxla", train=True)
    assert found.answers is not None
    assert found.answers.verdict == "rounding", found.answers.reason


def test_other_answers_are_called_wrong() -> None:
    few = ["--rounds", "1", "--seconds", "0.1", "--steps", "2"]
    target = ["xla", f"{TARGETS}:wrong", "--python", xla_python()]
    result = CliRunner().invoke(cli, [*target, *few])
    assert result.exit_code == 0, result.output
    assert "answers are not those of eager" in result.output
    assert "LazyTensor" in result.output


def test_a_loss_at_another_place_is_told() -> None:
    # torch_xla 2.9 returns the outputs of this graph at wrong places, without torchtriage too
    found = model("dropped", train=True)
    failures = {route.name: route.failure for route in found.routes}
    assert not failures["lazy"]
    assert "expected one number as loss, found a tensor of shape (4, 2)" in failures["openxla"]
    assert "dropout of probability 0" in failures["openxla"]


def test_a_function_makes_its_own_tensors() -> None:
    one = route("function", "lazy")
    assert one.n_compiled == 1
    assert one.answers is not None
    assert one.answers.verdict == "not checked"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fails", "RuntimeError: the weights"),
        ("missing", "has no 'missing'"),
        ("function_without_device", "cannot be moved to XLA"),
    ],
)
def test_a_target_that_cannot_be_run_is_one_clear_line(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        measure(XlaPlan((f"{TARGETS}:{name}",), (False,), xla_python(), steps=2, rounds=0))


def test_a_target_that_hangs_is_ended() -> None:
    plan = XlaPlan((f"{TARGETS}:hangs",), (False,), xla_python(), steps=2, rounds=0, timeout_s=2)
    with pytest.raises(UsageError, match="timed out while counting: no answer after 2 s"):
        measure(plan)


def test_a_script_and_its_dumps_tell_the_same(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch, torch_xla\n"
        "x = torch.ones(4, device=torch_xla.device())\n"
        "for _ in range(3):\n"
        "    y = (x * 2).sum()\n"
        "    print(sys.argv[1], y.item())\n"
    )
    program, code = run_script([str(script), "total"], xla_python(), "cpu", 120)
    assert code == 0
    assert program.n_compiled == program.n_compiled_told == len(program.graphs)
    assert program.n_executed == sum(graph.first_step for graph in program.graphs)
    reads = [graph for graph in program.graphs if graph.cause == "read"]
    assert {read.frame.line for read in reads if read.frame} == {5}
    assert [(fallback.name, fallback.first_step) for fallback in program.fallbacks] == [
        ("aten::_local_scalar_dense", 3)
    ]


def test_an_hlo_dump_has_as_many_modules_as_were_compiled(tmp_path: Path) -> None:
    script = tmp_path / "one.py"
    script.write_text("import torch, torch_xla\n(torch.ones(4).to(torch_xla.device()) * 3).cpu()\n")
    flags = f"--xla_dump_to={tmp_path / 'hlo'} --xla_dump_hlo_as_text"
    subprocess.run(
        [xla_python(), str(script)],
        check=True,
        capture_output=True,
        env={**os.environ, "XLA_FLAGS": flags, "PJRT_DEVICE": "CPU"},
    )
    (program,) = read_dumps([str(tmp_path / "hlo")])
    assert (program.n_modules, program.n_compiled) == (1, None)
    (graph,) = program.graphs
    assert isinstance(graph, HloGraph)
    assert (graph.n_inputs, graph.n_outputs) == (2, 1)
