"""What a reviewer is shown of one window: lines with ids, within a budget of tokens.

The same recording, findings and window give the same lines, to the letter. A line also carries
what it says as numbers, for a reviewer that computes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints
from torchtriage.core.finding import Finding
from torchtriage.core.names import elide, visible
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.schema import WORK_KINDS
from torchtriage.core.units import format_ns, format_share
from torchtriage.diagnose.patterns import catalogue
from torchtriage.diagnose.patterns.base import missing_needs
from torchtriage.learn.review import account
from torchtriage.learn.review.redaction import WIDTH, RedactedNames

LineKind = Literal[
    "window", "machine", "step", "time", "op", "device", "python", "around", "finding", "elsewhere", "detector"
]

BUDGET = 2200
MAX_ROWS = 20_000
"""So many host rows of a window, the longest, are put into its tree; of more, the number is given."""
DEPTH = 4
N_LANES, N_OPS, N_KERNELS, N_FRAMES, N_AROUND = 3, 24, 8, 6, 3
MIN_SHARE = 0.005
"""Operators that take less of the window show nothing alone."""

_TOKEN = re.compile(r"[A-Za-z]{1,3}|[^\sA-Za-z]")


def count_tokens(text: str) -> int:
    """Return at least as many tokens as usual tokenizers make of ordinary text.

    Letters count by threes, every digit and every other character by itself, what is not ASCII by
    its bytes; spaces belong to what follows them, line ends count. English words have four letters
    and more a token, so this is too many by a third to a half: a budget that holds by this count
    holds.
    """
    if text.isascii():
        return len(_TOKEN.findall(text)) + text.count("\n")
    wide = sum(len(item.encode("utf-8", "replace")) - 1 for item in text if not item.isascii())
    return len(_TOKEN.findall(text)) + text.count("\n") + wide


@dataclass(frozen=True)
class EvidenceLine:
    """One piece of evidence. ``facts`` : what it says, as numbers and codes."""

    id: str
    kind: LineKind
    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Evidence:
    """One window as a reviewer sees it.

    ``codes`` : what could be found in such a recording. ``redacted`` : only public names are in it.
    """

    window_ns: tuple[int, int]
    lines: tuple[EvidenceLine, ...]
    codes: tuple[str, ...]
    redacted: bool

    @property
    def ids(self) -> frozenset[str]:
        """The ids that a sentence may cite."""
        return frozenset(line.id for line in self.lines)

    @cached_property
    def text(self) -> str:
        """The lines, one each, with their ids."""
        return "\n".join(f"{line.id}: {line.text}" for line in self.lines)

    @cached_property
    def key(self) -> str:
        """A digest of all that a reviewer sees."""
        seen = json.dumps([self.text, self.codes])
        return hashlib.sha256(seen.encode("utf-8", "backslashreplace")).hexdigest()

    def of_kind(self, *kinds: LineKind) -> list[EvidenceLine]:
        """Return the lines of these kinds."""
        return [line for line in self.lines if line.kind in kinds]


def applicable(trace: Trace) -> tuple[str, ...]:
    """Return the codes of the patterns that a recording of this kind could show."""
    return tuple(entry.pattern.code for entry in catalogue() if not missing_needs(entry.pattern, trace))


def gather(
    trace: Trace,
    findings: Sequence[Finding],
    window_ns: tuple[int, int],
    *,
    probability: float | None = None,
    types: Mapping[str, float] | None = None,
    unusual: bool = False,
    confident: bool = True,
    budget: int = BUDGET,
    redact: bool = True,
    codes: tuple[str, ...] | None = None,
) -> Evidence:
    """Return the evidence of one window.

    ``findings`` : of the whole recording; those that touch the window are in the evidence. ``window_ns`` : beginning
    and end on the trace's clock. ``probability``, ``types``, ``unusual``, ``confident`` : what the learned detector
    says of the window: that it is faulty, 0 to 1; of which type; that it is unlike all it was trained on; that it is
    sure enough to name a type. ``budget`` : tokens, by :func:`count_tokens`,
    with what the detector says; what matters less is left out first, and counted.
    ``redact`` : show public names alone, see :mod:`torchtriage.learn.review.redaction`. ``codes`` : what
    :func:`applicable` says of the trace, where many windows are asked for.
    """
    window = _Window(trace, RedactedNames(trace, redact=redact), *(int(item) for item in window_ns))
    drafts = [
        *window.facts(),
        *window.step(),
        *window.ops(),
        *window.device(),
        *window.frames(),
        *window.around(),
        # measurements first: whoever reads a verdict before them looks for what confirms it
        *_findings(findings, window, redact=redact),
    ]
    last = [] if probability is None else [_opinion(probability, types or {}, unusual, confident)]
    chosen, left_out = _within(
        drafts, budget - sum(count_tokens(f"e{len(drafts) + 1}: {item.text}\n") for item in last)
    )
    if left_out:
        chosen.append(_Draft(0, "window", _left_out(left_out)))
    lines = tuple(
        EvidenceLine(f"e{number}", item.kind, item.text, item.facts) for number, item in enumerate([*chosen, *last], 1)
    )
    allowed = applicable(trace) if codes is None else codes
    return Evidence((window.begin_ns, window.end_ns), lines, allowed, redact)


@dataclass(frozen=True)
class _Draft:
    """A line before it has an id. ``rank`` : what matters more has less."""

    rank: float
    kind: LineKind
    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)


def _left_out(number: int) -> str:
    return f"{number} lines of less time are left out here"


def _within(drafts: list[_Draft], budget: int) -> tuple[list[_Draft], int]:
    room = budget - count_tokens(f"e{len(drafts)}: {_left_out(len(drafts))}\n")
    chosen: set[int] = set()
    order = sorted(range(len(drafts)), key=lambda at: (drafts[at].rank, at))
    for at in order:
        room -= count_tokens(f"e{len(drafts)}: {drafts[at].text}\n")
        if room < 0 and chosen:
            break
        chosen.add(at)
    return [drafts[at] for at in sorted(chosen)], len(drafts) - len(chosen)


class _Window:
    """One window's rows, and what they say."""

    def __init__(self, trace: Trace, names: RedactedNames, begin_ns: int, end_ns: int) -> None:
        self.trace, self.names = trace, names
        self.begin_ns, self.end_ns = begin_ns, end_ns
        self.long_ns = max(end_ns - begin_ns, 1)

    def share(self, time_ns: float) -> str:
        return format_share(time_ns / self.long_ns)

    def inside(self, *kinds: Kind) -> tuple[Ints, Ints]:
        trace = self.trace
        begins = np.maximum(trace.start_ns, self.begin_ns)
        ends = np.minimum(trace.end_ns, self.end_ns)
        rows = np.flatnonzero((ends > begins) & trace.is_kind(*kinds))
        return rows, (ends - begins)[rows]

    def facts(self) -> Iterator[_Draft]:
        trace, steps = self.trace, self.trace.steps
        where = "a recording without steps"
        facts: dict[str, Any] = {"duration_ns": self.long_ns}
        at = np.flatnonzero((steps.host_start_ns <= self.begin_ns) & (steps.host_end_ns > self.begin_ns))
        if len(at):
            step = int(at[0])
            step_ns = int(steps.host_end_ns[step] - steps.host_start_ns[step])
            from_ns = self.begin_ns - int(steps.host_start_ns[step])
            steady = "" if steps.in_steady(np.array([step]))[0] else ", not a steady one"
            where = f"step {step + 1} of {len(steps)}{steady}, from {format_ns(from_ns)} of its {format_ns(step_ns)}"
        elif len(steps):
            where = "outside the recorded steps"
        yield _Draft(0, "window", f"window of {format_ns(self.long_ns)} in {where}", facts)
        rows, time_ns = self.inside(Kind.OP, Kind.RUNTIME)
        types = account.data_types(trace, rows[trace.kind[rows] == Kind.OP])
        yield _Draft(0.5, "machine", f"{account.machine(trace)}; {types}")
        for lane in self._lanes(rows, time_ns):
            mine = rows[trace.lane[rows] == lane]
            busy_ns = self._union(mine)
            n = len(mine)
            yield _Draft(
                1,
                "time",
                f"{self._lane(lane)}: {self.share(busy_ns)} of the window in {n:,} operators "
                f"and calls, {self.share(self.long_ns - busy_ns)} in none",
                {"busy_share": busy_ns / self.long_ns, "n_ops": n},
            )

    def step(self) -> Iterator[_Draft]:
        """Yield the account of the whole step, and the same window in other steps."""
        for text in account.whole_step(self.trace, self.names):
            yield _Draft(1.1, "step", text)
        text = account.other_steps(self.trace, self.begin_ns, self.end_ns, self._measured)
        if text:
            yield _Draft(1.3, "step", text)

    def _measured(self, begin_ns: int, end_ns: int) -> tuple[int, int, int]:
        """Return operators, time in them, and idle time of the devices between two times."""
        other = _Window(self.trace, self.names, begin_ns, end_ns)
        rows, _ = other.inside(Kind.OP, Kind.RUNTIME)
        rows = rows[self.trace.lane[rows] == self.trace.steps.lane]
        work, _ = other.inside(*WORK_KINDS)
        return len(rows), other._union(rows), other.long_ns - other._union(work)

    def _lane(self, lane: int) -> str:
        name = self.names.lane(lane)
        return name if self.names.redact else _quoted(name)

    def _lanes(self, rows: Ints, time_ns: Ints) -> list[int]:
        total = np.bincount(self.trace.lane[rows], weights=time_ns)
        busiest = np.argsort(-total, kind="stable")[:N_LANES]
        return [int(lane) for lane in busiest if total[lane] > 0]

    def _union(self, rows: Ints) -> int:
        spans = intervals.spans(self.trace.start_ns[rows], self.trace.end_ns[rows])
        return intervals.length(intervals.union(intervals.clip(spans, self.begin_ns, self.end_ns)))

    def ops(self) -> Iterator[_Draft]:
        """Yield the tree of host operators: those of one name in one place are one line."""
        rows, time_ns = self.inside(Kind.OP, Kind.ANNOTATION, Kind.RUNTIME)
        if len(rows) > MAX_ROWS:
            text = f"of {len(rows):,} operators, annotations and calls the longest {MAX_ROWS:,} are in the tree"
            yield _Draft(1.2, "window", text)
            longest_rows = np.sort(np.argsort(-time_ns, kind="stable")[:MAX_ROWS])
            rows, time_ns = rows[longest_rows], time_ns[longest_rows]
        total: dict[tuple[str, ...], int] = {}
        counts: dict[tuple[str, ...], int] = {}
        longest: dict[tuple[str, ...], tuple[int, int]] = {}
        paths: dict[int, tuple[str, ...]] = {}
        for row, in_ns in zip(rows.tolist(), time_ns.tolist(), strict=True):
            path = self._path(row, paths)
            if not 0 < len(path) <= DEPTH:
                continue
            total[path] = total.get(path, 0) + in_ns
            counts[path] = counts.get(path, 0) + 1
            longest[path] = max(longest.get(path, (-1, 0)), (in_ns, -row))
        chosen = sorted(total, key=lambda path: (-total[path], path))
        chosen = [path for path in chosen if total[path] >= MIN_SHARE * self.long_ns][:N_OPS]
        for path in sorted(chosen, key=lambda item: self._order(item, longest)):
            row = -longest[path][1]
            name, shapes = path[-1], self._shapes(row)
            text = (
                f"{'. ' * (len(path) - 1)}{_quoted(name)} {counts[path]:,} x, "
                f"{format_ns(total[path])}, {self.share(total[path])} of the window{shapes}"
            )
            depth = len(path)
            yield self._named(3 + depth / 10, "op", text, name, counts[path], total[path], depth=depth)

    def _named(self, rank: float, kind: LineKind, text: str, name: str, n: int, total_ns: int, **more: int) -> _Draft:
        share = total_ns / self.long_ns
        return _Draft(rank - share, kind, text, {"name": name, **more, "n": n, "total_ns": total_ns, "share": share})

    def _path(self, row: int, known: dict[int, tuple[str, ...]]) -> tuple[str, ...]:
        """Return the names from the outermost operator down to a row, without the step's own."""
        todo = []
        while row >= 0 and row not in known:
            todo.append(row)
            row = int(self.trace.tree.parent[row])
        path = known.get(row, ())
        for item in reversed(todo):
            if not self.trace.name_of(item).startswith("ProfilerStep#"):
                path = (*path, self.names.of(item))
            known[item] = path
        return path

    @staticmethod
    def _order(
        path: tuple[str, ...], longest: Mapping[tuple[str, ...], tuple[int, int]]
    ) -> tuple[tuple[int, str], ...]:
        """Return a key that puts children below their parents, siblings by their longest time."""
        ways = (path[: depth + 1] for depth in range(len(path)))
        return tuple((-longest.get(way, (0, 0))[0], way[-1]) for way in ways)

    def _shapes(self, row: int) -> str:
        dims = self.trace.details_of("dims", [row])[0]
        if not dims:
            return ""
        shapes = [str(dim).replace(" ", "") for dim in dims if _is_shape(dim)][:3]
        return f", the longest of shapes {' '.join(shapes)[:60]}" if shapes else ""

    def device(self) -> Iterator[_Draft]:
        trace = self.trace
        if not trace.devices:
            return
        rows, time_ns = self.inside(*WORK_KINDS)
        idle_ns = self.long_ns - self._union(rows)
        text = f"device: {len(rows):,} kernels, copies and sets; idle {self.share(idle_ns)} of the window"
        yield _Draft(1.5, "device", text, {"idle_share": idle_ns / self.long_ns, "n": len(rows)})
        lead = account.host_lead(trace, rows, self.long_ns)
        if lead:
            yield _Draft(1.6, "device", lead)
        for name, n, total_ns in self._by_name(rows, time_ns, N_KERNELS):
            text = f"on the device {_quoted(name)} {n:,} x, {format_ns(total_ns)}, {self.share(total_ns)} of the window"
            yield self._named(3.2, "device", text, name, n, total_ns)

    def frames(self) -> Iterator[_Draft]:
        trace = self.trace
        if not trace.has_stacks:
            return
        rows, time_ns = self.inside(Kind.PYTHON)
        own_ns = np.zeros(len(trace), np.int64)
        own_ns[rows] = time_ns
        parent = trace.frames.parent[rows]
        np.subtract.at(own_ns, parent[parent >= 0], time_ns[parent >= 0])
        for name, n, total_ns in self._by_name(rows, np.maximum(own_ns[rows], 0), N_FRAMES):
            text = f"Python {_quoted(name)} {n:,} x, {format_ns(total_ns)} of its own with the operators it runs"
            yield self._named(3.6, "python", text, name, n, total_ns)

    def around(self) -> Iterator[_Draft]:
        for word, begin_ns in (("before", self.begin_ns - self.long_ns), ("after", self.end_ns)):
            beside = _Window(self.trace, self.names, begin_ns, begin_ns + self.long_ns)
            rows, time_ns = beside.inside(Kind.OP)
            outer = self.trace.tree.parent[rows]
            top = (outer < 0) | (self.trace.kind[outer] != Kind.OP)
            names = [
                f"{_quoted(name)} {n:,} x {format_ns(total_ns)}"
                for name, n, total_ns in self._by_name(rows[top], time_ns[top], N_AROUND)
            ]
            text = ", ".join(names) or "no operators"
            yield _Draft(3.9, "around", f"as long {word}: {text}")

    def _by_name(self, rows: Ints, time_ns: Ints, limit: int) -> list[tuple[str, int, int]]:
        """Return names with how many rows and how much time they have, most time first."""
        codes, which, counts = np.unique(self.trace.name[rows], return_inverse=True, return_counts=True)
        total = np.bincount(which, weights=time_ns, minlength=len(codes))
        first = np.zeros(len(codes), np.int64)
        first[which[::-1]] = rows[::-1]
        found: dict[str, tuple[int, int]] = {}
        for at in np.argsort(-total, kind="stable")[: 2 * limit].tolist():
            if total[at] >= MIN_SHARE * self.long_ns:
                name = self.names.of(int(first[at]))
                n, before_ns = found.get(name, (0, 0))
                found[name] = n + int(counts[at]), before_ns + int(total[at])
        return [(name, *pair) for name, pair in found.items()][:limit]


