"""Findings that went, came, stayed or are unknown, and whether what the gone ones promised came true."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from torchtriage.core.finding import Finding
from torchtriage.core.units import ms
from torchtriage.diagnose.compare.result import FindingChange, Promise, TimeChange
from torchtriage.diagnose.verdict.options import DEFAULTS
from torchtriage.diagnose.verdict.result import Result

MOST = 0.5
"""A finding that keeps more than this of its plain time has stayed, though it may have become
cheap because something else holds the step up."""


def match(before: Result, after: Result) -> tuple[FindingChange, ...]:
    """Return which findings of two results went, came, stayed or are not known to; the largest cost first.

    The same code at the same place is the same finding. Places are the user's functions where both
    recordings have stacks; without them one code at other operators is still the same finding,
    because its costliest occurrence, which names them, moves from run to run.
    """
    codes: dict[str, tuple[list[Finding], list[Finding]]] = defaultdict(lambda: ([], []))
    for i, result in enumerate((before, after)):
        for finding in result.findings:
            codes[finding.code][i].append(finding)
    unchecked = _unchecked(after, before), _unchecked(before, after)
    out = []
    for code, (old, new) in codes.items():
        for item, other in _pairs(old, new):
            known = code not in unchecked[0 if item is None else 1]
            change = _change(item, other, known=known or None not in (item, other))
            if change is not None:
                out.append(change)
    return tuple(sorted(out, key=_rank))


def _unchecked(looked: Result, result: Result) -> set[str]:
    """Return what a result was not checked for: as it says, or for want of the pattern in an earlier release."""
    named = {item.code for item in result.not_checked} | {item.code for item in result.crashes}
    return named | set(looked.checked) - set(result.checked)


def keep_promise(
    found: tuple[FindingChange, ...], total: TimeChange, about: Callable[[list[FindingChange]], TimeChange | None]
) -> Promise | None:
    """Return what the findings that went had promised against what was saved; None without any.

    ``about`` : returns the change of what some findings are about; None: the whole step's is all that is known.
    """
    went = [item for item in found if item.status == "went" and item.before and item.before.high_ms > 0]
    if not went:
        return None
    costs = [item.before for item in went if item.before]
    change = about(went) or total
    low = min(sum(cost.low_ms for cost in costs), costs[0].of_ms)
    high = min(sum(cost.high_ms for cost in costs), costs[0].of_ms)
    saved = ms(-change.delta_ns)
    ends = (
        (None, None) if change.low_ns is None or change.high_ns is None else (ms(-change.high_ns), ms(-change.low_ns))
    )
    least, most = (saved if end is None else end for end in ends)
    return Promise(
        codes=tuple(dict.fromkeys(item.code for item in went)),
        low_ms=round(low, 6),
        high_ms=round(high, 6),
        measured_ms=saved,
        measured_low_ms=ends[0],
        measured_high_ms=ends[1],
        holds=change.told and low <= saved <= high,
        holds_within_noise=change.told and least <= high and most >= low,
        step_ms=ms(-total.delta_ns),
        checked=change.told,
    )


def _pairs(old: list[Finding], new: list[Finding]) -> list[tuple[Finding | None, Finding | None]]:
    """Return the findings of one code two by two, the most alike first; None where one is alone."""
    ranked = sorted(
        (-_likeness(item, other), i, j)
        for i, item in enumerate(old)
        for j, other in enumerate(new)
        if _likeness(item, other) > 0
    )
    left, right = set(range(len(old))), set(range(len(new)))
    pairs: list[tuple[Finding | None, Finding | None]] = []
    for _, i, j in ranked:
        if i in left and j in right:
            left.discard(i)
            right.discard(j)
            pairs.append((old[i], new[j]))
    pairs += [(old[i], None) for i in sorted(left)]
    pairs += [(None, new[j]) for j in sorted(right)]
    return pairs


def _likeness(one: Finding, other: Finding) -> int:
    late = {finding.evidence.get("late_rank") for finding in (one, other)} - {None}
    if len(late) > 1:
        return 0  # the others wait for another rank now
    left, right = one.place, other.place
    if left.frame is not None and right.frame is not None:
        same = (left.frame.file, left.frame.function) == (right.frame.file, right.frame.function)
        return 4 if same else 0
    shared = len(set(left.ops) & set(right.ops))
    return 3 if left.ops == right.ops else 2 if shared else 1


def _change(one: Finding | None, other: Finding | None, *, known: bool) -> FindingChange | None:
    shown = next(finding for finding in (one, other) if finding is not None)
    seen, still = _reportable(one), _reportable(other)
    if not seen and not still:
        return None
    if not known:
        # that nobody looked is no sign that it is gone
        status = "unchecked"
    elif not seen:
        status = "stayed" if one and _plain(one) > MOST * _plain(other) else "came"
    elif not still:
        status = "stayed" if other and _plain(other) > MOST * _plain(one) else "went"
    else:
        status = "stayed"
    return FindingChange(
        status=status,  # type: ignore[arg-type]
        code=shown.code,
        title=shown.title,
        place=place_of(shown),
        before=one.cost if one else None,
        after=other.cost if other else None,
    )


def _reportable(finding: Finding | None) -> bool:
    return finding is not None and (finding.cost is None or finding.cost.share_high >= DEFAULTS.min_share)


def _plain(finding: Finding | None) -> float:
    return finding.cost.naive_ms if finding and finding.cost else 0.0


def place_of(finding: Finding) -> str:
    """Return where a finding is, as both runs name it: the user's function, else the outermost operator."""
    frame = finding.place.frame
    if frame is not None:
        return f"{frame.file}: {frame.function}"
    return finding.place.ops[0] if finding.place.ops else finding.place.lane


STATUS_WORDS = {"went": "gone", "came": "new", "unchecked": "unknown", "stayed": "stayed"}
"""How each status reads, in the order of reports."""


def _rank(change: FindingChange) -> tuple[int, float, str, str]:
    cost = max((item.high_ms for item in (change.before, change.after) if item), default=0.0)
    return list(STATUS_WORDS).index(change.status), -cost, change.code, change.place
