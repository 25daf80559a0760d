"""FX graphs as drawings: nodes placed by Graphviz, large graphs collapsed by line or function.

Needs the ``draw`` extra (pygraphviz, whose wheels bring Graphviz along). Without it a result has no drawings, and
says so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torchtriage.compile.logs.graphs import FxNode, nodes_of
from torchtriage.compile.logs.locations import part_name
from torchtriage.compile.logs.process_log import ProcessLog
from torchtriage.compile.logs.result import CompileResult, Drawing
from torchtriage.core.finding import Note
from torchtriage.core.units import format_count

MAX_BOXES = 120
"""A drawing with more is collapsed."""
MAX_DRAWINGS = 24
"""Of the first process; of all others together as many again."""
MAX_EDGES = 600
_DEVICE = re.compile(r"(?<=\bcuda):\d+")
"""What differs between the graphs of ranks that do the same."""
_POINTS = 72.0
_HEIGHT = 30.0
_KINDS = {
    "dynamo": "FX graph of Dynamo",
    "forward": "forward, after AOTAutograd",
    "backward": "backward, after AOTAutograd",
    "after autograd": "after Inductor's passes",
    "compiled autograd": "compiled autograd",
}


def can_draw() -> bool:
    """Return whether the layout engine is installed."""
    return find_spec("pygraphviz") is not None


def with_drawings(result: CompileResult, logs: Sequence[ProcessLog]) -> CompileResult:
    """Return the result with its graphs drawn, and a note on those that are not."""
    n_graphs = sum(sum(log.n_graphs.values()) for log in logs)
    if not n_graphs:
        return result
    if not can_draw():
        text = "the page has no graph drawings: no layout engine is installed"
        note = Note("graphs-not-drawn", "info", text, "pip install 'torchtriage[draw]'")
        return replace(result, notes=(*result.notes, note))
    drawings, n_shown = draw(result, logs)
    notes = result.notes
    if n_shown < n_graphs:
        left = format_count(n_graphs - n_shown, "graph")
        text = f"{left} of {n_graphs:,} not drawn: only the first of each process are"
        notes = (*notes, Note("graphs-left-out", "info", text))
    return replace(result, drawings=drawings, notes=notes)


def draw(result: CompileResult, logs: Sequence[ProcessLog]) -> tuple[tuple[Drawing, ...], int]:
    """Return graphs as drawings, in the order they were made, and how many of the logs' they show.

    Equal graphs of several processes are drawn once. The first process has up to 24, all others together as many
    again.
    """
    ended = {
        compile_id: f"{graph_break.id or 'graph break'} {graph_break.type}"
        + (f", {graph_break.frame.file}:{graph_break.frame.line}" if graph_break.frame else "")
        for graph_break in result.breaks
        for compile_id in graph_break.compile_ids
    }
    drawings: dict[tuple[object, ...], Drawing] = {}
    n_shown = 0
    most = MAX_DRAWINGS
    for place, log in enumerate(logs):
        name = _process(log, logs)
        if place:
            most = len(drawings) + max((2 * MAX_DRAWINGS - len(drawings)) // (len(logs) - place), 1)
        met: Counter[tuple[str, str]] = Counter()
        for compile_id, kind, text in log.graphs:
            key = (compile_id, kind, met[compile_id, kind], _DEVICE.sub("", text))
            met[compile_id, kind] += 1
            known = drawings.get(key)
            if known is not None:
                drawings[key] = replace(known, processes=(*known.processes, name))
                n_shown += 1
                continue
            nodes = nodes_of(text)
            if len(nodes) < 2:  # nothing to see
                n_shown += 1
            elif len(drawings) < most:
                of = part_name(log.compilation(compile_id).name)
                title = f"{compile_id} {of}: {_KINDS.get(kind, kind)}".strip()
                end = ended.get(compile_id, "") if kind == "dynamo" else ""
                boxes, edges, how = _collapsed(nodes)
                placed, width, height = _placed(boxes, edges)
                drawings[key] = Drawing(
                    title=f"{title}, {format_count(len(nodes), 'node')}{how}",
                    kind=kind,
                    compile_id=compile_id,
                    n_nodes=len(nodes),
                    width=width,
                    height=height,
                    nodes=placed,
                    edges=tuple(edges),
                    end=end,
                    processes=(name,) if name else (),
                )
                n_shown += 1
    return tuple(drawings.values()), n_shown


def _process(log: ProcessLog, logs: Sequence[ProcessLog]) -> str:
    """Return what distinguishes a process from the others; empty where there is one."""
    if len(logs) < 2:
        return ""
    rank = log.rank
    same = [other for other in logs if other.rank == rank]
    if rank is None:
        return Path(log.path).name
    again = next(place for place, other in enumerate(same) if other is log)
    return f"rank {rank}" + (f", restart {again}" if again else "")


_Box = tuple[str, str, str]
"""Label, kind, and the text below it and on pointing at it."""


def _collapsed(nodes: Sequence[FxNode]) -> tuple[list[_Box], list[tuple[int, int]], str]:
    """Return boxes and the edges between them, few enough to be seen.

    A graph of up to 120 nodes is drawn as it is; else one box holds neighbours of one line, of one function, or at
    last of as many nodes as it takes.
    """
    keys: list[tuple[str, list[object]]] = [
        ("", list(range(len(nodes)))),
        (", one box for each line", _runs([_own(n) or n.place or n.name for n in nodes])),
        (", one box for each function", _runs([_own(n) or _function(n) for n in nodes])),
        (", one box for each function wherever it is called", [_own(n) or _function(n) for n in nodes]),
    ]
    how, key = next(((how, key) for how, key in keys if len(set(key)) <= MAX_BOXES), ("", keys[-1][1]))
    if len(set(key)) > MAX_BOXES:
        share = -(-len(nodes) // MAX_BOXES)
        how, key = f", one box for {share} nodes", [place // share for place in range(len(nodes))]
    order = {value: place for place, value in enumerate(dict.fromkeys(key))}
    members: list[list[FxNode]] = [[] for _ in order]
    home = {}
    for node, value in zip(nodes, key, strict=True):
        members[order[value]].append(node)
        home[node.name] = order[value]
    edges: dict[tuple[int, int], None] = {}
    for node in nodes:
        for used in node.uses:
            edge = home[used], home[node.name]
            if edge[0] != edge[1] and len(edges) < MAX_EDGES:
                edges[edge] = None
    return [_box(group) for group in members], list(edges), how


def _own(node: FxNode) -> str:
    return f"{node.op}s" if node.op in ("input", "output", "get_attr") else ""


def _function(node: FxNode) -> str:
    return f"{node.place.rpartition(':')[0]} {node.function}" if node.place else "elsewhere"


def _runs(keys: Iterable[str]) -> list[object]:
    """Return keys of which only neighbours share one."""
    runs: list[object] = []
    last, number = None, 0
    for key in keys:
        number += key != last
        runs.append(key if key in ("inputs", "outputs", "get_attrs") else (number, key))
        last = key
    return runs


def _box(group: Sequence[FxNode]) -> _Box:
    first = group[0]
    if len(group) == 1:
        kind = first.op if first.op in ("input", "output") else "op"
        label = first.name if kind == "input" else first.op
        shape = re.sub(r"^([^\[]*\[[^\]]*\]).*", r"\1", first.type)
        return label, kind, "\n".join([shape, first.name, first.type, f"{first.place} {first.code}".strip()])
    ops = Counter(node.op for node in group if node.op not in ("input", "output"))
    if not ops:
        return format_count(len(group), first.op), "input", "\n".join(node.name for node in group)
    label = first.function or "elsewhere"
    most = ", ".join(f"{count} {name}" for name, count in ops.most_common(8))
    return label, "group", f"{format_count(len(group), 'node')}\n{most}\n{first.place} {first.code}".strip()


def _placed(
    boxes: Sequence[_Box], edges: Sequence[tuple[int, int]]
) -> tuple[tuple[tuple[str, str, str, float, float, float, float], ...], float, float]:
    """Return the boxes with centre, width and height in pixels, and the drawing's size."""
    import pygraphviz

    graph: Any = pygraphviz.AGraph(directed=True, rankdir="TB", nodesep="0.15", ranksep="0.3")
    fixed = {"shape": "box", "fixedsize": "true", "label": "", "height": f"{_HEIGHT / _POINTS:.3f}"}
    widths = []
    for place, (label, _, detail) in enumerate(boxes):
        below = detail.split("\n", 1)[0]
        widths.append(float(min(max(7 * min(len(label), 40), 6 * min(len(below), 40)) + 14, 300)))
        graph.add_node(place, width=f"{widths[-1] / _POINTS:.3f}", **fixed)
    graph.add_edges_from(edges)
    graph.layout("dot")
    bounds = [float(bound) for bound in str(graph.graph_attr["bb"]).split(",")]
    placed = []
    for place, (label, kind, detail) in enumerate(boxes):
        x, y = (float(number) for number in str(graph.get_node(place).attr["pos"]).split(",")[:2])
        placed.append((label, kind, detail, round(x + 4, 1), round(bounds[3] - y + 4, 1), widths[place], _HEIGHT))
    return tuple(placed), round(bounds[2] + 8, 1), round(bounds[3] + 8, 1)
