"""Which call sites an observed sequence of calls can have come from.

The calls that one instance of a frame made, in time order, are a word; the body is an automaton (``sites.py``). A run
that reads the whole word says for each call the site it came from; all runs together say the possible sites. Exact when
they agree on one line, however many runs there are.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Literal

from torchtriage.core.source.flow import Flow, Site
from torchtriage.core.source.operators import CONSTRUCTORS

_BEHIND = frozenset({"warnings.py", "weakref.py", "_weakrefset.py", "abc.py"})
"""Files whose functions Python calls on its own: warnings, callbacks of garbage, checks of type."""


@dataclass(frozen=True)
class Called:
    """One call as it was recorded.

    ``name`` : function, built-in, class of the module, or operator without namespace and ``_``.
    """

    kind: Literal["python", "builtin", "module", "op"]
    name: str
    file: str = ""
    line: int = 0

    @property
    def implicit(self) -> bool:
        """Whether Python calls it by itself, at places no call is written."""
        dunder = self.name.startswith("__") and self.name.endswith("__")
        return (
            (dunder and self.name not in CONSTRUCTORS)
            or self.file.startswith("<frozen ")
            or self.file.replace("\\", "/").rpartition("/")[2] in _BEHIND
        )


@dataclass(frozen=True)
class Alignment:
    """The sites each call can have come from; ``ordered`` when the order of calls was used."""

    sites: tuple[tuple[Site, ...], ...]
    ordered: bool

    def lines(self, index: int) -> tuple[int, ...]:
        """Return the lines one call can have come from, sorted."""
        return tuple(sorted({site.line for site in self.sites[index]}))


def align(
    flow: Flow,
    word: Sequence[Called],
    *,
    wanted: Sequence[int] | None = None,
    resumed_line: int | None = None,
    cut_start: bool = False,
    cut_end: bool = False,
) -> Alignment:
    """Return the sites that calls can have come from.

    ``flow`` : the body. ``word`` : all calls one instance of the frame made, in time order. ``wanted`` : which of them
    to resolve; all when not given. ``resumed_line`` : the frame was entered in the middle, at this line. ``cut_start``,
    ``cut_end`` : calls before the first or after the last were not seen.
    """
    asked = range(len(word)) if wanted is None else wanted
    letters = sorted(set(word), key=lambda item: (item.kind, item.name, item.file, item.line))
    code = {letter: index for index, letter in enumerate(letters)}
    text = [code[letter] for letter in word]
    plain = _never_resumed(word)
    strict = _Machine(flow, letters, plain, doubtful=set())
    # optimizer.step() may show as "wrapper" though scheduler.step() shows as "step"
    careful = _Machine(flow, letters, plain, doubtful=_shared(flow))
    tolerant = _Machine(flow, letters, plain, doubtful=None)
    tiers = (
        (strict, False, cut_end),
        (careful, False, cut_end),
        (tolerant, False, cut_end),
        (tolerant, True, cut_end),
        (tolerant, True, True),
    )
    for machine, loose, any_end in tiers:
        machine.loosen(loose)
        begin = machine.begin(resumed_line, cut_start)
        found = machine.run(text, begin, any_end=any_end)
        if found is not None:
            out: list[tuple[Site, ...]] = [()] * len(word)
            for index in asked:
                # where names say little, a class in C that makes instances of others misleads
                if machine is strict or word[index].name not in CONSTRUCTORS:
                    out[index] = machine.sites_at(text, found, index)
            return Alignment(tuple(out), ordered=True)
    out = [()] * len(word)
    for index in asked:
        out[index] = strict.named[text[index]]
    return Alignment(tuple(out), ordered=False)


_OPERATORS = frozenset({("wrapped", "_tensor.py"), ("forward", "fractions.py"), ("reverse", "fractions.py")})
_CALLERS = frozenset({"map", "filter", "partial", "defaultdict", "property"})
_UNSURE = frozenset(CONSTRUCTORS)
"""Calls of these by name may be of classes written in C, without a frame."""


class _Machine:
    """The automaton of a body read by the letters of one word; sets of states are bit masks.

    A site that some call is named after runs no calls of other names, unless its own name is ``doubtful`` (None: all
    are).
    """

    def __init__(self, flow: Flow, letters: Sequence[Called], plain: Set[Called], *, doubtful: Set[str] | None) -> None:
        self.flow, self.letters = flow, letters
        sites = flow.sites
        strong = {id(site): [index for index, letter in enumerate(letters) if _strong(site, letter)] for site in sites}
        has_strong = {index for found in strong.values() for index in found}
        later = {name for site in sites if site.kind in ("consume", "loop") for name in site.names}
        # a built-in is no generator: it runs where it is called
        runs_later = {index for index, letter in enumerate(letters) if letter.kind == "python" and letter.name in later}
        self.required = {
            id(site)
            for site in sites
            if site.kind == "call"
            and strong[id(site)]
            and not runs_later.issuperset(strong[id(site)])
            and not site.names & _UNSURE
        }
        seen = {id(site) for site in sites if strong[id(site)] and doubtful is not None and not site.names & doubtful}
        self.accepts: list[list[tuple[int, int, Site]]] = []
        self.named: list[tuple[Site, ...]] = []
        for index, letter in enumerate(letters):
            fits = [
                edge
                for edge in flow.edges
                if index in strong[id(edge.site)]
                or (
                    not (letter in plain and _only_resumes(edge.site))
                    and _weak(edge.site, letter, index in has_strong, id(edge.site) in seen)
                )
            ]
            self.accepts.append([(edge.start, edge.end, edge.site) for edge in fits])
            if letter.name in CONSTRUCTORS:
                # a class makes its instance in several calls
                self.named.append(())
                self.accepts[-1] += [(e.end, e.end, e.site) for e in fits if e.site.kind == "call"]
                continue
            own = [edge.site for edge in flow.edges if index in strong[id(edge.site)]]
            unnamed = [edge.site for edge in fits if edge.site.open]
            both = own + unnamed if own else []
            self.named.append(tuple({id(item): item for item in both}.values()))
        self.inserted = [not found for found in self.accepts]
        self.strict = list(self.inserted)
        self.weak_letters = [index not in has_strong for index in range(len(letters))]
        self._closed: dict[int, int] = {}
        self._optional: dict[int, list[int]] = {}
        for edge in flow.edges:
            if edge.start != edge.end and id(edge.site) not in self.required:
                self._optional.setdefault(edge.start, []).append(edge.end)
        self._next: dict[tuple[int, int], int] = {}
        self._before: dict[tuple[int, int], int] = {}

    def loosen(self, loose: bool) -> None:
        """Let calls that no site is named after come from nowhere."""
        self.inserted = [
            strict or (loose and (weak or letter.implicit))
            for strict, weak, letter in zip(self.strict, self.weak_letters, self.letters, strict=True)
        ]
        self._next.clear()
        self._before.clear()

    def begin(self, resumed_line: int | None, cut_start: bool) -> int:
        flow = self.flow
        if cut_start:
            return (1 << len(flow.skips)) - 1
        if resumed_line is None:
            return self.closed(flow.start)
        states = {state for state, line in flow.entries if line == resumed_line}
        if not states:
            # open when the recording began: anywhere on that line
            for edge in flow.edges:
                if edge.site.line == resumed_line:
                    states |= {edge.start, edge.end}
            states |= {s for s, line in enumerate(flow.lines) if line == resumed_line}
        mask = 0
        for state in states:
            mask |= self.closed(state)
        return mask

    def closed(self, state: int) -> int:
        """Return the states reached from one without a call that leaves a frame."""
        known = self._closed.get(state)
        if known is not None:
            return known
        seen, stack, mask = {state}, [state], 0
        while stack:
            current = stack.pop()
            mask |= 1 << current
            more = {*self.flow.skips[current], *self._optional.get(current, ())} - seen
            seen |= more
            stack += more
        self._closed[state] = mask
        return mask

    def run(self, text: Sequence[int], begin: int, *, any_end: bool) -> tuple[list[int], list[int]] | None:
        """Return the states before each letter and, of them, those from which the rest reads."""
        if not begin:
            return None
        ahead = [begin]
        state = begin
        for letter in text:
            key = (state, letter)
            after = self._next.get(key)
            if after is None:
                after = state if self.inserted[letter] else 0
                for start, end, _ in self.accepts[letter]:
                    if state >> start & 1:
                        after |= self.closed(end)
                self._next[key] = after
            if not after:
                return None
            ahead.append(after)
            state = after
        last = ahead[-1]
        if not any_end:
            final = 1 << self.flow.exit
            for leaf in self.flow.leaves:
                final |= 1 << leaf
            last &= final
        if not last:
            return None
        back = [last]
        state = last
        for index in range(len(text) - 1, -1, -1):
            letter = text[index]
            key = (state, letter)
            before = self._before.get(key)
            if before is None:
                before = state if self.inserted[letter] else 0
                for start, end, _ in self.accepts[letter]:
                    if self.closed(end) & state:
                        before |= 1 << start
                self._before[key] = before
            state = before & ahead[index]
            if not state:
                return None
            back.append(state)
        back.reverse()
        return ahead, back

    def sites_at(self, text: Sequence[int], found: tuple[list[int], list[int]], index: int) -> tuple[Site, ...]:
        ahead, back = found
        sites = {
            id(site): site
            for start, end, site in self.accepts[text[index]]
            if ahead[index] >> start & 1 and self.closed(end) & back[index + 1]
        }
        return tuple(sites.values())


def _shared(flow: Flow) -> Set[str]:
    """Return the names that several things a body calls share: ``step`` of two objects."""
    callees: dict[str, set[str]] = {}
    for site in flow.sites:
        if site.kind == "call":
            for name in site.names:
                callees.setdefault(name, set()).add(site.callee)
    return {name for name, some in callees.items() if len(some) > 1}


def _only_resumes(site: Site) -> bool:
    """Return whether a site runs frames of generators only, as a loop's head does."""
    return site.kind == "loop" or (site.kind == "consume" and site.name not in _CALLERS)


