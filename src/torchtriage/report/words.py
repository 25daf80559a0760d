"""How the parts of a finding read, whichever page they are on.

Every function returns text that is safe to put on one line (see ``names.visible``); escaping for
HTML or Markdown is left to the page.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torchtriage.core.finding import Cost, Finding, Frame, NotChecked, Place, Quote
from torchtriage.core.names import WIDTH, elide, short_name, visible
from torchtriage.core.units import format_bytes, format_count, format_ms, format_ns, format_range, format_share
from torchtriage.diagnose.ranks.result import JobResult, RankSummary
from torchtriage.diagnose.verdict.result import Answer, PathSummary, Replay, Result, Summary, Suspicion, TraceFacts

# How kernels begin that are no C++ signature.
_SYMBOLS = ("_Z", "Cijk_", "sm")

_WINDOW = " in the window"
N_EVIDENCE = 6
"""Facts shown beside a finding; the JSON has all."""
N_NAMED = 3
"""Patterns named in a group; more are listed by code."""


def event_name(name: str) -> str:
    """Return an op, call or kernel name that fits a line; only what is too long is shortened."""
    name = visible(name)
    if len(name) <= WIDTH:
        return name
    return short_name(name) if "::" in name or name.startswith(_SYMBOLS) else elide(name)


def saving(cost: Cost) -> str:
    """Return ``9.10-11.9 ms of 48.2 ms per step (19-25 %)``."""
    return _saving(cost, f" of {format_ms(cost.of_ms)}", saving_share(cost))


def amount(cost: Cost) -> str:
    """Return ``9.10-11.9 ms per step (19-25 %)``, what it is a part of being known."""
    return _saving(cost, "", saving_share(cost).removeprefix("up to "))


def _saving(cost: Cost, of: str, share: str) -> str:
    per = "per step" if cost.per == "step" else "in the window"
    return f"{reach(cost)}{of} {per} ({share})"


def reach(cost: Cost) -> str:
    """Return ``9.10-11.9 ms``, ``up to 11.9 ms`` when nothing is promised."""
    return format_range(format_ms(cost.low_ms), format_ms(cost.high_ms), from_zero=cost.low_ms <= 0)


def saving_share(cost: Cost) -> str:
    """Return ``19-25 %`` of the step or window, ``up to 31 %`` when nothing is promised."""
    low, high = format_share(cost.share_low), format_share(cost.share_high)
    return format_range(low, high, from_zero=cost.share_low <= 0)


def rank_spread(finding: Finding) -> str:
    """Return ``8 of 8 ranks, 3.10-3.40 ms per step each``, empty outside a job."""
    spread, text = finding.ranks, which_ranks(finding)
    if spread is None or spread.n_with < 2 or not spread.high_ms:
        return text
    amount = format_range(format_ms(spread.low_ms), format_ms(spread.high_ms), from_zero=spread.low_ms <= 0)
    return f"{text}, {amount} {'per step ' if finding.cost and finding.cost.per == 'step' else ''}each"


def which_ranks(finding: Finding) -> str:
    """Return ``2 of 8 ranks (0, 3)``, empty outside a job."""
    spread = finding.ranks
    if spread is None:
        return ""
    which = "" if spread.n_with == spread.n_ranks else f" ({_ranges(spread.ranks)[0]})"
    return f"{spread.n_with} of {format_count(spread.n_ranks, 'rank')}{which}"


RANK_PARTS = {
    "compute_ns": "compute",
    "comm_ns": "communication",
    "wait_ns": "waiting for ranks",
    "copy_ns": "copies",
    "idle_ns": "idle",
}
"""The parts of a rank's step: field and word."""


WORTH_SAYING = 0.02
"""Of a rank's step."""


def rank_parts(job: JobResult) -> list[tuple[str, str, float]]:
    """Return (field, word, share of all ranks' steps) of the parts that there are."""
    wall = max(sum(rank.wall_ns for rank in job.ranks), 1)
    named = RANK_PARTS | ({"idle_ns": "no rows"} if job.lacks_rows else {})
    shares = [
        (field, word, sum(int(getattr(rank, field)) for rank in job.ranks) / wall) for field, word in named.items()
    ]
    return [part for part in shares if part[2] > 0]


