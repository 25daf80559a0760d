"""Python frames as the profiler names them: ``file.py(LINE): function``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from torchtriage.core.arrays import Ints
from torchtriage.core.finding import Frame
from torchtriage.core.intervals import Spans
from torchtriage.core.trace.schema import PSEUDONYM, Kind

if TYPE_CHECKING:
    from torchtriage.core.trace.columns import Trace
    from torchtriage.core.trace.nesting import Tree

PYTHON_FRAME = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$", re.DOTALL)
_METHOD = re.compile(r"^<(?:built-in )?method '?(?P<method>[^' ]+)'? of (?P<owner>.+?)>$")
_BUILTIN = re.compile(r"^<(?:built-in )?(?:function|method) '?(?P<name>[^' >]+)'?")
_MODULE = "nn.Module: "
_ADDRESS = re.compile(r"(?: object)? at 0x[0-9a-fA-F]+")
_RESUME = re.compile(r"^torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d+)$")
# libraries a user does not edit; paths are shortened by sys.path prefix, so also matched inside
LIBRARIES = (
    r"torch|torchvision|torchaudio|torchrec|transformers|diffusers|timm|accelerate|lightning"
    r"|pytorch_lightning|numpy|PIL|scipy|pandas|sklearn|cv2|tqdm|triton|functorch|vllm|sglang"
    r"|xformers|flash_attn|aiter|apex|deepspeed|megatron|einops|peft|trl|torch_geometric|torchmetrics|torchdiffeq"
    r"|gpytorch|kornia|skimage|matplotlib|networkx|numba|tokenizers|safetensors|bitsandbytes"
)
STANDARD_ANYWHERE = "importlib|asyncio|multiprocessing|concurrent|logging|json|unittest"
STANDARD_FIRST = "collections|ctypes|email|encodings|http|re|urllib|xml"
INDUCTOR_FILE = rf"(?P<folder>\w\w)/c(?P=folder)(?:[a-z2-7]{{40,}}|{PSEUDONYM.pattern})\.py"
"""The end of the path of code that Inductor generates, wherever its cache is: a hash, also anonymised."""
_LIBRARY = re.compile(
    rf"(^|/)({LIBRARIES}|{STANDARD_ANYWHERE}|site-packages|dist-packages)/|^({STANDARD_FIRST})/"
    r"|lib/python\d|^<frozen|^<string>|^<eval_with_key>"
    rf"|(^|/){INDUCTOR_FILE}$"
    r"|^(threading|contextlib|functools|typing|abc|queue|weakref|copy|random|inspect|runpy|os"
    r"|re|enum|types|warnings|collections|dataclasses|traceback|linecache|socket|selectors"
    r"|subprocess|pickle|copyreg|operator|time|sre_\w+|_\w+)\.py$"
)


@lru_cache(maxsize=65536)
def parse_frame(name: str) -> Frame | None:
    """Return the frame a ``python_function`` name stands for; None for built-ins and modules."""
    match = PYTHON_FRAME.match(name)
    if match is None:
        return None
    function = match["function"]
    resume = _RESUME.match(function)
    if resume is not None:
        # dynamo names the continuation after the line the graph broke at
        return Frame(match["file"], int(resume["line"]), resume["function"], exact=True)
    return Frame(match["file"], int(match["line"]), function)


@lru_cache(maxsize=65536)
def is_user_frame(name: str) -> bool:
    """Return whether a frame name is code of the user rather than of a library."""
    frame = parse_frame(name)
    return frame is not None and _LIBRARY.search(frame.file) is None


@lru_cache(maxsize=65536)
def frame_label(name: str) -> str:
    """Return a name without memory addresses, which differ from run to run of one program.

    ``<built-in method decode of Decoder object at 0x7f...>`` is ``decode of Decoder``.
    """
    name = _ADDRESS.sub("", name)
    method = _METHOD.match(name)
    return f"{method['method']} of {method['owner']}" if method is not None else name


@dataclass(frozen=True)
class FrameCall:
    """One call a frame makes, as recorded.

    ``kind`` : ``python`` (a function), ``builtin`` (of C), ``module`` (an ``nn.Module``, by class), ``op`` (an operator
    without a call of its own, such as ``a @ b``). ``row`` : of the trace.
    """

    kind: Literal["python", "builtin", "module", "op"]
    name: str
    row: int
    file: str = ""
    line: int = 0


@lru_cache(maxsize=65536)
def call_name(name: str) -> tuple[Literal["python", "builtin", "module"], str, str, int]:
    """Return kind, short name, file and line of a ``python_function`` row's name."""
    if name.startswith(_MODULE):
        return "module", re.sub(r"_\d+$", "", name[len(_MODULE) :]), "", 0
    match = PYTHON_FRAME.match(name)
    if match is not None:
        return "python", match["function"], match["file"], int(match["line"])
    builtin = _BUILTIN.match(name)
    return "builtin", builtin["name"] if builtin is not None else name, "", 0


