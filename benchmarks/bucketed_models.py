"""Random small models through BucketedModule, to see whether an answer is ever silently wrong.

    python benchmarks/bucketed_models.py 0 200          # seeds from 0 up to 200
    python benchmarks/bucketed_models.py 0 200 --step 2 --json even.json

Each seed is a model that people pad (blocks from bucketed_blocks.py), an input with dimensions that vary, a way to
call it, and a dozen calls. Nothing is labelled by hand: the truth of a call is a copy of the model run on the
unpadded input, with its outputs, what the call wrote into buffers and inputs, and its gradients. Whether padding was
right for a model at all is computed as well: a copy is run on inputs padded here, over many draws.
"""

from __future__ import annotations

import argparse
import collections
import copy
import dataclasses
import json
import random
import sys
import time
import traceback
import warnings
from pathlib import Path

import torch
from bucketed_blocks import Case
from bucketed_families import FAMILIES
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

REPEATS = 60  # of a call with random numbers: means are compared
REPEATS_CHECKED = 20  # where each is checked
RANDOM_CALLS = 6  # that are repeated so, of a model
EXTRA_DRAWS = 24  # inputs that decide, beside the calls, whether padding is right
FLOOR = 3e-6  # values are about 1; where a gradient is 0, there is rounding
Z = 7.0  # standard errors between two means of random answers that are called different


def tensors(value: object) -> list[object]:
    """Return the leaves of an answer, data classes included."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return pytree.tree_leaves(value)


def seen(model: nn.Module, case: Case, inputs: dict, seed: int, like: list[object] | None = None) -> list[object]:
    """All that a caller could see of one call: outputs, inputs afterwards, buffers, gradients.

    ``like`` are the outputs of the call without padding: those of a padded call are cut to their shapes first.
    """
    torch.manual_seed(seed)
    inputs = {
        name: value.clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
        for name, value in inputs.items()
    }
    model.zero_grad(set_to_none=True)
    with torch.set_grad_enabled(case.grad):
        out = tensors(model(*inputs.values()) if case.positional else model(**inputs))
    if like is not None:
        out = [cut(b, a) for a, b in zip(like, out, strict=True)]
    got: list[object] = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in out]
    floats = [leaf for leaf in out if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if floats:
        weights = [torch.linspace(0.5, 1.5, leaf.numel(), dtype=leaf.dtype).view(leaf.shape) for leaf in floats]
        sum((leaf * w).sum() for leaf, w in zip(floats, weights, strict=True)).backward()
        grads = [p.grad.flatten().double() for p in model.parameters() if p.grad is not None]
        got += [torch.cat(grads)] if grads else []  # as one: where one of them is 0, it is rounding beside the others
    got += [b.clone() for b in model.buffers()]
    return got + ([] if like is not None else tensors(inputs))


def cut(leaf: object, like: object) -> object:
    if isinstance(leaf, torch.Tensor) and isinstance(like, torch.Tensor) and leaf.dim() == like.dim():
        return leaf[tuple(slice(n) for n in like.shape)]
    return leaf


def outputs_only(model: nn.Module, case: Case, inputs: dict) -> list[object]:
    with torch.no_grad():
        return tensors(model(*inputs.values()) if case.positional else model(**inputs))


def off(truth: object, got: object) -> str:
    """How two leaves differ ('' if they do not)."""
    if not isinstance(truth, torch.Tensor):
        return "" if truth == got else f"{truth!r} became {got!r}"
    if not isinstance(got, torch.Tensor) or got.dim() != truth.dim() or got.dtype != truth.dtype:
        return "another kind of value"
    if got.shape != truth.shape:
        return f"shape {tuple(truth.shape)} became {tuple(got.shape)}"
    if truth.numel() == 0:
        return ""
    if not truth.dtype.is_floating_point:
        return "" if torch.equal(truth, got) else "other whole numbers"
    a, b = truth.double(), got.double()
    if not torch.equal(a.isnan(), b.isnan()) or not torch.equal(a.isinf(), b.isinf()):
        return "NaN or infinite elsewhere"
    a, b = a.nan_to_num(0, 0, 0), b.nan_to_num(0, 0, 0)
    # three times what single precision's sqrt(eps) is: more than sums in another order ever differ here
    rate = 0.15 if truth.dtype == torch.bfloat16 else 1e-3
    worst = ((a - b).abs() - rate * (a.abs() + a.square().mean().sqrt()) - FLOOR).max().item()
    return f"off by {(a - b).abs().max().item():.2g}" if worst > 0 else ""


def different(truth: list[object], got: list[object]) -> str:
    if len(truth) != len(got):
        return f"{len(truth)} values became {len(got)}"
    return next(
        (f"value {i}: {text}" for i, (a, b) in enumerate(zip(truth, got, strict=True)) if (text := off(a, b))), ""
    )


def means(answers: list[list[object]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Mean and standard error of each floating leaf, whole numbers included as numbers."""
    columns = zip(*answers, strict=True)
    stacks = [torch.stack([torch.as_tensor(leaf).double() for leaf in column]) for column in columns]
    return [(s.mean(0), s.std(0) / len(answers) ** 0.5) for s in stacks]


