"""What the model answers, compiled and eager, in its own dtype and in others, in this process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from math import isfinite
from typing import Any

from torchtriage.core.isolate.numerics.errors import SEVERITY, Distance, classify, distance, worst_of
from torchtriage.core.isolate.target import Case, cast, describe_error, floats, leaves, named_leaves

SEED = 1
LOWER = "bfloat16"
HIGHER = "float64"

Answers = list[tuple[str, Any]]


def loss_of(case: Case, output: Any) -> Any:
    """Return what goes backwards: the target's loss, the output's own, else the mean of all.

    Squares are summed rather than values: those of a softmax add up to a constant.
    """
    if case.loss is not None:
        return case.loss(output)
    own = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if own is not None:
        return own
    return sum(float.square().mean() for float in floats(output))


def compare(
    case: Case, model: Any, compile_again: Callable[[], Any], *, train: bool, finer: Case | None = None
) -> dict[str, Any]:
    """Return the verdict about a compiled model, and the errors behind it.

    What draws random numbers is compiled again so that it draws those of eager. ``finer`` : the same in a more precise
    dtype, whose weights and inputs are taken over: what is right is what would be right there.
    """
    import torch

    try:
        if finer is not None and (why := _take_over(case, finer)):
            return _unchecked(f"cannot be held against {finer.dtype}: {why}", train)
        eager = _answers(case, case.model, train)
        if not eager:
            return _unchecked("it returns no tensors", train)
        random = not _equal(eager, _answers(case, case.model, train, seed=SEED + 1))
        if random and not _equal(eager, _answers(case, case.model, train)):
            return _unchecked("eager answers differ from call to call", train)
        if model is case.model:
            mode = eager
        elif random:
            mode = _drawing_as_eager(case, compile_again, train)
        else:
            mode = _answers(case, model, train)
        standard = eager if finer is None else _answers(finer, finer.model, train)
        reference, low, why = _references(finer or case, train)
        if reference is None:
            return _counted(_beside_eager(mode, standard, why, train), mode, eager)
    except torch.cuda.OutOfMemoryError as error:
        return _unchecked(describe_error(error), train)
    result = _judged(mode, eager, standard, reference, low, train)
    if finer is not None:
        own = _judged(eager, eager, standard, reference, low, train)
        if random and own["verdict"] == "wrong":
            return _unchecked(f"draws other random numbers than in {finer.dtype}", train)
        result["reason"] = "; ".join(filter(None, [result["reason"], f"held against {finer.dtype}"]))
    return _counted(result, mode, eager)


def hold(case: Case, answers: Answers, *, train: bool) -> dict[str, Any]:
    """Return the verdict on answers that came from elsewhere: another device, another process.

    They are those of the case's weights and inputs: outputs, and gradients by parameter.
    """
    answers = [part for name, tensor in answers for part in _real(name, tensor)]
    eager = _answers(case, case.model, train)
    if not eager:
        return _unchecked("it returns no tensors", train)
    # AOTAutograd gives zeros to parameters that nothing flows back to; eager gives them no gradient
    known = {name for name, _ in eager}
    answers = [
        (name, tensor) for name, tensor in answers if name in known or "gradient of " not in name or bool(tensor.any())
    ]
    if not _equal(eager, _answers(case, case.model, train, seed=SEED + 1)):
        return _unchecked("it answers otherwise in each call: random numbers, or a state", train)
    reference, low, why = _references(case, train)
    if reference is None:
        return _counted(_beside_eager(answers, eager, why, train), answers, eager)
    return _counted(_judged(answers, eager, eager, reference, low, train), answers, eager)


def _take_over(case: Case, finer: Case) -> str:
    """Copy weights and inputs in place; return why that cannot be, empty where it can."""
    import torch

    mine, theirs = (leaves((side.args, side.kwargs)) for side in (case, finer))
    if [tensor.shape for tensor in mine] != [tensor.shape for tensor in theirs]:
        return "its inputs have other shapes there"
    try:
        with torch.no_grad():
            case.model.load_state_dict(finer.model.state_dict())
            for tensor, other in zip(mine, theirs, strict=True):
                tensor.copy_(other)
    except RuntimeError as error:
        return describe_error(error)
    return ""


def _unchecked(reason: str, train: bool) -> dict[str, Any]:
    return {"verdict": "not checked", "of": _of(train), "reason": reason}


def _beside_eager(mode: Answers, eager: Answers, why: str, train: bool) -> dict[str, Any]:
    """Return what can be said without a reference: the same to the bit, or how far from eager."""
    if _equal(mode, eager):
        return {
            "verdict": "exact",
            "of": _of(train),
            "reference": "eager",
            "error": 0.0,
            "reason": f"held against eager itself: {why}",
        }
    result = _unchecked(f"{why}, so only eager itself is there to hold it against", train)
    if [tensor.shape for _, tensor in mode] == [tensor.shape for _, tensor in eager]:
        apart = [distance(tensor, other) for (_, tensor), (_, other) in zip(mode, eager, strict=True)]
        result |= {"reference": "eager", "error": _together(apart)}
    return result


def _of(train: bool) -> str:
    return "outputs and gradients" if train else "outputs"


def _answers(case: Case, model: Any, train: bool, seed: int = SEED) -> Answers:
    """Return outputs, and gradients by parameter, as they are right after one step."""
    import torch

    torch.manual_seed(seed)
    if train:
        case.model.zero_grad(set_to_none=True)
    output = model(*case.args, **case.kwargs)
    # a copy at once: CUDA graphs overwrite their outputs
    found = [part for name, leaf in named_leaves(output) for part in _real(name or "output", leaf.detach())]
    if train:
        loss_of(case, output).backward()
        found += [
            part
            for name, parameter in case.model.named_parameters()
            if parameter.grad is not None
            for part in _real(f"gradient of {name}", parameter.grad)
        ]
        case.model.zero_grad(set_to_none=True)
    return found


def _real(name: str, tensor: Any) -> Answers:
    if not tensor.is_complex():
        return [(name, tensor.clone())]
    return [(f"real part of {name}", tensor.real.clone()), (f"imaginary part of {name}", tensor.imag.clone())]


def _equal(first: Answers, other: Answers) -> bool:
    return len(first) == len(other) and all(_same(a, b) for (_, a), (_, b) in zip(first, other, strict=True))


def _same(first: Any, other: Any) -> bool:
    if first.shape != other.shape or first.dtype != other.dtype:
        return False
    return bool(((first == other) | (first.isnan() & other.isnan())).all())


def _not_finite(answers: Answers) -> tuple[int, int]:
    total = sum(tensor.numel() for _, tensor in answers)
    return total - sum(int(tensor.isfinite().sum()) for _, tensor in answers), total


def _counted(result: dict[str, Any], mode: Answers, eager: Answers) -> dict[str, Any]:
    """Return a verdict with what is said of values that are not finite.

    Where eager has no finite value, nothing it agrees with has been checked.
    """
    bad, total = _not_finite(eager)
    if not bad or result["verdict"] == "wrong":
        return result
    if _not_finite(mode) == (total, total):
        return {"verdict": "not checked", "of": result["of"], "reason": "no value is finite, in eager as well"}
    count = f"{bad:,} of {total:,} values of eager are not finite"
    return result | {"reason": "; ".join(filter(None, [result["reason"], count]))}


def _drawing_as_eager(case: Case, compile_again: Callable[[], Any], train: bool) -> Answers:
    import torch
    from torch._inductor import config

    torch._dynamo.reset()
    with config.patch(fallback_random=True):
        return _answers(case, compile_again(), train)


def _references(case: Case, train: bool) -> tuple[Answers | None, Answers | None, str]:
    """Return eager's answers in float64, and in bfloat16 where that is lower; or why there are none."""
    reference, why = _in_dtype(case, HIGHER, train)
    lower = reference is not None and case.dtype in ("float32", "float64")
    return reference, _in_dtype(case, LOWER, train)[0] if lower else None, why


