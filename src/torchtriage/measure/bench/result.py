"""What is said about a benchmark: the dataclasses are the JSON document.

Times are milliseconds (``_ms``) or seconds (``_s``), sizes bytes. A *session* is one fresh process; a *step* is one
call of the model, with its backward pass when training.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from torchtriage.core.finding import Note
from torchtriage.core.isolate.numerics.errors import NumericsVerdict
from torchtriage.core.machine import Noise

BENCH_SCHEMA = "torchtriage-bench/1"

Need = Literal["latency", "throughput", "tail", "edge memory"]


@dataclass(frozen=True)
class Setting:
    """One way to run the model.

    ``mode`` : ``eager``, a mode of ``torch.compile``, or empty with another backend. ``backend`` : empty for eager.
    ``dynamic`` : ``auto`` (PyTorch's default), ``on`` or ``off``. ``batch_size`` : None where the target does not
    take one. ``dtype`` : empty for what the target builds.
    """

    mode: str
    backend: str
    dynamic: str
    batch_size: int | None
    dtype: str

    @property
    def way(self) -> str:
        """Return mode or backend, and dynamic shapes, without batch size and dtype."""
        way = self.mode or f"backend {self.backend}"
        return way if self.dynamic == "auto" else f"{way}, dynamic {self.dynamic}"

    @property
    def name(self) -> str:
        """Return the whole setting in a few words."""
        parts = [self.way, f"batch {self.batch_size}" if self.batch_size else "", self.dtype]
        return ", ".join(filter(None, parts))

    @property
    def key(self) -> str:
        """Return a name for files, different for different settings."""
        way = self.mode or f"backend-{self.backend}"
        batch = f"batch-{self.batch_size or 'built'}"
        parts = (way, f"dynamic-{self.dynamic}", batch, self.dtype or "built")
        return re.sub(r"[^\w.-]", "-", ".".join(parts))

    @property
    def line(self) -> str:
        """Return the line of code that has this effect."""
        model = f"model.to(torch.{self.dtype})" if self.dtype else "model"
        if self.mode == "eager":
            return f"model = {model}  # eager: no torch.compile" if self.dtype else "model  # eager"
        options = [model]
        if self.backend != "inductor":
            options.append(f'backend="{self.backend}"')
        elif self.mode != "default":
            options.append(f'mode="{self.mode}"')
        if self.dynamic != "auto":
            options.append(f"dynamic={self.dynamic == 'on'}")
        return f"model = torch.compile({', '.join(options)})"


@dataclass(frozen=True)
class SettingFailure:
    """Why a setting has no numbers, or lost a session.

    ``kind`` : ``error`` (an exception), ``crash`` (the process ended) or ``timeout``. ``stage`` : ``start``,
    ``compile`` (first call), ``steps`` or ``numerics``. ``session`` : ``cold`` or ``round N``. ``after_s`` : since
    that stage began.
    """

    kind: str
    stage: str
    session: str
    message: str
    after_s: float


@dataclass(frozen=True)
class Start:
    """From the start of a process to steady steps; the median over ``n`` processes.

    ``import_s`` : importing torch. ``build_s`` : the target's own work. ``first_call_s`` : compiles. ``cost_s`` :
    what all steps before the steady ones took beyond steady ones.
    """

    n: int
    import_s: float
    build_s: float
    first_call_s: float
    cost_s: float


@dataclass(frozen=True)
class CompilePhase:
    """One phase of compiling, cold and warm; the phases of a start add up to its compile time."""

    name: str
    cold_s: float
    warm_s: float | None


@dataclass(frozen=True)
class OtherSize:
    """What the first call with another batch size took after the compiled one, and recompiled."""

    batch_size: int
    first_call_s: float
    recompiles: int


@dataclass(frozen=True)
class CompileCost:
    """What ``torch.compile`` did. ``graph_breaks`` of the first call, ``recompiles`` of all steps.

    ``reasons`` : of graph breaks, with how often. ``other_size`` : None where the plan has one batch size, or none.
    """

    graphs: int
    graph_breaks: int
    recompiles: int
    reasons: tuple[tuple[str, int], ...]
    phases: tuple[CompilePhase, ...]
    other_size: OtherSize | None


@dataclass(frozen=True)
class Quantile:
    """A quantile of steady step times; the mean over sessions of each session's own.

    ``low_ms``, ``high_ms`` : 95 % interval over sessions, None with fewer than three. ``refused`` : why there is no
    value.
    """

    name: str
    value_ms: float | None
    low_ms: float | None
    high_ms: float | None
    refused: str = ""


@dataclass(frozen=True)
class Throughput:
    """Samples per second of steady steps, steps per second where there is no batch size."""

    unit: str
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Misses:
    """Steady steps that took longer than the deadline.

    ``low``, ``high`` : 95 % interval over sessions, None with fewer than three.
    """

    deadline_ms: float
    n_missed: int
    n_steps: int
    share: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class PeakMemory:
    """The worst over sessions. ``host_peak_bytes`` : of the process, compiling included.

    ``host_steady_bytes`` : highest while steady steps ran. Both resident; None where the system does not tell.
    ``device_*`` : of PyTorch's allocator, None without a device.
    """

    host_peak_bytes: int | None
    host_steady_bytes: int | None
    device_peak_bytes: int | None
    device_reserved_bytes: int | None


@dataclass(frozen=True)
class Numerics:
    """How far answers are from the same model in higher precision, beside eager's own distance.

    Of several dtypes the most precise is the standard, which the others are held against. ``of`` : ``outputs`` or
    ``outputs and gradients``. ``error`` : norm of the difference over norm of the reference, of all values
    together; ``eager_error`` : of eager in the same dtype; ``low_error`` : of eager in bfloat16, None where that is
    not lower. ``worst`` : largest difference of one element over the largest reference value of its tensor, at
    ``worst_at``.
    """

    verdict: NumericsVerdict
    of: str
    reference: str
    error: float | None
    eager_error: float | None
    low_error: float | None
    worst: float | None
    eager_worst: float | None
    worst_at: str
    cosine: float | None
    reason: str = ""


@dataclass(frozen=True)
class SettingRow:
    """Everything measured of one setting; None where it failed before, see ``failure``.

    ``warm_up_ms`` : first steps of one session in order, the first compiles. ``steady_from`` : how many come before
    the steady state, median over steady sessions; None where most never were steady. ``pays`` : whether its start
    is won back against eager: it is not where the setting is not faster. ``break_even_cold``, ``break_even_warm`` :
    after how many calls; eager itself has 0. ``sessions_ms`` : each session's median.
    """

    setting: Setting
    label: str
    dtype: str
    failure: SettingFailure | None
    cold: Start | None
    warm: Start | None
    compilation: CompileCost | None
    warm_up_ms: tuple[float, ...]
    steady_from: int | None
    n_steady: int
    n_sessions: int
    n_steps: int
    quantiles: tuple[Quantile, ...]
    throughput: Throughput | None
    device_ms: float | None
    misses: Misses | None
    memory: PeakMemory | None
    numerics: Numerics | None
    pays: Literal["after", "never", "not told"]
    break_even_cold: int | None
    break_even_warm: int | None
    sessions_ms: tuple[float, ...]

    def quantile(self, name: str) -> float | None:
        """Return the value of ``P50``, ``P95`` or ``P99``; None where it was refused."""
        return next((quantile.value_ms for quantile in self.quantiles if quantile.name == name), None)


@dataclass(frozen=True)
class SettingComparison:
    """Two settings of one batch size and dtype, neighbours in the order of their times.

    ``ratio`` : time of ``slower`` over time of ``faster``, with its interval, None with fewer than three rounds.
    ``tie`` : the gap is small or not resolved, the order means nothing; ``resolved`` : it is known to be small, or
    known not to be.
    """

    faster: str
    slower: str
    ratio: float
    low: float | None
    high: float | None
    n_rounds: int
    tie: bool
    resolved: bool


@dataclass(frozen=True)
class BenchAdvice:
    """What to deploy for one need: a line of code and why; ``ties`` are as good."""

    need: Need
    batch_size: int | None
    setting: str
    line: str
    why: str
    ties: tuple[str, ...]


@dataclass(frozen=True)
class BenchResult:
    """One benchmark of one target.

    ``facts`` : torch, processor, threads and what else changes speed. ``interleaved`` : whether the settings of a
    batch size ran in turns, block by block; else process by process.
    """

    schema: str
    version: str
    target: str
    train: bool
    device: str
    verdict: tuple[str, str, str]
    rows: tuple[SettingRow, ...]
    comparisons: tuple[SettingComparison, ...]
    advice: tuple[BenchAdvice, ...]
    noise: Noise
    n_rounds: int
    interleaved: bool
    facts: tuple[tuple[str, str], ...]
    notes: tuple[Note, ...]