def outside(results: Sequence[Result], jobs: Sequence[JobResult]) -> list[Result]:
    """Return the results that no job speaks for."""
    spoken = {rank.path for job in jobs for rank in job.ranks}
    return [result for result in results if result.trace.path not in spoken]


def rank_line(rank: RankSummary) -> str:
    """Return what a rank has to say of itself: its waiting, and what it makes others wait."""
    if rank.refused:
        return f"no verdict: {visible(rank.verdict)}"
    parts = [format_ns(rank.wall_ns)]
    if rank.wait_ns > WORTH_SAYING * rank.wall_ns:
        parts.append(f"waits {format_ns(rank.wait_ns)}")
    if rank.caused_wait_ns > WORTH_SAYING * rank.wall_ns:
        parts.append(f"others wait {format_ns(rank.caused_wait_ns)}")
    return ", ".join(parts)


def basis(cost: Cost) -> str:
    """Return how sure the arithmetic is: ``measured, grade A``."""
    return f"{cost.basis}, grade {cost.grade}"


def joint(result: Result | JobResult) -> str:
    """Return what all findings give back together, empty when there is nothing to add up."""
    if result.joint_cost is None or len(result.findings) < 2:
        return ""
    how = "each millisecond counted once"
    if isinstance(result, JobResult):
        how = "at least the largest single saving, at most what the slowest rank can save"
    elif result.recorded is not None and result.recorded.account is not None:
        how = "at least the largest single saving, at most their sum"
    return f"{saving(result.joint_cost)}, {how}"


def answer(rerun: Answer) -> str:
    """Return ``87.4 ms per step instead of 176 ms: saves 72.1 ms (36-42 %)``."""
    if rerun.saving_ms is None or rerun.low_ms is None or rerun.high_ms is None or rerun.after_ms is None:
        return f"no answer: {visible(rerun.reason)}"
    per = "per step" if rerun.per == "step" else "for the window"
    change = f"{format_ms(rerun.after_ms)} {per} instead of {format_ms(rerun.of_ms)}"
    verb, sign = ("saves", 1) if rerun.saving_ms >= 0 else ("costs", -1)
    of = max(rerun.of_ms, 1e-9)
    least, most = sorted(sign * end / of for end in (rerun.low_ms, rerun.high_ms))
    low, high = format_share(least), format_share(most)
    # it may go either way
    share = f"{low} to {high}" if least < 0 else format_range(low, high, from_zero=least <= 0)
    text = f"{change}: {verb} {format_ms(abs(rerun.saving_ms))} ({share})"
    if rerun.naive_ms is not None and rerun.naive_ms > 2 * max(rerun.saving_ms, 0) and share != "0 %":
        text += f", not the {format_ms(rerun.naive_ms)} that durations add up to"
    return text


_PATH_WORDS = {
    "host": "the host",
    "compute": "computing",
    "comm": "communicating",
    "copy": "copying",
    "wait": "calls that wait",
    "lag": "launching",
    "unexplained": "no known cause",
    "loader": "loader workers",
}


def critical(path: PathSummary, summary: Summary | None) -> str:
    """Return ``the critical path of ProfilerStep#7 is 61 % the host, 37 % computing``."""
    parts = [
        f"{format_share(share)} {_PATH_WORDS[what]}" for what, share in path.shares.items() if share >= WORTH_SAYING
    ]
    known = summary is not None and 0 <= path.step < len(summary.steps)
    of = visible(summary.steps[path.step].name) if summary and known else "the window"
    return f"the critical path of {of} is {', '.join(parts)}"


SUSPICIOUS = "Suspicious, and no rule explains it"
OPINION = "the learned detector's opinion, without a cost"


def suspicion(hint: Suspicion) -> str:
    """Return ``31-44 % of a step, in 5 steps: 94 % likely to hold an anti-pattern, most ...``."""
    most = next(iter(hint.types.items()), None)
    like = f", most like {visible(most[0])} ({format_share(most[1])})" if most else ""
    place = f"{100 * hint.begins:.0f}-{format_share(hint.ends)} of a step"
    return (
        f"{place}, in {format_count(hint.n_steps, 'step')}: {format_share(hint.probability)} likely to hold"
        f" an anti-pattern{like}"
    )


