"""The wrapped module answers as the module does, whatever it is given."""

from __future__ import annotations

import warnings
from collections import Counter, OrderedDict, namedtuple
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
from torchtriage.compile.bucketing import BucketingWarning, BucketPlan, Mask
from torchtriage.compile.bucketing.planner import WINDOW
from torchtriage.core.errors import PaddingError

# what torch itself warns of when it imports its compiler
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

torch: Any = pytest.importorskip("torch")


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
    padded = sum(min(bucket for bucket in buckets if bucket >= length) for length in SIZES)
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


@torch.no_grad()
def test_sorted_sizes_are_all_precompiled() -> None:
    sizes = [size for bucket in (4, 8, 12) for size in [bucket] * WINDOW]
    model = encoder(buckets=[4, 8, 12])
    assert model.precompile(sizes, example={"ids": tokens(6)}).ready == 3
    seen = Counter(model._server.planner.history)
    assert len(seen) == 3
    assert min(seen.values()) > WINDOW / 4


def test_that_no_bucket_is_wanted_is_said_and_kept(tmp_path: Path) -> None:
    with torch.no_grad(), pytest.warns(BucketingWarning, match=r"\(size 8, 16\): nothing is compiled"):
        BucketedModule(Encoder().eval(), pad=1, buckets=[8, 16], backend="eager").precompile([99], (tokens(5),))
    model = BucketedModule(Encoder().eval(), pad=1, backend="eager")
    model._server.planner.plan = BucketPlan({"size": ()})  # none was worth its compilation
    model.save(tmp_path / "buckets")
    again = BucketedModule(Encoder().eval(), pad=1, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BucketingWarning)  # there are no caches
        again.load(tmp_path / "buckets")
    assert again.plan == model.plan


def test_sizes_of_one_axis_must_agree() -> None:
    model = BucketedModule(Encoder(), pad=1, buckets=[8], backend="eager")
    with pytest.raises(tt.UsageError, match=r"attention_mask has 4 .* ids has 5"):
        model(tokens(5), torch.ones(2, 4))
