"""Python frames as the profiler names them: ``file.py(LINE): function``."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torchtriage import intervals
from torchtriage.finding import Frame
from torchtriage.intervals import Spans
from torchtriage.trace.schema import Kind

if TYPE_CHECKING:
    from torchtriage.trace.columns import Trace

__all__ = [
    "frame_label",
    "hot_frame",
    "is_user_frame",
    "module_path",
    "own_time_ns",
    "parse_frame",
    "top_frames",
    "user_stack",
]

Ints = NDArray[np.int64]

_FRAME = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$", re.DOTALL)
_METHOD = re.compile(r"^<(?:built-in )?method '?(?P<method>[^' ]+)'? of (?P<owner>.+?)>$")
_ADDRESS = re.compile(r"(?: object)? at 0x[0-9a-fA-F]+")
_RESUME = re.compile(r"^torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d+)$")
# libraries a user does not edit; paths are shortened by sys.path prefix, so also matched inside
_LIBRARY = re.compile(
    r"(^|/)(torch|torchvision|torchaudio|torchrec|transformers|diffusers|timm|accelerate|lightning"
    r"|pytorch_lightning|numpy|PIL|scipy|pandas|sklearn|cv2|tqdm|triton|functorch|vllm|sglang"
    r"|xformers|flash_attn|aiter|apex|deepspeed|megatron|importlib|asyncio|multiprocessing"
    r"|concurrent|logging|json|unittest|concurrent|site-packages|dist-packages)/"
    r"|^(collections|ctypes|email|encodings|http|re|urllib|xml)/"
    r"|lib/python\d|^<frozen|^<string>|^<eval_with_key>"
    r"|^(threading|contextlib|functools|typing|abc|queue|weakref|copy|random|inspect|runpy|os"
    r"|re|enum|types|warnings|collections|dataclasses|traceback|linecache|socket|selectors"
    r"|subprocess|pickle|copyreg|operator|time|sre_\w+|_\w+)\.py$"
)


@lru_cache(maxsize=65536)
def parse_frame(name: str) -> Frame | None:
    """Return the frame a ``python_function`` name stands for; None for built-ins and modules."""
    match = _FRAME.match(name)
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


def user_stack(trace: Trace, row: int, *, limit: int = 6) -> tuple[Frame, ...]:
    """Return the Python frames around a host row, innermost user frame first.

    Library frames are left out unless nothing else is there. Empty without ``with_stack``.
    """
    if not trace.has_stacks:
        return ()
    frames = trace.frames
    if trace.kind[row] == Kind.PYTHON:
        chain = [row, *frames.chain(row)]
    else:
        inner = int(frames.at(trace.lane[[row]], trace.start_ns[np.array([row])])[0])
        if inner < 0:
            return ()
        chain = [inner, *frames.chain(inner)]
    names = [trace.name_of(one) for one in chain]
    user = [name for name in names if is_user_frame(name)]
    chosen = user or [name for name in names if parse_frame(name) is not None]
    return tuple(frame for name in chosen[:limit] if (frame := parse_frame(name)) is not None)


def module_path(trace: Trace, row: int) -> str:
    """Return the ``nn.Module`` chain around a host row: ``ViT_0.Block_3.Linear_7``; else empty."""
    if not trace.has_stacks:
        return ""
    frames = trace.frames
    inner = int(frames.at(trace.lane[[row]], trace.start_ns[np.array([row])])[0])
    if inner < 0:
        return ""
    names = [trace.name_of(one) for one in [inner, *frames.chain(inner)]]
    modules = [name[len("nn.Module: ") :] for name in names if name.startswith("nn.Module: ")]
    return ".".join(reversed(modules))


def own_time_ns(trace: Trace, lane: int, within: Spans) -> tuple[Ints, Ints]:
    """Return how long each frame of a thread was open, and running itself, inside some time.

    Parameters
    ----------
    lane : int
        The thread.
    within : int64[k, 2]
        Sorted and disjoint.

    Returns
    -------
    total_ns, own_ns : int64[n]
        With and without the frames it called; 0 for rows that are not frames of this thread.
    """
    total = np.zeros(len(trace), np.int64)
    rows = trace.frames.members
    rows = rows[trace.lane[rows] == lane]
    total[rows] = intervals.covered(
        intervals.spans(trace.start_ns[rows], trace.end_ns[rows]), within
    )
    rows = rows[total[rows] > 0]
    own = total.copy()
    parent = trace.frames.parent[rows]
    np.subtract.at(own, parent[parent >= 0], total[rows[parent >= 0]])
    return total, np.maximum(own, 0)


def top_frames(trace: Trace, own_ns: Ints, limit: int = 5) -> list[tuple[str, int]]:
    """Return the frame labels with the most own time and that time in ns, longest first."""
    rows = np.flatnonzero(own_ns)
    by_name = np.bincount(trace.name[rows], weights=own_ns[rows])
    by_label: dict[str, int] = {}
    for code in np.argsort(-by_name, kind="stable")[: np.count_nonzero(by_name)].tolist():
        # a method of several objects is one function
        label = frame_label(trace.names[code])
        by_label[label] = by_label.get(label, 0) + int(by_name[code])
    return sorted(by_label.items(), key=lambda item: -item[1])[:limit]


def hot_frame(trace: Trace, total_ns: Ints, span_ns: int) -> int:
    """Return the deepest frame whose function was open for half of the time, -1 without one."""
    rows = np.flatnonzero(total_ns)
    rows = rows[trace.where_name(lambda name: parse_frame(name) is not None)[rows]]
    if not len(rows):
        return -1
    by_name = np.bincount(trace.name[rows], weights=total_ns[rows])
    rows = rows[2 * by_name[trace.name[rows]] >= span_ns]
    # one instance stands for its function: the longest
    rows = rows[np.argsort(-total_ns[rows], kind="stable")]
    rows = rows[np.unique(trace.name[rows], return_index=True)[1]]
    return max(rows.tolist(), key=lambda row: len(trace.frames.chain(row)), default=-1)
