"""A bucket is used only where padding changes nothing: for other values, in the mode that is served, by chance."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import torchtriage as tt
from torchtriage.compile.bucketing import BucketingWarning
from torchtriage.core.errors import PaddingError

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

torch: Any = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


class Of(torch.nn.Module):
    """A model of one function."""

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Any) -> Any:
        return self.fn(x)


class Attached(torch.nn.Module):
    """Layers of places, then one over all of them that may take statistics."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(4, 4), norm

    def forward(self, x: Any) -> Any:
        return self.norm(self.linear(x).transpose(1, 2)).transpose(1, 2)


def bucketed(model: Any, **more: Any) -> Any:
    settings = {"pad": {"x": 1}, "buckets": [8, 16], "background": False, "backend": "eager", **more}
    return tt.BucketedModule(model, **settings)


def refusal(model: Any, example: Any, **more: Any) -> str:
    """Return what precompile() says of a model, empty if nothing."""
    with torch.no_grad():
        try:
            bucketed(model.eval(), **more).precompile(example=example)
        except PaddingError as error:
            return str(error)
    return ""


# -- other values than the example's -------------------------------------------------------------


WINNERS: dict[str, Callable[[Any], Any]] = {
    "amax": lambda x: x.amax(1),
    "argmax": lambda x: x[..., 0].argmax(1),
    "descending sort": lambda x: x.sort(1, descending=True).values,
    "topk": lambda x: x.topk(2, 1).values,
    "threshold": lambda x: x + (x.amax(1, keepdim=True) < 0),
}


@pytest.mark.parametrize("fn", WINNERS.values(), ids=WINNERS)
def test_what_padding_could_win_is_refused(fn: Callable[[Any], Any]) -> None:
    above_0 = torch.rand(2, 6, 4) + 0.5  # padding of 0 is not seen by any of these
    assert "depends on the padding" in refusal(Of(fn), above_0)
    # a fill that is named stays, and real values cross it
    assert "depends on the padding" in refusal(Of(fn), above_0, fill={"x": 0})


def test_a_fill_that_no_value_reaches_is_believed() -> None:
    x = torch.rand(2, 6, 4) + 0.5
    assert not refusal(Of(lambda x: x.amax(1)), x, fill={"x": float("-inf")})
    assert not refusal(Of(lambda x: x.topk(1, 1).values), x, fill={"x": -1e9})


def test_a_padding_token_that_the_model_knows_is_named() -> None:
    def pooled(ids: Any) -> Any:
        real = ids != 0
        return (ids * real).sum(1) / real.sum(1)

    ids = torch.randint(1, 40, (2, 6))
    assert "fill=" in refusal(Of(pooled), ids)
    assert not refusal(Of(pooled), ids, fill={"x": 0})


def test_a_named_token_that_others_could_lose_to_is_refused() -> None:
    score = torch.nn.Embedding(40, 1)
    with torch.no_grad():
        score.weight.copy_(torch.arange(40.0)[:, None])
    ids = torch.tensor([[3, 30, 4, 39, 36, 31], [37, 38, 35, 5, 34, 31]])  # 12 loses to one of each row
    assert "depends on the padding" in refusal(Of(lambda ids: score(ids).amax(1)), ids, fill={"x": 12})


def test_an_example_of_one_token_shows_others_between_it_and_the_padding() -> None:
    score = torch.nn.Embedding(40, 1)
    with torch.no_grad():
        score.weight.copy_(-torch.arange(40.0)[:, None])
        score.weight[7] = 1.0  # what is seen wins over padding, and others do not
    ids = torch.full((2, 6), 7)
    assert "depends on the padding" in refusal(Of(lambda ids: score(ids).amax(1)), ids)


def test_tokens_are_drawn_from_the_whole_embedding() -> None:
    score = torch.nn.Embedding(40, 1)
    with torch.no_grad():
        score.weight.copy_(torch.tensor([0.0, 3, 2, 1] + [-1.0] * 36)[:, None])
    ids = torch.randint(1, 4, (2, 6))  # each of these wins over padding
    assert "depends on the padding" in refusal(Of(lambda ids: score(ids)[..., 0].argmax(1)), ids, fill={"x": 0})


def test_an_example_of_padding_alone_shows_nothing() -> None:
    embed = torch.nn.Embedding(40, 4)
    seen = refusal(Of(lambda ids: embed(ids).mean(1)), torch.zeros(2, 6, dtype=torch.long))
    assert "a check would show nothing" in seen


@pytest.mark.parametrize("at", [4, 12, 15])
def test_a_branch_on_the_size_is_seen(at: int) -> None:
    assert "depends on the padding" in refusal(Of(lambda x: x * 2 if x.shape[1] > at else x), torch.randn(2, 6, 4))


def test_lengths_are_cut_with_what_they_count() -> None:
    class Lengths(torch.nn.Module):
        def forward(self, x: Any, lengths: Any) -> Any:
            real = (torch.arange(x.shape[1]) < lengths[:, None])[..., None]
            return (x * real).sum(1) / lengths[:, None]

    with torch.no_grad():
        for length in (6, 12):
            example = torch.randn(2, length, 4), torch.tensor([length, 5])
            assert bucketed(Lengths().eval()).precompile(example=example).ready == 2


# -- the mode that is served ---------------------------------------------------------------------