def op_name(name: str) -> str:
    """Return an operator's name without namespace and mark: ``add`` for ``aten::add_``."""
    name = name.rpartition("::")[2].partition(".")[0]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def open_rows(trace: Trace, row: int) -> list[int]:
    """Return the rows of all Python frames open at a host row, innermost first.

    A frame's own row comes first in its own list. Empty without ``with_stack``.
    """
    if not trace.has_stacks:
        return []
    frames = trace.frames
    if trace.kind[row] == Kind.PYTHON:
        return [row, *frames.chain(row)]
    inner = int(frames.at(trace.lane[[row]], trace.start_ns[np.array([row])])[0])
    return [] if inner < 0 else [inner, *frames.chain(inner)]


@dataclass(frozen=True)
class Calls:
    """What one frame calls, in time order: frames, and operators it runs without a call.

    ``before``, ``after`` : there are calls that are not listed, because they are very many or came after the recording
    had stopped.
    """

    calls: tuple[FrameCall, ...]
    before: bool
    after: bool


def calls_of(trace: Trace, row: int, around: int, *, limit: int = 20_000) -> Calls:
    """Return what one frame calls, at most ``limit`` calls before and after one of them."""
    children = _inside(trace, trace.frames, row)
    children = children[trace.frames.parent[children] == row]
    rows = np.concatenate([children, _own_ops(trace, row, children)])
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    at = int(np.searchsorted(trace.start_ns[rows], trace.start_ns[around]))
    first, last = max(at - limit, 0), min(at + limit, len(rows))
    members = trace.frames.members_of(int(trace.lane[row]))
    # what is still open when the recording stops ends with it
    stopped = int(trace.end_ns[row]) >= int(trace.end_ns[members].max())
    calls = []
    for item in rows[first:last].tolist():
        name = trace.name_of(item)
        if trace.kind[item] == Kind.PYTHON:
            kind, short, file, line = call_name(name)
            calls.append(FrameCall(kind, short, item, file, line))
        else:
            calls.append(FrameCall("op", op_name(name), item))
    return Calls(tuple(calls), first > 0, last < len(rows) or stopped)


def _inside(trace: Trace, tree: Tree, row: int) -> Ints:
    """Return the members of a tree that start while a row is open, on its thread."""
    members = tree.members_of(int(trace.lane[row]))
    span = trace.start_ns[row], trace.end_ns[row]
    first, last = np.searchsorted(trace.start_ns[members], span).tolist()
    return members[first:last]


def _own_ops(trace: Trace, row: int, children: Ints) -> Ints:
    """Return the outermost operators a frame runs without calling anything."""
    ops = _inside(trace, trace.tree, row)
    ops = ops[trace.kind[ops] == Kind.OP]
    if len(children):
        ends = np.maximum.accumulate(trace.end_ns[children])
        before = np.searchsorted(trace.start_ns[children], trace.start_ns[ops], side="right") - 1
        ops = ops[(before < 0) | (trace.start_ns[ops] >= ends[np.maximum(before, 0)])]
    if len(ops):
        # an operator inside another one is that one's
        ends = np.maximum.accumulate(trace.end_ns[ops])
        inside = np.flatnonzero(trace.start_ns[ops][1:] < ends[:-1]) + 1
        ops = np.delete(ops, inside)
    return ops


def user_rows(trace: Trace, row: int, *, limit: int = 6) -> list[tuple[int, int]]:
    """Return the frames of :func:`user_stack` as rows, each with the row it calls, else -1.

    What the innermost frame calls without a frame in between is the outermost operator there.
    """
    chain = open_rows(trace, row)
    below = [-1 if chain[:1] == [row] else _outermost_op(trace, row, chain), *chain]
    names = [trace.name_of(item) for item in chain]
    user = [index for index, name in enumerate(names) if is_user_frame(name)]
    chosen = user or [index for index, name in enumerate(names) if parse_frame(name) is not None]
    return [(chain[index], below[index]) for index in chosen[:limit]]


