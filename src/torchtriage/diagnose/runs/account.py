"""Where a step's time goes, to the last percent, and a whole run's: out of looks at the stacks.

Each look stands for the time since the one before, so the parts of an account add up to the wall time. Which looks are
inside an operator, and which in Python between two, a stack alone does not always show: a line such as ``a * b`` may
be either. Such looks are shared out so that operators get the part of the step that the light recording saw them take.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

from torchtriage.core.units import format_ms, format_share
from torchtriage.diagnose.runs.causes import IN_MEMORY, PYTHON, SLEEPING, Cause, cause_of, kind_of_library
from torchtriage.diagnose.runs.recorded_host import HostShares
from torchtriage.diagnose.runs.result import AccountLine, AccountPart, RunAccount, StepAccount
from torchtriage.diagnose.runs.samples import Look, Position, Samples
from torchtriage.diagnose.runs.source_view import Loop, SourceView

N_LINES = 12
MIN_LOOP_NS = 200_000_000
FEWEST_LOOKS = 12
"""With fewer in the steady steps, all time in the loop is accounted for instead."""
ONE_THING = 0.9
"""Of the step: a line of the loop that takes more calls what the loop does."""
OPERATORS, EITHER = "operators", "operators or Python"
COLLECTION = "garbage collection"
WAITS_FOR_LOADER = "waiting for the loader"
STARTS_WORKERS = "starting loader workers"
WAITS_FOR_DEVICE = "waiting for the device"
OF_WORKERS = (WAITS_FOR_LOADER, STARTS_WORKERS)
ASKS = {
    "reads": frozenset({"item", "tolist", "cpu", "numpy", "synchronize", "nonzero", "argwhere", "is_nonzero", "equal"}),
    "moves": frozenset({"to", "cuda", "copy_"}),
}
"""Calls that wait for a result of the device, and calls that may wait until something is copied there."""
SLOWED = {"reads": 2.0, "moves": 1.0}
"""How much more these may wait than was recorded: with the profiler the host is slower, and the device done earlier."""
WORKER_LIVES = ("__init__", "_shutdown_workers", "__del__")
"""Methods of a loader's iterator in which its worker processes start and end."""


@dataclass(frozen=True)
class Place:
    """A loop in a file."""

    file: str
    line: int


@dataclass(frozen=True, eq=False)
class Seen:
    """A look inside the loop, and what it shows.

    ``weight_ns`` : its time inside the judged steps. ``kind`` : the part of the account. ``chain`` : the user's
    frames below the loop's own, innermost first. ``loops`` : loops around the innermost, inside the step, with
    their frames, innermost first.
    """

    look: Look
    weight_ns: int
    kind: str
    cause: Cause | None
    call: str
    chain: tuple[Position, ...]
    loops: tuple[tuple[Position, Loop], ...]

    @cached_property
    def asks(self) -> str:
        """Whether it is at a call that waits for the device, if there is one: a key of :data:`ASKS`, or nothing."""
        if self.kind not in (OPERATORS, EITHER):
            return ""
        names = {self.call.rpartition(".")[2], *(position.name for position in self.look.below)}
        return next((asks for asks, calls in ASKS.items() if names & calls), "")

    def passes(self, file: str, lines: Set[int]) -> bool:
        """Whether it is at these lines of a file, or in what they call."""
        return any(position.file == file and position.line in lines for position in self.chain)