def replayed(replay: Replay, findings: Sequence[Finding]) -> str:
    """Return how far to trust replayed savings, or why there are none."""
    if not replay.accepted:
        return f"savings are not replayed: {visible(replay.reason)}"
    made = next((item.cost.calibration for item in findings if item.cost and item.cost.calibration), None)
    covers = f", as {format_share(made.coverage)} intervals" if made else ""
    text = (
        f"savings are replayed{covers}; replaying the recorded causes gives the total to within"
        f" {format_share(max(abs(replay.strict_error), 0.001))}"
    )
    if replay.unprofiled_step_ms is not None:
        text += f", scaled to {format_ms(replay.unprofiled_step_ms)}"
    return text


def trust(replay: Replay, findings: Sequence[Finding]) -> str:
    """Return in a sentence what the savings rest on."""
    if not replay.accepted:
        return f"Trust: savings are estimated from durations, since {visible(replay.reason)}."
    made = next((item.cost.calibration for item in findings if item.cost and item.cost.calibration), None)
    covers = f"ranges made to hold {format_share(made.coverage)} of measured fixes; " if made else ""
    return f"Trust: {covers}model error here {format_share(max(abs(replay.strict_error), 0.001))}."


def source_line(place: Frame) -> str:
    """Return ``train.py:31``; without a line when none is known."""
    file = visible(place.file)
    return f"{file}:{place.line}" if place.line > 0 else file


def frame(place: Frame) -> str:
    """Return ``train.py:31 in train_step``, its other lines, and what is known of the line if it is not exact."""
    words = source_line(place)
    if place.function:
        words += f" in {event_name(place.function)}"
    if place.exact or place.line <= 0:
        others = [str(line) for line in place.lines if line != place.line]
        return f"{words}, and line{'s' * (len(others) > 1)} {', '.join(others)}" if others else words
    if not place.lines:
        # of its start, or where it stood when the recording began
        return f"{words} (the function's line, not the call's)"
    lines = ", ".join(str(line) for line in place.lines)
    where = f"on one of lines {lines}" if len(place.lines) > 1 else f"probably on line {lines}"
    return f"{words} (the call is {where})"


def quoted(place: Frame, quote: Quote | None) -> list[str]:
    """Return the source lines of a frame's call, ``41 | loss.item()``; empty without source."""
    if quote is None:
        return []
    wanted = place.lines or ((place.line,) if place.exact else ())
    texts = [(line, quote(place.file, place.function, line)) for line in wanted]
    return [f"{line} | {visible(text.strip())}" for line, text in texts if text.strip()]


def steps(place: Place, n_events: int = 0, summary: Summary | None = None) -> str:
    """Return ``steps 11-14, 8 events``, by the recording's own numbers where a summary has them.

    Empty when neither is known.
    """
    parts = []
    if place.steps:
        # what ProfilerStep#12 calls itself
        marks = {step.index: step.name.removeprefix("ProfilerStep#") for step in (summary.steps if summary else ())}
        names = {index: name for index, name in marks.items() if name.isdecimal()}
        ranges, is_cut = _ranges(place.steps, names)
        of = f" ({len(place.steps)})" if is_cut else ""
        parts.append(f"{'step' if len(place.steps) == 1 else 'steps'} {ranges}{of}")
    if n_events > 0:
        parts.append(format_count(n_events, "event"))
    return ", ".join(parts)


