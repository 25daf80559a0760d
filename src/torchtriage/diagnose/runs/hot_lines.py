"""Findings out of looks at the stacks: what steps do outside of torch's operators, at which line, at what cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple

from torchtriage.core.finding import Certainty, Finding, Fix, Frame, Place, rank_order
from torchtriage.core.names import file_name
from torchtriage.core.trace import Trace
from torchtriage.core.units import format_count, format_ms, format_share
from torchtriage.diagnose.runs.account import (
    COLLECTION,
    EITHER,
    OPERATORS,
    WAITS_FOR_DEVICE,
    SampledLoop,
    Seen,
    line_of,
    makes_sample,
)
from torchtriage.diagnose.runs.causes import FILES, PYTHON, READ_AHEAD, SAME_OR_ANOTHER, SCHEDULED, SLEEPING, Cause
from torchtriage.diagnose.runs.costs import counting_error, severity_of, share_cost
from torchtriage.diagnose.runs.recorded_host import work_growth
from torchtriage.diagnose.runs.samples import Position, Samples
from torchtriage.diagnose.runs.source_view import SourceView, elementwise, for_all_rows, sequential
from torchtriage.diagnose.runs.threads import paced

MIN_SHARE, MIN_LOOKS = 0.03, 4
HOT_SHARE = 0.10
HOT_OPERATORS, HOT_IN_MODEL = 0.15, 0.35
"""Share of a step from which a function's operators are reported: outside of the model, and in a module's forward."""

PYTHON_LOOP = Cause(
    "HST020",
    "python-bound",
    "host",
    "The step waits for Python",
    PYTHON,
    "Python",
    Fix(
        "Look at what each iteration does: batch what all iterations have in common, and compute what is the same in"
        " every step once, before the steps."
    ),
)
_GUIDE = "https://numpy.org/doc/stable/user/basics.broadcasting.html"
ELEMENTS = Fix(
    "Compute it with one operation on the whole array or tensor instead of element by element.",
    "out = (image - dark) / vignette  # all pixels at once",
    _GUIDE,
)
ROUNDS = Fix(
    "Each iteration needs the previous result: let it work on all rows or samples of the batch at once.", link=_GUIDE
)
AT_ONCE = Fix(
    "Each iteration needs the previous result, and works on all rows at once: make its body fewer calls, by"
    " torch.compile where they are PyTorch's.",
    "step = torch.compile(step)",
    "https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
)
COLLECTED = Fix(
    "Call gc.freeze() once what stays alive is built, so that the collector no longer goes through it; then make fewer"
    " objects here.",
    "gc.collect(); gc.freeze()  # before the loop",
    "https://docs.python.org/3/library/gc.html#gc.freeze",
)
HOT_LINE = Cause(
    "HST114",
    "hot-line",
    "host",
    "A line of Python takes a large part of the step",
    PYTHON,
    "Python",
    Fix(
        "Look at what this line does, and whether every step needs it; work that no step waits for can run in a thread."
    ),
    looks="stack samples find the loop's thread at one line of Python in a tenth of the step or more, and no pattern"
    " says why.",
    slow="nothing else of the step runs meanwhile.",
    leave="the line is what the program is for.",
)
HOT_OPERATOR_LINES = replace(
    HOT_LINE,
    kind=OPERATORS,
    what="operators",
    title="Operators outside of the model take a large part of the step",
    fix=Fix("Compute what does not change before the loop; of the rest, compute only what this step uses."),
)
HOT_FORWARD = replace(HOT_OPERATOR_LINES, title="One line of a module takes a large part of the step")
LEAST = {HOT_LINE: HOT_SHARE, HOT_OPERATOR_LINES: HOT_OPERATORS, HOT_FORWARD: HOT_IN_MODEL}
UNNAMED = tuple(LEAST)
GROWING = Cause(
    "HST106",
    "history-in-step",
    "host",
    "Each step takes longer than the one before",
    PYTHON,
    "work that grows with the step",
    Fix("Keep running totals instead of the whole history, bound lists and caches, and remove hooks after use."),
    looks="the steps' times rise from the first to the last, by a third or more; where they wait for a device, or"
    " all operators take longer, those recorded, their inputs or the device's time rise, too.",
    slow="something is done for all that came before: a history, a list of hooks, a growing batch.",
    leave="the inputs themselves grow, as in a curriculum.",
)
IN_PYTHON = (0.3, 0.95)
GAINS: dict[Fix | None, tuple[float, float]] = {
    ELEMENTS: (0.75, 1.0),
    ROUNDS: (0.75, 1.0),
    AT_ONCE: (0.0, 0.95),
    None: IN_PYTHON,
}
"""What parts of a loop its fix gives back, surely and at most; without one, of any other loop of Python."""
TOLD = 0.2
"""From this part of a loop on, the garbage collector's time is named."""
MOSTLY = 0.6
"""A loop is a loop of Python if so much of its time is."""
RISES = 1.33
SURELY_GROWN = 0.8
"""What part of the growth is surely saved: something of each step's own may grow, too."""
FEWEST_TO_RISE = 12
WAITS, OWN, AS_FAST, ENOUGH = 0.1, 0.5, 0.5, 0.1
"""Of a step, the wait for a device from which on steps may grow by it; of the growth, what must be the host's own then;
or how fast the recorded work must grow, beside the steps; and what other lines must take to tell of the machine."""
MAX_STACK = 6
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_MODEL = ("torch/nn/modules/module.py", "torch/autograd/", "torch/optim/", "torch/_dynamo/", "torch/utils/data/")
"""A module, a backward pass, an optimizer or a loader: what a step is for."""
BEYOND = 1.2
"""Times what a line takes: a high end above it needs a word."""