@dataclass(frozen=True, eq=False)
class SampledLoop:
    """The loop that steps go through: its place, the judged time, and every look inside it.

    ``wall_ns`` : of the judged steps. ``n_steps`` : None where steps could not be separated. ``host`` : what
    the light recording knows; None without one.
    """

    place: Place | None
    wall_ns: int
    n_steps: int | None
    seen: tuple[Seen, ...]
    host: HostShares | None

    @cached_property
    def either_is_python(self) -> float:
        """Of looks that may be in an operator or in Python, the part that is Python."""
        whole = sum(item.weight_ns for item in self.seen) or 1
        sure = either = 0.0
        for item in self.seen:
            waits = self._asking_waits[item.asks]
            sure += item.weight_ns * {OPERATORS: 1.0, EITHER: waits}.get(item.kind, 0.0)
            either += item.weight_ns * (1 - waits) * (item.kind == EITHER)
        if self.host is None or not either:
            return 0.0 if either and sure else 0.5
        return min(1.0, max(0.0, 1 - (self.host.operators * whole - sure) / either))

    @cached_property
    def _asking_waits(self) -> dict[str, float]:
        """Of looks at calls that read from the device, then of those that move something, the part that waits."""
        left = self.host.for_results if self.host is not None else 0.0
        out = {"": 0.0}
        for asks in ASKS:
            share = self.share(item for item in self.seen if item.asks == asks)
            out[asks] = min(1.0, SLOWED[asks] * left / share) if share else 0.0
            left = max(left - out[asks] * share, 0.0)
        return out

    @cached_property
    def _operators_wait(self) -> float:
        """Of all other time in operators, the part that waits for the device: which calls do, stacks do not show."""
        if self.host is None:
            return 0.0
        waits = self.host.for_results + self.host.for_queue
        others = 0.0
        for item in self.seen:
            asking = self._asking_waits[item.asks]
            waits -= item.weight_ns * asking / self.judged_ns
            either = {OPERATORS: 1.0, EITHER: 1 - self.either_is_python}.get(item.kind, 0.0)
            others += item.weight_ns * (1 - asking) * either / self.judged_ns
        return min(1.0, max(waits, self.host.for_queue) / others) if others else 0.0

    def parts(self, item: Seen) -> dict[str, float]:
        """Return the parts of the account that a look belongs to, and how much of it to each."""
        if item.kind not in (OPERATORS, EITHER):
            return {item.kind: 1.0}
        waits = self._asking_waits[item.asks]
        python = (1 - waits) * (self.either_is_python if item.kind == EITHER else 0.0)
        operators = 1 - waits - python
        waits += operators * self._operators_wait
        return {PYTHON: python, OPERATORS: 1 - waits - python, WAITS_FOR_DEVICE: waits}

    @cached_property
    def loading_share(self) -> float:
        """The share of the judged time in which a loader makes batches on this very thread."""
        return self.share(filter(_makes_batches, self.seen))

    @cached_property
    def sample_share(self) -> float:
        """The share of the judged time in which a loader runs code of the user's, on this very thread."""
        return self.share(item for item in self.seen if makes_sample(item.look))

    def loading_share_at(self, file: str, lines: Set[int]) -> float:
        """Return the share of the judged time in which a loader is at these lines of a file, on this very thread."""
        return self.share(item for item in self.seen if _makes_batches(item) and item.passes(file, lines))

    @cached_property
    def waiting_share(self) -> float:
        """The share of the judged time that is spent waiting for a loader's workers."""
        return self.share(item for item in self.seen if item.kind == WAITS_FOR_LOADER)

    @cached_property
    def backward_share(self) -> float:
        """The share of the judged time in backward passes."""
        autograd = "torch/autograd/"
        return self.share(item for item in self.seen if any(at.library.startswith(autograd) for at in item.look.below))

    def share_of(self, kind: str, seen: Iterable[Seen] | None = None) -> float:
        """Return the share of the judged time in one part of the account, of all looks or of some."""
        looks = self.seen if seen is None else seen
        return sum(item.weight_ns * self.parts(item).get(kind, 0.0) for item in looks) / (self.judged_ns or 1)

    def share_at(self, file: str, lines: Set[int]) -> float:
        """Return the share of the judged time at these lines of a file, and in what they call."""
        return min(self.share(item for item in self.seen if item.passes(file, lines)), 1.0)

    def operators_at(self, file: str, line: int) -> float:
        """Return the share of the judged time in operators that this line itself calls."""
        at = (item for item in self.seen if item.chain and (item.chain[0].file, item.chain[0].line) == (file, line))
        return self.share_of(OPERATORS, at)

    def device_wait_at(self, file: str, lines: Set[int]) -> float:
        """Return the share of the judged time in which these lines, or what they call, wait for the device."""
        return self.share_of(WAITS_FOR_DEVICE, (item for item in self.seen if item.passes(file, lines)))

    def share_inside(self, loops: Set[tuple[str, int]]) -> float:
        """Return the share of the judged time in loops, by file and line."""
        return self.share(item for item in self.seen if any((at.file, loop.lineno) in loops for at, loop in item.loops))

    @cached_property
    def judged_ns(self) -> int:
        """The time of all looks but those at the recorder itself."""
        return sum(item.weight_ns for item in self.seen if item.kind != "torchtriage")

    def share(self, seen: Iterable[Seen]) -> float:
        """Return the share of the judged time that these looks are."""
        return sum(item.weight_ns for item in seen) / (self.judged_ns or 1)

    def took(self, share: float, step_ms: float) -> str:
        """Return how much a share is of a step of ``step_ms``, or of all time in the loop, as a message says it."""
        whole = f"{format_ms(step_ms)} per {'step' if self.n_steps else 'loop'}"
        return f"{format_ms(share * step_ms)} of {whole} ({format_share(share)})"

    @property
    def step_ns(self) -> float:
        """The mean wall time of a judged step, of all of it where steps are not known."""
        return self.wall_ns / (self.n_steps or 1)