def _findings(findings: Sequence[Finding], window: _Window, *, redact: bool) -> Iterator[_Draft]:
    span = np.array([[window.begin_ns, window.end_ns]], np.int64)
    for place, finding in enumerate(findings, 1):
        where = intervals.union(np.array(finding.place.intervals_ns, np.int64).reshape(-1, 2))
        share = float(intervals.covered(span, where)[0]) / window.long_ns
        cost = finding.cost
        saves = (
            f", saves {cost.low_ms:.3g} to {cost.high_ms:.3g} ms of {cost.of_ms:.3g} ms per {cost.per}" if cost else ""
        )
        text = f": {finding.title}" if redact else f": {_quoted_name(finding.message)}"
        frame = finding.place.frame
        if frame is not None and not redact:
            text += f", at {_quoted_name(frame.file)}:{frame.line} {_quoted_name(frame.function)}"
        ranked = f"finding {place} of {len(findings)}, {finding.severity} severity"
        head = f"rule {finding.code} {finding.name} ({finding.certainty}), {ranked}, "
        if share <= 0:  # no part of the verdict on this window, but of what the recording is like
            where_not = "not in this window" if len(where) else "about the whole recording"
            facts = {"code": finding.code}
            yield _Draft(2.5 + place / 1000, "elsewhere", f"{head}{where_not}{saves}{text}", facts)
            continue
        yield _Draft(
            2 - share,
            "finding",
            f"{head}covers {format_share(share)} of the window{saves}{text}{_numbers(finding.evidence)}",
            {
                "code": finding.code,
                "share": share,
                "certainty": finding.certainty,
                "severity": finding.severity,
                "share_low": cost.share_low if cost else 0.0,
                "share_high": cost.share_high if cost else 0.0,
                "fix": finding.fix.text,
            },
        )