class _Around(NamedTuple):
    """The outermost loop in the innermost function that has one; ``helper`` : that one's line, if the steps call it."""

    file: str
    helper: int
    first: int
    last: int


@dataclass
class _Group:
    cause: Cause
    gain: tuple[float, float]
    weight_ns: float = 0.0
    collected_ns: float = 0.0
    """Of it, in the garbage collector."""
    n_looks: float = 0.0
    lines: Counter[int] = field(default_factory=Counter)
    words: Counter[tuple[int, str]] = field(default_factory=Counter)
    """What each line calls."""
    callers: Counter[Position] = field(default_factory=Counter)
    examples: dict[int, Seen] = field(default_factory=dict)
    loop_file: str = ""
    loop_lines: set[tuple[int, int]] = field(default_factory=set)
    fixes: Counter[Fix | None] = field(default_factory=Counter)
    """What to do about a loop, where more is known than its cause says; None where not."""
    known: bool = True
    """Whether what is called is known by more than the name of a method; of a line, that it is Python."""


def hot_lines(loop: SampledLoop, view: SourceView, step_ms: float) -> tuple[Finding, ...]:
    """Return what the looks at the stacks show of every step, the largest saving first.

    ``step_ms`` : the step, or all time in the loop, that costs are of.
    """
    if not loop.judged_ns:
        return ()
    groups: dict[tuple[object, ...], _Group] = {}
    in_loops: Counter[_Around] = Counter()
    in_python: dict[_Around, list[tuple[Seen, float, Fix | None]]] = {}
    for item in loop.seen:
        if not item.chain or item.kind in ("torchtriage", "imports", "compilation"):
            continue
        around, fix = _outermost_loop(item, view)
        if around is not None:
            in_loops[around] += item.weight_ns
        part = 1.0
        if item.cause is None:
            parts = loop.parts(item)
            operators = parts.get(OPERATORS, 0.0)
            if operators > 0 and not any(position.library.startswith(_MODEL) for position in item.look.below):
                # of a module's own forward
                inside = any(position.library == _MODEL[0] for position in item.look.stack)
                hot = (OPERATORS, inside, *line_of(item.chain[0])[:2])
                group = groups.setdefault(hot, _Group(HOT_FORWARD if inside else HOT_OPERATOR_LINES, (0.0, 1.0)))
                _count(group, item, item.weight_ns * operators, operators)
            # a loop that makes objects has them collected
            if item.kind not in (PYTHON, EITHER) and (item.kind != COLLECTION or around is None):
                continue
            part = parts[PYTHON] if item.kind == EITHER else 1.0
        if part <= 0:
            continue
        if item.cause is None and around is not None:
            in_python.setdefault(around, []).append((item, part, fix))
        else:
            _note(groups, item, part, view, loop)
    for around, samples in in_python.items():
        if sum(item.weight_ns * part for item, part, _ in samples) < MOSTLY * in_loops[around]:
            continue
        # a function is rewritten as a whole; what stands beside the steps is work of many kinds
        key: tuple[object, ...] = (PYTHON_LOOP.code, around.file, around.helper or -around.first)
        group = groups.setdefault(key, _Group(PYTHON_LOOP, IN_PYTHON, loop_file=around.file))
        group.loop_lines.add((around.first, around.last))
        for item, part, fix in samples:
            group.fixes[fix] += round(item.weight_ns * part)
            _count(group, item, item.weight_ns * part, part)
    n_looks = len(loop.seen)
    operators_at: Counter[tuple[object, ...]] = Counter()
    for key, group in groups.items():
        if group.cause.kind == OPERATORS and group.weight_ns >= LEAST[group.cause] * loop.judged_ns:
            line, weight = group.lines.most_common(1)[0]
            operators_at[(*key[2:], line)] += weight
    found = []
    for key, group in groups.items():
        if group.cause is HOT_LINE and not group.known and group.weight_ns <= operators_at[key[1:]]:
            continue  # the same looks are told as operators
        share = group.weight_ns / loop.judged_ns
        least = LEAST.get(group.cause, MIN_SHARE)
        if share < least or group.n_looks < MIN_LOOKS:
            continue
        found.append(_finding(group, share, step_ms, n_looks, loop))
    return tuple(sorted(found, key=rank_order))


