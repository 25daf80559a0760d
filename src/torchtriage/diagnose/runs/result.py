"""How ``torchtriage run`` made a recording, and what it observed beside the profiler."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from torchtriage.core.finding import Fix, Frame


@dataclass(frozen=True)
class WatchedMemory:
    """What the leak watch of ``torchtriage run --memory`` saw; leaks are findings as well.

    ``leaks`` : a sentence each, ``since_step`` and bytes per step are in their findings.
    ``rss_*`` : resident set of the process after the first step, at the last look, at its highest;
    ``allocated_peak_bytes`` and ``reserved_peak_bytes`` of the CUDA device, None without one.
    ``snapshot`` : a file that ``torchtriage memory`` reads. ``notes`` : what was not looked at.
    """

    answer: Literal["leak", "no leak", "too early", "not watched"]
    n_steps: int
    n_looks: int
    leaks: tuple[str, ...]
    rss_first_bytes: int
    rss_last_bytes: int
    rss_peak_bytes: int
    allocated_peak_bytes: int | None
    reserved_peak_bytes: int | None
    snapshot: str
    own_share: float
    """Of the loop's time, what the watch took."""
    notes: tuple[str, ...]


@dataclass(frozen=True)
class CompileEvent:
    """A graph break of one cause at one line, or recompilations of one kind, as the log tells.

    ``what`` : PyTorch's id and type of a break, the guard of a recompilation. ``function`` : what
    it splits or compiles again. ``total_ms`` : of compiling again. ``host_ms`` and ``idle_ms`` of
    the device are per ``per``, which takes ``of_ms``, in the light recording; None where it does
    not happen there. ``at_most`` : they hold the graph's own time, too.
    """

    kind: Literal["graph break", "recompilation"]
    what: str
    function: str
    frame: Frame | None
    count: int
    total_ms: float
    limit: bool
    per: str
    of_ms: float | None
    host_ms: float | None
    idle_ms: float | None
    at_most: bool
    fix: Fix


@dataclass(frozen=True)
class WatchedCompile:
    """What the log of ``torchtriage run`` says of one process.

    ``events`` : breaks, then recompilations, the costliest of each first. ``log`` : the folder that
    ``torchtriage compile`` reads, of all processes; empty where nothing was compiled. ``trace`` :
    the light recording, which it was joined to.
    """

    verdict: tuple[str, ...]
    n_compiles: int
    compile_ms: float
    events: tuple[CompileEvent, ...]
    payback: str
    log: str
    trace: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class AccountPart:
    """One part of an account; ``share`` is of the account's ``of_ms``."""

    kind: str
    ms: float
    share: float


@dataclass(frozen=True)
class AccountLine:
    """A line of the user's, and the share of the step or run spent in it and in what it calls outside the user's code.

    ``kind`` : the part of the account that most of it belongs to.
    """

    file: str
    line: int
    function: str
    kind: str
    share: float


@dataclass(frozen=True)
class FlameBar:
    """A frame in the flame graph of the step: how deep it stands, where it begins, and its share of the step."""

    depth: int
    begin: float
    share: float
    name: str


@dataclass(frozen=True)
class StepAccount:
    """Where the steady steps' time goes on the loop's thread; the parts add up to ``of_ms``.

    ``of_ms`` : a mean step where ``per`` is ``step``; where steps could not be told apart, all time in the loop.
    ``n_looks`` : stack samples that it is based on. ``loop_file``, ``loop_line`` : the loop in the user's code.
    ``lines`` : the user's innermost lines, the longest first. ``gradients`` : the lines whose backward operators take
    longest, which ``lines`` counts at the call of ``backward``; none with a device. ``body`` : the lines of the loop
    itself with all that they call, or of the outermost function in it that does more than one thing; none where it
    calls no function of the user's. ``flame`` : the stacks below the loop, callers before what they call.
    """

    per: Literal["step", "loop"]
    of_ms: float
    n_steps: int
    n_looks: int
    loop_file: str
    loop_line: int
    parts: tuple[AccountPart, ...]
    lines: tuple[AccountLine, ...]
    flame: tuple[FlameBar, ...] = ()
    gradients: tuple[AccountLine, ...] = ()
    body: tuple[AccountLine, ...] = ()


@dataclass(frozen=True)
class RunAccount:
    """Where the whole run's time went, from the start of the process to its end; the parts add up to ``of_ms``.

    ``lines`` : the user's innermost lines outside the loop, the longest first, with their share of the run.
    """

    of_ms: float
    parts: tuple[AccountPart, ...]
    lines: tuple[AccountLine, ...] = ()


@dataclass(frozen=True)
class RecordedRun:
    """How ``torchtriage run`` came to a recording.

    ``loop`` says what a step is; ``file``, ``line``, ``function`` are the user's call that ends or
    begins it. ``step_ms`` : mean of ``n_timed`` steps without the profiler; ``light_ms`` and
    ``heavy_ms`` : the same under each recording. ``settled`` : the unprofiled times had no trend.
    ``before_ms`` and ``after_ms`` : ``step_ms``, of the steps on either side of the recordings.
    """

    command: str
    exit_code: int | None
    loop: str
    file: str
    line: int
    function: str
    n_steps: int
    step_ms: float | None
    n_timed: int
    settled: bool
    light_ms: float | None
    heavy_ms: float | None
    environment: dict[str, Any] = field(default_factory=dict)
    memory: WatchedMemory | None = None
    """None without ``--memory``, and where no loop was found."""
    before_ms: float | None = None
    after_ms: float | None = None
    compiled: WatchedCompile | None = None
    """None with ``--no-compile-log``."""
    account: StepAccount | None = None
    """None where no loop was seen, and in recordings that were not made by ``run``."""
    run_account: RunAccount | None = None