def differ_on_average(truth: list[list[object]], got: list[list[object]], padded: bool = False) -> str:
    if padded:
        got = [[cut(b, a) for a, b in zip(x, y, strict=True)] for x, y in zip(truth, got, strict=True)]
    for i, ((a, sa), (b, sb)) in enumerate(zip(means(truth), means(got), strict=True)):
        if a.shape != b.shape:
            return f"value {i}: shape"
        if ((a - b).abs() > Z * (sa.square() + sb.square()).sqrt() + 1e-3 * (a.abs() + 1e-3)).any():
            return f"value {i}: off on average by {(a - b).abs().max().item():.2g}"
    return ""


def bucket_of(case: Case, inputs: dict) -> dict[str, int] | None:
    """Return the size each axis of a call is padded to, None beyond the largest bucket."""
    sizes = case.sizes(inputs)
    chosen = {axis: min((b for b in case.buckets[axis] if b >= n), default=0) for axis, n in sizes.items()}
    return chosen if all(chosen.values()) else None


def pad_here(case: Case, inputs: dict, to: dict[str, int]) -> dict:
    """Return the inputs padded by this file's own code."""
    out = {name: dict(value) if isinstance(value, dict) else value for name, value in inputs.items()}
    sizes = case.sizes(inputs)
    for name, mask in case.masks.items():
        if out.get(name) is None:
            shape = list(case.mask_shape(inputs))
            out[name] = torch.full(shape, mask[0], dtype=mask[2])
    for name, dims in case.pad.items():
        holder, _, key = name.rpartition(".")
        held = out[holder] if holder else out
        value = held[key]
        if value is None:
            continue
        fill = case.masks[name][1] if name in case.masks else case.fill.get(name, 0)
        for dim, axis in dims.items():
            widths = [0, 0] * (value.dim() - dim - 1) + [0, to[axis] - sizes[axis]]
            kind = value.dtype
            value = F.pad(value.int() if kind == torch.bool else value, widths, value=fill).to(kind)
        held[key] = value
    return out


def is_random(model: nn.Module, case: Case, inputs: dict) -> bool:
    answers = []
    for seed in range(8):  # labels are alike for many
        torch.manual_seed(seed)
        answers.append(outputs_only(copy.deepcopy(model), case, inputs))
    one, other = (seen(copy.deepcopy(model), case, inputs, seed) for seed in (1, 2))  # gradients may show it alone
    return any(different(answers[0], other) for other in answers[1:]) or different(one, other) != ""


def padding_is_wrong(case: Case, calls: list[tuple[bool, dict]]) -> str:
    """Why padding changes an answer of this model, '' if it never does."""
    n_random = 0
    for training, inputs in calls:
        model = copy.deepcopy(case.model).train(training)
        to = bucket_of(case, inputs)
        if to is None:
            continue
        padded = pad_here(case, inputs, to)
        try:
            if is_random(model, case, inputs):
                n_random += 1
                if n_random > RANDOM_CALLS:
                    continue
                torch.manual_seed(0)
                text = differ_on_average(
                    [outputs_only(model, case, inputs) for _ in range(REPEATS)],
                    [outputs_only(model, case, padded) for _ in range(REPEATS)],
                    padded=True,
                )
            else:
                truth = seen(copy.deepcopy(model), case, inputs, 0)
                got = seen(copy.deepcopy(model), case, padded, 0, like=outputs_only(model, case, inputs))
                text = different(truth[: len(got)], got)
        except Exception as error:  # a padded size that the model refuses
            return f"raises {type(error).__name__}"
        if text:
            return text
    return ""


@dataclasses.dataclass
class Outcome:
    seed: int
    about: str
    padding: str  # why padding is wrong for this model, '' where it is right
    refused: str = ""  # how the module refused
    wrong: str = ""  # a call that was answered wrongly
    broke: str = ""  # an exception that says nothing of padding
    hits: int = 0
    calls: int = 0
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        if self.wrong:
            return "wrong"
        if self.broke:
            return "broke"
        if self.padding:
            return "refused rightly" if self.refused else "not hit" if not self.hits else "lucky"
        return "refused though right" if self.refused else "not hit" if not self.hits else "served"