def _outermost_loop(item: Seen, view: SourceView) -> tuple[_Around | None, Fix | None]:
    """Return the loop that a sample is in, if any, and what to do if it computes by element there."""
    if not item.loops:
        return None, None
    position = item.loops[0][0]
    mine = [loop for other, loop in item.loops if other is position]
    outermost = mine[-1]
    fix = None
    if elements := [loop for loop in mine if elementwise(loop)]:
        fix = ELEMENTS if not any(map(sequential, mine)) else AT_ONCE if all(map(for_all_rows, elements)) else ROUNDS
    last = outermost.end_lineno or outermost.lineno
    helper, beside = (
        (place.file, view.function(place.file, line))
        for place, line in ((position, outermost.lineno), (item.chain[-1], item.chain[-1].line))
    )
    return _Around(position.file, 0 if helper == beside else helper[1], outermost.lineno, last), fix


def _note(
    groups: dict[tuple[object, ...], _Group], item: Seen, part: float, view: SourceView, loop: SampledLoop
) -> None:
    file, function, line = line_of(item.chain[0])
    if item.cause is not None:
        if item.cause.kind == SLEEPING and paced(item.chain[0], view):
            return
        cause = item.cause
        if cause.code == SCHEDULED.code and view.made("profile", file) != view.made("profile", file, "schedule"):
            cause = SCHEDULED
        if cause is FILES:
            steps = loop.place.line if loop.place is not None and loop.place.file == item.chain[0].file else 0
            another = view.reads_another(item.chain[0], steps)
            cause = {True: READ_AHEAD, False: FILES, None: SAME_OR_ANOTHER}[another]
        key: tuple[object, ...] = (cause.title, file, function)
        # to read and decode is what a data set is for: it may be done for less, and may not
        low, high = cause.gain
        group = groups.setdefault(key, _Group(cause, (0.0 if makes_sample(item.look) else low, high)))
        group.known &= not item.call or view.knows(item.chain[0])
    else:
        key = (HOT_LINE.code, file, function, line)
        group = groups.setdefault(key, _Group(HOT_LINE, (0.0, 1.0), known=False))
        group.known |= item.kind != EITHER
    _count(group, item, item.weight_ns * part, part)


