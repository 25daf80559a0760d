"""What backward passes do that a step may not need: gradients that no optimizer takes, activations computed again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torchtriage.core.finding import Finding, Fix, Frame, Place
from torchtriage.core.units import format_bytes, format_count, format_ms, format_share
from torchtriage.diagnose.runs.account import OPERATORS, SampledLoop, Seen
from torchtriage.diagnose.runs.causes import Cause
from torchtriage.diagnose.runs.costs import WORTH, counting_error, severity_of, share_cost
from torchtriage.diagnose.runs.run_folder import Recording
from torchtriage.diagnose.runs.samples import AUTOGRAD, Position, Samples
from torchtriage.diagnose.runs.source_view import SourceView

UNUSED = Cause(
    "OPT101",
    "gradients-unused",
    "optim",
    "Gradients are computed that no optimizer uses",
    OPERATORS,
    "the backward pass",
    Fix(
        "End the graph where training ends: freeze what is not trained, or run it without gradients.",
        "encoder.requires_grad_(False)\nwith torch.no_grad():\n    features = encoder(x)",
        "https://docs.pytorch.org/docs/stable/notes/autograd.html#setting-requires-grad",
    ),
    gain=(0.3, 1.0),
    looks="parameters get a new gradient in every step, and no optimizer of the process holds them.",
    slow="the pass goes on through layers that are not trained; what they computed is kept until then.",
    leave="the gradients are read by hand: saliency, penalties, a custom update.",
)
THROWN = Cause(
    "OPT103",
    "gradients-thrown-away",
    "optim",
    "Gradients are computed for another model's step and thrown away",
    OPERATORS,
    "the backward pass through it",
    Fix(
        "Cut the graph where the other model's output comes in.",
        "fake = generator(noise)\nloss = criterion(discriminator(fake.detach()), zeros)",
        "https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html",
    ),
    gain=(0.8, 2.0),
    looks="two optimizers, a loss of one model that goes back through the other, and gradients of the other that are"
    " new when it takes a step of its own.",
    slow="only one of the two is trained in this step. Where the loss is computed from the other model's output, the"
    " whole backward pass through it is wasted; where the other model judges this one's output (a discriminator, a"
    " critic), the gradients of its weights are.",
    leave="both are trained by one loss.",
    cost="the time from the first of these gradients to the last: 80 to 200 % of it where the whole pass is wasted"
    " (its last layer comes on top), 20 to 70 % where the gradients of weights are. With a device"
    " that is only the time to launch them: the low end is 0.",
)
FREEZE = Fix(
    "Freeze the other model while this one's loss is computed.",
    "critic.requires_grad_(False)\nloss = -critic(state, actor(state)).mean()\nloss.backward()\n"
    "critic.requires_grad_(True)",
    "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.requires_grad_",
)
WEIGHTS_ALONE = 0.2, 0.7
"""Of the way through a model, what the gradients of its weights take: half of each product's, none of the rest's."""
RECOMPUTED = Cause(
    "MEM122",
    "recompute-in-backward",
    "alloc",
    "Activations are computed a second time",
    OPERATORS,
    "computing activations again",
    Fix(
        "Switch activation checkpointing off, or use it for the largest layers only.",
        "model.gradient_checkpointing_disable()",
        "https://docs.pytorch.org/docs/stable/checkpoint.html",
    ),
    gain=(0.8, 1.2),
    looks="backward passes repeat forward passes (``torch.utils.checkpoint``), and less than half of the memory is"
    " used.",
    slow="each checkpointed layer is computed twice.",
    leave="with all activations kept the step would not fit, on this machine or on the one it is meant for.",
)
MUCH_MEMORY = 0.5
"""Of the machine's memory: a process that needs more may need to compute again."""
CHECKPOINTS = ("gradient_checkpointing_enable", "checkpoint", "checkpoint_sequential")
OPTION = "gradient_checkpointing"


def backward_passes(
    recording: Recording, samples: Samples, loop: SampledLoop, view: SourceView, step_ms: float
) -> Iterator[Finding]:
    """Yield what backward passes need not do; ``step_ms`` is what costs are of."""
    unused = recording.measured.get("unused_gradients")
    inside = [item for item in loop.seen if any(map(_is_backward, item.look.stack))]
    if unused and inside:
        part = unused["unused"] / (unused["unused"] + unused["taken"])
        names = ", ".join(unused["modules"])
        message = (
            f"{format_count(unused['parameters'], 'parameter')}{f' of {names}' if names else ''} get gradients in every"
            f" step that no optimizer uses: {format_share(part)} of all elements with a gradient"
        )
        yield from _finding(UNUSED, inside, part, message, _calls_backward(inside), loop, step_ms)
    for thrown in recording.measured.get("thrown_gradients") or ():
        if thrown["share"] >= WORTH:
            yield _thrown(recording, thrown, loop, step_ms, on_device=bool(samples.torch.get("device")))
    again = [item for item in inside if any(map(_recomputes, item.look.stack))]
    if again:
        peak, memory = max((look.resident for look in samples.memory), default=0), samples.torch.get("memory") or 0
        if memory and peak < MUCH_MEMORY * memory and not samples.torch.get("device"):
            message = (
                f"backward passes compute activations again, while the process uses {format_bytes(peak)} of"
                f" {format_bytes(memory)}"
            )
            files = sorted({position.file for item in again for position in item.chain})
            frame = _switched_on(view, files) or _calls_backward(again)
            yield from _finding(RECOMPUTED, again, 1.0, message, frame, loop, step_ms)


