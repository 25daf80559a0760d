"""Batches are loaded and decoded on the main thread.

Looks like: ``enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__`` annotations that take at least 5 % of the
    step while, with GPU rows, the device is idle for at least half of it. The loader's class shows that there are no
    workers; reading, decoding and collating run in process.
Slow because: the thread that feeds the device fetches the next batch first; nothing is enqueued meanwhile, and the
    device runs out of work.
Cost: device idle time inside the fetches (without a device: the fetches); low counts 80 % of it, 50 % where workers
    share the cores with the model, divided by the profiler's inflation.
Fix: give the loader workers, which prepare the next batches while this one is computed.
Leave it when: the dataset is in memory and a batch takes less than a millisecond (passing it between processes takes
    as long), or only the first batch of an epoch is slow.
Source: PyTorch performance tuning guide, "Enable asynchronous data loading and augmentation".
"""

from typing import Any

import numpy as np

from torchtriage.core.trace.frames import own_time_ns, top_frames
from torchtriage.core.units import format_ns, ms
from torchtriage.diagnose.patterns.base import Claim, Claims, Edit, Fix, Pattern, Trace
from torchtriage.diagnose.patterns.data._fetches import MIN_SHARE, find_fetches

PATTERN = Pattern.of(__name__, "DAT018", "Batches loaded on the main thread", order=300, needs="ops")
FIX = Fix(
    text="Load batches in worker processes; start with about one worker per spare core.",
    code="""loader = DataLoader(
    dataset, batch_size=..., num_workers=8, pin_memory=True, persistent_workers=True
)""",
    link="https://docs.pytorch.org/docs/stable/data.html#single-and-multi-process-data-loading",
)

MIN_FETCH_NS = 1_000_000  # a worker hands a batch over in 0.2-1 ms: a cheaper fetch has nothing to gain
MIN_IDLE = 0.5  # share of the fetches in which the device must be idle; the rest hides behind queued work
MIN_STEPS = 0.5  # share of the steps that fetch; fewer is an epoch's first batch
WORKERS = 4  # worker processes that the prediction reckons with; the fix shows more
LOW = {"idle": 0.8, "host": 0.5}
"""Workers do not take all of it (80 %, catalogue 18); on a CPU they share the model's cores."""


def find(trace: Trace) -> Claims:
    """Yield one claim for the fetches of loaders without workers."""
    steps = trace.steps
    fetches = find_fetches(trace, "SingleProcess")
    if fetches is None or steps.share_of_steps(fetches.step_of) < MIN_STEPS:
        return
    if not trace.devices and trace.origin.vendor != "cpu":
        return  # an accelerator whose rows are not here
    if fetches.per_step_ns < max(MIN_FETCH_NS, MIN_SHARE * steps.wall_ns):
        return
    if fetches.lost_per_step_ns < MIN_IDLE * fetches.per_step_ns:
        return
    rows = fetches.rows
    idle_ns = fetches.lost_per_step_ns
    evidence: dict[str, Any] = {
        "fetch_ms_per_step": ms(fetches.per_step_ns),
        "share_of_step": round(fetches.per_step_ns / steps.wall_ns, 6),
        **({"gpu_idle_ms_per_step": ms(idle_ns)} if trace.devices else {}),
        "n_fetches_per_step": steps.median_count(fetches.step_of),
        "median_fetch_ms": ms(float(np.median(trace.dur_ns[rows]))),
    }
    if trace.has_stacks:
        held = trace.time_of(rows)
        _, own = own_time_ns(trace, int(trace.lane[rows[0]]), held)
        evidence["top_frames_ms_per_step"] = {
            name: round(ns / 1e6 / steps.n_steady, 3) for name, ns in top_frames(trace, own)
        }
    waits = f", and the {trace.origin.device_word} stands idle for {format_ns(idle_ns)} of it" if trace.devices else ""
    # only the host was recorded, on a machine with a GPU: device work may hide the fetches
    blind = not trace.devices and not trace.is_host_only
    yield Claim(
        message=f"DataLoader.__next__ runs on the main thread for {format_ns(fetches.per_step_ns)} of"
        f" {format_ns(steps.wall_ns)} {steps.per}{waits}",
        certainty="hint" if blind else "certain",
        rows=rows,
        spans=fetches.at_stake,
        gain_low=0.0 if blind else LOW[fetches.time_class] / trace.origin.inflation,
        time_class=fetches.time_class,
        method="idle time of the device inside the fetches" if trace.devices else "host time of the fetches",
        evidence=evidence,
        anchor=trace.longest(rows),
        edits=(Edit("parallel", rows, factor=1 / WORKERS),),
    )