def _count(group: _Group, item: Seen, weight: float, part: float) -> None:
    line = item.chain[0].line
    group.weight_ns += weight
    group.collected_ns += weight * (item.kind == COLLECTION)
    group.n_looks += part
    group.lines[line] += round(weight)
    group.examples.setdefault(line, item)
    entry = item.look.below[-1].of_module if item.look.below else ""
    group.words[line, item.call or entry] += round(weight)
    functions = [position for position in item.chain if position.name not in COMPREHENSIONS]
    callers = (position for position in functions if position.first_line != functions[0].first_line)
    if (caller := next(callers, None)) is not None:
        group.callers[caller] += round(weight)


def _finding(group: _Group, share: float, step_ms: float, n_looks: int, loop: SampledLoop) -> Finding:
    line, _ = group.lines.most_common(1)[0]
    item = group.examples[line]
    file, function, _ = line_of(item.chain[0])
    low_gain, high_gain = _gain(group)
    error = counting_error(share, n_looks)
    low = max(share - error, 0.0) * low_gain
    high = min((share + error) * high_gain, 1.0)
    calls = [word for (at, word), _ in group.words.most_common() if at == line]
    called = calls[0] if calls else ""
    frame = Frame(file, line, function, exact=True, called=called, lines=(line,))
    took = loop.took(share, step_ms)
    evidence = {
        "share_of_step": round(share, 6),
        "share_error": round(error, 6),
        "looks": round(group.n_looks),
        "looks_in_steps": n_looks,
        "lines": [number for number, _ in group.lines.most_common(5)],
        **({"calls": [word for word in calls[:4] if word]} if called else {}),
    }
    fix = COLLECTED if _mostly_collected(group) else _by_element(group)
    cause = group.cause if fix is None else replace(group.cause, fix=fix)
    rests = f"share of {format_count(n_looks, 'stack sample')}"
    most, beside = share, ""
    if group.cause is PYTHON_LOOP:
        lines = {line for first, last in group.loop_lines for line in range(first, last + 1)}
        most, beside = loop.share_at(group.loop_file, lines), "the rest of the loop and "
    if loop.backward_share and (group.cause is PYTHON_LOOP or group.cause.kind == OPERATORS):
        most, beside = most + loop.backward_share, f"{beside}the backward pass and "
    cost = share_cost(low, high, step_ms, share, rests, loop, "B", most + counting_error(most, n_looks))
    message = _message(group, function, file, took, called)
    if cost.high_ms > BEYOND * share * step_ms:
        message += f"; up to {format_ms(cost.high_ms)} with {beside}the sampling error"
    return cause.finding(
        severity="note" if group.cause in UNNAMED[1:] else severity_of(low, high),
        certainty=_certainty(group),
        message=message,
        place=Place(frame=frame, stack=_stack(item)),
        cost=cost,
        evidence=evidence,
        n_events=round(group.n_looks),
    )


def _by_element(group: _Group) -> Fix | None:
    """Return what to do about a loop over elements, where most of its time is spent in one; else None."""
    fixes = {fix: weight for fix, weight in group.fixes.items() if fix is not None}
    return max(fixes, key=fixes.__getitem__) if 2 * sum(fixes.values()) > group.fixes.total() else None