def serve(case: Case, calls: list[tuple[bool, dict]], outcome: Outcome) -> None:
    import torchtriage as tt
    from torchtriage.compile.bucketing import Mask
    from torchtriage.core.errors import TriageError

    truth_model = copy.deepcopy(case.model)
    masks = {name: Mask(real, padding) for name, (real, padding, _) in case.masks.items()}
    bucketed = tt.BucketedModule(
        copy.deepcopy(case.model),
        pad={name: dims for name, dims in case.pad.items() if name not in case.masks},
        buckets=case.buckets if case.fixed else "auto",
        crop=case.crop,
        mask=masks or None,
        check=case.check,
        background=False,
        backend="eager",
        **({"fill": case.fill} if case.fill else {}),
    )
    try:
        if case.precompiled:
            inputs = calls[0][1]
            bucketed.eval()  # precompile() is for evaluation alone
            with torch.set_grad_enabled(case.grad):
                lengths = [] if case.fixed else [list(next(iter(case.buckets.values())))]
                bucketed.precompile(*lengths, example={k: v for k, v in inputs.items() if v is not None})
        n_random = 0
        for number, (training, inputs) in enumerate(calls):
            truth_model.train(training), bucketed.train(training)
            if is_random(truth_model, case, inputs):
                n_random += 1
                if n_random > RANDOM_CALLS:
                    continue
                torch.manual_seed(number)
                n = REPEATS if case.check == "first" else REPEATS_CHECKED
                repeats = [outputs_only(truth_model, case, inputs) for _ in range(n)]
                served = [outputs_only(bucketed, case, inputs) for _ in range(n)]
                text = differ_on_average(repeats, served)
            else:
                truth = seen(truth_model, case, inputs, number)
                text = different(truth, seen(bucketed, case, inputs, number))
            outcome.calls += 1
            if text:
                outcome.wrong = (
                    f"call {number} ({'training' if training else 'evaluation'}, {case.sizes(inputs)}): {text}"
                )
                break
    except TriageError as error:
        outcome.refused = f"{type(error).__name__}: {error}"
    stats = bucketed.stats()
    outcome.hits = stats.hits
    if stats.failures and not outcome.refused:
        outcome.refused = f"failures: {stats.failures}"


def run(seed: int) -> Outcome:
    torch.compiler.reset()
    torch.manual_seed(seed)
    rng = random.Random(seed)
    case = rng.choice(FAMILIES)(rng)
    calls = [(case.training(i), case.draw(random.Random(1000 * seed + i), i)) for i in range(case.n_calls)]
    extra = [(calls[i % len(calls)][0], case.draw(random.Random(-1000 * seed - i - 1), i)) for i in range(EXTRA_DRAWS)]
    outcome = Outcome(seed, case.about, padding_is_wrong(case, calls + extra))
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            serve(case, calls, outcome)
        except Exception as error:
            outcome.broke = f"{type(error).__name__}: {error}" + traceback.format_exc()[-1500:]
    notes = [str(w.message) for w in caught if "Bucketing" in w.category.__name__]
    if not outcome.refused and any("without padding from now on" in n or "without buckets" in n for n in notes):
        outcome.refused = notes[0]
    outcome.seconds = time.perf_counter() - start
    return outcome


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("first", type=int)
    options.add_argument("end", type=int)
    options.add_argument("--step", type=int, default=1)
    options.add_argument("--json")
    options.add_argument("--quiet", action="store_true", help="the table alone")
    args = options.parse_args()
    torch.set_num_threads(1)
    outcomes = []
    for seed in range(args.first, args.end, args.step):
        outcomes.append(one := run(seed))
        if not args.quiet:
            said = (one.wrong or one.broke or one.refused)[:170]
            end = f"[{one.padding}] {one.hits}/{one.calls} {one.seconds:.1f} s"
            print(f"{seed:4d} {one.verdict:20s} {one.about[:110]}  {said!r}  {end}", flush=True)
    counts = collections.Counter(one.verdict for one in outcomes)
    right = sum(not one.padding for one in outcomes)
    print(
        f"\n{len(outcomes)} models, padding right for {right}: "
        + ", ".join(f"{k} {v}" for k, v in counts.most_common())
    )
    refused = counts["refused though right"]
    print(
        f"silently wrong {counts['wrong']}; refused though right {refused} of {right} ({refused / max(right, 1):.1%})"
    )
    if args.json:
        Path(args.json).write_text(
            json.dumps([dataclasses.asdict(one) | {"verdict": one.verdict} for one in outcomes], indent=1)
        )
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