def makes_sample(look: Look) -> bool:
    """Whether a loader runs code of the user's, for a sample or a batch."""
    return bool(look.user) and any(map(_loading, look.stack[look.user[0] + 1 :]))


def _makes_batches(item: Seen) -> bool:
    """Whether a loader is at work on this very thread."""
    return any(map(_loading, item.look.stack)) and item.kind not in OF_WORKERS


def _loading(position: Position) -> bool:
    return position.library.startswith("torch/utils/data/")


def line_of(position: Position) -> tuple[str, str, int]:
    """Return file, function and line of a frame, with comprehensions as part of the function around them."""
    parts = [part for part in position.function.split(".") if not part.startswith("<")]
    return position.file, parts[-1] if parts else "<module>", position.line


def sampled_loop(
    samples: Samples, view: SourceView, boundary: tuple[str, str, int], host: HostShares | None
) -> SampledLoop | None:
    """Return the loop of a run, None where none was seen.

    ``boundary`` : file, function and line of the call that ends or begins a step; empty where nothing was hooked, and
    then the loop is the outermost one that most of the time after the imports is spent in. ``host`` : what
    the light recording knows of the steps.
    """
    place = _loop_around(samples, view, boundary) if boundary[0] else None
    if place is None and not samples.steps:
        place = _longest_loop(samples, view)
    if samples.steady:
        spans = [(step.begin_ns, step.end_ns) for step in samples.steady]
        loop = _over(samples, view, place, spans, len(spans), host)
        if loop is not None and (len(loop.seen) >= FEWEST_LOOKS or place is None):
            return loop
    if place is None:
        return None
    return _over(samples, view, place, _spans(_inside(samples, view, place)), None, host)


OUTSIDE = 0.25
"""Of all steps' time, what another loop must spend outside of them to be worth a look."""


def longer_loop(samples: Samples, view: SourceView, loop: SampledLoop) -> tuple[SampledLoop, float] | None:
    """Return another loop of the run, beside these steps or around them, that spends much outside of them.

    Beside it, what part these steps are of both.
    """
    place = _longest_loop(samples, view)
    if place is None or loop.place is None or loop.place == place:
        return None
    mine, steps = _inside(samples, view, place), set(_inside(samples, view, loop.place))
    took = sum(look.ns for look in steps)
    beside = sum(look.ns for look in mine if look not in steps)
    if beside < OUTSIDE * took:
        return None
    other = _over(samples, view, place, _spans(mine), None, None)
    return (other, took / (took + beside)) if other is not None else None


