"""Why a graph ended: the text that dynamo writes at a graph break, taken apart.

The words changed with the versions. torch 2.7 and later write a type, an explanation, hints, and from 2.9 on a link
that ends in the break's id (``gb0170``); before that there is one sentence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from torchtriage.compile.logs.locations import is_library, parse_traceback, user_frame
from torchtriage.core.finding import Frame

_MAX_SENTENCE = 4_096
"""Characters of a reason that is no more than a sentence: a longer one is no text for people."""
_PLACE = re.compile(r"^Graph [Bb]reak[^\n]*? in user code at ([^\n]+)", re.MULTILINE)
_REASON = re.compile(r"^(?:Graph Break )?Reason: ?(?P<reason>[^\n]*)$", re.MULTILINE)
_TRYING = re.compile(r"^Encountered graph break when attempting to trace ([^\n]*)$")
_EXPLAINED = re.compile(r"^ {2}Explanation: ?", re.MULTILINE)
_PART = re.compile(r"^ {2}(Explanation|Hint|Developer debug context): ?", re.MULTILINE)
_ID = re.compile(r"/gb/(gb\d{4})(?:\.html)?")
_MORE = re.compile(r"^[^\S\n]*For more details about this graph break[^\n]*", re.MULTILINE)
_UNRESUMED = re.compile(
    r"^torch\.compile cannot properly resume from this graph break[^\n]*"
    r"(?:\n[^\n]*skip tracing[^\n]*)?"
)
_CODE_BELOW = re.compile(r"^The graph break occurred in the following user code:\s*\n", re.MULTILINE)
_UNGRACEFUL = re.compile(r"^Failed to handle graph break gracefully\.[^\n]*?encountered:\s*")
_END = re.compile(
    r"^(?:User code traceback|Traceback \(most recent call last\)|NoneType: None|from user code)", re.MULTILINE
)
_FROM_USER = re.compile(r"from user code(?: at)?:\s*\n")

# How torch before 2.7 described what has a type now: facts of the break's registry.
_OLD = (
    (r"generic_jump|TensorVariable\(\).*jump", "Data-dependent branching"),
    (
        r"Tensor\.item|call_method TensorVariable\(\) item",
        "Unsupported Tensor.item() call with capture_scalar_outputs=False",
    ),
    (r"data[ -]dependent operator|DataDependentOutputException|_local_scalar_dense", "Data dependent operator"),
    (r"dynamic shape operator|DynamicOutputShapeException|aten\.nonzero", "Dynamic shape operator"),
    (
        r"skip function graph_break in file|call_function args:.*graph_break"
        r"|^'?torch\._dynamo\.graph_break",
        "Call to `torch._dynamo.graph_break()`",
    ),
    (r"builtin: print|BuiltinVariable\(print\)", "Failed to trace builtin operator"),
    (
        r"call_function in skip_files|'?skip function |call .*in skip_files",
        "Attempted to call function marked as skipped",
    ),
    (r"inline in skipfiles|inlining .*skipped", "Attempted to inline function marked as skipped"),
    (r"numpy|call_function NumpyVariable", "numpy"),
    (r"setattr\(", "Unsupported setattr"),
    (r"torch\.\* op returned non-Tensor", "torch.* op returned non-Tensor"),
    (
        r"wrapped by.*disable|torch\._dynamo\.disable|torch\.compiler\.disable",
        "Skip calling `torch.compiler.disable()`d function",
    ),
    (r"cache_size_limit|recompile_limit|recompile limit", "Dynamo recompile limit exceeded"),
)


@dataclass(frozen=True)
class Break:
    """One record of a graph break.

    ``id`` : PyTorch's, ``GB0170``; empty where the log does not have it. ``type`` : its name there, or the sentence of
    older versions. ``trying`` : what dynamo was tracing. ``frame`` : where in user code, as PyTorch means it (the
    innermost frame outside of what dynamo inlines blindly); None where the log does not say. ``stack`` : innermost
    first. ``caller`` : the innermost frame that is no library's. ``is_repeat`` : the log left the stack out, having
    shown it before.
    """

    id: str = ""
    type: str = ""
    explanation: str = ""
    hints: tuple[str, ...] = ()
    context: str = ""
    trying: str = ""
    frame: Frame | None = None
    stack: tuple[Frame, ...] = ()
    caller: Frame | None = None
    is_repeat: bool = False


def parse_break(text: str) -> Break | None:
    """Return the break in a ``dynamo_graph_break_reason``, None where there is none."""
    if not re.match(r"\s*Graph [Bb]reak", text):
        return None
    place = _PLACE.search(text)
    reason = _REASON.search(text)
    body = text[reason.start("reason") :] if reason else text.partition(":")[2].lstrip()
    unresumed = _UNRESUMED.match(body)
    if unresumed is not None:
        below = _CODE_BELOW.search(body)
        explanation = " ".join(unresumed[0].split())
        graph_break = Break(type="Cannot resume after a graph break", explanation=explanation)
        return _with_stack(graph_break, body[below.end() :] if below else "")
    end = _END.search(body)
    traceback = ""
    if end is not None:
        body, rest = body[: end.start()], body[end.start() :]
        # what follows the user's traceback is dynamo's own
        traceback = re.split(r"\n(?:Traceback \(most recent|NoneType: None)", rest, maxsplit=1)[0]
    stack = parse_traceback(traceback)
    frame = stack[0] if stack else None
    file, _, line = place[1].rstrip().rpartition(":") if place else ("", "", "")
    if file and line.isdecimal():
        named = Frame(file, int(line[:9]), "", True)
        frame = next((inner for inner in stack if (inner.file, inner.line) == (named.file, named.line)), named)
    return replace(
        _parts(body),
        frame=frame,
        stack=stack,
        caller=user_frame(stack) or (frame if frame and not is_library(frame.file) else None),
        is_repeat="duplicate graph break" in text[:200] or "details suppressed" in text[:200],
    )


def _with_stack(graph_break: Break, traceback: str) -> Break:
    stack = parse_traceback(traceback)
    return replace(graph_break, stack=stack, frame=stack[0] if stack else None, caller=user_frame(stack))


def parse_restart(text: str) -> Break:
    """Return the break in a ``restart_reasons`` of older logs, which names no line."""
    user = _FROM_USER.search(text)
    if user is None:
        return _parts(text)
    return _with_stack(_parts(text[: user.start()]), text[user.end() :])


def _parts(body: str) -> Break:
    link = _ID.search(body)
    gb_id = link[1].upper() if link else ""
    body = _UNGRACEFUL.sub("", _MORE.sub("", body).lstrip())
    trying = ""
    head, _, rest = body.partition("\n")
    tried = _TRYING.match(head)
    if tried is not None:
        trying, body = tried[1].rstrip().removesuffix(":"), rest
    explained = _EXPLAINED.search(body)
    if explained is None:
        sentence = " ".join(body.split()).strip("'\" ")[:_MAX_SENTENCE]
        kind = next((name for pattern, name in _OLD if re.search(pattern, sentence)), sentence[:200])
        return Break(gb_id, kind, sentence, trying=trying)
    kind = " ".join(body[: explained.start()].split())
    marks = list(_PART.finditer(body))
    ends = [mark.start() for mark in marks[1:]] + [len(body)]
    parts = [(mark[1], body[mark.end() : end].strip()) for mark, end in zip(marks, ends, strict=True)]
    explanation = next((text for name, text in parts if name == "Explanation"), "")
    context = next((text for name, text in parts if name.startswith("Developer")), "")
    hints = tuple(" ".join(text.split()) for name, text in parts if name == "Hint")
    return Break(gb_id, kind, explanation, hints, context, trying)