def _never_resumed(word: Sequence[Called]) -> Set[Called]:
    """Return functions that always began on one line: a generator goes on where it stopped."""
    seen: dict[tuple[str, str], list[Called]] = {}
    for item in word:
        if item.kind == "python" and not item.name.startswith("<gen"):
            seen.setdefault((item.file, item.name), []).append(item)
    return {some[0] for some in seen.values() if len(some) > 1 and len(set(some)) == 1}


def _strong(site: Site, call: Called) -> bool:
    if call.kind == "op":
        return call.name in site.ops
    if call.kind == "module":
        return call.name in site.classes
    # an attribute that is a property runs a function, and nothing else
    return call.name in site.names and (site.kind != "silent" or call.kind == "python")


def _weak(site: Site, call: Called, has_named: bool, seen: bool) -> bool:
    if seen and site.kind == "call":
        # what it calls is known by name
        return False
    if site.kind == "silent":
        # wrappers around operators: of tensors, of fractions
        return call.kind == "python" and (call.name, call.file.rpartition("/")[2]) in _OPERATORS
    if call.kind == "op":
        return not has_named and site.kind in ("call", "consume")
    if site.kind in ("consume", "loop"):
        # a generator, or whatever a C type reads
        return call.kind == "python" and not has_named and not call.implicit
    if site.kind != "call" or (site.builtin and call.kind != "builtin"):
        return False
    if call.name in CONSTRUCTORS:
        return True
    if call.implicit:
        return False
    if call.kind == "module":
        return not site.classes and not site.known
    if site.name.startswith("<") or site.name == "__build_class__":
        return False
    return site.open or not has_named
