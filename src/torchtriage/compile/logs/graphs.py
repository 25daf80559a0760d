"""FX graphs as they are printed in a log: their nodes, and what became of them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

_NODE = re.compile(r'^ {4,}(?P<name>\w+)(?:: "(?P<type>[^"\n]*)")? = (?P<value>[^\n]+?)(?:; {2}[^\n]*)?$', re.MULTILINE)
_NODE_OR_LINE = re.compile(
    rf"{_NODE.pattern}|^ *# (?:Annotation: .*?)?File: (?P<file>[^\n]+?):(?P<line>\d+) in"
    r" (?P<function>[^\n,]+), code: (?P<code>[^\n]*)$|^ *# (?P<none>No stacktrace found)",
    re.MULTILINE,
)
_CALL = re.compile(r"^(?P<target>[A-Za-z_][\w.]*)\(")
_INFIX = re.compile(r"^[\w.\[\]()-]+ (?P<sign>\+|-|\*\*?|//?|%|@|[<>]=?|[=!]=|&|\||\^|<<|>>|and|or|in|is) ")
_INPUTS = re.compile(r"def forward\(\s*self(?P<inputs>.*?)\):\n", re.DOTALL)
_COMMENT = re.compile(r"  # [^\n]*")
_RETURNED = re.compile(r"^ +return (?P<value>\(\n.*?^ +\)|[^\n]+)$", re.MULTILINE | re.DOTALL)
_INPUT = re.compile(r'\b(?P<name>\w+): "(?P<type>[^"]*)"')
_MODULES = re.compile(r"^(?:torch|operator|_operator|math|builtins|prims|aten|self)\b")
_WORD = re.compile(r"[A-Za-z_]\w*")
_FROM = re.compile(r"# (?:Annotation: [^\n#]*?)?File: (?P<file>[^\n#]+?):(?P<line>\d+) in (?P<name>[^\n,:#]+), code:")


@dataclass(frozen=True, slots=True)
class FxNode:
    """One node of a printed graph; ``type`` : dtype, shape and device, where they are printed.

    ``op`` : ``input``, ``output``, or the operator, shortened. ``uses`` : names of nodes before it. ``place`` :
    ``file:line`` of the user's code, ``function`` the function around it.
    """

    name: str
    op: str
    type: str
    uses: tuple[str, ...]
    place: str = ""
    function: str = ""
    code: str = ""


def _op(value: str) -> str:
    call = _CALL.match(value)
    if call is not None:
        target = call["target"]
        if target.startswith("torch.ops."):
            space, _, rest = target[len("torch.ops.") :].partition(".")
            return rest.partition(".")[0] if space in ("aten", "prims") else f"{space}.{rest}"
        if _MODULES.match(target):
            return target.rpartition(".")[2] if target.startswith("torch.") else target
        return target.rpartition(".")[2] or target
    sign = _INFIX.match(value)
    if sign is not None:
        return sign["sign"]
    if "[" in value:
        return "getitem"
    return "" if _WORD.fullmatch(value) else "get_attr" if re.fullmatch(r"[\w.]+", value) else "other"


def count_ops(text: str) -> Counter[str]:
    """Return how often each operator stands in a printed graph; aliases are none."""
    ops = Counter(_op(match["value"]) for match in _NODE.finditer(text))
    ops.pop("", None)
    return ops


def nodes_of(text: str) -> list[FxNode]:
    """Return the nodes of a printed graph: inputs, operators in order, the output."""
    head = _INPUTS.search(text)
    inputs = _INPUT.finditer(head["inputs"]) if head is not None else ()
    nodes = [FxNode(parameter["name"], "input", parameter["type"], ()) for parameter in inputs]
    known = {node.name: node.name for node in nodes}

    def uses_of(value: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(known[word] for word in _WORD.findall(value) if word in known))

    place = function = code = ""
    for match in _NODE_OR_LINE.finditer(text):
        if match["file"] is not None:
            place, function, code = f"{match['file']}:{match['line']}", match["function"], match["code"]
            continue
        if match["none"] is not None:
            place = function = code = ""
            continue
        value = match["value"]
        op = _op(value)
        if not op and value in known:  # another name of the same node
            known[match["name"]] = known[value]
            continue
        nodes.append(FxNode(match["name"], op or "other", match["type"] or "", uses_of(value), place, function, code))
        known[match["name"]] = match["name"]
    returned = _RETURNED.search(text)
    if returned is not None:
        nodes.append(FxNode("output", "output", "", uses_of(_COMMENT.sub("", returned["value"]))))
    return nodes


def inlined(text: str) -> set[tuple[str, str]]:
    """Return (file, function) of every function whose lines are in a printed graph."""
    return {(match["file"], match["name"]) for match in _FROM.finditer(text)}


_DEFINED = re.compile(r"^(?P<name>\w+) = async_compile\.(?P<kind>\w+)\(", re.MULTILINE)
_ORIGINAL = re.compile(r"Original ATen: \[(?P<ops>[^\[\]\n]*)\]")
_EXTERN = re.compile(r"^ +(?:\w+ = )?extern_kernels\.(?P<name>\w+)\(", re.MULTILINE)
_FALLBACK = re.compile(r"^ +(?:\w+ = )?torch\.ops\.(?P<name>[\w.]+)\(", re.MULTILINE)


@dataclass(frozen=True)
class Kernels:
    """What Inductor's output code calls: kernels it wrote, library calls, operators left as is.

    ``generated`` : name and the number of operators fused into it (0 where not logged).
    """

    generated: tuple[tuple[str, str, int], ...]
    library: tuple[str, ...]
    fallback: tuple[str, ...]


def kernels_of(code: str) -> Kernels:
    """Return the kernels in Inductor's output code."""
    generated = []
    begin = 0
    for match in _DEFINED.finditer(code):
        # the comment of a kernel stands right above it
        lists = _ORIGINAL.findall(code, begin, match.start())
        begin = match.end()
        ops = [op for op in lists[-1].split(",") if op.strip()] if lists else []
        generated.append((match["name"], match["kind"], len(ops)))
    library = tuple(match["name"] for match in _EXTERN.finditer(code))
    fallback = tuple(
        match["name"] for match in _FALLBACK.finditer(code) if not match["name"].startswith(("inductor", "_inductor"))
    )
    return Kernels(tuple(generated), library, fallback)
