"""What an inference engine says of its steps: prefill or decode, requests, tokens.

vLLM, SGLang, ATOM and TensorRT-LLM put a range around each step whose name holds the batch. Without such a range, an
engine's own step function (recorded with stacks) still says where a step is, not what it holds.

Source: vLLM ``v1/worker/gpu_worker.py: annotate_profile``; SGLang's ``step[…]`` ranges; TensorRT-LLM
``_torch/pyexecutor/py_executor.py: _forward_step``; ATOM's ``prefill[…]`` and ``decode[…]`` ranges.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from torchtriage.core.arrays import Ints, Mask
from torchtriage.core.finding import Phase
from torchtriage.core.trace.schema import Kind
from torchtriage.core.trace.steps import one_lane

if TYPE_CHECKING:
    from torchtriage.core.trace.columns import Trace

PHASES: tuple[Phase, ...] = ("prefill", "mixed", "decode", "idle", "unknown")

_VLLM = r"context_(?P<c>\d+)\({c}\)_generation_(?P<g>\d+)\({g}\)$"
_SUMS = r"sq(?P<{0}_tokens>\d+)sk(?P<{0}_kv>\d+)sqsq\d+sqsk\d+"
_TOKENS = r"(?P<{0}_tokens>\d+)(?:_\d+)?"
_DIALECTS: tuple[tuple[str, str], ...] = (
    # execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)
    ("vLLM", r"^execute_\d+_" + _VLLM.format(c=_SUMS.format("c"), g=_SUMS.format("g"))),
    # execute_context_2(6144)_generation_3(3), or a second number, the sum of squared lengths
    ("vLLM", r"^execute_" + _VLLM.format(c=_TOKENS.format("c"), g=_TOKENS.format("g"))),
    # before 0.13: requests that were seen before may be in either phase
    ("vLLM", r"^execute_new_(?P<c>[1-9]\d*)_cached_(?P<g>0)$"),
    ("vLLM", r"^execute_new_\d+_cached_\d+$"),
    # step[EXTEND bs=2 toks=14721], step[DECODE bs=64 g_sq=128 g_sk=131072 …], step[MIXED bs=2 c=1 g=1 c_sq=5 …]
    # what its draft model runs (DRAFT_EXTEND, DRAFT_EXTEND_V2) belongs to the step before it
    ("SGLang", r"^step\[ *(?P<mode>(?!DRAFT_)[A-Z][A-Z0-9_]*)(?P<fields> +bs=\d[^\]]*)\]$"),
    # prefill[bs=6 tok=17408 ctx=[4096, 4096, 4096]...+3], decode[bs=117/128 tok=117 d=117]
    ("ATOM", r"^(?P<mode>prefill|decode)\[(?P<fields>bs=.*)\]$"),
    # [Executor] _forward_step 17: 2 ctx reqs, 300 ctx tokens, 30 gen reqs
    (
        "TensorRT-LLM",
        r"^\[Executor\] _forward_step(?: \d+)?: (?P<c>\d+) ctx reqs(?:, (?P<c_tokens>\d+) ctx tokens)?"
        r", (?P<g>\d+) gen reqs",
    ),
)
_MODES: dict[str, Phase] = {
    "EXTEND": "prefill",
    "PREFILL": "prefill",
    "SPLIT_PREFILL": "prefill",
    "MIXED": "mixed",
    "DECODE": "decode",
    "TARGET_VERIFY": "decode",
    "IDLE": "idle",
}
_FIELD = re.compile(r"\b(\w+)=(\d+)")
_CAPTURE = re.compile(r"^capture_\d+_\w+$")

# An engine, the folder of its package in recorded frames, and the function that runs one step.
_PACKAGES = (
    ("vLLM", "/vllm/", r"(^|/)vllm/\S*model_runner\.py\(\d+\): execute_model$"),
    ("SGLang", "/sglang/", r"(^|/)sglang/srt/managers/tp_worker\.py\(\d+\): forward_batch_generation$"),
    ("TensorRT-LLM", "/tensorrt_llm/", r"(^|/)tensorrt_llm/\S*py_executor\.py\(\d+\): _forward_step$"),
)


class Batch(NamedTuple):
    """What one step works on; None for what its range does not say.

    ``n_context``, ``n_generation`` : requests in prefill and in decode. ``context_tokens`` : prompt tokens it computes.
    ``generation_tokens`` : tokens of requests in decode, drafts that are verified included. ``kv_tokens`` : summed
    length of all its sequences, which attention reads.
    """

    phase: Phase
    n_context: int | None = None
    context_tokens: int | None = None
    n_generation: int | None = None
    generation_tokens: int | None = None
    kv_tokens: int | None = None


@dataclass(frozen=True)
class Serving:
    """The steps of an engine, of the thread that runs most of them.

    ``rows`` : one per step, in order and without overlaps; ranges, or frames where ``basis`` is ``frames``.
    ``batches`` : what each works on. ``captures`` : ranges in which graphs are captured.
    """

    engine: str
    basis: Literal["ranges", "frames"]
    rows: Ints
    batches: tuple[Batch, ...]
    captures: Ints


@lru_cache(maxsize=4096)
def read_batch(name: str) -> Batch | None:
    """Return what the name of a step's range says, None for a name that is none."""
    for _, pattern in _DIALECTS:
        match = re.match(pattern, name)
        if match is None:
            continue
        said = match.groupdict()
        if "mode" in said:
            return _of_mode(said["mode"].upper(), {key: int(value) for key, value in _FIELD.findall(said["fields"])})
        number = {key: int(value) for key, value in said.items() if value is not None}
        n_context, n_generation = number.get("c"), number.get("g")
        kv = [number[key] for key in ("c_kv", "g_kv") if key in number]
        return Batch(
            _phase(n_context, n_generation),
            n_context,
            number.get("c_tokens", 0 if n_context == 0 else None),
            n_generation,
            number.get("g_tokens", 0 if n_generation == 0 else None),
            sum(kv) if kv else None,
        )
    return None


