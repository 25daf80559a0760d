"""What torch.compile did in this process while it was watched: read from its own structured log."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from torchtriage.core.errors import LogError, MissingExtraError
from torchtriage.core.units import format_count, format_ms
from torchtriage.integrations.pytest.budgets import BUDGETS, LIMITS, read_budgets
from torchtriage.integrations.pytest.check import Check, fix_lines, one_line

if TYPE_CHECKING:
    from torchtriage.compile.logs.result import CompileResult
    from torchtriage.core.record.structured_log import StructuredLog

N_SHOWN = 4
OFF = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")


def need_torch(where: str) -> None:
    """Raise MissingExtraError where torch is not installed; ``where`` : what asks for it."""
    if find_spec("torch") is None:
        raise MissingExtraError("needs torch, which is not installed here", where=where, hint="pip install torch")


class CompileLog:
    """Everything the compiler logs from ``start`` to ``stop``.

    ``afresh`` : drop compiled code at the start: what is compiled already would not be seen, and a
    test must not depend on those before it. ``found_code`` : something had been compiled before.
    """

    def __init__(self, *, afresh: bool = True) -> None:
        self.found_code = False
        self._afresh = afresh
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._log: StructuredLog | None = None
        self._silenced: list[logging.Handler] = []

    def start(self) -> None:
        """Begin to listen."""
        import torch._dynamo
        from torch._dynamo.utils import counters
        from torch._logging import _internal

        from torchtriage.core.record.structured_log import StructuredLog

        if self._afresh:
            torch._dynamo.reset()
        else:
            self.found_code = counters["frames"]["total"] > 0
        # pytest captures this logger, too, and would show thousands of empty lines
        for handler in list(_internal.trace_log.handlers):
            if type(handler).__module__.startswith("_pytest."):
                _internal.trace_log.removeHandler(handler)
                self._silenced.append(handler)
        self._folder = tempfile.TemporaryDirectory(prefix="torchtriage-")
        self._log = StructuredLog(Path(self._folder.name))
        self._log.start()

    def result(self) -> CompileResult | None:
        """Return what the log says so far; None where nothing was compiled."""
        from torchtriage.compile.logs.judge import judge
        from torchtriage.compile.logs.read import read_logs

        assert self._folder is not None
        try:
            logs, _ = read_logs([self._folder.name])
        except LogError:
            return None
        result = judge(logs)
        return result if any(process.n_compiles for process in result.processes) else None

    def close(self) -> None:
        """Stop listening, and drop the log."""
        if self._log is not None:
            from torch._logging import _internal

            self._log.stop()
            for handler in self._silenced:
                _internal.trace_log.addHandler(handler)
            self._silenced.clear()
            self._log = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def judge_compiler(
    result: CompileResult | None, budgets: Mapping[str, float], *, during: str, found_code: bool = False
) -> list[Check]:
    """Return a check for each budget of the compiler, of graphs last.

    ``during`` : ``in the test``. ``found_code`` : something had been compiled before.
    """
    names = [name for name in LIMITS.values() if name in budgets]
    checks = [_check(result, name, budgets[name], during, found_code) for name in names]
    if any(check.verdict == "over" for check in checks[:-1]) and checks[-1].metric == "graphs":
        # why there are more graphs is known by then
        checks[-1] = replace(checks[-1], lines=checks[-1].lines[:1])
    return checks


def counts(result: CompileResult) -> dict[str, int]:
    """Return what can be limited: breaks of one cause at one line count once."""
    return {
        "graph_breaks": len(result.breaks),
        "recompiles": sum(recompile.count for recompile in result.recompiles),
        "graphs": sum(process.n_graphs or 0 for process in result.processes),  # None: of text logs alone
    }


def _check(result: CompileResult | None, name: str, limit: float, during: str, found_code: bool) -> Check:
    metric = BUDGETS[name]
    if result is None and found_code:
        if name != "graph_breaks":
            return Check(metric, "within", f"0 {during}, budget {limit:g}")
        why = f"nothing was compiled {during}, and breaks of what was before are not seen"
        return Check(metric, "not checked", why)
    if result is None:
        off = next((variable for variable in OFF if os.environ.get(variable, "0") not in ("", "0")), None)
        why = f"${off} is set" if off else f"torch.compile compiled nothing {during}"
        return Check(metric, "not checked", why)
    count = counts(result)[name]
    sentence = f"{count:,} {during}, budget {limit:g}"
    if count <= limit:
        return Check(metric, "within", sentence)
    lines = {"graph_breaks": _break_lines, "recompiles": _recompile_lines, "graphs": _graph_lines}
    return Check(metric, "over", sentence, tuple(lines[name](result)))


def _break_lines(result: CompileResult) -> Iterator[str]:
    from torchtriage.compile.logs import formatting

    for number, item in enumerate(result.breaks[:N_SHOWN], 1):
        id = f" [{item.id}]" if item.id else ""
        yield f"{number}. {formatting.graph_break(item)}: {formatting.cut(item.type, 90)}{id}"
        if item.explanation:
            yield f"   why: {formatting.cut(item.explanation, 200)}"
        yield from fix_lines(item.fix)
    yield from _more(len(result.breaks))


def _recompile_lines(result: CompileResult) -> Iterator[str]:
    from torchtriage.compile.logs import formatting

    for number, recompile in enumerate(result.recompiles[:N_SHOWN], 1):
        seen = f" ({formatting.values(recompile)})" if recompile.values else ""
        took = f", {format_ms(recompile.total_ms)}" if recompile.total_ms else ""
        yield (
            f"{number}. {formatting.place(recompile.function)}: {formatting.recompile(recompile)} changed{seen},"
            f" {format_count(recompile.count, 'time')}{took}"
        )
        yield f"   guard: {formatting.cut(recompile.guard, 160)}"
        if recompile.limit:
            yield "   the recompile limit is reached: later calls run uncompiled"
        yield f"   {formatting.cures(recompile)}"
        yield from fix_lines(recompile.fix)
    yield from _more(len(result.recompiles))


def _graph_lines(result: CompileResult) -> Iterator[str]:
    from torchtriage.compile.logs import formatting

    yield (
        f"from {format_count(len(result.breaks), 'graph break')} and"
        f" {format_count(counts(result)['recompiles'], 'recompilation')}"
    )
    if result.breaks or result.recompiles:
        yield from _break_lines(result)
        yield from _recompile_lines(result)
        return
    for function in result.functions[:N_SHOWN]:
        yield f"{formatting.place(function.frame)}: {formatting.function(function)}"
    yield from _more(len(result.functions))


def _more(n: int) -> Iterator[str]:
    if n > N_SHOWN:
        yield f"and {n - N_SHOWN} more"


class Compiled:
    """What a watched block came to, once it has ended.

    ``result`` : what ``torchtriage compile`` says; None where nothing was compiled in the block.
    ``found_code`` : something had been compiled before.
    """

    result: CompileResult | None = None
    found_code = False

    @property
    def graph_breaks(self) -> int | None:
        """Breaks of one cause at one line, once each; None where nothing was compiled."""
        return None if self.result is None else counts(self.result)["graph_breaks"]

    @property
    def recompiles(self) -> int | None:
        """Compilations of what was compiled before; None where nothing ever was."""
        return self._count("recompiles")

    @property
    def graphs(self) -> int | None:
        """Compiled graphs; None where nothing ever was compiled."""
        return self._count("graphs")

    def _count(self, name: str) -> int | None:
        if self.result is None:
            return 0 if self.found_code else None
        return counts(self.result)[name]


class CompileGate:
    """The fixture ``compile_gate``. ``say`` : gets the checks of each block."""

    def __init__(self, say: Callable[[list[Check], str], None]) -> None:
        self._say = say

    @contextlib.contextmanager
    def __call__(self, **limits: float) -> Iterator[Compiled]:
        """Watch the compiler in a block, and fail where it does more than the limits allow.

        ``limits`` : ``max_graph_breaks``, ``max_recompiles``, ``max_graphs``. What was compiled before stays, so
        that a block can show that nothing is compiled anew.
        """
        with one_line():
            budgets = read_budgets(limits, where="compile_gate", names=LIMITS)
            need_torch("compile_gate")
            seen, log = Compiled(), CompileLog(afresh=False)
            log.start()
            seen.found_code = log.found_code
            try:
                yield seen
                seen.result = log.result()
            finally:
                log.close()
            checks = judge_compiler(seen.result, budgets, during="in the block", found_code=log.found_code)
            self._say(checks, "")