def _outermost_op(trace: Trace, row: int, chain: list[int]) -> int:
    if not chain or not trace.hosts[row]:
        return row
    inside = [
        item
        for item in [row, *trace.tree.chain(row)]
        if trace.kind[item] == Kind.OP and trace.start_ns[item] >= trace.start_ns[chain[0]]
    ]
    return inside[-1] if inside else row


def user_stack(trace: Trace, row: int, *, limit: int = 6) -> tuple[Frame, ...]:
    """Return the Python frames around a host row, innermost user frame first.

    Library frames are left out unless nothing else is there. Empty without ``with_stack``.
    """
    return tuple(frame_of(trace, *pair) for pair in user_rows(trace, row, limit=limit))


def frame_of(trace: Trace, row: int, below: int) -> Frame:
    """Return the frame of one row, with the name of what it calls at the row below."""
    frame = parse_frame(trace.name_of(row))
    assert frame is not None
    if below < 0:
        return frame
    python = trace.kind[below] == Kind.PYTHON
    name = trace.name_of(below)
    return replace(frame, called=call_name(name)[1] if python else op_name(name))


def module_rows(trace: Trace, row: int) -> list[int]:
    """Return the rows of the modules whose ``forward`` a host row is in, outermost first."""
    if not trace.has_stacks:
        return []
    inner = int(trace.frames.at(trace.lane[[row]], trace.start_ns[np.array([row])])[0])
    chain = [inner, *trace.frames.chain(inner)] if inner >= 0 else []
    return [item for item in reversed(chain) if trace.name_of(item).startswith(_MODULE)]


def module_path(trace: Trace, row: int) -> str:
    """Return the ``nn.Module`` chain around a host row: ``ViT_0.Block_3.Linear_7``; else empty."""
    return ".".join(trace.name_of(module_row)[len(_MODULE) :] for module_row in module_rows(trace, row))


def own_time_ns(trace: Trace, lane: int, within: Spans, into: tuple[Ints, Ints] | None = None) -> tuple[Ints, Ints]:
    """Return how long each frame of a thread was open, and running itself, inside some time.

    ``lane`` : the thread. ``within`` : int64[k, 2], sorted and disjoint. ``into`` : what another thread's frames gave,
    to which these are added.

    Returns ``total_ns``, ``own_ns`` : int64[n], with and without the frames it called; 0 for rows that are not frames
    of this thread.
    """
    rows = trace.frames.members_of(lane)
    # only frames that run into the first piece that ends after their start; most of them run in none
    over = np.bincount(trace.frames.n_started(lane, within[:, 1] - 1), minlength=len(rows) + 1)
    piece = np.cumsum(over, out=over)[:-1]
    begins = np.append(within[:, 0], np.iinfo(np.int64).max)
    rows = rows[begins[piece] < trace.end_ns[rows]]
    total, own = np.zeros((2, len(trace)), np.int64) if into is None else into
    total[rows] = own[rows] = trace.time_in(rows, within)
    rows = rows[total[rows] > 0]
    parent = trace.frames.parent[rows]
    rows, parent = rows[parent >= 0], parent[parent >= 0]
    np.subtract.at(own, parent, total[rows])
    own[parent] = np.maximum(own[parent], 0)
    return total, own


def top_frames(trace: Trace, own_ns: Ints, limit: int = 5) -> list[tuple[str, int]]:
    """Return the frame labels with the most own time and that time in ns, longest first."""
    rows = np.flatnonzero(own_ns)
    by_name = trace.sum_by_name(rows, own_ns)
    by_label: dict[str, int] = {}
    for code in np.argsort(-by_name, kind="stable")[: np.count_nonzero(by_name)].tolist():
        # a method of several objects is one function
        label = frame_label(trace.names[code])
        by_label[label] = by_label.get(label, 0) + int(by_name[code])
    return sorted(by_label.items(), key=lambda item: -item[1])[:limit]


def hot_frame(trace: Trace, total_ns: Ints, span_ns: int) -> int:
    """Return the deepest frame whose function was open for half of the time, -1 without one."""
    rows = np.flatnonzero(total_ns)
    rows = rows[trace.rows_where(rows, parse_frame)]
    if not len(rows):
        return -1
    by_name = trace.sum_by_name(rows, total_ns)
    rows = rows[2 * by_name[trace.name[rows]] >= span_ns]
    # one instance stands for its function: the longest
    rows = rows[np.argsort(-total_ns[rows], kind="stable")]
    rows = rows[np.unique(trace.name[rows], return_index=True)[1]]
    return max(rows.tolist(), key=lambda row: len(trace.frames.chain(row)), default=-1)
