"""The lines that Inductor's kernels compute, out of a structured log (``TORCH_TRACE``).

A comment above each call in Inductor's output code names nodes of FX graphs, and the graphs are logged with the line of
each node; those of a backward graph are lines of the forward one. With ``INDUCTOR_PROVENANCE=1`` each call has a number
and the log the stacks behind it, which tell more: of library code, who called it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.json import decode

from torchtriage.compile.logs.entries import LogEntry, read_entries
from torchtriage.compile.logs.graphs import FxNode, nodes_of
from torchtriage.compile.logs.locations import parse_traceback, user_frame, whole_name
from torchtriage.compile.logs.read import HOW, find_logs, opened, rank_of
from torchtriage.core.errors import LogError
from torchtriage.core.finding import Frame

_POST_GRAD = ("inductor_post_grad_graph", "after_post_grad_graph")
_STACKS = "inductor_provenance_tracking_kernel_stack_traces"
_KEYS = ("fx_graph_cache_hit", "fx_graph_cache_miss")
_IDLE = re.compile(
    r"(_unsafe_)?view|alias|as_strided|detach|expand|getitem|permute|reshape|select|slice|split(_with_sizes)?"
    r"|(un)?squeeze|t|transpose|unbind|full|scalar_tensor"
)
"""Operators that compute nothing in a kernel: views, and constants, which nodes of other lines may share."""
_DEFECTS = (msgspec.DecodeError, ValueError, KeyError, TypeError, AttributeError, RecursionError)

_NODES = r"^ *(?:#|//) (?:Topologically Sorted|Unsorted) Source Nodes: \[(?P<nodes>[^\]\n]*)\]"
_MAPS = r"^# {3}(?P<source>\w*) => (?P<post>[\w, ]+)$"
_DEFINED = r"^(?P<defined>\w+) = async_compile\.\w+\("
_HANDLE = r"^ +# \[Provenance debug handles\] (?P<handle>[\w.]+:\d+)$"
_CALLED = (
    r"^ +(?:\w+ = )?(?:(?P<kernel>(?:triton|cpp)_\w+)(?:\.run)?(?!\(\*)"
    r"|(?:extern_kernels|torch\.ops\.aten)\.(?P<extern>\w+)[\w.]*)\("
)
_CODE = re.compile("|".join((_NODES, _MAPS, _DEFINED, _HANDLE, _CALLED)), re.MULTILINE)


@dataclass(frozen=True)
class KernelCall:
    """A call in Inductor's code: of a kernel it wrote, by its name, or of an operator (``aten::mm``).

    ``lines`` : the user's lines that it computes, first things first; empty where they are not known.
    """

    name: str
    lines: tuple[Frame, ...]


@dataclass
class GraphCode:
    """Inductor's code of one graph. ``key`` : the graph's in the cache, with which a trace names its calls."""

    calls: tuple[KernelCall, ...]
    key: str = ""


def read_graph_codes(path: str, rank: int | None = None) -> list[GraphCode]:
    """Return the graphs' code in a log or a folder of logs; of several ranks those of ``rank``, where it is known.

    Raises LogError: there is no log, or Inductor's code is not in it.
    """
    files = find_logs([path])
    mine = [file for file in files if rank is not None and rank_of(file) == rank] or files
    codes: list[GraphCode] = []
    for file in mine:
        with opened(file) as (stream, _, _):
            codes += _Reader().read(read_entries(stream))
    if not codes:
        raise LogError("expected a log with Inductor's output code, found none", where=path, hint=HOW)
    return codes


_Line = tuple[Frame, bool]
"""A line, and whether its node computes anything."""
_Lines = dict[str, _Line | None]
"""Of nodes by their names; None for a name of two lines, in graphs within the graph, and for what is not the user's."""


@dataclass
class _Graph:
    """A compilation: the text of its dynamo graph, and lines of nodes before autograd and after.

    ``moved`` : where lines of the graph after autograd are today; empty where that is not known.
    """

    dynamo: list[FxNode] = field(default_factory=list)
    before: _Lines = field(default_factory=dict)
    after: _Lines = field(default_factory=dict)
    moved: dict[Frame, Frame] = field(default_factory=dict)
    code: str = ""
    last: GraphCode | None = None


class _Reader:
    """Takes in entries in order: graphs come before their code, its key and its stacks after it."""

    def __init__(self) -> None:
        self.graphs: dict[tuple[Any, ...], _Graph] = {}

    def read(self, entries: Iterator[LogEntry]) -> Iterator[GraphCode]:
        for entry in entries:
            if entry.kind not in ("dynamo_output_graph", "inductor_output_code", "artifact", *_POST_GRAD):
                continue
            try:
                code = self._take(entry)
            except _DEFECTS:  # what is damaged tells nothing
                continue
            if code is not None:
                yield code

    def _take(self, entry: LogEntry) -> GraphCode | None:
        head = decode(entry.json)
        compile_id = tuple(head.get(name) for name in ("compiled_autograd_id", "frame_id", "frame_compile_id"))
        graph = self.graphs.setdefault(compile_id, _Graph())
        name = head["artifact"]["name"] if entry.kind == "artifact" else entry.kind
        if name == "dynamo_output_graph":
            graph.dynamo = nodes_of(_text(entry))
            graph.before, graph.after, graph.moved = _lines(graph.dynamo), {}, {}
        elif name in _POST_GRAD:
            nodes = nodes_of(_text(entry))
            graph.moved = _moved(nodes, graph.dynamo)
            graph.after = _lines(nodes, graph.moved) if graph.moved else {}
        elif name == "inductor_output_code":
            graph.code = _text(entry)
            graph.last = GraphCode(tuple(_calls(graph, {})))
            return graph.last
        elif name in _KEYS and graph.last is not None:
            graph.last.key = str(decode(entry.indented).get("key") or "")
        elif name == _STACKS and graph.last is not None and entry.indented:
            graph.last.calls = tuple(_calls(graph, decode(entry.indented)))
        return None