def _inside(samples: Samples, view: SourceView, place: Place) -> list[Look]:
    return [look for look in samples.looks if _depth(look, view, place) is not None]


def _spans(looks: Sequence[Look]) -> list[tuple[int, int]]:
    return [(look.begin_ns, look.end_ns) for look in looks if kind_of_library(look.stack) != "torchtriage"]


def outside(loop: SampledLoop, view: SourceView, steps: Place) -> SampledLoop:
    """Return a loop in which the looks at a loop of steps count as time, but have no lines."""
    seen = (
        item if _depth(item.look, view, steps) is None else replace(item, chain=(), loops=(), cause=None)
        for item in loop.seen
    )
    return replace(loop, seen=tuple(seen))


def _over(
    samples: Samples,
    view: SourceView,
    place: Place | None,
    spans: list[tuple[int, int]],
    n_steps: int | None,
    host: HostShares | None,
) -> SampledLoop | None:
    seen = tuple(_seen(samples, view, place, spans))
    wall_ns = sum(end - begin for begin, end in spans)
    return SampledLoop(place, wall_ns, n_steps, seen, host) if seen and wall_ns else None


def _seen(samples: Samples, view: SourceView, place: Place | None, spans: Sequence[tuple[int, int]]) -> Iterator[Seen]:
    at = 0
    for look in samples.looks:
        while at < len(spans) and spans[at][1] <= look.begin_ns:
            at += 1
        weight, next_at = 0, at
        while next_at < len(spans) and spans[next_at][0] < look.end_ns:
            weight += min(look.end_ns, spans[next_at][1]) - max(look.begin_ns, spans[next_at][0])
            next_at += 1
        if weight <= 0:
            continue
        kind, cause, call = _kind(look, view)
        depth = _depth(look, view, place) if place is not None else None
        frames = [look.stack[number] for number in look.user]
        chain = tuple(frames if depth is None else frames[: depth + 1])
        loops = tuple(_loops_inside(chain, view, place))
        yield Seen(look, weight, kind, cause, call, chain, loops)


def _kind(look: Look, view: SourceView) -> tuple[str, Cause | None, str]:
    """Return the part of the account that a look belongs to, the cause that explains it, and what is called."""
    if kind := kind_of_library(look.stack):
        return kind, None, ""
    innermost = look.stack[0]
    call = view.call(innermost) if look.user[:1] == (0,) else ""
    typed = view.typed_call(innermost) if call else ""
    sleeps = bool(innermost.library) and view.sleeps(innermost)
    cause = cause_of(look.below, typed or ("sleep" if sleeps else ""))
    if cause is not None:
        return SLEEPING if sleeps and cause.kind == PYTHON else cause.kind, cause, call
    if look.collects:
        return COLLECTION, None, call
    loading = list(filter(_loading, look.below))
    if loading:
        if any(position.name in WORKER_LIVES for position in loading):
            return STARTS_WORKERS, None, call
        waits = any(
            position.library.startswith(("multiprocessing/", "queue.py", "threading.py", "selectors.py"))
            for position in look.below
        )
        return WAITS_FOR_LOADER if waits else PYTHON, None, call
    if look.below:
        top = look.below[-1].library
        if top.startswith(("torch/", "torchinductor/")):
            return OPERATORS, None, call
        uses_torch = any(position.library.startswith("torch/") for position in look.below)
        return EITHER if uses_torch else PYTHON, None, call
    if not look.user:
        return "unknown", None, ""
    if call.startswith(("torch.", "F.", "nn.functional.")) or view.of_tensor(innermost):
        return OPERATORS, None, call
    if call.startswith(("np.", "numpy.", "math.", "random.")) or IN_MEMORY.search(typed):
        return PYTHON, None, call
    return EITHER, None, call


def _depth(look: Look, view: SourceView, place: Place) -> int | None:
    """Return which of a look's frames of the user stands in the loop, None where none does."""
    for number, at in enumerate(look.user):
        position = look.stack[at]
        if position.file == place.file and any(
            loop.lineno == place.line for loop in view.loops(position.file, position.line)
        ):
            return number
    return None


