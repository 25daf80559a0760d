"""Targets as a session meets them, and answers held against eager's, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from torchtriage.core.isolate.dynamo_counters import PHASES
from torchtriage.core.isolate.session_client import SessionClient
from torchtriage.core.isolate.session_main import ModelSession
from torchtriage.core.isolate.target import Case, TargetError, build, cast, leaves, load, sources

pytestmark = pytest.mark.torch

MODELS = Path(__file__).parents[2] / "measure" / "bench" / "models.py"


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Sessions set what is global in their process, which is this one."""
    import torch

    threads = torch.get_num_threads()
    yield
    torch.set_grad_enabled(True)
    torch.set_num_threads(threads)
    torch._dynamo.reset()


def made(name: str, **more: Any) -> Any:
    given = {"batch_size": None, "dtype": "", "device": "", "train": False} | more
    return build(load(f"{MODELS}:{name}"), **given)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("module_alone", "found a model without inputs"),
        ("number", "found int"),
        ("bad_inputs", "found inputs of type int"),
        ("bad_loss", "found a loss of type int"),
        ("needs_more", "needs an argument 'size'"),
        ("raises", "failed: RuntimeError: no weights here - at models.py:"),
        ("not_callable", "expected a function, found int"),
        ("nothing_of_this_name", "has no 'nothing_of_this_name'"),
    ],
)
def test_a_bad_target_is_one_clear_line(name: str, said: str) -> None:
    with pytest.raises(TargetError) as caught:
        made(name)
    assert said in caught.value.message
    assert "\n" not in caught.value.message


def test_the_sources_of_a_target_are_all_modules_of_its_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "__init__.py").write_text("import zoo.layers\nfrom zoo.net import build")
    (tmp_path / "zoo" / "net.py").write_text("def build(): ...")
    (tmp_path / "zoo" / "layers.py").write_text("width = 1")
    monkeypatch.syspath_prepend(tmp_path)
    function = load("zoo:build")
    before = sources("zoo:build", function)
    assert {"zoo", "zoo.net", "zoo.layers"} <= before.keys()
    assert not {"torch", "json", "torchtriage"} & before.keys()
    (tmp_path / "zoo" / "layers.py").write_text("width = 2")
    after = sources("zoo:build", function)
    assert [name for name in after if before[name] != after[name]] == ["zoo.layers"]
    assert "torch.nn" in sources("torch.nn:Linear", load("torch.nn:Linear"))


def test_a_module_that_is_imported_in_the_first_step_is_one_of_the_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a compiler has written meanwhile is not: it says nothing that the program does not."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "written_kernel.py").write_text("")
    (tmp_path / "late_layers.py").write_text("import written_kernel")
    (tmp_path / "late_net.py").write_text("def build(): return lambda: __import__('late_layers')")
    monkeypatch.syspath_prepend(tmp_path / "cache")
    monkeypatch.syspath_prepend(tmp_path)
    session = ModelSession()
    way = {"mode": "eager", "backend": "", "dynamic": None}
    session.open("late_net:build", way, train=False, device="", threads=1, batch_size=None, dtype="")
    session.first()
    assert {"late_net", "late_layers"} <= session.sources().keys()
    assert "written_kernel" not in session.sources()


def test_a_target_that_needs_a_gpu_says_so_where_there_is_none() -> None:
    import torch

    if torch.cuda.is_available():
        made("needs_cuda")
        return
    with pytest.raises(TargetError) as caught:
        made("needs_cuda")
    assert "needs a CUDA device" in caught.value.hint


def test_a_module_that_is_not_there_is_one_clear_line() -> None:
    with pytest.raises(TargetError, match="cannot be imported: No module named"):
        load("no_such_module_here:build")


def test_batch_sizes_need_a_parameter() -> None:
    with pytest.raises(TargetError, match="takes no batch_size"):
        made("function", batch_size=4)


def test_what_a_target_asks_for_is_passed_by_name() -> None:
    case = made("named", batch_size=3, dtype="bfloat16")
    assert case.kwargs["input"].shape == (3, 8)
    assert case.dtype == "bfloat16"


def test_a_model_is_converted_where_the_target_does_not_do_it() -> None:
    case = made("linear", batch_size=2, dtype="float64")
    assert {case.dtype, str(case.args[0].dtype)[6:]} == {"float64"}


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclass(frozen=True)
class Batch:
    x: Any
    pair: Any = None
    size: int = field(init=False, default=8)


