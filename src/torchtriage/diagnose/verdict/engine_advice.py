"""Advice on an inference engine's recording, in the engine's own settings.

``torch.compile`` on somebody else's engine is no advice. What a setting changes is said as that setting; what none
changes is said to be for those who develop the engine.

Source: vLLM ``vllm/config`` (compilation, scheduler, profiler); SGLang ``server_args.py`` and ``/start_profile``;
TensorRT-LLM ``llmapi/llm_args.py`` and its performance analysis guide.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from torchtriage.core.finding import Finding, Fix
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.units import format_count
from torchtriage.diagnose.verdict.result import PhaseTime, Result

_LATE = ("LCH014", "HST020", "CMP033")
"""The device waits for launches: graphs and scheduling ahead are the cures."""
_BY_PHASE = (*_LATE, "LCH015", "KRN024")
"""Which setting changes these depends on the phase: its size, and how it is launched."""
_ANYBODYS = ("COM036", "HST054")
"""What these ask for is outside the engine: other ranks' recordings, the machine's cores."""

_DOCS = {
    "vLLM": "https://docs.vllm.ai/en/stable/design/cuda_graphs/",
    "SGLang": "https://docs.sglang.io/docs/advanced_features/server_arguments",
    "TensorRT-LLM": "https://nvidia.github.io/TensorRT-LLM/llm-api/reference.html",
}

# The host works between steps while the device stands idle.
_OVERLAP = {
    "vLLM": Fix(
        "Schedule the next step while the device computes: async scheduling, the default of newer versions.",
        "vllm serve MODEL --async-scheduling",
    ),
    "SGLang": Fix("Let the scheduler overlap with the device: start the server without --disable-overlap-schedule."),
    "TensorRT-LLM": Fix("Let the scheduler overlap with the device.", "disable_overlap_scheduler: false"),
}

# Steps run without a graph around their attention; {here} says how large they are.
_GRAPHS = {
    ("vLLM", "uncompiled"): Fix(
        "Let vLLM compile the model and replay graphs: none of its compiled code runs here, as with enforce_eager."
        " Steps of more tokens than max_cudagraph_capture_size still replay none; here {here}.",
        "vllm serve MODEL    # without --enforce-eager",
    ),
    ("vLLM", "eager"): Fix(
        "Replay graphs: a cudagraph_mode other than NONE, and a max_cudagraph_capture_size large enough for a step;"
        " here {here}.",
        'vllm serve MODEL --compilation-config \'{"cudagraph_mode": "FULL_AND_PIECEWISE"}\'',
    ),
    ("vLLM", "piecewise decode"): Fix(
        "Replay one graph for a whole step of decode; the attention backend has to support it.",
        'vllm serve MODEL --compilation-config \'{"cudagraph_mode": "FULL_AND_PIECEWISE"}\'',
    ),
    ("SGLang", "eager decode"): Fix(
        "Replay graphs: start the server without --disable-cuda-graph, and with a --cuda-graph-max-bs large"
        " enough for the batch; here {here}."
    ),
    ("SGLang", "eager"): Fix(
        "Replay piecewise graphs in prefill: start the server without --disable-piecewise-cuda-graph; here {here}."
    ),
    ("TensorRT-LLM", "eager decode"): Fix(
        "Replay graphs: a cuda_graph_config with a max_batch_size large enough for the batch; here {here}.",
        "cuda_graph_config:\n  enable_padding: true",
    ),
    ("TensorRT-LLM", "eager"): Fix(
        "Replay piecewise graphs in prefill; here {here}.", "torch_compile_config:\n  enable_piecewise_cuda_graph: true"
    ),
}

_LARGER = {
    ("vLLM", "decode"): Fix("If requests wait, let more run at once: raise max_num_seqs."),
    ("vLLM", "prefill"): Fix("If requests wait, put more tokens into a step: raise max_num_batched_tokens."),
    ("SGLang", "decode"): Fix("If requests wait, let more run at once: raise --max-running-requests."),
    ("SGLang", "prefill"): Fix("If requests wait, put more tokens into a step: raise --chunked-prefill-size."),
    ("TensorRT-LLM", "decode"): Fix("If requests wait, let more run at once: raise max_batch_size."),
    ("TensorRT-LLM", "prefill"): Fix("If requests wait, put more tokens into a step: raise max_num_tokens."),
}

_VLLM_OPTION = 'add "torch_profiler_{}": true to --profiler-config'
# How to record what: the engine holds the profiler.
_RECORD = {
    "vLLM": {
        "steps": "record a few steps after a warm-up: --profiler-config with delay_iterations and max_iterations",
        "shapes": _VLLM_OPTION.format("record_shapes"),
        "stacks": _VLLM_OPTION.format("with_stack"),
        "memory": _VLLM_OPTION.format("with_memory"),
    },
    "SGLang": {
        "steps": "record a few steps after a warm-up: POST /start_profile with num_steps",
        "shapes": "POST /start_profile with record_shapes",
        "stacks": "POST /start_profile with with_stack",
        "memory": "SGLang's profiler does not record it",
    },
    "TensorRT-LLM": {
        "steps": "record a few steps after a warm-up: TLLM_PROFILE_START_STOP and TLLM_TORCH_PROFILE_TRACE"
    },
}
_ASKS = (
    ("memory", r"profile_memory"),
    ("shapes", r"record_shapes"),
    ("stacks", r"with_stack"),
    ("steps", r"schedule\(|prof\.step|ProfilerActivity|activities=|synchroni[sz]e"),
)
_VLLM_COMPILED = r"(^|/)vllm/compilation/(?!decorators\.py)"


def in_engine_words(result: Result, trace: Trace) -> Result:
    """Return the result with what its findings and notes advise said in the settings of the recorded engine."""
    if trace.serving is None:
        return result
    phases = result.serving.phases if result.serving is not None else ()
    # stacks that show none of the code that vLLM compiles, where it is vLLM that was recorded
    uncompiled = trace.has_stacks and not trace.matching(_VLLM_COMPILED, Kind.PYTHON).any()
    advice = _Advice(trace.serving.engine, phases, uncompiled)
    return replace(
        result,
        findings=tuple(replace(finding, fix=advice.fix(finding)) for finding in result.findings),
        notes=tuple(replace(note, fix=advice.record(note.fix)) for note in result.notes),
        not_checked=tuple(
            replace(item, how_to_record=advice.record(item.how_to_record)) for item in result.not_checked
        ),
    )


@dataclass(frozen=True)
class _Advice:
    engine: str
    phases: tuple[PhaseTime, ...]
    uncompiled: bool

    def fix(self, finding: Finding) -> Fix:
        """Return what the engine's user can do about a finding, else what its developers can."""
        engine, fix = self.engine, finding.fix
        settings = [*self._settings(finding.code)]
        if settings:
            return replace(settings[0], link=settings[0].link or _DOCS[engine])
        if "torch.profiler" in fix.code and "steps" in _RECORD.get(engine, {}):
            text = _RECORD[engine]["steps"]
            return Fix(f"{text[0].upper()}{text[1:]}; findings that remain are worth a look.")
        if finding.code in _ANYBODYS:
            return fix
        limit = "; no setting that is known here changes it"
        if finding.code in _BY_PHASE and engine in _DOCS and self._most_idle() is None:
            limit = (
                f", unless a setting changes it: that is known where {engine}'s own steps are judged (without --window"
                " and --annotation)"
            )
        return replace(fix, text=f"For those who develop {engine} or the model{limit}. {fix.text}")

    def record(self, how: str) -> str:
        """Return how to record with the engine's own profiler what a text asks of ``torch.profiler``."""
        ways = _RECORD.get(self.engine, {})
        asked = [ways[what] for what, pattern in _ASKS if what in ways and re.search(pattern, how)]
        return "; ".join(asked) if asked else how

    def _settings(self, code: str) -> Iterator[Fix]:
        engine, phase = self.engine, self._most_idle()
        if phase is None:
            return
        if code in _LATE:
            idle_ns = phase.wall_ns - (phase.busy_ns or 0)
            if 2 * (phase.between_ns or 0) > idle_ns and engine in _OVERLAP:
                yield _OVERLAP[engine]
            yield from self._graphs(phase)
        elif code == "LCH015" and engine == "vLLM" and self.uncompiled:
            yield from self._graphs(phase)
        elif code == "KRN024":
            kind = "decode" if phase.phase == "decode" else "prefill"
            yield from (fix for key, fix in _LARGER.items() if key == (engine, kind))

    def _graphs(self, phase: PhaseTime) -> Iterator[Fix]:
        """Yield the setting with which the steps of a phase replay graphs, none where they do."""
        decode = phase.phase == "decode"
        ways = []
        if "eager" in phase.graphs:
            ways = [*["uncompiled"] * self.uncompiled, *["eager decode"] * decode, "eager"]
        elif "piecewise" in phase.graphs and decode:
            ways = ["piecewise decode"]
        for way in ways:
            fix = _GRAPHS.get((self.engine, way))
            if fix is not None:
                yield replace(fix, text=fix.text.format(here=_size(phase)))

    def _most_idle(self) -> PhaseTime | None:
        """Return the phase in which the device stands idle longest, None where that is not known."""
        known = [phase for phase in self.phases if phase.busy_ns is not None and phase.n_steady]
        return max(known, key=lambda phase: phase.wall_ns - (phase.busy_ns or 0), default=None)


def _size(phase: PhaseTime) -> str:
    """Return how large a step of the phase is: ``prefill has 888 tokens a step``."""
    requests = sum(number or 0 for number in (phase.n_context, phase.n_generation)) / phase.n_steady
    tokens = sum(number or 0 for number in (phase.context_tokens, phase.generation_tokens)) / phase.n_steady
    sizes = [format_count(size, noun) for size, noun in ((requests, "request"), (tokens, "token")) if size]
    name = phase.phase if phase.phase != "unknown" else "the recording"
    return f"{name} has {' and '.join(sizes)} a step" if sizes else "how large a step is was not recorded"
