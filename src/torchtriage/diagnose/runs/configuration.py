"""Findings on how a run was set up: more threads than cores, a profiler over all of it."""

from __future__ import annotations

from collections.abc import Iterator

from torchtriage.core.finding import Certainty, Cost, Finding, Fix, Frame, Place, Severity
from torchtriage.core.record.profiler_capture import BUSY
from torchtriage.core.units import format_count
from torchtriage.diagnose.runs.account import SampledLoop
from torchtriage.diagnose.runs.causes import Cause
from torchtriage.diagnose.runs.costs import share_cost
from torchtriage.diagnose.runs.run_folder import Recording
from torchtriage.diagnose.runs.samples import Samples
from torchtriage.diagnose.runs.source_view import SourceView

THREADS = Cause(
    "CFG101",
    "too-many-threads",
    "config",
    "More threads than cores",
    "operators",
    "threads",
    Fix(
        "Use no more threads than there are cores, one for small models; measure 1, 2 and all of them.",
        "torch.set_num_threads(len(os.sched_getaffinity(0)))",
        "https://docs.pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html",
    ),
    looks="``torch.get_num_threads()`` is above the number of cores that the process may use.",
    slow="threads of one operator wait for each other at a barrier, and only some of them run at a time.",
    leave="threads mostly wait for something else than a core.",
)
PROFILED = Cause(
    "MSR045",
    "profiler-overhead",
    "measure",
    "The profiler records a whole run",
    "profiler",
    "the script's own profiler",
    Fix(
        "Record a few steps with a schedule and call prof.step() in the loop.",
        "schedule=torch.profiler.schedule(wait=5, warmup=2, active=3, repeat=1)",
        "https://docs.pytorch.org/tutorials/recipes/recipes/profiler_recipe.html",
    ),
    looks="the script starts a profiler of its own that is still recording when the loop runs, or spends steps in one.",
    slow="every operator is written down: 1.5 times the host time without options, 2.2 times with shapes and stacks.",
    leave="the run is there to be profiled.",
)


def configuration(
    recording: Recording, samples: Samples, loop: SampledLoop | None, view: SourceView, step_ms: float
) -> Iterator[Finding]:
    """Yield what is wrong with the set-up of a run; ``step_ms`` is what costs are of."""
    files = sorted({position.file for look in samples.looks for position in look.stack if not position.library})
    if recording.measured.get("ended") == BUSY:
        frame = _made(view, files, ("profile",))
        if frame is not None:  # with a schedule it records a few steps
            what = "the script's own profiler runs over the loop, and keeps what it records"
            yield _finding(PROFILED, what, frame, None)
    if loop is None:
        return
    operators = loop.share_of("operators")
    threads, cores = samples.torch.get("threads") or 0, samples.torch.get("cores") or 0
    if cores and threads > cores and operators >= 0.3:
        low, high = 0.2 * operators, 0.8 * operators
        yield _finding(
            THREADS,
            f"torch uses {format_count(threads, 'thread')} on {format_count(cores, 'core')}",
            _made(view, files, ("set_num_threads",)),
            share_cost(low, high, step_ms, high, "share of the step in operators", loop, "C"),
            certainty="certain",
        )


def _made(view: SourceView, files: list[str], names: tuple[str, ...]) -> Frame | None:
    for file in files:
        for name in names:
            if lines := view.made(name, file, without="schedule"):
                return Frame(file, lines[0], "", exact=True, called=name, lines=lines[:1])
    return None


def _finding(
    cause: Cause, message: str, frame: Frame | None, cost: Cost | None, certainty: Certainty = "likely"
) -> Finding:
    severity: Severity = "low" if cost is None or not cost.low_ms else "high" if cost.share_low >= 0.1 else "medium"
    return cause.finding(
        severity=severity, certainty=certainty, message=message, place=Place(frame=frame), cost=cost, evidence={}
    )


CODES = (THREADS, PROFILED)