def _numbers(evidence: Mapping[str, Any], limit: int = 6) -> str:
    """Return a finding's measurements: their names are ours, texts could be the user's."""
    numbers = [
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in evidence.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    return f" [{', '.join(numbers[:limit])}]" if numbers else ""


def _opinion(probability: float, types: Mapping[str, float], unusual: bool, confident: bool) -> _Draft:
    likely = sorted(types.items(), key=lambda pair: (-pair[1], pair[0]))[:3]
    named = "".join(f", {code} {sure:.2f}" for code, sure in likely if sure >= 0.01)
    odd = ", outside the range of its training data" if unusual else ""
    odd = odd or ("" if confident or not named else ", less sure than where it names a type in a report")
    text = f"the learned detector: faulty with probability {probability:.2f}{named}{odd}"
    facts = {
        "probability": float(probability),
        "types": dict(likely),
        "unusual": bool(unusual),
        "confident": bool(confident),
    }
    return _Draft(0, "detector", text, facts)


def _is_shape(value: object) -> bool:
    if not isinstance(value, list) or not value:
        return False
    sizes = [size for item in value for size in (item if isinstance(item, list) else [item])]
    return all(type(size) is int for size in sizes)


def _quoted_name(text: str) -> str:
    """Return what others wrote as a name is: quoted, cut, all of it printable."""
    return _quoted(elide(visible(text), WIDTH))


def _quoted(name: str) -> str:
    """Return a name between quotes, as JSON writes it: nothing in it can end them or the line."""
    return json.dumps(name)
