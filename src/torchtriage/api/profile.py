"""``with tt.profile() as p``: records the loop in the block, and judges it afterwards.

>>> with tt.profile() as p:
...     for batch in loader:
...         train_step(batch)
...         p.step()
>>> print(p.report)
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import weakref
from functools import cached_property
from numbers import Integral
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from torchtriage.api.traces import Report, analyze_run
from torchtriage.core.errors import MissingExtraError, UsageError
from torchtriage.core.record.environment import process_rank
from torchtriage.core.record.job_store import process_group
from torchtriage.core.record.profiler_capture import BUSY
from torchtriage.core.record.recorder import COMPLETE, Recorder, RecordPlan
from torchtriage.core.record.stacks import user_call


def profile(out: str | os.PathLike[str] | None = None, *, steps: int | None = 6, warmup: int = 5) -> Profile:
    """Return a context manager that records the loop in its block.

    Call its ``step()`` at the end of each iteration. After ``warmup`` steps, some are timed without
    the profiler, ``steps`` are recorded lightly for cost, three heavily for location, and some are
    timed again; then it costs next to nothing, and ``done`` says so. Results are not changed, and
    no failure of the profiler is raised.

    ``out`` : keep the recordings in this folder; a temporary one by default. Ranks of one job may share a folder,
    which ``torchtriage analyze`` then judges together. ``steps`` : steps to record for the cost. None: the block
    has no steps and is recorded as one window. ``warmup`` : steps to let pass before anything; compiling and caches
    belong there.

    Raises UsageError: a number of steps cannot be meant.
    """
    return Profile(out, None if steps is None else plan_of(steps, warmup))


def plan_of(steps: int, warmup: int) -> RecordPlan:
    """Return how many steps of what are recorded.

    Raises UsageError: a number of steps cannot be meant.
    """
    for name, value, least in (("steps", steps, 1), ("warmup", warmup, 0)):
        if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
            hint = "tt.profile(steps=None) records a block as one window" if name == "steps" else ""
            raise UsageError(f"expected {name} as a whole number from {least}, found {value!r}", hint=hint)
    return RecordPlan(warmup=warmup, light=steps)


class Profile:
    """One recorded block; made by :func:`profile`.

    ``out`` : the folder of the recordings. ``recorder`` : what records, once the block is entered.
    ``how`` : what a step is, in words.
    """

    def __init__(self, out: str | os.PathLike[str] | None, plan: RecordPlan | None) -> None:
        self.out = Path(tempfile.mkdtemp(prefix="torchtriage-") if out is None else out)
        if out is None:  # gone with the profile
            weakref.finalize(self, _remove, self.out, os.getpid())
        self.recorder: Recorder | None = None
        self._plan = plan
        self._stopped = ""  # why, by a thread that cannot stop the profiler
        self.how = "one window, no steps" if plan is None else "steps marked by p.step()"

    def __enter__(self) -> Profile:
        """Begin.

        Raises MissingExtraError: torch is not installed; UsageError: the folder cannot be written,
        or the block has been recorded before.
        """
        self.start(sys._getframe(1))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; what the block raised goes on."""
        self.stop("the block ended" if kind is None else f"the block raised {kind.__name__}")

    def start(self, caller: FrameType | None = None) -> None:
        """Begin without ``with``; ``caller``: the frame whose loop it is."""
        need_torch("tt.profile")
        if self.recorder is not None:
            raise UsageError("expected a new tt.profile(), found one that has recorded")
        group = process_group()  # ranks that were spawned have no RANK
        rank = group[0] if group else process_rank() or 0
        folder = self.out / f"rank{rank}"
        try:
            self._clear(folder, rank)
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise UsageError(f"cannot be written: {problem}", where=str(self.out)) from problem
        self.recorder = Recorder(folder, self._plan, rank=rank, boundary=self.how)
        self._note(caller or sys._getframe(1))
        if self._plan is None:
            self.recorder.record_block()

    def step(self) -> None:
        """Say that an iteration has ended. Never raises."""
        if self.recorder is not None:
            self.recorder.step()
            if self._stopped:
                self.stop(self._stopped)

    def stop(self, reason: str = "stopped") -> None:
        """End without ``with``; what is half recorded is kept up to its last whole step.

        In another thread than the loop's, a recording under way ends with the loop's next step or ``report``.
        """
        if self.recorder is None:
            return
        if self.recorder.captures_elsewhere:
            self._stopped = reason
        else:
            self.recorder.close(COMPLETE if self._plan is None else reason)

    @property
    def done(self) -> bool:
        """Whether everything is recorded; the loop may end then."""
        return self.recorder is not None and self.recorder.done

    @property
    def recording(self) -> dict[str, Any]:
        """What was measured and on what: the content of ``recording.json``; times in ns."""
        return self.recorder.facts() if self.recorder is not None else {}

    @cached_property
    def report(self) -> Report:
        """The judged recordings; reading and judging happen when it is first asked for.

        Raises UsageError: there is nothing to judge; the message says why.
        """
        recorder = self.recorder
        if recorder is None:
            raise UsageError("expected a recorded block, found one that was not entered")
        if self._stopped:
            self.stop(self._stopped)
        if not recorder.ended:
            raise UsageError("expected a block that has ended", hint="ask for p.report after it")
        if not any(recorder.recorded(kind) for kind in ("light", "heavy")):
            message, hint = _why_nothing(recorder)
            raise UsageError(message, hint=hint)
        found = analyze_run(self.out, pid=os.getpid()).results[0]
        assert isinstance(found, Report)
        return found

    def _repr_html_(self) -> str:
        try:
            return self.report._repr_html_()
        except UsageError as error:
            import html

            return f"<pre>{html.escape(str(error))}</pre>"

    def _clear(self, folder: Path, rank: int) -> None:
        for path in self.out.glob("process-*.json"):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                if json.loads(path.read_text(encoding="utf-8"))["rank"] == rank:
                    path.unlink()
        for name in ("recording.json", "light.json.gz", "heavy.json.gz"):
            (folder / name).unlink(missing_ok=True)

    def _note(self, caller: FrameType) -> None:
        """Write whose loop this is, as ``torchtriage run`` does."""
        assert self.recorder is not None
        file, line, function = user_call(caller)
        facts = {
            "pid": os.getpid(),
            "rank": self.recorder.rank,
            "loop": {"boundary": "mark", "name": "", "file": file, "line": line, "function": function, "how": self.how},
            "folder": self.recorder.out_dir.name,
        }
        path = self.out / f"process-{os.getpid()}.json"
        path.write_text(json.dumps(facts, indent=1), encoding="utf-8")


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked child ends with a copy of the profile
        shutil.rmtree(folder, ignore_errors=True)


def need_torch(who: str) -> None:
    """Import torch.

    Raises MissingExtraError: it is not installed.
    """
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"{who} needs torch, which cannot be imported: {error}", hint="pip install 'torchtriage[torch]'"
        ) from error


def _why_nothing(recorder: Recorder) -> tuple[str, str]:
    failures = recorder.facts()["failures"]
    if failures:
        return f"nothing was recorded: {next(iter(failures))}", "report it, with torch's version"
    seen = recorder.steps_seen
    if recorder.ended == BUSY:
        return f"nothing was recorded: {BUSY}", "take the other profiler out"
    if not seen:
        return ("no step was marked", "call p.step() in the loop, or tt.profile(steps=None) without a loop")
    return (
        f"the block ended after {seen} step{'s' * (seen > 1)}, before any was recorded",
        "run 40 steps, 120 where they take a millisecond; or tt.profile(steps=None) for one window",
    )
