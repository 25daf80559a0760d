"""``tt.compile_report`` and ``tt.compile_logs``: what ``torchtriage compile`` says, from Python."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtriage.api.rendering import Renderable
from torchtriage.compile.logs.drawings import with_drawings
from torchtriage.compile.logs.judge import judge
from torchtriage.compile.logs.process_log import ProcessLog
from torchtriage.compile.logs.read import read_logs
from torchtriage.compile.logs.result import CompileResult
from torchtriage.core.errors import LogError, MissingExtraError, UsageError
from torchtriage.core.finding import Note

if TYPE_CHECKING:
    from torchtriage.core.record.structured_log import StructuredLog

OFF = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")


class CompileReport(Renderable, CompileResult):
    """A :class:`~torchtriage.compile.logs.result.CompileResult` that shows itself, in notebooks too."""

    _logs: Sequence[ProcessLog] = ()

    def _subject(self) -> Any:
        from torchtriage.report.documents import compile as report

        return report.CompileReport(self.schema, self.version, self)

    def to_html(self) -> str:
        """Return one self-contained HTML page, with the graphs where a layout engine is here."""
        from torchtriage.report.documents.compile import CompileReport, document
        from torchtriage.report.page import render

        return render(document(CompileReport(self.schema, self.version, with_drawings(self, self._logs))))


def compile_logs(
    *paths: str | os.PathLike[str],
    trace: str | os.PathLike[str] | None = None,
    eager: str | os.PathLike[str] | None = None,
) -> CompileReport:
    """Judge logs of torch.compile, as ``torchtriage compile`` does.

    ``paths`` : what ``TORCH_TRACE`` wrote, or the text of ``TORCH_LOGS``. Files that cannot be used are a note of
    the report where others can. ``trace`` : of the same program: what each break and recompilation costs in it.
    ``eager`` : a trace without torch.compile: after how many steps compiling pays off.

    Raises LogError: there is no log among them; TraceFormatError: a trace cannot be read;
    UsageError: ``eager`` without ``trace``, or no path.
    """
    if not paths:
        raise UsageError("expected a compile log, found no path")
    if eager is not None and trace is None:
        raise UsageError("eager is compared with trace, which is missing")
    logs, refused = read_logs([os.fspath(path) for path in paths])
    result = judge(logs)
    if refused:
        left = tuple(Note("log-left-out", "warn", f"left out: {item}") for item in refused)
        result = replace(result, notes=(*result.notes, *left))
    if trace is not None:
        from torchtriage.compile.logs.join import join
        from torchtriage.core.trace import read_trace

        beside = read_trace(eager) if eager is not None else None
        result = join(result, read_trace(trace), os.fspath(trace), eager=beside)
    return _shown(result, logs)


def compile_report(
    fn: Callable[..., Any], *args: Any, calls: Iterable[Any] = (), as_is: bool = False, **kwargs: Any
) -> CompileReport:
    """Run something under torch.compile, and say what the compiler did.

    ``fn(*args, **kwargs)`` is called once. A module or function that is not compiled yet is handed
    to ``torch.compile`` first; one that is runs as it was compiled, so options are the user's:
    ``tt.compile_report(torch.compile(model, dynamic=True), x)``. What was compiled for before in
    this process is not compiled again, and nothing is dropped: begin with
    ``torch._dynamo.reset()``, or in a new process, to see all of it.

    ``fn`` : a module or a function. ``calls`` : instead of ``args``: several calls, one after the other, a tuple of
    arguments each (or the one argument): ``calls=[x[:8], x[:5]]`` shows what another size does. ``as_is`` : ``fn``
    compiles by itself, such as a training step with a compiled model: it is not handed to ``torch.compile``.

    Raises MissingExtraError: torch is not installed; UsageError: ``fn`` cannot be called, or there
    are both ``args`` and ``calls``; Exception: what ``fn`` raises; the report until then is its
    ``compile_report``.
    """
    if not callable(fn):
        raise UsageError(
            f"expected a module or a function, found {type(fn).__name__}",
            hint="tt.compile_logs(path) reads logs" if isinstance(fn, str | os.PathLike) else "",
        )
    if hasattr(calls, "shape"):  # its rows would be taken for calls
        raise UsageError("expected several calls, found one tensor", hint="calls=[x, y]")
    several = [call if isinstance(call, tuple) else (call,) for call in calls]
    if several and args:
        raise UsageError("expected arguments or calls, found both")
    if find_spec("torch") is None:
        raise MissingExtraError("torch is not installed", hint="pip install torch")
    import torch

    from torchtriage.core.record.structured_log import StructuredLog

    name = getattr(fn, "__name__", "") or type(getattr(fn, "_orig_mod", fn)).__name__
    target = fn if as_is or _is_compiled(fn) else torch.compile(fn)
    with tempfile.TemporaryDirectory(prefix="torchtriage-") as folder:
        log = StructuredLog(Path(folder))
        log.start()
        try:
            for item in several or [args]:
                target(*item, **kwargs)
        except Exception as error:
            log.stop()
            with contextlib.suppress(Exception):  # that of fn is what counts
                error.compile_report = _report(log, name)  # type: ignore[attr-defined]
            raise
        finally:
            log.stop()
        return _report(log, name)


def _is_compiled(fn: Callable[..., Any]) -> bool:
    return (
        hasattr(fn, "_torchdynamo_orig_callable")
        or getattr(fn, "_orig_mod", None) is not None
        or getattr(fn, "_compiled_call_impl", None) is not None
    )


def _report(log: StructuredLog, name: str) -> CompileReport:
    try:
        logs, _ = read_logs([str(log.folder)])
    except LogError:
        logs = [ProcessLog("")]
    for item in logs:
        item.path = name  # the file is about to go
    result = judge(logs)
    return _shown(replace(result, notes=(*result.notes, *_notes(log, result))), logs)


def _notes(log: StructuredLog, result: CompileResult) -> Iterable[Note]:
    if log.problem:
        yield Note("log-cut", "warn", f"the compiler's log could not be written: {log.problem}")
    if any(process.n_compiles for process in result.processes):
        return
    import torch._dynamo.utils

    off = next((item for item in OFF if os.environ.get(item, "0") not in ("", "0")), None)
    if off is not None:
        yield Note("compile-off", "warn", f"${off} is set, so nothing is compiled", f"unset {off}")
    elif torch._dynamo.utils.counters["frames"].get("total"):
        yield Note(
            "compiled-before",
            "info",
            "what these calls need may have been compiled before in this process",
            "torch._dynamo.reset() before the report, or a new process",
        )


def _shown(result: CompileResult, logs: Sequence[ProcessLog]) -> CompileReport:
    report = CompileReport.of(result)
    object.__setattr__(report, "_logs", tuple(logs))
    return report
