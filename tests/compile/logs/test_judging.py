"""What is said about logs: each break and recompilation once, nothing lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from compile.logs.judged import SIZE, healthy, judged, sick
from compile.logs.log_builder import LogBuilder, break_text
from tests.report import forms

from torchtriage.api.catalogue import pages
from torchtriage.compile.logs.result import CompileResult


def test_eleven_records_of_two_kinds_are_two_rows() -> None:
    result = judged(sick())
    assert result.books.n_recompiles == 11
    size, other = result.recompiles
    assert (size.count, size.cause, size.source, size.dim, size.limit) == (8, "size", "x", 0, True)
    assert size.values == ("4", "5", "6", "7", "8", "9", "10", "11", "12")
    assert (size.mark_dynamic, size.bucketing, size.dynamic) == ("yes", "yes", "yes")
    assert size.total_ms == 8 * 500
    assert (other.count, other.cause, other.source, other.limit) == (3, "object", "fn", False)
    assert other.function.function == "other"
    assert [finding.severity for finding in result.findings if finding.code == "CMP031"] == ["high", "medium"]


def guarded(log: LogBuilder, compile_id: str, *leaves: str) -> LogBuilder:
    """Add the guards of a graph."""
    rows = "".join(f"| | +- {leaf}  # y = x * self.k  # me/train.py:6 in step\n" for leaf in leaves)
    return log.record("dynamo_cpp_guards_str", {}, f"\nTREE_GUARD_MANAGER:\n+- RootGuardManager\n{rows}", compile_id)


def tensor(dtype: str, size: str = "4", *, grad: bool = False) -> str:
    keys = "DispatchKeySet(CPU, AutogradCPU)"
    return (
        f"TENSOR_MATCH: check_tensor(L['x'], Tensor, {keys}, torch.{dtype}, device=None, requires_grad={grad},"
        f" size=[{size}], stride=[1])"
    )


DTYPE = "0/0: tensor 'x' dtype mismatch. expected Float, actual Double"


def number(value: int) -> str:
    return f"EQUALS_MATCH: L['self'].k == {value}"


@pytest.mark.parametrize(
    ("before", "after", "also"),
    [
        ([number(2)], [number(3)], [("number", "self.k", ("2", "3"))]),
        ([number(2)], [number(2)], []),
        ([], ["TENSOR_MATCH: no text that is known"], []),
        # made dynamic: it has changed; gone with its line: nothing is known
        (
            [number(2)],
            ["TYPE_MATCH: ___check_type_id(L['self'].k, 1), type=<class 'int'>"],
            [("number", "self.k", ("2",))],
        ),
        ([number(2)], [], []),
        (["TRUE_MATCH: L['flag'] == True"], ["FALSE_MATCH: L['flag'] == False"], [("flag", "flag", ("True", "False"))]),
        (
            ["LENGTH_CHECK: len(L['rows']) == 1"],
            ["LENGTH_CHECK: len(L['rows']) == 2"],
            [("length", "rows", ("1", "2"))],
        ),
        (
            ['GLOBAL_STATE: ___check_global_state() against {"grad_mode":true,"num_threads":1}'],
            ['GLOBAL_STATE: ___check_global_state() against {"grad_mode":false,"num_threads":1}'],
            [],  # with a comment behind it, as here, it is no JSON: left out
        ),
    ],
)
def test_all_causes_of_a_recompilation_are_named(
    before: list[str], after: list[str], also: list[tuple[str, str, tuple[str, ...]]]
) -> None:
    log = guarded(LogBuilder().compiled("0/0", "step", 5), "0/0", tensor("float32"), *before)
    guarded(log.again("0/1", "step", 5, DTYPE), "0/1", tensor("float64"), *after)
    (row,) = judged(log).recompiles
    assert (row.cause, row.source) == ("dtype", "x")
    assert [(one.cause, one.source, one.values) for one in row.also] == also


def test_the_cure_of_one_cause_is_not_that_of_all() -> None:
    log = guarded(LogBuilder().compiled("0/0", "step", 5), "0/0", tensor("float32"), number(2))
    guarded(log.again("0/1", "step", 5, SIZE.format(0, 4, 5)), "0/1", tensor("float32", "None"), number(3))
    (row,) = judged(log).recompiles
    assert (row.cause, row.mark_dynamic, row.dynamic) == ("size", "no", "once")
    assert "mark_dynamic(x, 0)" in row.fix.code
    assert "Also number of self.k: self.k is a number stored in a module" in row.fix.text
    text = forms.terminal(judged(log)).plain
    assert "1. size 0 of x, number of self.k" in text
    assert "also      number of self.k: 2 → 3" in text
    alone = guarded(LogBuilder().compiled("0/0", "step", 5), "0/0", tensor("float32"), number(2))
    guarded(alone.again("0/1", "step", 5, SIZE.format(0, 4, 5)), "0/1", tensor("float32", "None"), number(2))
    (row,) = judged(alone).recompiles
    assert (row.mark_dynamic, row.also) == ("once", ())


def test_a_size_that_was_made_dynamic_earlier_has_not_changed_again() -> None:
    log = guarded(LogBuilder().compiled("0/0", "step", 5), "0/0", tensor("float32"), number(2))
    guarded(log.again("0/1", "step", 5, SIZE.format(0, 4, 5)), "0/1", tensor("float32", "None"), number(2))
    guarded(log.again("0/2", "step", 5, "0/0: L['self'].k == 2"), "0/2", tensor("float32", "None"), number(3))
    assert [[one.cause for one in row.also] for row in judged(log).recompiles] == [[], []]


def test_the_call_that_hits_the_limit_is_of_its_function() -> None:
    log = LogBuilder().compiled("0/0", "step", 5).again("0/1", "step", 5, SIZE.format(0, 4, 5))
    log.artifact("recompile_reasons", SIZE.format(1, 5, 6), "0/2")
    log.metrics("0/2", None, None, None, fail_type="Unsupported", fail_reason="Dynamo recompile limit exceeded")
    result = judged(log)
    (one,) = result.functions
    assert (one.frame.function, one.outcome, one.n_compiles) == ("step", "limit", 3)
    assert one.compile_ids == ("0/0", "0/1", "0/2")
    (row,) = result.recompiles
    assert (row.function.function, row.count, row.limit) == ("step", 2, True)
    assert "recompile limit reached, 3 ops" in forms.terminal(result).plain


REST = "torch_dynamo_resume_in_step_at_7"


def broken_and_again(guard: str, *, argument: str = "x", gb: str = "gb0170") -> CompileResult:
    """Return a function that breaks at line 7, whose rest is compiled again for a guard."""
    log = LogBuilder().compiled("0/0", "step", 5)
    kind = "Data-dependent branching" if gb == "gb0170" else "Unsupported Tensor.item() call"
    log.artifact("dynamo_graph_break_reason", break_text(kind, 7, gb=gb))
    log.record("dynamo_cpp_guards_str", {}, f"| +- TENSOR_MATCH: check(L['{argument}'])", "0/0")
    log.compiled("1/0", REST, 7).again("1/1", REST, 7, f"1/0: {guard}")
    return judged(log)


def test_a_value_made_inside_is_not_to_be_marked() -> None:
    guard = "tensor 'h' size mismatch at index 0. expected 2, actual 3"
    (one,) = broken_and_again(guard).recompiles
    assert "mark_dynamic(h" not in one.fix.code
    assert "h is a value inside step, not an argument" in one.fix.text
    assert "fix the graph break at line 7" in one.fix.text
    assert "torch.where" in one.fix.code
    # an argument that is still in use can be marked
    (one,) = broken_and_again(guard, argument="h").recompiles
    assert one.fix.code.startswith("torch._dynamo.mark_dynamic(h, 0)")


def test_a_number_read_at_a_break_leads_to_the_break() -> None:
    (one,) = broken_and_again("___stack0 == -4.0", gb="gb0124").recompiles
    assert (one.cause, one.source, one.values) == ("number", "___stack0", ("-4.0",))
    assert "the graph break at line 7 returns" in one.fix.text
    assert one.fix.code == "torch._dynamo.config.capture_scalar_outputs = True"
    assert (one.mark_dynamic, one.dynamic) == ("no", "no")
    assert "number read at a graph break" in forms.terminal(broken_and_again("___stack0 == 1")).plain


def test_a_break_is_listed_once_with_its_line_and_fix() -> None:
    result = judged(sick())
    (one,) = result.breaks
    assert (one.id, one.count, one.compile_ids) == ("GB0170", 2, ("0/0", "0/1"))
    assert one.frame is not None
    assert (one.frame.file, one.frame.line) == ("me/train.py", 7)
    assert one.fix.link.endswith("gb0170.html")
    assert [frame.function for frame in one.functions] == ["step"]


def test_breaks_of_one_cause_at_two_lines_are_two() -> None:
    log = LogBuilder().compiled("0/0", "step", 5)
    for line in (7, 9, 7):
        log.artifact("dynamo_graph_break_reason", break_text("Data-dependent branching", line))
    assert [one.count for one in judged(log).breaks] == [2, 1]


def test_a_healthy_log_has_no_findings() -> None:
    result = judged(healthy())
    assert result.healthy
    assert result.findings == ()
    assert result.verdict[0] == "No graph breaks, no recompilations."
    assert "Graph breaks" not in forms.terminal(result).plain


def test_old_logs_tell_breaks_by_restarts_and_lines_by_what_goes_on() -> None:
    log = LogBuilder().compiled(
        "0/0", "step", 5, restart_reasons=["'skip function graph_break in file /t/decorators.py'"]
    )
    log.compiled("1/0", "torch_dynamo_resume_in_step_at_8", 8)
    (one,) = judged(log).breaks
    assert one.id == "GB0025"
    assert one.frame is not None
    assert (one.frame.line, one.frame.exact) == (8, False)


def test_ids_that_a_reset_gives_again_are_other_compilations() -> None:
    log = LogBuilder().compiled("0/0", "step", 5).compiled("0/0", "other", 30)
    log.again("0/1", "other", 30, SIZE.format(0, 4, 5))
    log.compiled("0/0", "step", 5).again("0/1", "step", 5, SIZE.format(0, 7, 8))
    result = judged(log)
    assert result.processes[0].n_compiles == 5
    assert result.compile_ms == 2500
    assert {function.frame.function: function.n_compiles for function in result.functions} == {"step": 3, "other": 2}
    assert {recompile.function.function: recompile.values for recompile in result.recompiles} == {
        "other": ("4", "5"),
        "step": ("7", "8"),
    }


def test_functions_say_what_became_of_them() -> None:
    result = judged(sick())
    told = {function.frame.function: (function.outcome, function.n_compiles) for function in result.functions}
    assert told == {"step": ("limit", 9), "other": ("captured", 4), "broken": ("failed", 1)}
    unfinished = judged(LogBuilder().start("0/0", "step", "me/train.py", 5))
    assert unfinished.functions[0].outcome == "unfinished"
    empty = judged(LogBuilder().compiled("0/0", "f", 1, graph_op_count=0, has_guarded_code=True))
    assert empty.functions[0].outcome == "empty"
    skipped = judged(LogBuilder().compiled("0/0", "f", 1, graph_op_count=0, has_guarded_code=False))
    assert skipped.functions[0].outcome == "skipped"


def test_a_log_that_ends_in_a_compilation_is_not_healthy() -> None:
    log = LogBuilder().compiled("0/0", "whole", 1).start("1/0", "cut", "me/train.py", 5)
    log.record("dynamo_output_graph", {"sizes": {}}, "def forward(self): ...", "1/0")
    result = judged(log)
    assert not result.healthy
    told = {function.frame.function: function.outcome for function in result.functions}
    assert told == {"whole": "captured", "cut": "unfinished"}
    assert "compiling 1 function does not end in the log" in result.verdict[0]


def test_frames_of_the_compiler_are_not_taken_for_the_function() -> None:
    log = LogBuilder().start("0/0", "_convert_frame", "torch/_dynamo/convert_frame.py", 918)
    assert not [function for function in judged(log).functions if function.frame.function == "_convert_frame"]
    (row,) = judged(log.metrics("0/0", "f", "me/train.py", 5)).functions
    assert row.frame.function == "f"


def test_two_things_compiled_through_torchs_wrapper_are_no_new_objects() -> None:
    inside = ("inner", "/v/torch/_dynamo/external_utils.py", 66)
    for name, file, line in (inside, ("mine", "me/train.py", 5)):
        log = LogBuilder()
        for number in range(2):
            if number:
                log.artifact("recompile_reasons", '["0/0: ___check_obj_id(fn, 140)"]', "0/1")
            log.start(f"0/{number}", name, file, line)
            log.metrics(f"0/{number}", name, file, line)
        (row,) = judged(log).recompiles
        assert row.cause == "object"
        assert ("One graph for each of them is normal" in row.fix.text) is (name == "inner")


def test_inductor_caches_guards_and_phases_are_told() -> None:
    result = judged(sick())
    (stage,) = result.inductor.stages
    assert (stage.n_before, stage.n_after, stage.gone[0].name) == (2, 1, "relu")
    (cache,) = result.inductor.caches
    assert (cache.n_hits, cache.n_misses, cache.n_bypasses) == (0, 1, 1)
    assert cache.bypass_reasons[0].name == "a custom pass"
    assert result.inductor.generated[0].name == "cpp_pybinding"
    assert result.inductor.passes[0][0] == "pass.post_grad_passes.noop"
    assert result.guards.latency_us == 450
    assert {"CMP032", "CMP033"} <= {finding.code for finding in result.findings}
    shares = {phase.name: phase.share for phase in result.phases}
    assert shares["Compiling kernels: C++, Triton"] == pytest.approx(0.983, abs=0.001)
    assert sum(shares.values()) == pytest.approx(1, abs=1e-5)


def test_ranks_are_merged_and_compared() -> None:
    one = LogBuilder(0).compiled("0/0", "step", 5)
    one.artifact("dynamo_graph_break_reason", break_text("Data-dependent branching", 7))
    other = LogBuilder(1).compiled("0/0", "step", 5, entire_frame_compile_time_s=9.0)
    other.artifact("dynamo_graph_break_reason", break_text("Data-dependent branching", 7))
    other.again("0/1", "step", 5, SIZE.format(0, 4, 5))
    again = LogBuilder(1).compiled("0/0", "step", 5)
    result = judged(one, other, again)
    assert [(row.rank, row.restart) for row in result.processes] == [(0, 0), (1, 0), (1, 1)]
    (row,) = result.breaks
    assert (row.count, row.ranks) == (2, (0, 1))
    told = "\n".join(result.divergence)
    assert "recompilations: [0], but rank 1: [1, 0]".replace("[", "").replace("]", "") in told
    assert "rank 1 takes longest" in told
    same = judged(LogBuilder(0).compiled("0/0", "f", 1), LogBuilder(1).compiled("0/0", "f", 1))
    assert same.divergence == ()


def ordered(rank: int, *names: str) -> LogBuilder:
    """Return a rank whose compilation runs these collectives."""
    told = json.dumps([f"torch.ops._c10d_functional.{name}.default" for name in names], indent=0)
    log = LogBuilder(rank).compiled("0/0", "step", 5)
    return log.artifact("inductor_collective_schedule", told)


def test_ranks_with_other_collectives_are_a_finding() -> None:
    result = judged(
        ordered(0, "all_reduce_", "wait_tensor", "all_gather"),
        ordered(1, "all_reduce_", "wait_tensor"),
        ordered(2, "all_reduce_", "wait_tensor", "all_gather"),
    )
    (one,) = result.findings
    assert (one.code, one.severity) == ("COM053", "high")
    assert "0/0: number 3 is all_gather on ranks 0, 2, none on rank 1" in one.message
    assert result.verdict[0] == ("No graph breaks, no recompilations; ranks differ in the order of collectives.")
    assert not result.healthy
    for text in (forms.terminal(result).plain, forms.page(result), forms.markdown(result)):
        assert "COM053" in text
        assert "can hang" in " ".join(text.split())
    assert {page.part for page in pages() if page.code == "COM053"} == {"logs"}


def test_ranks_with_the_same_collectives_are_fine() -> None:
    one, other = ordered(0, "all_reduce_"), ordered(1, "all_reduce_")
    other.artifact("inductor_collective_schedule", "[]", "3/1")  # alone with it
    assert judged(one, other).findings == ()


def program(name: str, rank: int | None, n: int = 3, **more: Any) -> LogBuilder:
    """Return a process that compiles ``n`` functions of one program."""
    log = LogBuilder(rank)
    for number in range(n):
        log.compiled(f"{number}/0", f"{name}_{number}", number, **more)
    return log


@pytest.mark.parametrize("rank", [None, 0, 1])
def test_unrelated_runs_in_one_folder_are_no_ranks_of_a_job(rank: int | None) -> None:
    job = [program("train", 0), program("train", 1)]
    result = judged(*job, program("serve", rank, 5, entire_frame_compile_time_s=9.0))
    assert result.divergence == ()
    assert "ranks" not in result.verdict[0]
    assert [row.restart for row in result.processes] == [0, 0, 0]
    (note,) = [note for note in result.notes if note.code == "unrelated-runs"]
    assert "2 runs that compiled different code" in note.message
    # a rank that differs from its own job is still told
    again = judged(*job, program("train", 2, 2), program("serve", rank, 5))
    assert [row.partition(":")[0] for row in again.divergence] == ["compilations"]


def test_a_rank_that_compiled_nothing_is_of_the_job() -> None:
    idle = LogBuilder(1).record("dynamo_output_graph", {}, "    x = torch.relu(y)\n", "")
    result = judged(program("train", 0), idle)
    assert "compilations: 3, but rank 1: 0" in result.divergence[0]


def test_ranks_that_differ_are_not_healthy() -> None:
    slow = LogBuilder(1).compiled("0/0", "f", 1, entire_frame_compile_time_s=9.0)
    result = judged(LogBuilder(0).compiled("0/0", "f", 1), slow)
    assert result.findings == ()
    assert not result.healthy
    assert result.verdict[0].endswith("ranks differ in compile time.")


def test_the_share_in_the_verdict_names_what_it_is_of() -> None:
    log = LogBuilder().mark("dynamo", "B", 0).mark("dynamo", "E", 500_000).compiled("0/0", "f", 1)
    told = "Compiling: 1 compilation, 500 ms, 100 % of it is"
    assert judged(log).verdict[1].startswith(told)
    log.mark("backward", "B", 0).mark("backward", "E", 500_000)
    assert "500 ms, 50 % of 1.00 s between marks is" in judged(log).verdict[1]


def test_inlined_functions_are_others_than_those_compiled() -> None:
    lines = "".join(
        f"        # File: me/train.py:{line} in {name}, code: y = x\n"
        for line, name in ((6, "step"), (9, "torch_dynamo_resume_in_step_at_8"), (40, "helper"))
    )
    log = LogBuilder().compiled("0/0", "step", 5)
    log.record("dynamo_output_graph", {}, lines, "0/0")
    log.compiled("1/0", "torch_dynamo_resume_in_step_at_8", 8)
    result = judged(log)
    assert [(one.file, one.function) for one in result.inlined] == [("me/train.py", "helper")]
    assert result.n_inlined == 1
    assert "1 function inlined" in forms.terminal(result).plain


def test_codes_are_those_of_the_traces_patterns() -> None:
    from torchtriage.compile.logs import findings
    from torchtriage.diagnose.patterns.compile import (
        compile_graph_break,
        compile_overhead,
        compile_recompile,
        cudagraph_skip,
    )

    for told, module in (
        (findings.BREAK, compile_graph_break),
        (findings.RECOMPILE, compile_recompile),
        (findings.OVERHEAD, compile_overhead),
        (findings.CUDAGRAPH, cudagraph_skip),
    ):
        one = module.PATTERN
        assert (*told, findings.FAMILY) == (one.code, one.name, one.family)
