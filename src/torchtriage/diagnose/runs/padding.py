"""Texts that are longer than the longest of their batch."""

from __future__ import annotations

from torchtriage.core.finding import Finding, Fix, Frame, Place
from torchtriage.core.names import file_name
from torchtriage.core.units import format_count, format_ms, format_share
from torchtriage.diagnose.runs.account import SampledLoop, Seen
from torchtriage.diagnose.runs.causes import Cause
from torchtriage.diagnose.runs.costs import WORTH, severity_of, share_cost
from torchtriage.diagnose.runs.run_folder import Recording

PADDED = Cause(
    "DAT102",
    "padded-to-maximum",
    "data",
    "Texts are padded to the maximum length",
    "operators",
    "padding",
    Fix(
        "Pad each batch to its own longest text.",
        "ids = ids[:, :longest]; mask = mask[:, :longest]",
        "https://huggingface.co/docs/transformers/pad_truncation",
    ),
    looks="the source pads to a fixed length; and in a few steps a tenth or more of the positions of what a module with"
    " an embedding gets hold one number in all rows, at one end.",
    slow="the model computes padding like text, in both passes; attention takes the square of the length.",
    leave="one shape is needed (compiled or captured graphs), or the model counts padding in its results.",
    cost="half of the padded share of the call's operators at the low end; at the high end all of it, and of the"
    " backward pass, by the square of the length. On a device nothing is sure.",
)
LEAST = 0.1
"""Of the positions, what must be padding; below, the longest text of a batch is nearly as long as the maximum."""
MODULE = "torch/nn/modules/module.py"
SURELY = 0.5
"""Of the padded share of the operators' time: some does not grow with the length."""


def padding(recording: Recording, loop: SampledLoop, step_ms: float, *, on_device: bool) -> list[Finding]:
    """Return a finding on the padding of texts, at the call that most of the time is spent in."""
    found: list[tuple[float, Finding]] = []
    for seen in recording.measured.get("padded") or ():
        file, line, function = recording.short(seen["file"]), seen["line"], seen["function"]
        padded = seen["n_padding"] / seen["n_positions"]
        inside = [item for item in loop.seen if item.passes(file, {line}) and _in_module(item)]
        forward = loop.share_of("operators", inside)
        share = min(forward + loop.backward_share, 1.0) if forward and seen["trains"] else forward
        low, high = 0.0 if on_device else SURELY * padded * forward, (1 - (1 - padded) ** 2) * share
        if padded < LEAST or high < WORTH:
            continue
        lengths = [round(n / seen["n_calls"]) for n in (seen["n_positions"], seen["n_positions"] - seen["n_padding"])]
        finding = PADDED.finding(
            severity=severity_of(low, high),
            certainty="likely",
            message=f"{seen['module']}() gets texts of {format_count(lengths[0], 'position')}, of which the longest in"
            f" a batch needs {lengths[1]} ({format_share(padded)} are padding); called in {file_name(file)}:{line}, it"
            f" takes {format_ms(share * step_ms)} of {format_ms(step_ms)}"
            f"{', all backward passes included' if seen['trains'] and loop.backward_share else ''}",
            place=Place(frame=Frame(file, line, function, exact=True, called=seen["module"], lines=(line,))),
            cost=share_cost(low, high, step_ms, share, "padded positions, share of stack samples", loop, "C"),
            evidence={"padded_share": round(padded, 4), "length": lengths[0], "longest": lengths[1]},
            n_events=seen["n_calls"],
        )
        found.append((share, finding))
    return [max(found, key=lambda entry: entry[0])[1]] if found else []


def _in_module(item: Seen) -> bool:
    return any(position.library.startswith(MODULE) for position in item.look.stack)
