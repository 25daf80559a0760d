"""The wrapped module answers as the module does, whatever it is given, whoever calls."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import time
import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torchtriage as tt
from torchtriage.compile.bucketing import BucketingWarning, Mask
from torchtriage.core.errors import PaddingError

# what torch itself warns of when it imports its compiler
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

torch: Any = pytest.importorskip("torch")

BucketedModule = tt.BucketedModule

SIZES = [5, 6, 7, 8, 11, 12, 16]


class Encoder(torch.nn.Module):
    """Tokens to features, each by itself; a masked mean beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(50, 8)
        self.linear = torch.nn.Linear(8, 8)
        self.scale = 1.0

    def forward(self, ids: Any, attention_mask: Any = None) -> dict[str, Any]:
        hidden = torch.relu(self.linear(self.embed(ids))) * self.scale
        if attention_mask is None:
            return {"hidden": hidden, "mean": hidden.mean(1)}
        real = attention_mask[..., None].to(hidden.dtype)
        return {"hidden": hidden, "mean": (hidden * real).sum(1) / real.sum(1)}


@pytest.fixture(autouse=True)
def fresh() -> Any:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    assert not [
        one for one in threading.enumerate() if one.name == "torchtriage-buckets" and one.is_alive() and not _ends(one)
    ]


def _ends(thread: threading.Thread) -> bool:
    thread.join(60)
    return not thread.is_alive()


def tokens(length: int, batch: int = 2) -> Any:
    return torch.randint(0, 50, (batch, length))


def encoder(**more: Any) -> Any:
    settings = {"pad": {"ids": 1}, "mask": "attention_mask", "backend": "eager", **more}
    return BucketedModule(Encoder().eval(), **settings)


def same(out: Any, wanted: Any) -> None:
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)


