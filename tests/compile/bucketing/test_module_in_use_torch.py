"""The wrapped module is a module to its users: trained, copied, moved, saved, and called by many."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.compile.bucketing.bucketed_encoder import (
    SIZES,
    BucketedModule,
    Encoder,
    encoder,
    fresh,  # noqa: F401, used by all
    per_element,
    same,
    tokens,
)

import torchtriage as tt
from torchtriage.compile.bucketing import BucketingWarning

# what torch itself warns of when it imports its compiler
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

torch: Any = pytest.importorskip("torch")


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
    assert [entry.name for entry in model._server.entries.values()] == ["8", "12"]


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
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
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
