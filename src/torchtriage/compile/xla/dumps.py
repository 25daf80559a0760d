"""What torch_xla writes when asked: metrics reports, ``PT_XLA_DEBUG``, saved tensors, HLO modules.

Text in, plain records out; torch and torch_xla are not needed. Formats as of torch_xla 2.0 to 2.9
(``csrc/runtime/metrics.cpp``, ``csrc/debug_util.cpp``) and of XLA's ``--xla_dump_to``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from torchtriage.core.finding import Frame

Value = TypeVar("Value")


@dataclass(frozen=True)
class XlaMetric:
    """One metric: samples and their sum; ``unit`` is ``ns``, ``B`` or empty for plain numbers."""

    name: str
    n: int
    total: float | None
    unit: str


@dataclass
class Metrics:
    """A report; ``repeated`` : names that came again (a later report, the last one counts)."""

    metrics: dict[str, XlaMetric] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    n_skipped: int = 0
    repeated: set[str] = field(default_factory=set)
    cut: bool = False


# a program may print a rate of its own
_INSIDE = re.compile(
    r"^  (?:(?:TotalSamples|Value): \d+$|(?:Accumulator|Counter): \S+$|(?:Value)?Rate: \S+ / second$"
    r"|(?:Percentiles: )?\d+%=)"
)
_TIME = re.compile(r"(?<!\d)(\d+(?:\.\d+)?)(d|h|ms|us|ns|m|s)")
_NS = {"d": 864e11, "h": 36e11, "m": 6e10, "s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}
_SIZE = re.compile(r"^(\d+(?:\.\d+)?)([KMGTP]?)B$")
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def parse_amount(text: str) -> tuple[float, str] | None:
    """Return a printed amount and its unit: ``06m09s401ms746.001us`` is nanoseconds; else None."""
    text = text.strip()
    size = _SIZE.match(text)
    if size:
        return float(size[1]) * 1024.0 ** _POWER[size[2]], "B"
    if re.fullmatch(r"-?\d{1,30}(?:\.\d+)?(?:e[+-]?\d{1,3})?", text):
        return float(text), ""
    parts = _TIME.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        return sum(float(number) * _NS[unit] for number, unit in parts), "ns"
    return None


def read_metrics(lines: Iterable[str]) -> Metrics:
    """Return what a metrics report says; lines in it that are none of it are counted.

    A report without its beginning or end is read as far as it goes.
    """
    out = Metrics()
    kind = name = ""
    values: dict[str, str] = {}

    def close() -> None:
        nonlocal kind
        if kind == "Counter" and values.get("Value", "").isdecimal():
            _keep(out, out.counters, name, int(values["Value"]))
        elif kind == "Metric" and values.get("TotalSamples", "").isdecimal():
            # reports before 2.0 name the sum a counter
            total = parse_amount(values.get("Accumulator", values.get("Counter", "")))
            value, unit = total or (None, "")
            _keep(out, out.metrics, name, XlaMetric(name, int(values["TotalSamples"]), value, unit))
        elif kind:
            out.cut = True
        kind = ""

    for line in lines:
        head = re.match(r"^(Metric|Counter): (\S(?:.*\S)?)\s*$", line)
        if head:
            close()
            kind, name, values = head[1], head[2], {}
            continue
        inside = re.match(r"^  (\w+): (.*)$", line)
        if inside and kind:
            values[inside[1]] = inside[2].rstrip()
        elif not kind:  # before the report, unless it begins inside of a metric
            if line.strip():
                out.cut = _INSIDE.match(line.rstrip()) is not None
        elif line.strip() and not (kind and re.match(r"^\s+\d+%=", line)):  # more percentiles
            out.n_skipped += 1
    close()
    return out


def _keep(out: Metrics, where: dict[str, Value], name: str, value: Value) -> None:
    if name in where:
        out.repeated.add(name)
    where[name] = value


@dataclass
class Analysis:
    """One block of ``PT_XLA_DEBUG``: why a graph was compiled or executed, and from where."""

    kind: str
    """``compilation`` or ``execution``."""
    cause: str = ""
    hash: str = ""
    n_inputs: int | None = None
    n_outputs: int | None = None
    frames: tuple[Frame, ...] = ()
    unexpected: bool = False


_PREFIX = re.compile(
    r"(?P<unexpected>Unexpected )?(?P<kind>Compilation|Execution|Post Compilation) Analysis: ?"
    r"(?P<rest>.*)$"
)
_FRAME = re.compile(r"^\s+(?P<name>[^(\s](?:[^(\n]*[^(\s])?) \((?P<file>.+):(?P<line>\d{1,9})\)\s*$")


def read_debug(lines: Iterable[str]) -> Iterator[Analysis]:
    """Yield the analyses of ``PT_XLA_DEBUG``, in order; other lines are passed over."""
    now: Analysis | None = None
    expected = ""
    for line in lines:
        match = _PREFIX.search(line)
        if match is None:
            continue
        kind, rest = match["kind"], match["rest"]
        if kind == "Post Compilation":
            continue
        text = rest.strip()
        if text.startswith("-----") or (text.startswith("=====") and now is not None and now.frames):
            if now is not None:
                yield now
                now = None
            continue
        if text in ("Compilation Cause", "Execution Cause"):
            if now is not None:  # the last block was cut
                yield now
            now = Analysis(kind.lower(), unexpected=bool(match["unexpected"]))
            expected = "cause"
            continue
        if now is None:
            continue
        if expected == "cause":
            now.cause, expected = text.replace("`", "").replace("sync()", "sync"), ""
            continue
        name, colon, value = text.partition(": ")
        if text.startswith("Python Frame"):
            expected = "frames"
        elif expected == "frames":
            frame = _FRAME.match(rest)
            if frame:
                now.frames += (Frame(frame["file"], int(frame["line"]), frame["name"].strip(), True),)
        elif colon and name == "Graph Hash":
            now.hash = value.strip()
        elif name == "Number of Graph Inputs" and value.strip().isdecimal():
            now.n_inputs = int(value)
        elif name == "Number of Graph Outputs" and value.strip().isdecimal():
            now.n_outputs = int(value)
    if now is not None:
        yield now


@dataclass(frozen=True)
class HloModule:
    """One HLO module: its name, what goes in and out, its instructions by kind.

    ``aliased`` : outputs that take the memory of an input. ``shape_free`` : the operations in order without shapes,
    names and constants, so that equal ones differ in sizes alone.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    aliased: int
    ops: tuple[tuple[str, int], ...]
    shape_free: tuple[str, ...]

    @property
    def n_ops(self) -> int:
        """Return the number of instructions, those of called computations included."""
        return sum(count for _, count in self.ops)