def test_named_tuples_and_dataclasses_are_converted_inside() -> None:
    import torch

    half = torch.ones(2)
    case = Case(torch.nn.Linear(2, 2), (Batch(half, Pair(half, [half])),), {"pair": Pair(1, half)}, None, ())
    cast(case, "float64", "cpu")
    (batch,) = case.args
    assert (type(batch), type(batch.pair), type(case.kwargs["pair"])) == (Batch, Pair, Pair)
    assert [tensor.dtype for tensor in leaves((case.args, case.kwargs))] == [torch.float64] * 4
    assert half.dtype == torch.float32


def test_weights_are_the_same_in_every_process() -> None:
    import torch

    one, other = (made("linear").model[0].weight for _ in range(2))
    assert torch.equal(one, other)


def test_a_function_cannot_be_converted_or_trained() -> None:
    with pytest.raises(TargetError, match="cannot be converted"):
        made("function", dtype="bfloat16")
    with pytest.raises(TargetError, match="training needs"):
        made("function", train=True)


# -- answers -----------------------------------------------------------------------------------


def judged(backend: str, name: str = "linear", standard: str = "", **more: Any) -> dict[str, Any]:
    """Return what a session says about a backend's answers."""
    session = ModelSession()
    way = {"mode": "" if backend else "eager", "backend": backend, "dynamic": None}
    given = {"train": False, "device": "", "threads": None, "batch_size": None, "dtype": ""} | more
    session.open(f"{MODELS}:{name}", way, **given)
    session.first()
    return session.numerics(standard)


@pytest.mark.parametrize(
    ("backend", "verdict"),
    [
        ("", "exact"),
        ("eager", "exact"),
        ("test_ulp", "rounding"),
        ("test_bf16", "lower precision"),
        ("test_wrong", "wrong"),
        ("test_scaled", "wrong"),
        ("test_nan", "wrong"),
    ],
)
@pytest.mark.parametrize("train", [False, True])
def test_planted_answers_are_classed_right(backend: str, verdict: str, train: bool) -> None:
    found = judged(backend, train=train)
    assert found["verdict"] == verdict
    assert found["of"] == ("outputs and gradients" if train else "outputs")


@pytest.mark.parametrize(
    ("backend", "name", "dtype"),
    [
        ("test_nan_for_0", "relu", ""),
        ("test_0_for_nan", "some_nan", ""),
        ("test_most_for_inf", "some_nan", ""),
        ("test_nan_last", "overflows", "float16"),
        ("test_scaled", "overflows", "float16"),
    ],
)
def test_what_is_not_finite_is_no_excuse(backend: str, name: str, dtype: str) -> None:
    """Neither NaN in place of a number, nor eager's own overflow beside other errors."""
    assert judged(backend, name, dtype=dtype)["verdict"] == "wrong"


def test_nan_in_place_of_a_number_is_not_equal_without_a_reference_either() -> None:
    import torch

    from torchtriage.core.isolate.numerics.check import _beside_eager

    one, other = torch.tensor([float("nan"), 1.0]), torch.tensor([0.0, 1.0])
    found = _beside_eager([("output", one)], [("output", other)], "why", False)
    assert found["verdict"] == "not checked"
    assert found["error"] is None


@pytest.mark.parametrize(("name", "dtype"), [("some_nan", ""), ("overflows", "float16")])
def test_values_that_are_not_finite_in_eager_either_are_counted(name: str, dtype: str) -> None:
    found = judged("eager", name, dtype=dtype)
    assert found["verdict"] == "exact"
    n = 1 if dtype else 2
    assert f"{n} of 4 values" in found["reason"]
    assert "not finite" in found["reason"]


@pytest.mark.parametrize("backend", ["", "eager"])
def test_without_a_finite_value_nothing_is_checked(backend: str) -> None:
    found = judged(backend, "all_nan")
    assert found["verdict"] == "not checked"
    assert "no value is finite" in found["reason"]
    assert judged("test_0_for_nan", "all_nan")["verdict"] == "wrong"


def test_the_worst_element_is_found() -> None:
    found = judged("test_wrong")
    assert found["worst_at"] == "output[0, 7]"
    assert found["worst"] > 0.1
    assert 0.9 < found["cosine"] < 1


def test_of_complex_answers_both_parts_are_judged() -> None:
    assert judged("eager", "spectrum")["verdict"] == "exact"
    found = judged("test_conjugate", "spectrum")
    assert found["verdict"] == "wrong"
    assert found["worst_at"].startswith("imaginary part of output[")


