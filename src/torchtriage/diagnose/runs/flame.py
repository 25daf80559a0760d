"""Stacks folded into a flame graph, and into lines that speedscope and flamegraph.pl read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from torchtriage.core.names import file_name
from torchtriage.diagnose.runs.account import SampledLoop, line_of
from torchtriage.diagnose.runs.result import FlameBar, StepAccount

MIN_SHARE, DEEPEST, N_BELOW = 0.004, 20, 4
"""Bars that are shown, how many frames deep, and how many of them a library's own below the user's."""

Stack = tuple[str, ...]


def folded(account: StepAccount) -> Iterator[str]:
    """Yield each stack of the step, callers first, and the microseconds of the step spent in it."""
    stack: list[FlameBar] = []
    for bar, following in zip_longest(account.flame, account.flame[1:]):
        stack = [*stack[: bar.depth], bar]
        own = bar.share
        if following is not None and following.depth > bar.depth:
            own -= sum(child.share for child in _children(account.flame, bar))
        if own > MIN_SHARE / 10:
            names = ";".join(frame.name.replace(";", ",") for frame in stack)
            yield f"{names} {round(own * account.of_ms * 1e3)}"


def _children(bars: Sequence[FlameBar], of: FlameBar) -> Iterator[FlameBar]:
    end = of.begin + of.share + 1e-9
    return (bar for bar in bars if bar.depth == of.depth + 1 and of.begin - 1e-9 <= bar.begin < end - 1e-6)


def flame_bars(loop: SampledLoop) -> tuple[FlameBar, ...]:
    """Return the bars of the flame graph, those of callers before those of what they call; longest first beside."""
    stacks = _stacks(loop)
    whole = sum(stacks.values())
    return tuple(_bars(stacks, 0, 0.0, whole)) if whole else ()


def _bars(stacks: Mapping[Stack, int], depth: int, begin: float, whole: int) -> Iterator[FlameBar]:
    if depth >= DEEPEST:
        return
    children: dict[str, Counter[Stack]] = {}
    for stack, ns in stacks.items():
        if len(stack) > depth:
            children.setdefault(stack[depth], Counter())[stack] += ns
    for name, mine in sorted(children.items(), key=lambda child: (-sum(child[1].values()), child[0])):
        share = sum(mine.values()) / whole
        if share < MIN_SHARE:
            return
        yield FlameBar(depth, round(begin, 6), round(share, 6), name)
        yield from _bars(mine, depth + 1, begin, whole)
        begin += share


def _stacks(loop: SampledLoop) -> Counter[Stack]:
    found: Counter[Stack] = Counter()
    for item in loop.seen:
        if item.kind != "torchtriage":
            places = map(line_of, reversed(item.chain))
            user = (f"{function} {file_name(file)}:{line}" for file, function, line in places)
            below = [position.of_module for position in reversed(item.look.below)][:N_BELOW]
            found[(*user, *below) or ("unknown",)] += item.weight_ns
    return found