def _ranges(numbers: Iterable[int], names: Mapping[int, str] | None = None) -> tuple[str, bool]:
    """Return ``1-3, 7``, and whether it is cut: of a dozen ranges only the ends are worth a reader's time."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    ends = [[(names or {}).get(number, str(number)) for number in run] for run in runs]
    texts = [low if low == high else f"{low}-{high}" for low, high in ends]
    return (", ".join(texts), False) if len(texts) <= 4 else (f"{texts[0]}, …, {texts[-1]}", True)


# Evidence keys carry their unit, as every name here does.
_UNITS: dict[str, Callable[[float], str]] = {
    "bytes": format_bytes,
    "gb_per_s": lambda value: f"{value:.3g} GB/s",
    "tflops": lambda value: f"{value:.3g} TFLOP/s",
    "ms": format_ms,
    "ns": format_ns,
    "us": lambda value: format_ns(value * 1e3),
}
_UNIT = re.compile(rf"(?:^|_)({'|'.join(_UNITS)})(?=_|$)")
_SHARE = re.compile(r"(?:(\w+)_)?share_of_(\w+)")


def evidence(finding: Finding) -> str:
    """Return the evidence in few words: ``reads 2 per step, wait 21.4 ms per step``.

    Lists of event ids and nested tables stay in the JSON.
    """
    facts = _facts(finding.evidence)
    rest = len(facts) - N_EVIDENCE
    return ", ".join(facts[:N_EVIDENCE]) + (f", {rest} more in the JSON" if rest > 0 else "")


def _facts(values: Mapping[str, Any]) -> list[str]:
    facts = [words for key, value in values.items() if (words := _fact(str(key), value))]
    first = next((i for i, words in enumerate(facts) if words.endswith(_WINDOW)), len(facts))
    # there is one window: to say so once is enough
    return facts[: first + 1] + [words.removesuffix(_WINDOW) for words in facts[first + 1 :]]


def _fact(key: str, value: Any) -> str:
    per = ""
    for end, words in (("_per_step", " per step"), ("_per_window", _WINDOW)):
        if key.endswith(end):
            key, per = key.removesuffix(end), words
    if isinstance(value, str):
        return f"{_spoken(key)} {event_name(value)}{per}"
    if isinstance(value, bool):
        return f"{_spoken(key)} {'yes' if value else 'no'}"
    if not isinstance(value, int | float) or not math.isfinite(value):
        return ""
    if share := _SHARE.fullmatch(key):
        whose = f"{_spoken(share[1])} " if share[1] else ""
        return f"{whose}{format_share(value)} of {_spoken(share[2])}{per}"
    if key.endswith(("_share", "_ratio")):
        return f"{_spoken(key)} {format_share(value)}{per}"
    if unit := _UNIT.search(key):
        what = _spoken(f"{key[: unit.start()]}{key[unit.end() :]}".strip("_"))
        return f"{what} {_UNITS[unit[1]](value)}{per}".lstrip()
    large = isinstance(value, int) or abs(value) >= 1000
    number = f"{value:,.0f}" if large else f"{value:.3g}"
    return f"{_spoken(key.removeprefix('n_'))} {number}{per}"


_SPOKEN = {"gpu": "GPU", "cpu": "CPU", "python": "Python", "looks": "stack samples"}


def _spoken(key: str) -> str:
    words = visible(key).replace("_", " ").split(" ")
    return elide(" ".join(_SPOKEN.get(word, word) for word in words))


LEFT_OUT = "left out by --only, --skip or pyproject.toml"


class MissingValue(NamedTuple):
    """Patterns that were not checked for the same reason; ``brief`` : by code alone when there are many."""

    what: str
    patterns: tuple[str, ...]
    brief: tuple[str, ...]
    how_to_record: str


def missing(entries: Sequence[NotChecked]) -> tuple[MissingValue, ...]:
    """Group what was not checked by what is missing, in the order of first mention."""
    groups: dict[tuple[str, str], list[NotChecked]] = {}
    for entry in entries:
        what = f"no {' and '.join(map(visible, entry.missing))}" if entry.missing else LEFT_OUT
        groups.setdefault((what, entry.how_to_record), []).append(entry)
    missing = []
    for (what, how), members in groups.items():
        patterns = tuple(f"{visible(entry.code)} {visible(entry.name)}" for entry in members)
        codes = tuple(visible(entry.code) for entry in members)
        missing.append(MissingValue(what, patterns, patterns if len(patterns) <= N_NAMED else codes, how))
    return tuple(missing)


def needs_device(entry: NotChecked) -> bool:
    """Return whether a pattern was not checked for want of a GPU's rows."""
    return "GPU rows" in entry.missing


def without_device(result: Result) -> str:
    """Return one sentence for all GPU patterns of a recording without a GPU, else nothing."""
    number = sum(map(needs_device, result.not_checked))
    summary = result.summary
    if not number or result.trace.vendor != "cpu" or summary is None or summary.devices:
        return ""
    return (
        f"{format_count(number, 'GPU pattern')}: {'needs' if number == 1 else 'need'} GPU rows; add"
        " ProfilerActivity.CUDA if the script uses a GPU"
    )


