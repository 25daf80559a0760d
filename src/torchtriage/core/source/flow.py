"""The automaton of one function body: call sites, and the orders in which they can run."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_STATES = 20_000
"""Beyond, a body is generated code; nobody reads its lines."""


@dataclass(frozen=True, eq=False)
class Site:
    """One place in a body that can call something.

    ``names`` : what a frame called from here is named, if it is named after the text.
    ``ops`` : operators (``add`` for ``aten::add``, ``aten::add_``) it can become directly.
    ``classes`` : classes whose instance is called, where an assignment shows it.
    ``kind`` : ``call`` leaves a frame; ``silent`` (an operator, an attribute), ``consume`` (a C
    type, an unpacking) and ``loop`` (its head, an ``await``) may leave none, or many.
    ``open`` : what is called has no name of its own (a parameter, a variable): any frame fits.
    ``callee`` : text of what is called: ``self.layer``, ``model``.
    """

    line: int
    kind: str
    name: str
    names: frozenset[str] = frozenset()
    ops: frozenset[str] = frozenset()
    classes: frozenset[str] = frozenset()
    open: bool = False
    callee: str = ""
    known: bool = False
    """Whether it calls a function or a class of this file."""
    builtin: bool = False
    """Whether it calls a built-in function, which frames of Python stand below, not beside."""


@dataclass(frozen=True, eq=False)
class Edge:
    """A step of the automaton: from state to state by way of a site."""

    start: int
    end: int
    site: Site


@dataclass(eq=False)
class Flow:
    """The automaton of one body.

    ``skips`` : states that follow without any call. ``entries`` : states a resumed generator or coroutine starts from,
    with the line it waits on; ``leaves`` : states it can be left at.
    """

    edges: list[Edge] = field(default_factory=list)
    skips: list[list[int]] = field(default_factory=list)
    entries: list[tuple[int, int]] = field(default_factory=list)
    leaves: list[int] = field(default_factory=list)
    start: int = 0
    exit: int = 1
    lines: list[int] = field(default_factory=list)
    """The line that was last begun, for each state."""

    @property
    def sites(self) -> list[Site]:
        """Return each site once, in the order of the text."""
        unique = {id(edge.site): edge.site for edge in self.edges}
        return sorted(unique.values(), key=lambda site: site.line)


@dataclass
class LoopFlow:
    """A loop that is open: the state before each round, and the one after the last."""

    again: int
    after: int


class FlowBuilder:
    """An automaton that grows: states, steps, and what an exception may lead to."""

    def __init__(self, first_line: int) -> None:
        self.flow = Flow(skips=[[], []], lines=[first_line] * 2)
        self.loops: list[LoopFlow] = []
        self.handlers: list[list[int]] = []
        self.line = first_line

    def state(self) -> int:
        """Return a new state; in a ``try`` body it may go to the handlers."""
        if len(self.flow.skips) >= MAX_STATES:
            raise RecursionError("body too large")
        self.flow.skips.append([])
        self.flow.lines.append(self.line)
        number = len(self.flow.skips) - 1
        if self.handlers:
            self.flow.skips[number] += self.handlers[-1]
        return number

    def skip(self, start: int, end: int) -> None:
        """Let one state follow another without a call."""
        if start != end:
            self.flow.skips[start].append(end)

    def join(self, *states: int) -> int:
        """Return one state that all of these lead to."""
        end = self.state()
        for state in states:
            self.skip(state, end)
        return end

    def step(self, start: int, site: Site) -> int:
        """Add a site that leaves a frame; return the state behind it."""
        end = self.state()
        self.flow.edges.append(Edge(start, end, site))
        return end

    def passing(self, at: int, site: Site) -> int:
        """Add a site that may leave nothing, or several frames."""
        self.flow.edges.append(Edge(at, at, site))
        # a state of its own, so that order is kept
        end = self.state()
        self.skip(at, end)
        return end

    def loop(self, at: int, site: Site) -> int:
        """Add a site that may be passed any number of times; return the state before each."""
        head = self.join(at)
        self.flow.edges.append(Edge(head, head, site))
        return head

    def paused(self, at: int, line: int) -> None:
        """Let the frame be left at a state, and entered there again on a line."""
        self.flow.leaves.append(at)
        self.flow.entries.append((at, line))

    def raises(self, at: int) -> None:
        """Go on where an exception goes: to the handlers around, or out."""
        for handler in self.handlers[-1] if self.handlers else [self.flow.exit]:
            self.skip(at, handler)
