"""Python's garbage collector stops the thread that feeds the device.

Looks like: ``Python GC`` rows (recorded with ``record_python_gc_info``), or frames of ``gc.collect()``, of at least 1
    ms on the launching thread while the device is idle.
Slow because: the collector walks all tracked objects while the thread does nothing else; in a distributed job one
    rank's pause delays every rank at the next collective.
Cost: device idle time inside the pauses (without a device: the pauses); the low end is divided by the profiler's
    inflation, as stacks allocate objects of their own.
Fix: freeze long-lived objects, collect at a step of your choice on all ranks together, and avoid reference cycles.
Leave it when: queued work hides the pauses.
Source: Python documentation, gc; PyTorch, record_python_gc_info of the profiler.
"""

import numpy as np

from torchtriage.core.arrays import distinct
from torchtriage.core.units import ms
from torchtriage.diagnose.patterns._host_time import host_claim, host_time
from torchtriage.diagnose.patterns.base import Claims, Edit, Fix, Kind, Pattern, Trace

PATTERN = Pattern.of(__name__, "HST021", "Garbage collection stalls the step", order=310, needs="stacks")
FIX = Fix(
    text="Freeze long-lived objects after the warm-up, switch automatic collection off, and collect every few hundred"
    " steps on all ranks at once.",
    code="""gc.collect(); gc.freeze(); gc.disable()  # after the warm-up
if step % 500 == 0:
    gc.collect()""",
    link="https://docs.python.org/3/library/gc.html#gc.freeze",
)

MIN_PAUSE_NS = 1_000_000  # collections of the young generations take microseconds; a full one 10-500 ms (catalogue 21)
_AUTOMATIC = r"^Python GC"
_EXPLICIT = r"^<built-in function collect>"


def find(trace: Trace) -> Claims:
    """Yield one claim for the pauses of the launching thread."""
    steps = trace.steps
    if not trace.devices and not trace.is_host_only:
        return
    pauses = trace.matching(f"{_AUTOMATIC}|{_EXPLICIT}", Kind.PYTHON)
    # an explicit call encloses the collector's own row
    pauses &= (trace.dur_ns >= MIN_PAUSE_NS) & ~trace.frames.under(pauses)
    # the threads whose pauses matter: the main one and those that launch work
    lanes = np.append(distinct(trace.lane[trace.links.launches]), steps.lane)
    rows = np.flatnonzero(pauses & np.isin(trace.lane, lanes))
    rows = rows[steps.in_steady(steps.of_host(rows))]
    if not len(rows):
        return
    time = host_time(trace, trace.time_of(rows))
    if not time.lost_ns:
        return
    yield host_claim(
        trace,
        f"garbage collection stops the launching thread for {time.text}{time.idle_text(', and', ' of it')}",
        rows,
        time.spans,
        method="idle time of the device inside the pauses" if trace.devices else "host time of the pauses",
        evidence={
            **time.evidence("pause", share=False),
            "n_pauses": len(rows),
            "n_explicit_pauses": int(trace.matching(_EXPLICIT)[rows].sum()),
            "longest_pause_ms": ms(int(trace.dur_ns[rows].max())),
            "median_pause_ms": ms(float(np.median(trace.dur_ns[rows]))),
            "n_steady_steps": steps.n_steady,
        },
        anchor=trace.longest(rows),
        edits=(Edit("drop", rows),),
    )