def outcome(result: Result) -> str:
    """Return one trace's outcome on a line: ``3 findings, LCH014 first, 2.01-12.9 ms of …``."""
    rank = f"rank {result.trace.rank}: " if result.trace.rank is not None else ""
    if result.refused:
        return f"{rank}no verdict"
    if not result.findings:
        n_checked, n_open = len(result.checked), len(result.not_checked) + len(result.crashes)
        by = f" by {n_checked:,} of {format_count(n_checked + n_open, 'pattern')}" if n_open else ""
        return f"{rank}nothing found{by}{'' if result.healthy else ', not everything analysed'}"
    parts = [format_count(len(result.findings), "finding"), f"{visible(result.findings[0].code)} first"]
    if result.joint_cost is not None:
        parts.append(saving(result.joint_cost))
    return f"{rank}{', '.join(parts)}"


def checked(result: Result | JobResult) -> str:
    """Return how many patterns were checked, not checked and failed."""
    if result.refused and not result.checked:
        return f"{format_count(len(result.not_checked), 'pattern')} not checked"
    parts = [f"{format_count(len(result.checked), 'pattern')} checked"]
    if result.not_checked:
        parts.append(f"{len(result.not_checked):,} not checked")
    if result.crashes:
        parts.append(f"{len(result.crashes):,} failed")
    return ", ".join(parts)


def losses(trace: TraceFacts) -> tuple[str, ...]:
    """Return what reading the file lost or mended; empty for a file read as it stands."""
    if not (trace.n_lost or trace.n_repaired or trace.loss):
        return ()
    parts = []
    if trace.n_lost:
        parts.append(f"{format_count(trace.n_lost, 'event')} lost")
    if trace.n_repaired:
        parts.append(f"{format_count(trace.n_repaired, 'value')} repaired")
    head = f"{trace.tier}: {', '.join(parts)}" if parts else trace.tier
    return (head, *(visible(line) for line in trace.loss))


def judged_step(selection: str) -> str:
    """Return what a judged step is called where this was selected, as results say it."""
    in_time = selection.startswith(("step", "window", "annotation"))
    return "selected step" if in_time else "steady step"


def recording(result: Result) -> tuple[str, ...]:
    """Return what was read: the file and its size, then device, rank and steps where known."""
    trace, summary = result.trace, result.summary
    where = []
    if trace.device_names:
        names = Counter(trace.device_names)
        where.append(", ".join(_devices(name, n) for name, n in names.items()))
    if trace.rank is not None and trace.world_size != 1:
        size = f" of {trace.world_size:,}" if trace.world_size is not None else ""
        where.append(f"rank {trace.rank}{size}")
    if summary is not None and summary.n_steady_steps:
        n_steps = len(summary.steps)
        of = f" of {n_steps:,}" if n_steps > summary.n_steady_steps else ""
        where.append(f"{format_count(summary.n_steady_steps, judged_step(trace.selection))}{of}")
    elif summary is not None:
        window = format_ns(summary.window_end_ns - summary.window_start_ns)
        where.append(f"a window of {window} without steps")
    if trace.selection:
        where.append(f"selected: {trace.selection}")
    file = f"{format_bytes(trace.size_bytes)}, {format_count(trace.n_events, 'event')}"
    return (visible(trace.path), file, *([", ".join(where)] if where else []))


def _devices(name: str, n: int) -> str:
    if not name:
        return f"{format_count(n, 'device')} without a name"
    return visible(name) if n == 1 else f"{n} x {visible(name)}"


def contents(result: Result) -> tuple[tuple[str, str], ...]:
    """Return what the recording holds as rows of label and text, for the doctor's view."""
    trace, summary = result.trace, result.summary
    flags = ", ".join(visible(flag) for flag in trace.torch_flags) or "no options"
    held = sorted(trace.categories.items(), key=lambda item: (-item[1], item[0]))
    rows = [
        ("recorded", f"{visible(trace.vendor) or 'unknown device kind'}, {flags}"),
        ("times", f"to {format_ns(trace.resolution_ns)}"),
        ("holds", ", ".join(f"{visible(name) or 'without a category'} {n:,}" for name, n in held) or "nothing"),
    ]
    if summary is not None:
        window = format_ns(summary.window_end_ns - summary.window_start_ns)
        rows.append(("window", f"{window}, {visible(summary.window_basis)}"))
    return tuple(rows)
