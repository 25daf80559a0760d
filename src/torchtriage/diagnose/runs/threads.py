"""What other threads do while the loop's one takes its steps: they spin, or sleep although the loop waits for them."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence

from torchtriage.core.finding import Finding, Fix, Frame, Place
from torchtriage.core.names import file_name
from torchtriage.core.units import format_share
from torchtriage.diagnose.runs.account import SampledLoop, line_of
from torchtriage.diagnose.runs.causes import CAUSES, PYTHON, SLEEPING, Cause
from torchtriage.diagnose.runs.costs import WORTH, severity_of, share_cost
from torchtriage.diagnose.runs.samples import Look, Position, Samples
from torchtriage.diagnose.runs.source_view import Loop, SourceView, dotted

RIVAL = Cause(
    "HST108",
    "spinning-thread",
    "host",
    "Another thread keeps the interpreter busy",
    PYTHON,
    "another thread",
    Fix("Let the thread block (``queue.get``, ``event.wait``) instead of spinning, or make it a process."),
    looks="another thread of the process runs Python in most stack samples.",
    slow="one thread at a time runs Python: the loop waits up to 5 ms for its turn.",
    leave="the thread does the step's own work, and releases the lock while it does.",
)

SPINS, SLEEPS = 0.5, 0.5
"""Of the looks at another thread, what part finds it busy, or asleep."""
MIN_LOOKS = 8
WAITS = "HST112"
POLLING = next(cause for cause in CAUSES if cause.kind == SLEEPING)


def rival_threads(loop: SampledLoop, samples: Samples, view: SourceView, step_ms: float) -> Iterator[Finding]:
    """Yield a finding for each other thread that keeps the loop waiting: it spins in Python of the user's, or polls."""
    begin = min((item.look.begin_ns for item in loop.seen), default=0)
    end = max((item.look.end_ns for item in loop.seen), default=0)
    idle_share = loop.share(item for item in loop.seen if item.cause is not None and item.cause.code == WAITS)
    for thread, looks in samples.others.items():
        mine = [look for look in looks if begin <= look.begin_ns and look.end_ns <= end]
        span = sum(look.ns for look in mine)
        if span < 0.5 * (end - begin):
            continue
        name = samples.names.get(thread, str(thread))
        busy, asleep = [look for look in mine if _spins(look, view)], [look for look in mine if _polls(look, view)]
        share, slept = (sum(look.ns for look in some) / max(span, 1) for some in (busy, asleep))
        if len(busy) >= MIN_LOOKS and share >= SPINS:
            what = f"runs Python in {format_share(share)} of the steps' time"
            low, high = 0.1 * share, 0.9 * share
            method = "what the loop may wait for the interpreter's lock"
            yield _finding(RIVAL, busy, name, what, (low, high), method, loop, step_ms)
        elif len(asleep) >= MIN_LOOKS and slept >= SLEEPS and idle_share >= WORTH:
            # it looks again when half of a pause has passed, on average, after what it waits for
            what = f"sleeps and polls in {format_share(slept)} of the steps' time"
            method = "what the loop waits for work meanwhile"
            yield _finding(POLLING, asleep, name, what, (0.25 * idle_share, idle_share), method, loop, step_ms)


def _finding(
    cause: Cause,
    looks: Sequence[Look],
    name: str,
    what: str,
    shares: tuple[float, float],
    method: str,
    loop: SampledLoop,
    step_ms: float,
) -> Finding:
    file, function, line = Counter(line_of(look.stack[look.user[0]]) for look in looks).most_common(1)[0][0]
    low, high = shares
    return cause.finding(
        severity=severity_of(low, high),
        certainty="likely",
        message=f"thread {name} {what}, in {function}, {file_name(file)}:{line}; the loop waits for it",
        place=Place(frame=Frame(file, line, function, exact=True, lines=(line,))),
        cost=share_cost(low, high, step_ms, high, method, loop, "C"),
        evidence={"looks": len(looks)},
    )


ASKS = frozenset(["full", "empty", "qsize", "_qsize", "is_set", "locked", "done", "poll", "get_nowait", "put_nowait"])
BLOCKS = frozenset(["sleep", "acquire", "get", "wait", "recv", "read", "select", "poll", "join"])
"""Methods that look at a state and return at once: who calls them again and again does not wait."""


def _spins(look: Look, view: SourceView) -> bool:
    """Whether a thread was in Python of the user's, and not in a call that may wait or release the lock."""
    if look.user[:1] != (0,):
        # what it calls itself: a queue's get polls, too, and waits there
        return bool(look.user) and look.below[-1].name in ASKS
    call = view.call(look.stack[0])
    name = call.rpartition(".")[2]
    return not call.startswith(("torch.", "F.", "np.", "numpy.", "cv2.", "scipy.")) and name not in BLOCKS


def _polls(look: Look, view: SourceView) -> bool:
    """Whether a thread sleeps in a loop until something has come."""
    if look.user[:1] != (0,):
        return False
    position = look.stack[0]
    around = view.loops(position.file, position.line)
    sleeps = view.call(position).rpartition(".")[2] == "sleep"
    return sleeps and any(map(_only_asks, around[-1:])) and not paced(position, view)


def _only_asks(loop: Loop) -> bool:
    """Whether a loop does nothing but ask and sleep: a heartbeat does something each time."""
    return isinstance(loop, ast.While) and all(
        isinstance(statement, ast.If) or "sleep" in ast.unparse(statement) for statement in loop.body
    )


CONVERSIONS = frozenset(["float", "int", "abs", "min", "max", "round"])
REST = frozenset(["slack", "remaining", "left", "rest", "dt_left"])
"""Names of arguments that are what is left of a period; what gave them is not seen."""


def paced(position: Position, view: SourceView) -> bool:
    """Whether a sleep waits for a time to come, as a loop does that keeps a rate."""
    statement = view.statement(position.file, position.line, position.column)
    for node in ast.walk(statement) if statement is not None else ():
        if isinstance(node, ast.Call) and "sleep" in ast.unparse(node.func) and node.args:
            return _computed(node.args[0], position, view, frozenset())
    return False


def _computed(seconds: ast.expr, position: Position, view: SourceView, seen: frozenset[str]) -> bool:
    """Whether a time is the difference of two, or comes from a call that may look at a clock."""
    if isinstance(seconds, ast.Call):
        if seconds.args and all(isinstance(argument, ast.Constant) for argument in seconds.args):
            return False
        if dotted(seconds.func) not in CONVERSIONS:
            return True
    if isinstance(seconds, ast.BinOp) and isinstance(seconds.op, ast.Sub):
        return True
    if isinstance(seconds, ast.Subscript):
        return False
    if name := dotted(seconds):
        values = view.values(position, name) if name not in seen else []
        seen |= {name}
        return (
            any(_computed(value, position, view, seen) for value in values)
            if values
            else name.rpartition(".")[2] in REST
        )
    return any(
        _computed(part, position, view, seen) for part in ast.iter_child_nodes(seconds) if isinstance(part, ast.expr)
    )