def _gain(group: _Group) -> tuple[float, float]:
    """Return what parts of a group's time are surely and at most saved; of a loop, each sample counts by its own."""
    if not group.fixes:
        return group.gain
    parts = {fix: weight / group.fixes.total() for fix, weight in group.fixes.items()}
    low, high = (sum(part * GAINS[fix][end] for fix, part in parts.items()) for end in (0, 1))
    if not _mostly_collected(group):  # what the collector takes for all that is alive may fall on other objects then
        low *= 1 - group.collected_ns / group.weight_ns
    return low, high


def _mostly_collected(group: _Group) -> bool:
    """Whether most of a loop is the collector's work, which freezing gives back, too."""
    return group.cause is PYTHON_LOOP and 2 * group.collected_ns > group.weight_ns


def _stack(item: Seen) -> tuple[Frame, ...]:
    """Return the user's frames of a look, innermost first."""
    places = map(line_of, item.chain[:MAX_STACK])
    return tuple(Frame(file, line, function, exact=True, lines=(line,)) for file, function, line in places)


def _message(group: _Group, function: str, file: str, took: str, called: str) -> str:
    where = f"{function}(), {file_name(file)}" if function != "<module>" else file_name(file)
    numbers = sorted(number for number, _ in group.lines.most_common(5))
    at = f"{where}:{numbers[0]}" + (f"-{numbers[-1]}" if numbers[-1] > numbers[0] else "")
    caller = group.callers.most_common(1)
    by = f", called from line {caller[0][0].line}{_of_another(caller[0][0].file, file)}" if caller else ""
    if group.cause is PYTHON_LOOP:
        first, last = min(first for first, _ in group.loop_lines), max(last for _, last in group.loop_lines)
        lines = f"line {first}" if first == last else f"lines {first}-{last}"
        lines += _of_another(group.loop_file, file)
        kind = "element by element" if _by_element(group) in (ELEMENTS, ROUNDS) else "in Python"
        loops, take = ("a loop", "takes") if len(group.loop_lines) == 1 else ("loops", "take")
        collected = group.collected_ns / group.weight_ns
        of_it = f", {format_share(collected)} of it in the garbage collector" if collected >= TOLD else ""
        return f"{loops} {kind} ({lines}) {take} {took} in {at}{by}{of_it}"
    what = group.cause.what.capitalize() if group.cause in UNNAMED else group.cause.what
    what = f"{called}()" if called else what
    return f"{what} {'take' if what == 'Operators' else 'takes'} {took} in {at}{by}"


def _of_another(file: str, named: str) -> str:
    """Return words for the file of a line, where it is not the one that is named."""
    return "" if file == named else f" of {file_name(file)}"


def _certainty(group: _Group) -> Certainty:
    if group.cause in UNNAMED:
        return "hint"
    doubtful = group.cause in (PYTHON_LOOP, READ_AHEAD, SAME_OR_ANOTHER) or not group.cause.gain[0]
    return "likely" if doubtful or not group.known else "certain"


# -- the steps together ------------------------------------------------------------------------------