def test_errors_stand_beside_those_of_eager_and_bfloat16() -> None:
    found = judged("test_ulp")
    assert 1e-8 < found["eager_error"] < 1e-6
    assert 1e-8 < found["error"] < 1e-6
    assert 1e-3 < found["low_error"] < 2e-2


def test_another_shape_is_wrong() -> None:
    found = judged("test_shape")
    assert found["verdict"] == "wrong"
    assert found["reason"] == "output has shape [3, 32] instead of [4, 32]"


def test_in_bfloat16_its_own_rounding_is_no_fault() -> None:
    assert judged("test_ulp", dtype="bfloat16")["verdict"] == "rounding"
    assert judged("test_scaled", dtype="bfloat16")["verdict"] == "wrong"


@pytest.mark.parametrize(
    ("backend", "name", "dtype", "verdict"),
    [
        ("", "linear", "bfloat16", "lower precision"),
        ("eager", "linear", "float16", "lower precision"),
        ("test_scaled", "linear", "bfloat16", "wrong"),
        ("", "relu", "bfloat16", "lower precision"),
        ("", "named", "bfloat16", "lower precision"),
        ("", "module_of_its_own", "bfloat16", "not checked"),
    ],
)
def test_of_several_dtypes_the_most_precise_is_the_standard(backend: str, name: str, dtype: str, verdict: str) -> None:
    """Also where the target builds in a dtype, with other random numbers."""
    found = judged(
        backend, name, standard="float32", dtype=dtype, batch_size=None if name in ("relu", "module_of_its_own") else 4
    )
    assert found["verdict"] == verdict
    assert "float32" in found["reason"]
    if verdict == "lower precision":
        assert 1e-4 < found["error"] < 2e-2
        assert found["error"] == pytest.approx(found["eager_error"], rel=0.5)


def test_the_standard_itself_is_held_against_float64() -> None:
    assert judged("eager", dtype="float32")["verdict"] == "exact"


def test_dropout_draws_the_same_numbers_for_both() -> None:
    found = judged("eager", "with_dropout", train=True)
    assert found["verdict"] == "exact"


def test_a_function_is_held_against_eager_itself() -> None:
    assert judged("eager", "function")["verdict"] == "exact"
    found = judged("test_scaled", "function")
    assert found["verdict"] == "not checked"
    assert found["error"] == pytest.approx(0.2, rel=0.01)


def first(
    worker: SessionClient, name: str, backend: str = "eager", dynamic: bool | None = None, batch_size: int | None = None
) -> dict[str, Any]:
    """Open a target and return what its first step tells."""
    way = {"mode": "", "backend": backend, "dynamic": dynamic}
    given = {"train": False, "device": "", "threads": None, "batch_size": batch_size, "dtype": ""}
    worker.ask("open", 120, target=f"{MODELS}:{name}", way=way, **given)
    return worker.ask("first", 120)


def test_graph_breaks_are_counted_with_their_reason(tmp_path: Path) -> None:
    """In a process of its own: what others compiled would be counted too."""
    with SessionClient(tmp_path / "cache", tmp_path / "log.txt") as worker:
        found = first(worker, "with_break", "eager")["compiling"]
    assert found["graphs"] == 2
    assert found["graph_breaks"] == 1
    assert "graph_break" in found["reasons"][0][0]
    assert found["recompiles"] == 0
    assert sum(found["phases"].values()) > 0


def test_every_compilation_is_counted(tmp_path: Path) -> None:
    """Torch itself keeps the times of the last 64; the first takes a second."""
    with SessionClient(tmp_path / "cache", tmp_path / "log.txt") as worker:
        found = first(worker, "of_70_graphs", "test_slow_first")["compiling"]
    assert found["graphs"] == 70
    assert sum(found["phases"][name] for name in PHASES[1:]) >= 1


def test_another_batch_size_recompiles_unless_shapes_are_dynamic(tmp_path: Path) -> None:
    with SessionClient(tmp_path / "cache", tmp_path / "log.txt") as worker:
        for dynamic, recompiles in ((None, 1), (True, 0)):
            first(worker, "linear", dynamic=dynamic, batch_size=4)
            told = worker.ask("other_size", 120, batch_size=8)
            assert (told["batch_size"], told["recompiles"]) == (8, recompiles)
            assert worker.ask("warm_up", 120, seconds=0.0)
