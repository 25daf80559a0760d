"""Findings out of noted operators: what is computed and never read, and the line that reads the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torchtriage.core.finding import Finding, Fix, Frame, Place
from torchtriage.core.names import file_name
from torchtriage.core.units import format_share
from torchtriage.diagnose.runs.account import OPERATORS, SampledLoop
from torchtriage.diagnose.runs.causes import Cause
from torchtriage.diagnose.runs.costs import WORTH, counting_error, severity_of, share_cost
from torchtriage.diagnose.runs.samples import shortened

UNREAD = Cause(
    "KRN105",
    "unread-results",
    "kernel",
    "Most of what is computed here is never read",
    OPERATORS,
    "what nobody reads",
    Fix(
        "Select first, then compute: crop or sample before other transforms, stop after the last layer whose output is"
        " read, and pick the positions that are read, or that have a label, before the last one.",
        "last = head(hidden[:, -1])  # not head(hidden)[:, -1]\n"
        "picked = labels != -100\nloss = F.cross_entropy(head(hidden[picked]), labels[picked])\n"
        "patch = normalize(crop(image))  # not crop(normalize(image))",
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.cross_entropy.html",
    ),
    gain=(0.6, 1.0),
    looks="every operator's reads and writes are tracked for one step: at least half of a result is never read,"
    " directly or through other results. A crop after other transforms, one position of all logits, a loss most of"
    " whose labels are ``ignore_index``, the layers after those whose features are compared.",
    slow="the work for the other part is done, forward and mostly backward, and dropped.",
    leave="the selection depends on the full result, or it is read where torch does not see it, as in C++ or in"
    " another thread.",
    cost="the share of the stack samples at these lines, times that part of their operators' work: 60 % of it at"
    " the low end; where gradients go back through it, with twice as much of the backward pass at the high end.",
)
BACKWARD = 2.0
"""Times the forward pass that gradients of a product or a softmax take at most."""
MOST_NAMED = 4


def unread_results(
    noted: Sequence[dict[str, Any]], roots: Sequence[str], loop: SampledLoop, step_ms: float
) -> Iterator[Finding]:
    """Yield a finding for each line that reads little of what others compute; ``noted`` : by the recorder.

    ``roots`` : folders that the looks' files are named from. ``step_ms`` : what costs are of.
    """
    for unread in noted:
        rows = [(shortened(row["file"], roots), row) for row in unread["lines"]]
        shares = {
            (file, row["line"], row["function"]): loop.operators_at(file, row["line"])
            * row["unread_ns"]
            / max(row["ns"], 1)
            for file, row in rows
        }
        share = sum(shares.values())
        if share < WORTH:
            continue
        error = counting_error(share, len(loop.seen))
        low_gain, high_gain = UNREAD.gain
        backward = min(BACKWARD * share, loop.backward_share) if unread["needs_grad"] else 0.0
        low, high = low_gain * max(share - error, 0.0), high_gain * min(share + error + backward, 1.0)
        longest = sorted(shares, key=lambda place: -shares[place])
        file, line, function = longest[0]
        lines = tuple(number for other, number, _ in longest if other == file)
        frame = Frame(file, line, function, exact=True, lines=lines)
        reader = Frame(shortened(unread["file"], roots), unread["line"], unread["function"], exact=True)
        part = sum(row["unread_ns"] for _, row in rows) / max(sum(row["ns"] for _, row in rows), 1)
        at = f"{file_name(file)}:{', '.join(map(str, sorted(lines[:MOST_NAMED])))}"
        where = "" if reader.file == file else f" of {file_name(reader.file)}"
        method = "unread results, and their share of stack samples"
        yield UNREAD.finding(
            severity=severity_of(low, high),
            certainty="likely",
            message=f"{format_share(part)} of the operators' work at {at} is never read, and takes"
            f" {loop.took(share, step_ms)}; line {reader.line}{where} reads the rest",
            place=Place(frame=frame, stack=(frame, reader)),
            cost=share_cost(low, high, step_ms, share, method, loop, "B"),
            evidence={
                "share_of_step": round(share, 6),
                "share_unread": round(part, 4),
                "operator": unread["operator"],
                "shape": list(unread["shape"]),
                "read_at": f"{reader.file}:{reader.line}",
            },
            n_events=len(rows),
        )
