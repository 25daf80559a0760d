"""Logs of one process, healthy and sick, and what is judged of them."""

from __future__ import annotations

import io
import json

import pytest
from compile.logs.log_builder import LogBuilder, break_text

from torchtriage.compile.logs.judge import judge
from torchtriage.compile.logs.process_log import ProcessLog
from torchtriage.compile.logs.result import CompileResult
from torchtriage.compile.logs.structured_log import read_structured

SIZE = "0/{}: tensor 'x' size mismatch at index 0. expected {}, actual {}"


def log_of(log: LogBuilder | bytes, name: str = "x.log") -> ProcessLog:
    data = log if isinstance(log, bytes) else log.bytes()
    return read_structured(ProcessLog(name, len(data)), io.BytesIO(data))


def judged(*logs: LogBuilder) -> CompileResult:
    result = judge([log_of(log, f"rank_{rank}.log") for rank, log in enumerate(logs)])
    reconciled(result)
    return result


def reconciled(result: CompileResult) -> None:
    books = result.books
    assert books.n_read == books.n_used + books.n_skipped
    assert books.n_skipped == sum(one.count for one in books.skipped)
    assert books.n_breaks == sum(one.count for one in result.breaks)
    assert books.n_recompiles == sum(recompile.count for recompile in result.recompiles)
    marked = sum(process.marked_ms for process in result.processes)
    assert sum(phase.self_ms for phase in result.phases) == pytest.approx(marked, abs=1e-3)


def healthy() -> LogBuilder:
    log = LogBuilder().compiled("0/0", "step", 5)
    return log.record("dynamo_output_graph", {}, "    x = torch.relu(y)\n", "0/0")


def sick() -> LogBuilder:
    """Return a log of one process with some of everything."""
    log = LogBuilder().mark("dynamo", "B", 0).mark("inductor_compile", "B", 2_000)
    log.mark("pass.post_grad_passes.noop", "B", 10).mark("pass.post_grad_passes.noop", "E", 90)
    log.mark("compile_file", "B", 0).mark("compile_file", "E", 700_000)
    log.mark("inductor_compile", "E", 1_000).mark("dynamo", "E", 9_000)
    log.artifact("dynamo_graph_break_reason", break_text("Data-dependent branching", 7))
    log.compiled("0/0", "step", 5, guard_latency_us=450, pytorch_version="2.13.0")
    log.artifact("before_joint_graph", "    a = torch.relu(x)\n    b = torch.cos(a)\n")
    log.artifact("after_joint_graph", "    b = torch.cos(x)\n")
    log.artifact("fx_graph_cache_miss", "{}").artifact(
        "fx_graph_cache_bypass", '{"cache_bypass_reason": "a custom pass"}'
    )
    log.record("inductor_output_code", {}, "cpp_fused_0 = async_compile.cpp_pybinding([], '')\n", "0/0")
    log.artifact("dynamo_graph_break_reason", break_text("Data-dependent branching", 7), "0/1")
    log.again("0/1", "step", 5, SIZE.format(0, 4, 5))
    for number in range(2, 9):
        reasons = [SIZE.format(at, 4 + at, 4 + number) for at in range(number - 1, -1, -1)]
        fails = (
            {"fail_type": "Unsupported", "fail_reason": "Dynamo recompile limit exceeded\n  Hint: …"}
            if number == 8
            else {}
        )
        log.artifact("recompile_reasons", json.dumps(reasons), f"0/{number}")
        log.compiled(f"0/{number}", "step", 5, **fails)
    log.compiled("1/0", "other", 30)
    for number in (1, 2, 3):
        log.again(f"1/{number}", "other", 30, f"1/{number - 1}: ___check_obj_id(L['fn'], {number})")
    log.compiled(
        "2/0",
        "broken",
        60,
        fail_type="BackendCompilerFailed",
        fail_reason="it said no",
        graph_op_count=2,
        cudagraph_skip_reason="skipping cudagraphs due to cpu device (y)",
    )
    return log