def _in_dtype(case: Case, dtype: str, train: bool) -> tuple[Answers | None, str]:
    """Return eager's answers in another dtype, None and why where it cannot be run in it."""
    import torch

    if not case.is_module:
        # a function has its own dtypes inside; its inputs, if any, are bound to it
        return None, "a plain function has nothing to convert"
    try:
        other = Case(copy.deepcopy(case.model), case.args, case.kwargs, case.loss, case.takes)
        cast(other, dtype, "")
        return _answers(other, other.model, train), ""
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:
        return None, describe_error(error)


def _judged(
    mode: Answers, eager: Answers, standard: Answers, reference: Answers, low: Answers | None, train: bool
) -> dict[str, Any]:
    """Return the verdict; ``standard`` : eager in the dtype whose precision is asked for."""
    import torch

    sides = (mode, eager, reference, standard)
    shapes = [[(name, tuple(tensor.shape)) for name, tensor in side] for side in sides]
    if not shapes[1] == shapes[2] == shapes[3]:
        return _unchecked(f"eager returns other tensors in {HIGHER}", train)
    out: dict[str, Any] = {"of": _of(train), "reference": f"eager in {HIGHER}", "reason": ""}
    if shapes[0] != shapes[1]:
        return out | {"verdict": "wrong", "reason": _unlike(shapes[0], shapes[1])}
    if low is not None and [(name, tuple(tensor.shape)) for name, tensor in low] != shapes[1]:
        low = None
    total = sum(_square(tensor) for _, tensor in reference)
    # of a tensor that is zero in theory: rounding of the others is not its error
    scale = 1e-9 * total**0.5
    verdicts, modes, eagers, lows = [], [], [], []
    for at, (name, truth) in enumerate(reference):
        tested, other, best = mode[at][1], eager[at][1], standard[at][1]
        modes.append(distance(tested, _expected(truth, best, tested), scale))
        eagers.append(distance(other, _expected(truth, other, other), scale))
        half = low[at][1] if low else None
        held = None if half is None else distance(half, _expected(truth, half, half), scale)
        lows.append(held)
        if _same(tested, best):
            verdicts.append(SEVERITY[0])
            continue
        if tested.dtype != other.dtype:
            out["reason"] = f"{name} is {str(tested.dtype)[6:]} instead of {str(other.dtype)[6:]}"
        roundoff = torch.finfo(best.dtype).eps / 2 if best.is_floating_point() else 0.0
        known = distance(best, _expected(truth, best, best), scale)
        verdicts.append(classify(modes[-1], known, lows[-1], roundoff))
    worst = max(range(len(modes)), key=lambda at: (SEVERITY.index(verdicts[at]), modes[at].worst))
    place = f"[{', '.join(map(str, modes[worst].at))}]" if modes[worst].at else ""
    norm = sum(apart.norm_square for apart in modes) ** 0.5
    own = sum(apart.own_square for apart in modes) ** 0.5
    halves = [apart for apart in lows if apart is not None]
    return out | {
        "verdict": worst_of(verdicts),
        "error": _together(modes),
        "eager_error": _together(eagers),
        "low_error": _together(halves) if halves else None,
        "worst": modes[worst].worst if isfinite(modes[worst].worst) else None,
        "eager_worst": eagers[worst].worst if isfinite(eagers[worst].worst) else None,
        "worst_at": f"{mode[worst][0]}{place}",
        "cosine": sum(apart.dot for apart in modes) / (norm * own) if norm * own else None,
    }


def _square(tensor: Any) -> float:
    value = tensor.double()
    return float(value[value.isfinite()].square().sum())


def _expected(truth: Any, eager: Any, answer: Any) -> Any:
    """Return what an answer is held against, value by value.

    The reference where it is finite; eager's own value where that overflows and the answer too, or where eager is not
    what the reference is. So infinities of eager are no error, and no excuse.
    """
    import torch

    truth, eager, answer = (tensor.cpu().double() for tensor in (truth, eager, answer))
    known = truth.isfinite() & (eager.isfinite() | answer.isfinite())
    return truth if bool(known.all()) else torch.where(known, truth, eager)


def _unlike(found: Any, expected: Any) -> str:
    if len(found) != len(expected):
        return f"{len(found)} tensors instead of {len(expected)}"
    first, other = next(pair for pair in zip(found, expected, strict=True) if pair[0] != pair[1])
    return f"{first[0]} has shape {list(first[1])} instead of {list(other[1])}"


def _together(found: list[Distance]) -> float | None:
    norm = sum(apart.norm_square for apart in found)
    if any(apart.error == float("inf") for apart in found):
        return None
    return (sum(apart.square for apart in found) / norm) ** 0.5 if norm else 0.0