@pytest.mark.parametrize("check", ["first", "always"])
@pytest.mark.parametrize(
    "norm",
    [
        torch.nn.BatchNorm1d(4),
        torch.nn.BatchNorm1d(4, track_running_stats=False),
        torch.nn.InstanceNorm1d(4, track_running_stats=True),
        torch.nn.Sequential(torch.nn.Dropout(0.2), torch.nn.BatchNorm1d(4)),
    ],
    ids=["batch norm", "without statistics", "instance norm", "behind dropout"],
)
def test_statistics_of_a_batch_are_refused_in_training(norm: Any, check: str) -> None:
    model = Attached(copy.deepcopy(norm)).train()
    plain, padded = copy.deepcopy(model), bucketed(model, check=check)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BucketingWarning)
        for length in (5, 7, 12, 16):
            x = torch.randn(3, length, 4)
            torch.manual_seed(length)
            wanted = plain(x)
            torch.manual_seed(length)
            torch.testing.assert_close(padded(x), wanted)
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(padded.get_buffer(name), buffer)
    assert padded.stats().hits == 0
    assert "keep them in evaluation mode" in padded.stats().failures["all"]


def test_statistics_that_are_frozen_are_served_in_training() -> None:
    model = Attached(torch.nn.BatchNorm1d(4))
    model.train()
    model.norm.eval()
    padded = bucketed(model)
    padded(torch.randn(3, 5, 4)), padded(torch.randn(3, 6, 4))
    assert padded.stats().hits == 1
    # let loose again: what was checked is not what is called
    plain = copy.deepcopy(model)
    plain.norm.train(), model.norm.train()
    x = torch.randn(3, 6, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BucketingWarning)
        for _ in range(3):
            torch.testing.assert_close(padded(x), plain(x))
    assert "evaluation mode" in padded.stats().failures["all"]


def test_statistics_behind_a_masked_pool_see_no_padding() -> None:
    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(4)

        def forward(self, x: Any, mask: Any = None) -> Any:
            return self.norm((x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))

    padded = bucketed(Pooled().train(), mask="mask")
    padded(torch.randn(3, 5, 4)), padded(torch.randn(3, 6, 4))
    assert padded.stats().hits == 1


def test_a_gradient_that_padding_spoils_is_refused() -> None:
    def length(x: Any) -> Any:
        return x.square().sum(-1).sqrt()  # its slope at 0 has no bound

    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), Of(length)).train()
    padded = bucketed(model, pad=1)
    padded(torch.randn(2, 5, 4)).sum().backward()
    assert "gradient of 0.weight" in padded.stats().failures["all"]
    assert torch.isfinite(model[0].weight.grad).all()


def test_evaluation_that_was_checked_says_nothing_of_training() -> None:
    padded = bucketed(Attached(torch.nn.BatchNorm1d(4)).eval())
    with torch.no_grad():
        assert padded.precompile(example=torch.randn(3, 5, 4)).ready == 2
    plain = copy.deepcopy(padded._orig_mod)
    x = torch.randn(3, 6, 4)
    torch.testing.assert_close(padded.train()(x), plain.train()(x))


def test_what_changed_since_the_check_is_not_served_from_padding() -> None:
    class Pool(torch.nn.Module):
        pool = False

        def forward(self, x: Any) -> Any:
            return x.mean(1) if self.pool else x

    model = Pool().eval()
    padded = bucketed(model)
    x = torch.randn(2, 6, 4)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", BucketingWarning)
        padded.precompile(example=x)
        model.pool = True
        for _ in range(3):
            torch.testing.assert_close(padded(x), model(x))


@pytest.mark.parametrize("size", [8, 2_000_000])
def test_a_buffer_that_a_call_writes_into(size: int) -> None:
    class Kept(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.zeros(size))

        def forward(self, x: Any) -> Any:
            self.kept[:4] += x.detach().exp().sum((0, 1))
            return x * 2

    assert "buffer kept" in refusal(Kept(), torch.randn(2, 6, 4))


# -- by chance -----------------------------------------------------------------------------------


CHANCE: dict[str, tuple[bool, Callable[[Any], Any]]] = {
    "noise": (True, lambda x: x + torch.randn_like(x)),
    "dropout": (True, lambda x: torch.nn.functional.dropout(x, 0.3)),
    "dropout of a mean": (False, lambda x: torch.nn.functional.dropout(x, 0.3).mean(1)),
    "some places": (False, lambda x: x[:, torch.randperm(x.shape[1])[:2]]),
    "the first by chance": (False, lambda x: x.gather(1, torch.rand(x.shape).argsort(1)[:, :2])),
    "one by its weight": (False, lambda x: torch.multinomial(x[..., 0].softmax(1), 1)),
}


@pytest.mark.parametrize(("is_right", "fn"), CHANCE.values(), ids=CHANCE)
def test_random_answers_are_compared_with_chance_held_still(is_right: bool, fn: Callable[[Any], Any]) -> None:
    said = refusal(Of(fn), torch.randn(2, 6, 4))
    assert not said if is_right else "depends on the padding" in said


def test_answers_that_differ_for_other_reasons_are_refused() -> None:
    said = refusal(Of(lambda x: x + random.random()), torch.randn(2, 6, 4))
    assert "answers differ from call to call" in said


def test_a_check_takes_no_random_numbers_and_leaves_no_traces() -> None:
    model = torch.nn.Sequential(torch.nn.Dropout(0.5)).train()
    padded = bucketed(model, pad=1, check="always")
    x = torch.ones(2, 8, 4)
    torch.manual_seed(3)
    first = padded(x)  # examined here
    torch.manual_seed(3)
    torch.testing.assert_close(first, torch.nn.functional.dropout(x, 0.5))


@pytest.mark.parametrize("training", [False, True])
def test_check_always_looks_at_every_call(training: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.2)).train(training)
    padded = bucketed(model, pad=1, check="always")
    for _ in range(2):
        padded(torch.randn(2, 6, 4))
    for entry in padded._server.entries.values():
        entry.crop = {}
    with pytest.raises(PaddingError, match="after cropping"):
        padded(torch.randn(2, 6, 4))