def _loops_inside(chain: Sequence[Position], view: SourceView, place: Place | None) -> Iterator[tuple[Position, Loop]]:
    """Yield the loops around the innermost frame, up to the loop of the steps, innermost first."""
    for position in chain:
        for loop in reversed(view.loops(position.file, position.line)):
            if place is not None and position.file == place.file and loop.lineno == place.line:
                return
            if not hasattr(loop, "generators") or _is_inside(position, loop):
                yield position, loop


def _is_inside(position: Position, comprehension: Loop) -> bool:
    """Return whether an instruction belongs to a comprehension of its line, not to what is done with its result."""
    if position.column is None or position.end_column is None:
        return position.function.endswith(("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"))
    begin, end = (position.line, position.column), (position.end_line or position.line, position.end_column)
    first = comprehension.lineno, comprehension.col_offset
    last = comprehension.end_lineno or comprehension.lineno, comprehension.end_col_offset or 0
    return first <= begin and end <= last


def _loop_around(samples: Samples, view: SourceView, boundary: tuple[str, str, int]) -> Place | None:
    """Return the loop that repeats the boundary: around it, or around the call of its function, and so on."""
    file, function, line = boundary
    votes: Counter[Place] = Counter()
    for look in samples.looks:
        frames = [look.stack[at] for at in look.user]
        start = next(
            (n for n, position in enumerate(frames) if position.file == file and position.name == function), None
        )
        if start is None:
            continue
        for number, position in enumerate(frames[start:]):
            at_line = line if number == 0 else position.line
            loops = view.loops(position.file, at_line)
            loops = tuple(loop for loop in loops if not hasattr(loop, "generators"))
            if loops:
                votes[Place(position.file, loops[-1].lineno)] += 1
                break
    return votes.most_common(1)[0][0] if votes else None


def _longest_loop(samples: Samples, view: SourceView) -> Place | None:
    """Return the outermost loop that most of the time is spent in, once what it needs is imported."""
    spent: Counter[Place] = Counter()
    outer: dict[Place, int] = {}
    whole = 0
    for look in samples.looks:
        if kind_of_library(look.stack):
            continue
        whole += look.ns
        depth = 0
        for at in reversed(look.user):
            position = look.stack[at]
            for loop in view.loops(position.file, position.line):
                if hasattr(loop, "generators"):
                    continue
                place = Place(position.file, loop.lineno)
                spent[place] += look.ns
                outer.setdefault(place, depth)
                depth += 1
    best = max(spent.values(), default=0)
    if best < MIN_LOOP_NS or best < whole / 3:
        return None
    # of loops inside each other the innermost that still holds nearly all: the outer ones count epochs
    nearly = [place for place, ns in spent.items() if ns >= 0.9 * best and outer[place] <= 1]
    return max(nearly, key=lambda place: outer[place]) if nearly else None


# -- the accounts ------------------------------------------------------------------------------------


