"""A loader gathers batches row by row from tensors that lie in memory.

Looks like: ``enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__`` annotations in which hardly any operator
    runs but ``aten::select`` for each sample and ``aten::stack``, with no more than 15 us of Python for each; at least
    5 % of the step (with GPU rows: of it while the device is idle).
Slow because: each row is indexed by Python and all rows are stacked again: thousands of small calls for a batch that
    one index would give.
Cost: the fetches less twice the time of copying (``aten::cat``), which is about what one index takes: 80 % of that at
    the low end, less once that time at the high end. Nothing where samples are large: stacking copies them faster than
    an index does.
Fix: take a batch with one index: a ``BatchSampler`` as the sampler of the loader, or a part of a permutation.
Leave it when: samples are transformed one by one.
Source: PyTorch documentation of ``torch.utils.data``, "Disable automatic batching"; measured with torch 2.13 on one
    core: 256 rows of 784 floats and their labels 0.75 ms by samples, 0.27 at once; 128 of 3 x 32 x 32 0.54 and 0.43;
    32 of 3 x 96 x 96 0.60 and 0.77.
"""

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.units import format_count, format_ns, ms
from torchtriage.diagnose.patterns.base import Claim, Claims, Edit, Fix, Kind, Pattern, Trace
from torchtriage.diagnose.patterns.data._fetches import MIN_SHARE, find_fetches

PATTERN = Pattern.of(
    __name__, "DAT112", "Batches are gathered row by row from memory", order=298, needs="ops", suppresses=("DAT018",)
)
FIX = Fix(
    text="Take all rows of a batch with one index.",
    code="""batches = BatchSampler(RandomSampler(dataset), batch_size, drop_last=False)
loader = DataLoader(dataset, sampler=batches, batch_size=None)  # dataset[rows]""",
    link="https://docs.pytorch.org/docs/stable/data.html#disable-automatic-batching",
)

MOSTLY = 0.8  # of the operators' time in the fetches
FEWEST_ROWS = 8  # for each batch
PYTHON_NS = 15_000  # for each row; indexing two tensors takes 2 to 5 us of Python
LOW = 0.8


def find(trace: Trace) -> Claims:
    """Yield one claim for the fetches of loaders over tensors in memory."""
    fetches = find_fetches(trace, "SingleProcess")
    if fetches is None or fetches.lost_per_step_ns < MIN_SHARE * trace.steps.wall_ns:
        return
    if not trace.devices and not trace.is_host_only:
        return  # device work may hide the fetches
    inside = np.flatnonzero((trace.kind == Kind.OP) & trace.tree.under(trace.mask_of(fetches.rows)))
    outer = inside[~trace.tree.under(trace.mask_of(inside))[inside]]
    views, stacks = outer[trace.named("aten::select")[outer]], outer[trace.named("aten::stack")[outer]]
    copies = inside[trace.named("aten::cat")[inside]]
    n_rows = len(views) / max(len(stacks), 1)
    if n_rows < FEWEST_ROWS or not len(copies):
        return
    total_ns, known_ns, copied_ns = (
        float(trace.dur_ns[rows].sum()) for rows in (outer, np.append(views, stacks), copies)
    )
    held_ns = float(intervals.length(trace.time_of(fetches.rows)))
    python_ns = (held_ns - total_ns) / len(views)
    low, high = 1 - 2 * copied_ns / held_ns, 1 - copied_ns / held_ns
    if known_ns < MOSTLY * total_ns or python_ns > PYTHON_NS or low <= 0:
        return
    whole = f"{format_ns(trace.steps.wall_ns)} {trace.steps.per}"
    yield Claim(
        message=f"DataLoader.__next__ takes {format_count(round(n_rows), 'sample')} one by one from tensors in memory"
        f" and stacks them again: {format_ns(fetches.per_step_ns)} of {whole}",
        certainty="certain",
        rows=fetches.rows,
        spans=fetches.at_stake,
        gain_low=LOW * low / trace.origin.inflation,
        gain_high=high,
        time_class=fetches.time_class,
        method="fetches without twice the time of copying; high end: without once that time",
        evidence={
            "fetch_ms_per_step": ms(fetches.per_step_ns),
            "rows_per_batch": round(n_rows),
            "python_us_per_row": round(python_ns / 1000, 1),
        },
        anchor=trace.longest(fetches.rows),
        edits=(Edit("shrink", fetches.rows, factor=1 - LOW * low, best=1 - high),),
    )
