"""Findings on how a run was set up: more threads than cores, a profiler over all of it."""

from __future__ import annotations

from collections.abc import Iterator

from torchtriage.core.finding import Certainty, Cost, Finding, Fix, Frame, Place, Severity
from torchtriage.core.record.profiler_capture import BUSY
from torchtriage.core.units import format_count, format_ms, format_share
from torchtriage.diagnose.runs.account import SampledLoop
from torchtriage.diagnose.runs.causes import Cause
from torchtriage.diagnose.runs.costs import WORTH, severity_of, share_cost
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
    leave="threads mostly wait for something other than a core.",
)
SUBNORMAL = Cause(
    "CFG105",
    "subnormal-numbers",
    "config",
    "Tensors hold numbers that a CPU computes slowly",
    "operators",
    "subnormal numbers",
    Fix(
        "Let the CPU treat subnormal numbers as zero, or clamp values that decay.",
        "torch.set_flush_denormal(True)  # at the top of the script",
        "https://docs.pytorch.org/docs/stable/generated/torch.set_flush_denormal.html",
    ),
    gain=(0.3, 1.0),
    looks="half a per cent or more of a large tensor on the CPU are subnormal: nearer to zero than 1.2e-38 (2.2e-308 in"
    " double precision), but not zero, as what decays geometrically or ``exp`` of large negative numbers.",
    slow="the CPU computes each of them by microcode, a hundred times slower than others.",
    leave="such numbers matter.",
    cost="the time in the function whose variable it is: 30 % of its operators at the low end (less where under 2 % of"
    " the numbers are subnormal), all of them at the high end.",
)
ENOUGH_SUBNORMAL = 0.02
"""With this share a product took several times as long; with less, less is sure."""
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
    slow="every operator is recorded: 1.5 times the host time without options, 2.2 times with shapes and stacks.",
    leave="the run is there to be profiled.",
)


def configuration(
    recording: Recording, samples: Samples, loop: SampledLoop | None, view: SourceView, step_ms: float
) -> Iterator[Finding]:
    """Yield what is wrong with the set-up of a run; ``step_ms`` is what costs are of."""
    if recording.measured.get("ended") == BUSY:
        frame = _made(view, samples.files, "profile")
        if frame is not None:  # with a schedule it records a few steps
            what = "the script's own profiler runs during the whole loop and keeps everything it records"
            yield _finding(PROFILED, what, frame, None)
    if loop is None:
        return
    operators = loop.share_of("operators")
    yield from _subnormal(recording, loop, view, step_ms)
    threads, cores = samples.torch.get("threads") or 0, samples.torch.get("cores") or 0
    if cores and threads > cores and operators >= 0.3:
        low, high = 0.2 * operators, 0.8 * operators
        yield _finding(
            THREADS,
            f"torch uses {format_count(threads, 'thread')} on {format_count(cores, 'core')}",
            _made(view, samples.files, "set_num_threads"),
            share_cost(low, high, step_ms, high, "share of the step in operators", loop, "C"),
            certainty="certain",
        )


def _subnormal(recording: Recording, loop: SampledLoop, view: SourceView, step_ms: float) -> Iterator[Finding]:
    for found in recording.measured.get("subnormal") or ():
        file = recording.short(found["file"])
        first_line, name, function = (found[key] for key in ("first_line", "name", "function"))
        inside = [item for item in loop.seen if any((p.file, p.first_line) == (file, first_line) for p in item.chain)]
        share = loop.share_of("operators", inside)
        if share < WORTH:
            continue
        line = view.assigned(file, first_line, name) or first_line
        frames = {p for item in inside for p in item.chain if (p.file, p.first_line) == (file, first_line)}
        lines = tuple(sorted({p.line for p in frames} | {line}))
        shape = " x ".join(map(str, found["shape"]))
        low, high = (gain * share for gain in SUBNORMAL.gain)
        low *= min(found["share"] / ENOUGH_SUBNORMAL, 1.0)
        yield SUBNORMAL.finding(
            severity=severity_of(low, high),
            certainty="likely",
            message=f"{format_share(found['share'])} of {name} ({shape}) are subnormal; operators in {function}()"
            f" take {format_ms(share * step_ms)} of {format_ms(step_ms)}",
            place=Place(frame=Frame(file, line, function, exact=True, called=name, lines=lines)),
            cost=share_cost(low, high, step_ms, share, "share of stack samples in this function", loop, "C"),
            evidence={"subnormal_share": round(found["share"], 4), "variable": name},
            n_events=1,
        )
        return  # what is computed of it holds some, too


def _made(view: SourceView, files: list[str], name: str) -> Frame | None:
    for file in files:
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


CODES = (THREADS, SUBNORMAL, PROFILED)