def _phase(n_context: int | None, n_generation: int | None) -> Phase:
    if n_context is None or n_generation is None:
        return "unknown"
    if n_context and n_generation:
        return "mixed"
    return "prefill" if n_context else "decode" if n_generation else "idle"


def _of_mode(mode: str, fields: dict[str, int]) -> Batch:
    phase = _MODES.get(mode, "unknown")
    size, tokens = fields.get("bs"), fields.get("toks", fields.get("tok"))
    kv = [fields[key] for key in ("c_sk", "g_sk", "sk") if key in fields]
    kv_tokens = sum(kv) if kv else None
    if phase == "prefill":
        return Batch(phase, size, fields.get("c_sq", tokens), 0, 0, kv_tokens)
    if phase == "decode":
        # one token of each request, unless drafts are verified
        plain = size if mode == "DECODE" else None
        return Batch(phase, 0, 0, size, fields.get("g_sq", plain if tokens is None else tokens), kv_tokens)
    if phase == "mixed":
        return Batch(phase, fields.get("c"), fields.get("c_sq"), fields.get("g"), fields.get("g_sq"), kv_tokens)
    return Batch(phase, 0, 0, 0, 0) if phase == "idle" else Batch(phase)


def find_serving(trace: Trace) -> Serving | None:
    """Return the steps of the engine that was recorded, None where the recording shows none."""
    notes = np.flatnonzero(trace.kind == Kind.ANNOTATION)
    steps = trace.mask_of(notes[trace.rows_where(notes, read_batch)])
    captures = notes[trace.rows_where(notes, _CAPTURE.match)]
    engine, _ = _package(trace)
    if steps.any():
        # a harness may put a range of its own around the engine's, whose dialect is the engine's
        inside = trace.tree.under(steps)
        inner = trace.name_of(int(np.argmax(steps & inside if (steps & inside).any() else steps)))
        said = next(name for name, pattern in _DIALECTS if re.match(pattern, inner))
        rows = one_lane(trace, np.flatnonzero(steps & ~inside))
        batches = tuple(read_batch(trace.name_of(row)) or Batch("unknown") for row in rows.tolist())
        return Serving(engine or said, "ranges", rows, batches, captures)
    if not engine:
        return None
    frames = step_frames(trace)
    rows = one_lane(trace, np.flatnonzero(frames & ~trace.frames.under(frames)))
    if not len(rows) and not len(captures):
        return None
    return Serving(engine, "frames", rows, (Batch("unknown"),) * len(rows), captures)


def step_frames(trace: Trace) -> Mask:
    """Return bool[rows]: Python frames in which the engine that was recorded runs one step."""
    engine, step_function = _package(trace)
    return trace.matching(step_function, Kind.PYTHON) if engine else np.zeros(len(trace), bool)


def _package(trace: Trace) -> tuple[str, str]:
    """Return the engine most of the recorded files belong to, and its step function; empty without one."""
    used = np.flatnonzero(np.bincount(trace.name[trace.kind == Kind.PYTHON]))
    frames = [f"/{trace.names[code]}" for code in used.tolist()]
    counts = [sum(folder in frame for frame in frames) for _, folder, _ in _PACKAGES]
    if not any(counts):
        return "", ""
    engine, _, step_function = _PACKAGES[int(np.argmax(counts))]
    return engine, step_function