def _text(entry: LogEntry) -> str:
    return entry.payload.decode("utf-8", "replace")


def _line(node: FxNode) -> Frame | None:
    """Return the user's line of a node, None where it is of no line or of a library's."""
    file, _, line = node.place.rpartition(":")
    return user_frame([Frame(file, int(line), whole_name(node.function), exact=True)] if file else [])


def _moved(nodes: Sequence[FxNode], today: Sequence[FxNode]) -> dict[Frame, Frame]:
    """Return where the lines of a graph are in the one it comes from; empty where they are not all there.

    A graph out of a cache may be of another program, or of one that was edited since: then lines of the same text in
    the same function are the same, in order.
    """
    texts: dict[tuple[str, str, str], tuple[set[Frame], set[Frame]]] = {}
    for side, some in enumerate((nodes, today)):
        for node in some:
            line = _line(node)
            if line is not None:
                texts.setdefault((line.file, line.function, node.code), (set(), set()))[side].add(line)
    moved: dict[Frame, Frame] = {}
    for then, now in texts.values():
        if not then <= now and len(then) != len(now):
            return {}
        ordered = [sorted(lines, key=lambda line: line.line) for lines in (then, then if then <= now else now)]
        moved.update(zip(*ordered, strict=True))
    return moved


def _lines(nodes: Sequence[FxNode], moved: Mapping[Frame, Frame] | None = None) -> _Lines:
    lines: _Lines = {}
    for node in nodes:
        line = _line(node)
        if line is not None and moved is not None:
            line = moved[line]
        of = (line, _IDLE.fullmatch(node.op) is None) if line is not None else None
        lines[node.name] = of if lines.get(node.name, of) == of else None
    return lines


def _calls(graph: _Graph, stacks: dict[str, list[str]]) -> Iterator[KernelCall]:
    """Yield the calls in a graph's code; ``stacks`` : of calls by their handle, where they are logged."""
    order = {line[0]: number for number, line in enumerate(reversed(graph.after.values())) if line is not None}
    unmoved = bool(graph.moved) and all(then == now for then, now in graph.moved.items())
    defined: dict[str, tuple[str, dict[str, str]]] = {}
    nodes = handle = ""
    maps: dict[str, str] = {}
    for match in _CODE.finditer(graph.code):
        if match["nodes"] is not None:
            nodes, handle, maps = match["nodes"], "", {}
        elif match["source"] is not None:
            maps[match["source"]] = match["post"]
        elif match["defined"] is not None:
            defined[match["defined"]] = nodes, maps
            nodes, maps = "", {}
        elif match["handle"] is not None:
            handle = match["handle"]
        else:
            name = match["kernel"] or f"aten::{match['extern']}"
            lines = _of_nodes(graph, nodes, *defined.get(name, ("", {}))) if graph.after else []
            known = filter(None, (user_frame(parse_traceback(stack)) for stack in stacks.get(handle, ())))
            moved = (graph.moved.get(line, line if unmoved else None) for line in known)
            found = sorted(filter(None, moved), key=lambda line: -order.get(line, -1))
            if match["extern"]:  # its own node is the last: those before it are its inputs' views
                found = [line for line, _ in lines[-1:]] or found[-1:]
            elif any(computes for _, computes in lines):
                named = {line for line, _ in lines}
                found = [line for line, computes in lines if computes] + [line for line in found if line not in named]
            else:
                found = found or [line for line, _ in lines]
            yield KernelCall(name, tuple(dict.fromkeys(found)))
            nodes, handle, maps = "", "", {}


def _of_nodes(graph: _Graph, nodes: str, defined: str, maps: dict[str, str]) -> list[_Line]:
    """Return the lines of nodes that a comment names: through what became of them, or by a name before autograd.

    A backward graph's nodes have names of their own, which may be another's before autograd: then they tell nothing.
    ``defined``, ``maps`` : the nodes of the kernel's first call, in the same order, and what became of them.
    """
    found: list[_Line] = []
    names, firsts = nodes.split(", "), defined.split(", ")
    for name, first in zip(names, firsts if len(firsts) == len(names) else names, strict=True):
        became = [line for after in maps.get(first, "").split(", ") if (line := graph.after.get(after))]
        if nodes == defined and maps:
            found += became
            continue
        known = [lines[name] for lines in (graph.before, graph.after) if name in lines]
        line = known[0] if known else None
        if line is not None and all(other is not None and other[0] == line[0] for other in known):
            found.append((line[0], any(computes for _, computes in became) if became else line[1]))
    return found