def per_element(*, crop: Any = None, **more: Any) -> Any:
    """Return a bucketed model whose outputs are elementwise."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()).eval()
    return BucketedModule(model, pad=1, crop=crop, backend="eager", **more)


# -- answers -----------------------------------------------------------------------------------


@torch.no_grad()
def test_after_precompile_every_request_hits_and_is_right() -> None:
    model = encoder(max_buckets=3, backend="aot_eager")
    told = model.precompile(SIZES, example={"ids": tokens(6)})
    # how many are worth compiling depends on how long this machine takes for a request
    n = len(model.plan.buckets["size"])
    assert 1 <= n <= 3
    assert (told.compiles, told.ready, told.checked) == (n, n, n)
    plain = model._orig_mod
    for length in SIZES * 5:
        ids = tokens(length)
        same(model(ids=ids), plain(ids, torch.ones_like(ids)))
    stats = model.stats()
    assert stats.requests == stats.hits == 35
    assert stats.stalls == stats.misses == 0
    assert stats.compiles == n
    buckets = model.plan.buckets["size"]
    padded = sum(min(one for one in buckets if one >= length) for length in SIZES)
    assert stats.padding == pytest.approx(padded / sum(SIZES) - 1)
    assert sum(stats.bucket_hits.values()) == 35
    assert "35 requests: 100 % hits" in str(stats)
    assert stats.metrics()["torchtriage_buckets_hits_total"] == 35


@torch.no_grad()
def test_positional_and_named_arguments_and_a_mask_of_the_callers_own() -> None:
    model = encoder(buckets=[8, 16])
    model.precompile(example=(tokens(6),))
    ids, mask = tokens(7), torch.tensor([[1] * 7, [1, 1, 1, 1, 0, 0, 0]])
    same(model(ids, mask), model._orig_mod(ids, mask))
    model.wait()
    same(model(ids, attention_mask=mask), model._orig_mod(ids, mask))
    same(model(ids, None)["hidden"], model._orig_mod(ids)["hidden"])


@torch.no_grad()
def test_compiled_in_the_background_and_eager_meanwhile() -> None:
    model = encoder(buckets=[8, 16])
    first = tokens(6)
    same(model(first), model._orig_mod(first, torch.ones_like(first)))
    assert model.wait(60)
    model(tokens(7))
    stats = model.stats()
    assert (stats.requests, stats.hits, stats.reasons) == (2, 1, {"being compiled": 1})
    assert stats.stalls == 0


@torch.no_grad()
def test_the_next_larger_bucket_serves_while_one_compiles() -> None:
    model = encoder(buckets=[8, 16])
    model.precompile([16], example=(tokens(6),))
    ids = tokens(8)
    same(model(ids), model._orig_mod(ids, torch.ones_like(ids)))
    assert model.stats().bucket_hits == {"16": 1}
    model.wait()
    model(ids)
    assert model.stats().bucket_hits == {"16": 1, "8": 1}


@torch.no_grad()
def test_auto_plans_from_what_comes_and_replans_under_drift() -> None:
    model = per_element(max_buckets=4)
    draw = torch.Generator().manual_seed(1)
    for low, high, n in ((20, 40, 400), (60, 80, 1000)):
        for length in torch.randint(low, high, (n,), generator=draw).tolist():
            x = torch.randn(1, length, 4)
            same(model(x), model._orig_mod(x))
            if model.stats().requests % 100 == 0:
                model.wait()
    stats = model.stats()
    assert stats.replans >= 1
    assert max(model.plan.buckets["size"]) >= 78
    assert 256 <= stats.reasons["no plan yet"] < 400
    model.reset_stats()
    for length in range(60, 80):
        model(torch.randn(1, length, 4))
    assert model.stats().hit_rate > 0.9


@torch.no_grad()
def test_sizes_beyond_the_largest_bucket_and_of_zero() -> None:
    model = per_element(buckets=[8])
    for length in (9, 0, 3):
        x = torch.randn(2, length, 4)
        same(model(x), model._orig_mod(x))
    assert model.stats().reasons == {"no bucket that large": 1, "a size is 0": 1, "being compiled": 1}


@torch.no_grad()
def test_a_dynamic_graph_serves_rare_sizes() -> None:
    model = per_element(buckets=[8], fallback="dynamic")
    for length in (11, 12, 13, 14):
        x = torch.randn(2, length, 4)
        same(model(x), model._orig_mod(x))
        model.wait()
    stats = model.stats()
    assert (stats.compiles, stats.ready, stats.failures) == (1, 1, {})


# -- layouts -----------------------------------------------------------------------------------


class Pair(torch.nn.Module):
    """Takes and gives containers."""

    def forward(self, batch: Any, *rest: Any, scale: float = 1.0, **more: Any) -> Any:
        x, y = batch["x"] * scale, rest[0][0]
        made = namedtuple("Out", "x y")(x, [y + more["z"], None])
        return made, OrderedDict(rank=x.ndim, fixed=batch["fixed"] + 1)


@torch.no_grad()
def test_containers_go_in_and_come_out() -> None:
    model = BucketedModule(
        Pair().eval(), pad={"batch.x": {1: "seq"}, "rest.0": {0: "seq"}, "z": {0: "seq"}}, buckets=[8], backend="eager"
    )

    def call(n: int) -> tuple[Any, Any]:
        args = ({"x": torch.randn(2, n), "fixed": torch.ones(3)}, (torch.randn(n, 3),))
        kwargs = {"scale": 2.0, "z": torch.randn(n, 3)}
        return model(*args, **kwargs), model._orig_mod(*args, **kwargs)

    call(5)
    model.wait()
    (out, info), (wanted, _) = call(6)
    assert type(out).__name__ == "Out"
    same(out.x, wanted.x)
    assert out.y[1] is None
    same(out.y[0], wanted.y[0])
    assert type(info) is OrderedDict
    assert model.stats().hits == 1


@torch.no_grad()
def test_a_number_that_depends_on_padding_is_named() -> None:
    class Sized(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return {"y": x, "n": x.shape[1]}

    with pytest.raises(PaddingError, match="output n is 8 with padding, 4 without"):
        BucketedModule(Sized().eval(), pad=1, buckets=[8], backend="eager").precompile(example=torch.randn(1, 4))


@torch.no_grad()
def test_two_axes_each_with_its_buckets() -> None:
    model = BucketedModule(
        Encoder().eval(),
        pad={"ids": {0: "batch", 1: "seq"}},
        mask="attention_mask",
        buckets={"batch": [2, 4], "seq": [8, 16]},
        backend="eager",
    )
    # rows of padding have no real token: 0/0 is cropped away, and no row depends on another
    stats = model.precompile(example={"ids": tokens(6)})
    assert stats.ready == 4
    for batch, length in ((1, 3), (3, 9), (4, 16), (2, 8)):
        ids = tokens(length, batch)
        same(model(ids), model._orig_mod(ids, torch.ones_like(ids)))
    assert model.stats().hits == 4
    assert set(model.stats().bucket_hits) == {"batch 2, seq 8", "batch 4, seq 16"}


@torch.no_grad()
def test_cropping_by_a_function_of_the_size() -> None:
    model = torch.nn.Sequential(torch.nn.Conv1d(3, 3, 2, stride=2)).eval()
    with pytest.raises(PaddingError, match=r"(?s)dimension 2 of the output is .* lambda size"):
        BucketedModule(model, pad=2, buckets=[8], backend="eager").precompile(example=torch.randn(1, 3, 8))
    right = BucketedModule(model, pad=2, crop={2: lambda size: size // 2}, buckets=[16], backend="eager")
    x = torch.randn(1, 3, 9)
    right.precompile(example=x)
    out = right(x)
    same(out, model(x))
    assert out.is_contiguous()
    assert right.stats().hits == 1


@torch.no_grad()
def test_fill_and_masks_of_other_values() -> None:
    class Attend(torch.nn.Module):
        def forward(self, x: Any, key_padding_mask: Any = None) -> Any:
            scores = x.sum(-1).masked_fill(key_padding_mask, float("-inf"))
            return torch.softmax(scores, 1)

    model = BucketedModule(
        Attend().eval(),
        pad={"x": {1: "seq"}},
        fill={"x": 3.0},
        mask={"key_padding_mask": Mask(False, True)},
        buckets=[8],
        backend="eager",
    )
    model.precompile(example=(torch.randn(2, 5, 4),))
    x = torch.randn(2, 6, 4)
    same(model(x), model._orig_mod(x, torch.zeros(2, 6, dtype=torch.bool)))
    assert model.stats().hits == 1


# -- wrong use ---------------------------------------------------------------------------------


@torch.no_grad()
def test_an_output_that_depends_on_padding_is_named_and_answers_stay_right() -> None:
    model = BucketedModule(Encoder().eval(), pad={"ids": 1}, buckets=[8], backend="eager")
    ids = tokens(6)
    same(model(ids), model._orig_mod(ids))
    model.wait()
    with pytest.warns(BucketingWarning, match=r"output mean differs in \d+ of 16 values"):
        out = model(ids)
    same(out, model._orig_mod(ids))
    same(model(ids), model._orig_mod(ids))
    assert model.stats().hits == 0
    assert "padding is refused" in model.stats().reasons
    with pytest.raises(PaddingError, match=r"output mean .*\n  try: mask"):
        model.precompile()


@torch.no_grad()
def test_check_always_raises_in_the_call() -> None:
    model = per_element(buckets=[8], check="always")
    x = torch.randn(1, 5, 4)
    model.precompile(example=x)
    same(model(x), model._orig_mod(x))
    for entry in model._server.entries.values():
        entry.crop = {}
    with pytest.raises(PaddingError, match="after cropping"):
        model(x)


@torch.no_grad()
def test_what_cannot_be_compared_is_told() -> None:
    class Cache:
        def __init__(self) -> None:
            self.keys = torch.ones(3)

    class Opaque(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x, Cache()

    with pytest.raises(PaddingError, match="output 1 is a Cache"):
        BucketedModule(Opaque().eval(), pad=1, buckets=[8], backend="eager").precompile(example=torch.randn(1, 4))

    class Writes(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.add_(1)

    with pytest.raises(PaddingError, match="writes into its input"):
        BucketedModule(Writes().eval(), pad=1, buckets=[8], backend="eager").precompile(example=torch.randn(1, 4))


@torch.no_grad()
def test_a_failed_compilation_is_told_and_answered_by_the_model() -> None:
    def broken(_graph: Any, _inputs: Any) -> Any:
        raise RuntimeError("no kernel for this")

    model = per_element(buckets=[8])
    model._settings["options"]["backend"] = broken
    x = torch.randn(1, 4, 4)
    model(x)
    model.wait()
    with pytest.warns(BucketingWarning, match="bucket 8 is served unpadded"):
        same(model(x), model._orig_mod(x))
    assert "no kernel for this" in model.stats().failures["8"]
    same(model(x), model._orig_mod(x))  # told once
    with pytest.raises(tt.TriageError, match="1 of 1 buckets"):
        model.precompile()


@torch.no_grad()
def test_what_varies_undeclared_is_named() -> None:
    model = per_element(buckets=[8])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BucketingWarning)
        for batch in range(1, 12):
            model(torch.randn(batch, 4, 4))
    model.wait()
    assert any("dimension 0 of input" in one for one in model._server.warned)
    assert model.stats().compiles <= 2


def test_graphs_for_another_grad_mode_are_told() -> None:
    model = per_element(buckets=[8])
    model.precompile(example=torch.randn(1, 4, 4))
    with torch.no_grad():
        with pytest.warns(BucketingWarning, match="gradients on; a call with gradients off"):
            model(torch.randn(1, 4, 4))
        model.wait()
        model(torch.randn(1, 4, 4))
    assert model.stats().hits == 1


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: BucketedModule(len, pad=1), "nn.Module"),
        (lambda: BucketedModule(Encoder()), "pad: expected the dimensions"),
        (lambda: BucketedModule(Encoder(), pad={"input_ids": 1}), "no parameter 'input_ids'"),
        (lambda: BucketedModule(Encoder(), pad={"ids": 1}, mask="mask"), "no parameter 'mask'"),
        (lambda: BucketedModule(Encoder(), pad=1, bucket=[1]), "no option 'bucket'"),
        (lambda: BucketedModule(Encoder(), pad=1, check="maybe"), "check"),
        (lambda: BucketedModule(Encoder(), pad=1, buckets=[0]), "buckets"),
        (lambda: BucketedModule(Encoder(), pad=1, max_graphs=0), "max_graphs"),
        (lambda: BucketedModule(torch.compile(Encoder()), pad=1), "not compiled"),
        (lambda: BucketedModule(encoder(), pad=1), "bucketed already"),
        (lambda: encoder().precompile([3]), "no call was seen"),
        (lambda: encoder().precompile(example=(tokens(3),)), "no sizes were seen"),
        (lambda: encoder().precompile([], example=(tokens(3),)), "sizes"),
        (lambda: encoder().precompile([-1], example=(tokens(3),)), "positive"),
        (lambda: encoder().precompile({"b": [1]}, example=(tokens(3),)), "found b"),
        (lambda: encoder().train().precompile([3], example=(tokens(3),)), r"model\.eval"),
        (lambda: encoder(max_graphs=1, buckets=[2, 4]).precompile(example=(tokens(3),)), "max_graphs"),
        (lambda: encoder()(torch.tensor(3)), "dimension"),
        (lambda: encoder().advise(), "precompile"),
        (lambda: encoder().save("x"), "no plan"),
    ],
)
def test_wrong_use_is_said(make: Callable[[], Any], match: str) -> None:
    with pytest.raises(tt.UsageError, match=match):
        make()


def test_sizes_of_one_axis_must_agree() -> None:
    model = BucketedModule(Encoder(), pad=1, buckets=[8], backend="eager")
    with pytest.raises(tt.UsageError, match=r"attention_mask has 4 .* ids has 5"):
        model(tokens(5), torch.ones(2, 4))


# -- as users expect of a module ---------------------------------------------------------------


def test_it_is_the_model_to_whoever_looks() -> None:
    plain = Encoder()
    model = BucketedModule(plain, pad={"ids": 1}, mask="attention_mask", backend="eager")
    assert isinstance(model, torch.nn.Module)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in model.named_parameters()] == ["embed.weight", "linear.weight", "linear.bias"]
    assert model.linear is plain.linear
    assert model.scale == 1.0
    with pytest.raises(AttributeError, match="nothing"):
        _ = model.nothing
    assert model.training
    model.eval()
    assert not plain.training
    assert not plain.linear.training
    other = Encoder()
    model.load_state_dict(other.state_dict())
    same(plain.linear.weight, other.linear.weight)
    model.double()
    assert plain.linear.weight.dtype == torch.float64
    assert next(model.parameters()) is plain.embed.weight
    outer = torch.nn.ModuleDict({"encoder": model})
    assert "encoder.linear.bias" in outer.state_dict()
    outer.load_state_dict(outer.state_dict())
    assert "not planned yet" in repr(model)


def test_copies_and_pickles_keep_the_plan_and_their_own_weights() -> None:
    model = encoder(buckets=[8, 16])
    model(tokens(4))
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert again.plan == model.plan
        assert again.linear.weight is again._orig_mod.linear.weight
        assert again.linear.weight is not model.linear.weight
        same(again(tokens(5) * 0), model(tokens(5) * 0))
        again.wait()
    model.wait()


def test_training_compiles_in_the_call_and_gradients_are_those_without() -> None:
    model = encoder(buckets=[8, 16], backend="aot_eager").train()
    plain = copy.deepcopy(model._orig_mod)
    for length in (5, 7, 12):
        ids = tokens(length)
        model(ids)["mean"].square().sum().backward()
        plain(ids, torch.ones_like(ids))["mean"].square().sum().backward()
    same(model.linear.weight.grad, plain.linear.weight.grad)
    same(model.embed.weight.grad, plain.embed.weight.grad)
    stats = model.stats()
    assert (stats.compiles, stats.stalls, stats.hits) == (2, 2, 1)
    assert stats.longest_stall_s > 0


def test_a_step_in_training_runs_the_model_once() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(()))

        def forward(self, x: Any) -> Any:
            self.n += 1
            return x * 2

    model = BucketedModule(Counting(), pad=1, buckets=[8], backend="eager")
    for at in range(1, 4):
        model(torch.randn(1, 5))
        assert model.n == at


@pytest.mark.parametrize(
    "context", [torch.no_grad, torch.inference_mode, torch.enable_grad, lambda: torch.autocast("cpu", torch.bfloat16)]
)
def test_contexts_have_graphs_of_their_own(context: Callable[[], Any]) -> None:
    model = encoder(buckets=[8], backend="aot_eager")
    with context():
        for length in (5, 8, 6):
            ids = tokens(length)
            out, wanted = model(ids), model._orig_mod(ids, torch.ones_like(ids))
            assert out["hidden"].dtype == wanted["hidden"].dtype
            assert out["hidden"].requires_grad == wanted["hidden"].requires_grad
            torch.testing.assert_close(out["hidden"], wanted["hidden"], rtol=0.05, atol=0.01)
            model.wait()
    assert model.stats().hits == 2, model.stats()


def test_gradients_reach_the_input() -> None:
    model = per_element(buckets=[8])
    for length in (8, 5, 8, 5):
        x = torch.randn(1, length, 4, requires_grad=True)
        model(x).sum().backward()
        again = x.detach().requires_grad_()
        model._orig_mod(again).sum().backward()
        same(x.grad, again.grad)
        model.wait()
    assert model.stats().hits == 3


@torch.no_grad()
def test_an_attribute_set_on_the_wrapper_is_the_models() -> None:
    model = encoder(buckets=[8])
    model.precompile(example=(tokens(4),))
    ids = tokens(5)
    before = model(ids)["hidden"]
    model.scale = 2.0
    assert model._orig_mod.scale == 2.0
    same(model(ids)["hidden"], 2 * before)
    model.wait()
    same(model(ids)["hidden"], 2 * before)


@torch.no_grad()
def test_moving_the_model_compiles_again_and_stays_right() -> None:
    model = encoder(buckets=[8])
    model.precompile(example=(tokens(4),))
    model.double()
    ids = tokens(5)
    for _ in range(2):
        same(model(ids), model._orig_mod(ids, torch.ones_like(ids)))
        model.wait()
    stats = model.stats()
    assert stats.reasons == {"a guard of the graph failed": 1}
    assert stats.hits == 1


@torch.no_grad()
def test_views_and_other_strides() -> None:
    model = per_element(buckets=[8])
    model.precompile(example=torch.randn(2, 4, 4))
    for x in (
        torch.randn(4, 2, 4).transpose(0, 1),
        torch.randn(2, 20, 4)[:, 3:11],
        torch.randn(2, 4, 8).transpose(1, 2),
    ):
        same(model(x), model._orig_mod(x))
    assert model.stats().hits == 3


@torch.no_grad()
def test_the_graph_unused_for_longest_is_dropped() -> None:
    model = per_element(buckets=[4, 8, 12], max_graphs=2)
    for length in (4, 8, 12):
        model(torch.randn(1, length, 4))
        model.wait()
    stats = model.stats()
    assert (stats.evicted, stats.ready) == (1, 2)
    assert [one.name for one in model._server.entries.values()] == ["8", "12"]


@torch.no_grad()
def test_many_threads_compile_each_bucket_once() -> None:
    n_compiled = 0

    def backend(graph: Any, _inputs: Any) -> Any:
        nonlocal n_compiled
        n_compiled += 1
        time.sleep(0.05)
        return graph.forward

    for background in (True, False):
        model = per_element(buckets=[8, 16], background=background)
        model._settings["options"]["backend"] = backend
        n_compiled, errors = 0, []

        def work(model: Any = model, errors: list[Any] = errors) -> None:
            draw = torch.Generator().manual_seed(threading.get_ident() % 1000)
            with torch.no_grad():
                for length in torch.randint(1, 17, (40,), generator=draw).tolist():
                    x = torch.randn(1, length, 4)
                    try:
                        same(model(x), model._orig_mod(x))
                    except Exception as error:
                        errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        model.wait()
        assert errors == []
        assert n_compiled == 2
        stats = model.stats()
        assert stats.requests == 240 == stats.hits + sum(stats.reasons.values())
        assert (stats.stalls > 0) is (not background)


def test_the_compiler_does_not_trace_while_others_call(monkeypatch: pytest.MonkeyPatch) -> None:
    # torch.fx replaces nn.Module.__call__ for all threads while it traces
    from torch._inductor.loop_body import InterpreterShim

    from torchtriage.compile.bucketing import graphs

    graphs._keep_module_calls.cache_clear()
    graphs._keep_module_calls()
    monkeypatch.setattr(torch.fx, "symbolic_trace", None)
    graph = torch.fx.Graph()
    graph.output(graph.call_function(abs, (graph.placeholder("x"),)))
    assert InterpreterShim(graph, {}).run(-3) == 3


@torch.no_grad()
def test_what_is_there_is_set_aside_before_the_background_compiles() -> None:
    gc.unfreeze()
    try:
        model = encoder(buckets=[8, 16])
        model(tokens(5))
        model.wait()
        frozen = gc.get_freeze_count()
        assert frozen > 1000
        model(tokens(12))  # once in a process: what came since stays the collector's
        model.wait()
        assert model.stats().ready == 2
        assert gc.get_freeze_count() <= frozen
    finally:
        gc.unfreeze()


@torch.no_grad()
def test_saved_and_loaded(tmp_path: Path) -> None:
    # backend eager leaves no caches; docs/bucketing-measured.md measures what they bring
    model = encoder(max_buckets=2)
    model.precompile(SIZES, example=(tokens(6),))
    model.save(tmp_path / "buckets")
    assert [one.name for one in tmp_path.iterdir()] == ["buckets"]
    again = encoder(max_buckets=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BucketingWarning)
        assert again.load(tmp_path / "buckets") is again
    assert again.plan.buckets == model.plan.buckets
    assert again.precompile(example=(tokens(6),)).ready == len(model.plan.buckets["size"])
    (tmp_path / "text").write_text("no zip")
    (tmp_path / "cut").write_bytes((tmp_path / "buckets").read_bytes()[:100])
    for name in ("text", "cut", "missing"):
        with pytest.raises(tt.UsageError, match=name):
            again.load(tmp_path / name)
    other = per_element()
    with pytest.raises(tt.UsageError, match="expected buckets of length"):
        BucketedModule(other._orig_mod, pad={1: "length"}).load(tmp_path / "buckets")


@torch.no_grad()
def test_inside_of_an_outer_compile_it_is_the_model() -> None:
    model = encoder(buckets=[8])
    outer = torch.compile(model, backend="eager")
    ids = tokens(5)
    same(outer(ids)["hidden"], model._orig_mod(ids)["hidden"])
    assert model.stats().requests == 0


@torch.no_grad()
def test_models_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=100
    )
    bert = transformers.BertModel(config).eval()
    model = BucketedModule(
        bert,
        pad={"input_ids": {0: "batch", 1: "seq"}},
        mask="attention_mask",
        buckets={"batch": [4], "seq": [8, 16]},
        backend="eager",
    )
    model.precompile(example={"input_ids": tokens(6)})
    ids = tokens(7, 3)
    out, wanted = model(input_ids=ids), bert(input_ids=ids, attention_mask=torch.ones_like(ids))
    assert type(out) is type(wanted)
    same(out.last_hidden_state, wanted.last_hidden_state)
    same(out[1], wanted.pooler_output)
    assert model.stats().hits == 1
    assert model.config is config


@torch.no_grad()
def test_advice_is_measured() -> None:
    model = per_element(max_buckets=2)
    model.precompile([4, 5, 8, 9], example=torch.randn(1, 4, 4))
    advice = model.advise(10)
    assert advice.best in ("eager", "dynamic", "buckets")
    assert advice.eager_s > 0
    assert "10 requests" in str(advice)