def growing_step(loop: SampledLoop, samples: Samples, step_ms: float, traces: Sequence[Trace]) -> tuple[Finding, ...]:
    """Return a finding where steps take longer and longer, at the line whose time grows most.

    Where a device is waited for, the first steps only fill its queue, and on a machine that others begin to use all
    operators take longer (on several threads, more so than Python does): there, they must have more to do.
    """
    times = [step.ns for step in samples.steady]
    if len(times) < FEWEST_TO_RISE:
        return ()
    third = len(times) // 3
    parts = [median(times[:third]), median(times[third:-third]), median(times[-third:])]
    if not (parts[0] * 1.1 < parts[1] < parts[2] / 1.1 and parts[2] > RISES * parts[0]) or _tau(times) < 0.5:
        return ()
    middle = samples.steady[len(times) // 2].begin_ns
    growth: Counter[tuple[str, str, int]] = Counter()
    examples: dict[tuple[str, str, int], Seen] = {}
    for item in loop.seen:
        if item.chain and item.kind != "torchtriage":
            sign = 1 if item.look.begin_ns >= middle else -1
            key = line_of(item.chain[0])
            growth[key] += sign * item.weight_ns
            examples[key] = item
    (file, function, line), more = max(growth.items(), key=lambda entry: entry[1], default=(("", "", 0), 0))
    if more <= 0:
        return ()
    slope = (parts[2] - parts[0]) / (median(times) * (len(times) - third))
    doubtful = _waits(loop, samples) or (bool(traces) and _everywhere(loop, middle, (file, function, line)))
    if doubtful and not _own_growth(loop, middle) and work_growth(traces) < AS_FAST * slope:
        return ()
    item = examples[file, function, line]
    # a line through the thirds: what a step would take if it did not grow
    at_first = parts[0] - (parts[2] - parts[0]) / 4
    grown = max(0.0, 1 - max(at_first, 0.0) * len(times) / sum(times))
    frame = Frame(file, line, function, exact=True, called=item.call, lines=(line,))
    low, high = SURELY_GROWN * grown, min(grown / SURELY_GROWN, 0.95)
    return (
        GROWING.finding(
            severity=severity_of(low, high),
            certainty="likely",
            message=f"a step takes {format_ms(parts[0] / 1e6)} at first and {format_ms(parts[2] / 1e6)} at last, over"
            f" {format_count(len(times), 'step')}; what grows is in {function}, {file_name(file)}:{line}",
            place=Place(frame=frame, stack=_stack(item)),
            cost=share_cost(low, high, step_ms, grown, "mean step against one before anything has grown", loop, "C"),
            evidence={"first_ms": round(parts[0] / 1e6, 6), "last_ms": round(parts[2] / 1e6, 6), "steps": len(times)},
        ),
    )


def _waits(loop: SampledLoop, samples: Samples) -> bool:
    """Whether the loop may be as fast as a device lets it be."""
    if loop.host is None:
        return bool(samples.torch.get("device"))
    return loop.host.for_results + loop.host.for_queue >= WAITS


def _everywhere(loop: SampledLoop, middle_ns: int, line: tuple[str, str, int]) -> bool:
    """Whether operators of other lines grow as well, by half as much of themselves as those of ``line`` or more."""
    halves = {True: [0.0, 0.0], False: [0.0, 0.0]}
    for item in loop.seen:
        if item.chain and item.kind != "torchtriage":
            operators = item.weight_ns * loop.parts(item).get(OPERATORS, 0.0)
            halves[line_of(item.chain[0]) == line][item.look.begin_ns >= middle_ns] += operators
    (mine, others), whole = (halves[True], halves[False]), sum(map(sum, halves.values()))
    grown, beside = (later / max(earlier, 1) - 1 for earlier, later in (mine, others))
    return sum(others) >= ENOUGH * whole and beside >= AS_FAST * grown


def _own_growth(loop: SampledLoop, middle_ns: int) -> bool:
    """Whether most of what the later steps take longer is the host's own work, which waits for nothing."""
    own = every = 0.0
    for item in loop.seen:
        if item.kind == "torchtriage":
            continue
        more = item.weight_ns if item.look.begin_ns >= middle_ns else -item.weight_ns
        parts = loop.parts(item)
        every += more
        own += more * (1 - parts.get(OPERATORS, 0.0) - parts.get(WAITS_FOR_DEVICE, 0.0))
    return own >= OWN * every


def _tau(values: Sequence[int]) -> float:
    """Return Kendall's rank correlation of values with their order, of at most 200 of them."""
    step = max(1, len(values) // 200)
    some = values[::step]
    n = len(some)
    above = sum((later > earlier) - (later < earlier) for at, earlier in enumerate(some) for later in some[at + 1 :])
    return above / (n * (n - 1) / 2)


CODES = (PYTHON_LOOP, HOT_LINE, GROWING)