_MODULE = re.compile(r"^HloModule (?P<name>[^,\s]+)")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.-]+ = (?P<rest>.*)$")
_OPCODE = re.compile(r"(?:^|[\s)}\]])(?P<op>[a-z][\w-]*)\(")
_SHAPE = re.compile(r"\b(?:pred|token|opaque|[suf]\d+\w*|bf16|c64|c128)\[[^\]]*\]")


def read_module(text: str) -> HloModule | None:
    """Return the facts of the HLO text of one module; None where there is none."""
    lines = text.split("\n")
    at = next((n for n, line in enumerate(lines) if line.startswith("HloModule ")), None)
    if at is None:
        return None
    head = lines[at]
    name = _MODULE.match(head)
    assert name is not None
    layout = _balanced(head, "entry_computation_layout={")
    inputs, _, outputs = layout.partition("->")
    instructions = filter(None, map(_INSTRUCTION.match, lines[at + 1 :]))
    codes = (_OPCODE.search(_without_shape(instruction["rest"])) for instruction in instructions)
    ops = tuple(code["op"] for code in codes if code is not None)
    return HloModule(
        name["name"],
        tuple(_SHAPE.findall(inputs)),
        tuple(_SHAPE.findall(outputs)),
        _balanced(head, "input_output_alias={").count("alias"),
        tuple(sorted(Counter(ops).items(), key=lambda item: (-item[1], item[0]))),
        ops,
    )


def _without_shape(rest: str) -> str:
    """Return an instruction without its shape, which may be a tuple of shapes."""
    if not rest.startswith("("):
        _, _, call = rest.partition(" ")
        return call and f" {call}"
    depth = 0
    for at, char in enumerate(rest):
        depth += (char == "(") - (char == ")")
        if not depth:
            return rest[at + 1 :]
    return ""


def _balanced(text: str, opening: str) -> str:
    at = text.find(opening)
    if at < 0:
        return ""
    depth = 1
    begin = at + len(opening)
    for end in range(begin, len(text)):
        depth += (text[end] == "{") - (text[end] == "}")
        if not depth:
            return text[begin:end]
    return text[begin:]


@dataclass(frozen=True)
class SavedGraph:
    """One graph that was about to run: LazyTensor's own, or one of dynamo being compiled."""

    hash: str
    frames: tuple[Frame, ...]
    module: HloModule | None


def read_saved(lines: Iterable[str]) -> Iterator[SavedGraph]:
    """Yield the graphs of a file that ``XLA_SAVE_TENSORS_FILE`` named, in order."""
    frames: list[Frame] = []
    text: list[str] = []
    hash_ = ""
    where = ""
    for line in lines:
        if line.startswith("TensorsGraphInfo:"):
            frames, text, hash_, where = [], [], "", "frames"
        elif line.startswith("## BEGIN_GRAPH"):
            where = "graph"
        elif line.startswith("Graph Hash: "):
            hash_ = line.partition(": ")[2].strip()
            where = ""
        elif line.startswith("## END_GRAPH"):
            if hash_:
                yield SavedGraph(hash_, tuple(frames), read_module("\n".join(text)))
            frames, text, hash_, where = [], [], "", ""
        elif where == "frames":
            match = _FRAME.match(line)
            if match:
                frames.append(Frame(match["file"], int(match["line"]), match["name"], True))
        elif where == "graph":
            text.append(line.rstrip("\n"))