def step_account(loop: SampledLoop, samples: Samples, step_ms: float | None) -> StepAccount:
    """Return where the judged steps' time goes, in ms of a step of ``step_ms`` (of the sampled ones where None)."""
    whole_ms = step_ms or loop.step_ns / 1e6
    parts: Counter[str] = Counter()
    lines: dict[tuple[str, str, int], Counter[str]] = {}
    ours = 0
    for item in loop.seen:
        if item.kind == "torchtriage":
            ours += item.weight_ns
            continue
        for kind, part in loop.parts(item).items():
            parts[kind] += round(item.weight_ns * part)
            if item.chain:
                lines.setdefault(line_of(item.chain[0]), Counter())[kind] += round(item.weight_ns * part)
    spans = [(step.begin_ns, step.end_ns) for step in samples.steady]
    collected = sum(took for begin, took, _ in samples.collections if any(start <= begin < end for start, end in spans))
    collected -= parts[COLLECTION]
    if collected > 0 and parts[PYTHON] + parts[OPERATORS] > collected:
        held = PYTHON if parts[PYTHON] >= collected else OPERATORS
        parts[held] -= collected
        parts[COLLECTION] += collected
    total = sum(parts.values()) or 1
    covered = loop.wall_ns - ours
    if covered > total:
        parts["unknown"] += covered - total
        total = covered
    return StepAccount(
        per="step" if loop.n_steps else "loop",
        of_ms=round(whole_ms, 6),
        n_steps=loop.n_steps or 0,
        n_looks=len(loop.seen),
        loop_file=loop.place.file if loop.place else "",
        loop_line=loop.place.line if loop.place else 0,
        parts=tuple(
            AccountPart(kind, round(whole_ms * ns / total, 6), round(ns / total, 6))
            for kind, ns in parts.most_common()
            if ns > 0
        ),
        lines=_account_lines(lines, total),
        body=_body(loop, total),
    )


def _body(loop: SampledLoop, whole: int) -> tuple[AccountLine, ...]:
    """Return the lines of the loop itself, or of the outermost function below it that does more than one thing."""
    chains = [item for item in loop.seen if item.chain and item.kind != "torchtriage"]
    found: tuple[AccountLine, ...] = ()
    for depth in range(1, max((len(item.chain) for item in chains), default=0)):
        lines: dict[tuple[str, str, int], Counter[str]] = {}
        for item in chains:
            position = item.chain[-min(depth, len(item.chain))]
            kind = max(loop.parts(item).items(), key=lambda part: part[1])[0]
            lines.setdefault(line_of(position), Counter())[kind] += item.weight_ns
        found = _account_lines(lines, whole)
        if found[0].share < ONE_THING:
            return found
    return ()


def run_account(samples: Samples, loop: SampledLoop | None) -> RunAccount:
    """Return where the whole run's time went, from the start of the process to its end."""
    parts: Counter[str] = Counter()
    outside: dict[tuple[str, str, int], Counter[str]] = {}
    parts["start and import of torch"] = samples.started_ns - samples.process_started_ns
    first = min((item.look.begin_ns for item in loop.seen), default=0) if loop else 0
    last = max((item.look.end_ns for item in loop.seen), default=0) if loop else 0
    if samples.steps:
        first, last = samples.steps[0].begin_ns, samples.steps[-1].end_ns
    for look in samples.looks:
        kind = kind_of_library(look.stack)
        if not kind or (kind == "imports" and first <= look.begin_ns < last):
            kind = (
                "before the loop"
                if look.end_ns <= first or not loop
                else "after the loop"
                if look.begin_ns >= last
                else "the loop"
            )
        names = {"torchtriage": "recording", "imports": "other imports"}
        kind = names.get(kind, kind)
        parts[kind] += look.ns
        if look.user and kind not in ("recording", "the loop"):
            outside.setdefault(line_of(look.stack[look.user[0]]), Counter())[kind] += look.ns
    whole = samples.ended_ns - samples.process_started_ns
    known = sum(parts.values())
    if whole > known:
        parts["after the loop" if loop else "unknown"] += whole - known
    whole = max(whole, known, 1)
    return RunAccount(
        of_ms=round(whole / 1e6, 3),
        parts=tuple(
            AccountPart(kind, round(ns / 1e6, 3), round(ns / whole, 6)) for kind, ns in parts.items() if ns > 0
        ),
        lines=_account_lines(outside, whole),
    )


def _account_lines(lines: dict[tuple[str, str, int], Counter[str]], whole: int) -> tuple[AccountLine, ...]:
    """Return the lines of the most time, each with the part of the account that most of its time belongs to."""
    rows = sorted(lines.items(), key=lambda entry: -entry[1].total())[:N_LINES]
    return tuple(
        AccountLine(file, line, function, kinds.most_common(1)[0][0], round(kinds.total() / whole, 6))
        for (file, function, line), kinds in rows
    )
