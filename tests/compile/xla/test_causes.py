"""A cause follows from what was open when a graph was compiled, and from nothing else."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from torchtriage.compile.xla.causes import FIXES, again, from_dump, from_profile, kind_of, user_line
from torchtriage.compile.xla.dumps import Analysis, HloModule, SavedGraph
from torchtriage.compile.xla.graph_counts import count
from torchtriage.core.finding import Frame

BRIDGE = "/x/site-packages/torch_xla/_dynamo/dynamo_bridge.py"
SYNC = Frame("/x/site-packages/torch_xla/torch_xla.py", 87, "sync", True)
LOWER = Frame(BRIDGE, 432, "extract_graph_helper", True)
USER = Frame("/home/me/model.py", 7, "forward", True)
LIBRARY = Frame("/x/site-packages/torch/nn/modules/module.py", 1786, "_call_impl", True)
FALLBACKS = {"aten::median.dim_values"}


@pytest.mark.parametrize(
    ("stack", "frames", "route", "cause", "op"),
    [
        (["triage:end"], [SYNC], "lazy", "step", ""),
        (["triage:end"], [SYNC], "openxla", "outside", ""),
        (
            ["aten::item", "aten::_local_scalar_dense", "aten::_to_cpu"],
            [USER],
            "lazy",
            "read",
            "aten::_local_scalar_dense",
        ),
        (["aten::nonzero", "aten::_to_cpu"], [USER], "lazy", "dynamic shape", "aten::nonzero"),
        (["aten::median", "aten::_to_cpu"], [USER], "lazy", "fallback", "aten::median"),
        (["aten::to", "aten::_to_copy"], [USER], "lazy", "copy", "aten::to"),
        (["aten::relu"], [USER], "lazy", "unknown", "aten::relu"),
        ([], [SYNC, USER], "lazy", "sync", ""),
        ([], [USER], "lazy", "unknown", ""),
        (["triage:fx:2", "triage:lower", "triage:part:1"], [LOWER], "openxla", "fx graph", ""),
        (["triage:fx:2", "triage:lower", "triage:part:3"], [LOWER], "openxla", "part", ""),
        (["triage:fx:2", "triage:lower", "triage:part:1"], [SYNC], "openxla", "pending", ""),
        (["triage:fx:2", "triage:lower"], [SYNC], "openxla", "pending", ""),
        (["triage:fx:2", "triage:lower", "aten::median", "aten::_to_cpu"], [USER], "openxla", "probe", "aten::median"),
        (["triage:fx:2", "triage:run:1"], [USER], "openxla", "input", ""),
        (["triage:fx:2", "triage:run:1"], [LOWER], "openxla", "new sizes", ""),
        (["triage:fx:2", "aten::median"], [USER], "openxla", "fallback", "aten::median"),
    ],
)
def test_causes(stack: list[str], frames: list[Frame], route: str, cause: str, op: str) -> None:
    told = from_profile(stack, frames, route, FALLBACKS)
    assert (told.cause, told.op) == (cause, op)
    assert told.expected == (cause in ("step", "fx graph"))
    assert told.fx == (2 if "triage:fx:2" in stack else None)


def test_a_backward_without_frames_is_told_by_its_operator() -> None:
    assert from_profile(["autograd::engine::x", "aten::median"], [], "lazy", FALLBACKS).cause == ("fallback")


@pytest.mark.parametrize(
    ("said", "frames", "cause"),
    [
        ("dynamo is compiling a FX graph to HLO", [LOWER], "fx graph"),
        ("", [LOWER], "fx graph"),
        ("torch_xla.sync when dynamo processing input graphs", [SYNC], "pending"),
        ("torch_xla.sync in parallel loader at step end", [SYNC], "step"),
        ("torch_xla.compile", [SYNC], "step"),
        ("user torch_xla.sync", [SYNC], "sync"),
        ("user mark_step", [], "sync"),
        ("most likely user code trying to access tensor value before torch_xla.sync", [USER], "read"),
        ("", [], "unknown"),
    ],
)
def test_causes_from_dumps_alone(said: str, frames: list[Frame], cause: str) -> None:
    assert from_dump(said, frames).cause == cause


def module(ops: str = "add", inputs: str = "f32[4]") -> HloModule:
    return HloModule("m", (inputs,), ("f32[4]",), 0, ((ops, 1),), (ops,))


def test_how_a_graph_differs_from_the_one_before() -> None:
    assert again(module(), module("mul"), (0, 0)) == "new operations"
    assert again(module(), module(inputs="f32[8]"), (0, 0)) == "new sizes"
    assert again(module(), module(), (0, 2)) == "aliasing"
    assert again(module(), module(), (0, 0)) == "new constants"
    assert again(module(), module(), (None, 2)) == "new constants"
    assert again(None, module(), (0, 0)) == "unknown"


@pytest.mark.parametrize("module", ["torchtriage.compile.xla.child", "torchtriage.core.isolate.session_main"])
def test_the_users_line_is_neither_a_librarys_nor_ours(module: str) -> None:
    spec = find_spec(module)
    assert spec is not None
    ours = Frame(str(spec.origin), 3, "step", True)
    assert user_line([LOWER, LIBRARY, ours, USER, LIBRARY]) == USER
    assert user_line([LIBRARY, ours]) is None


def test_kinds_of_operators_on_the_host() -> None:
    names = ("aten::_local_scalar_dense", "aten::nonzero", "aten::median.dim_values")
    assert [kind_of(name) for name in names] == ["read", "shape", "not lowered"]
    assert all(fix.text and not fix.text.endswith(".") for fix in FIXES.values())


# -- a counting session ------------------------------------------------------------------------


def step(compiles: list[tuple[list[str], int]], executed: int) -> dict[str, Any]:
    counts = {
        name: [0, 0.0]
        for name in (
            "CompileTime",
            "ExecuteTime",
            "TransferToDeviceTime",
            "TransferFromDeviceTime",
            "InboundData",
            "OutboundData",
        )
    }
    counts["CompileTime"] = [len(compiles), 2e6 * len(compiles)]
    counts["ExecuteTime"] = [executed, 1e6]
    told = [{"stack": stack, "ns": 2e6, "aliased": aliased} for stack, aliased in compiles]
    return {"counts": counts, "fallbacks": {"aten::median": 1}, "compiles": told}


def saved(*hashes: str) -> list[SavedGraph]:
    return [SavedGraph(one, (SYNC,), module()) for one in hashes]


def test_counts_add_up_and_graphs_of_later_steps_are_told_apart() -> None:
    found, _ = count(
        "lazy",
        [step([(["triage:end"], 0)], 1), step([(["triage:end"], 2)], 1), step([], 1)],
        [],
        [[], [], []],
        [saved("a"), saved("b"), saved("b")],
        train=True,
    )
    assert [graph.cause for graph in found.graphs] == ["step", "aliasing"]
    assert [(graph.first_step, graph.per_step) for graph in found.graphs] == [(1, 0.0), (0, 1.0)]
    assert [one.compiled for one in found.steps] == [1, 1, 0]
    assert all(one.executed == one.executed_told for one in found.steps)
    assert found.n_steady == 1
    (host,) = found.fallbacks
    assert (host.name, host.first_step, host.per_step) == ("aten::median", 1, 1.0)


def test_what_is_in_no_dump_is_not_guessed() -> None:
    found, _ = count("lazy", [step([(["triage:end"], 0)], 2)], [], [[]], [[]], train=False)
    (graph,) = found.graphs
    assert (graph.hash, graph.n_ops, graph.per_step) == ("", None, None)
    assert (found.steps[0].executed, found.steps[0].executed_told, found.n_steady) == (2, 0, 0)


def test_graphs_that_dynamo_runs_are_told_by_debug_output() -> None:
    fx = {"compile_id": "0/0", "kind": "inference", "n_ops": 3, "parts": [3], "unsupported": [], "step": 0}
    run = Analysis("execution", "dynamo is executing a compiled program", "a")
    lowered = [SavedGraph("a", (LOWER,), module())]
    stack = ["triage:fx:0", "triage:lower", "triage:part:1"]
    found, (fx_graph,) = count(
        "openxla", [step([(stack, 0)], 1), step([], 1)], [fx], [[run], [run]], [lowered, []], train=False
    )
    (graph,) = found.graphs
    assert (graph.cause, graph.extra, graph.first_step, graph.per_step) == ("fx graph", False, 1, 1)
    assert graph.reason == "FX graph 0/0 inference"
    assert fx_graph.hlo == (0,)