def _thrown(
    recording: Recording, thrown: dict[str, Any], loop: SampledLoop, step_ms: float, *, on_device: bool
) -> Finding:
    share = min(thrown["share"], 1.0)
    # a backward pass in a thread of a device's has no line of the script's
    file, line, function = next(iter(thrown["lines"]), ("", 0, ""))
    lines = tuple(sorted({at for where, at, _ in thrown["lines"] if where == file}))
    file = recording.short(file)
    of, by = (", ".join(thrown[name]) or "another model" for name in ("of", "by"))
    frame = Frame(file, line, function, exact=True, lines=lines) if line else None
    # from its last layer's gradients to its first one's: the way through the last layer comes on top
    low, high = (gain * share for gain in (THROWN.gain if thrown["needless"] else WEIGHTS_ALONE))
    high = min(high, 1.0)
    if on_device:
        low = 0.0  # the host's time to launch it, which the device need not wait for
    way = "" if thrown["needless"] else ", including the gradients of its weights"
    finding = THROWN.finding(
        severity=severity_of(low, high),
        certainty="likely",
        message=f"the loss of {by} goes back through {of}, whose gradients are thrown away before its own step:"
        f" {format_ms(share * step_ms)} of {format_ms(step_ms)}{way}",
        place=Place(frame=frame, stack=(frame,) if frame else ()),
        cost=share_cost(low, high, step_ms, share, "time from its last gradient to its first", loop, "B"),
        evidence={"share_of_step": round(share, 6), "models": thrown["of"], "needless": thrown["needless"]},
        n_events=1,
    )
    return finding if thrown["needless"] else replace(finding, fix=FREEZE)


def _finding(
    cause: Cause, seen: list[Seen], part: float, message: str, frame: Frame | None, loop: SampledLoop, step_ms: float
) -> Iterator[Finding]:
    share = loop.share(seen)
    if share < WORTH:
        return
    error = counting_error(share, len(loop.seen))
    low = part * cause.gain[0] * max(share - error, 0.0)
    high = min(cause.gain[1] * (share + error), 1.0)
    yield cause.finding(
        severity=severity_of(low, high),
        certainty="likely",
        message=f"{message}; {cause.what} takes {format_ms(share * step_ms)} of {format_ms(step_ms)}",
        place=Place(frame=frame, stack=(frame,) if frame else ()),
        cost=share_cost(
            low, high, step_ms, share, f"share of {format_count(len(loop.seen), 'stack sample')}", loop, "C"
        ),
        evidence={"share_of_step": round(share, 6), "looks": len(seen)},
        n_events=len(seen),
    )


def _calls_backward(seen: list[Seen]) -> Frame | None:
    """Return the user's line that most of these backward passes were called from."""
    lines: Counter[tuple[str, int, str]] = Counter()
    for item in seen:
        engine = max(at for at, position in enumerate(item.look.stack) if _is_backward(position))
        caller = next((item.look.stack[at] for at in item.look.user if at > engine), None)
        if caller is not None:
            lines[caller.file, caller.line, caller.name] += item.weight_ns
    if not lines:
        return None
    file, line, function = max(lines, key=lines.__getitem__)
    return Frame(file, line, function, exact=True, called="backward", lines=(line,))


def _switched_on(view: SourceView, files: list[str]) -> Frame | None:
    """Return the only line of these files that switches checkpointing on."""
    lines = [
        (file, line)
        for file in files
        for line in (*(line for name in CHECKPOINTS for line in view.made(name, file)), *view.options(OPTION, file))
    ]
    if len(lines) != 1:
        return None
    file, line = lines[0]
    return Frame(file, line, "", exact=True, called=OPTION, lines=(line,))


def _is_backward(position: Position) -> bool:
    return position.library in AUTOGRAD


def _recomputes(position: Position) -> bool:
    return position.library.startswith("torch/utils/checkpoint") and (
        position.name == "recompute_fn" or position.function == "CheckpointFunction.backward"
    )


CODES = (UNUSED, RECOMPUTED, THROWN)
