"""What is said about text logs, which tell less."""

from __future__ import annotations

import io

import pytest
from compile.logs.judged import SIZE, healthy, log_of, reconciled
from compile.logs.log_builder import break_text
from tests.report import forms

from torchtriage.compile.logs.judge import judge
from torchtriage.compile.logs.process_log import ProcessLog
from torchtriage.compile.logs.text_log import read_text


def test_text_logs_tell_the_same() -> None:
    prefix = "V1121 21:56:44.709000 17239 torch/_dynamo/x.py:5] [0/0] "
    rows = [f"{prefix}[__graph_breaks] {row}" for row in break_text("Bad", 7).split("\n")]
    again = prefix.replace("0/0", "0/1")
    rows += [
        "epoch 1",
        f"{again}[__recompiles] Recompiling function step in me/train.py:5",
        f"{again}[__recompiles]     triggered by the following guard failure(s):",
        f"{again}[__recompiles]     - {SIZE.format(0, 4, 5)}",
        f"{prefix}[__guards] GUARDS:",
        f"{prefix}[__guards] | +- TYPE_MATCH: ___check_type_id(L['x'], 9)",
        f"{prefix.replace('V1', 'W1')}torch._dynamo hit config.recompile_limit (8)",
        f"{prefix.replace('V1', 'W1')}   function: 'step' (me/train.py:5)",
        f"{prefix}[__aot_graphs] something else",
    ]
    log = text_log(*rows)
    result = judge([log])
    reconciled(result)
    (one,) = result.breaks
    assert one.frame is not None
    assert (one.id, one.type, one.frame.line) == ("GB0170", "Bad", 7)
    (row,) = result.recompiles
    assert (row.function.function, row.values) == ("step", ("4", "5"))
    assert result.guards.n_guards == 1
    assert {one.name for one in result.books.skipped} == {"line of the program", "line of another logger"}
    assert [one.name for one in result.not_checked] == ["compile time, kernels, caches"]


PREFIX = "V1121 21:56:44.709000 17239 torch/_dynamo/x.py:5] "
BROKEN = [f"{PREFIX}[0/0] [__graph_breaks] {row}" for row in break_text("Bad", 7).split("\n")]
AGAIN = [
    f"{PREFIX}[0/1] [__recompiles] Recompiling function step in me/train.py:5",
    f"{PREFIX}[0/1] [__recompiles]     triggered by the following guard failure(s):",
    f"{PREFIX}[0/1] [__recompiles]     - {SIZE.format(0, 4, 5)}",
]
GUARDED = [
    f"{PREFIX}[0/0] [__guards] GUARDS:",
    f"{PREFIX}[0/0] [__guards] | +- TYPE_MATCH: ___check_type_id(L['x'], 9)",
]


def text_log(*rows: str, name: str = "t.log") -> ProcessLog:
    (log,) = text_logs(*rows, name=name)
    return log


def text_logs(*rows: str, name: str = "t.log") -> list[ProcessLog]:
    return read_text(ProcessLog(name, form="text"), io.BytesIO("\n".join(rows).encode()))


@pytest.mark.parametrize(
    ("rows", "first", "unlogged"),
    [
        (GUARDED, "Graph breaks and recompilations: not logged.", ["graph breaks", "recompilations"]),
        (AGAIN, "1 recompilation of 1 kind; graph breaks: not logged.", ["graph breaks", "guards"]),
        (BROKEN, "1 graph break (1 record); recompilations: not logged.", ["recompilations", "guards"]),
        (BROKEN + AGAIN, "1 graph break (1 record), 1 recompilation of 1 kind.", ["guards"]),
    ],
)
def test_what_a_text_does_not_log_is_not_clean(rows: list[str], first: str, unlogged: list[str]) -> None:
    result = judge([text_log(*rows)])
    assert result.verdict[0] == first
    assert not result.healthy
    names = [one.name for one in result.not_checked]
    assert names == [*unlogged, "compile time, kernels, caches"]
    page = forms.page(result)
    assert "No findings." not in page
    assert "not logged" in forms.markdown(result) or unlogged == ["guards"]


@pytest.mark.parametrize("before", ["[default0]:[rank1]:", "2026-11-24T10:00:00.123Z ", "[default0]:"])
def test_lines_are_read_behind_what_a_launcher_puts_before_them(before: str) -> None:
    log = text_log(*(f"{before}{row}" for row in BROKEN + AGAIN))
    assert judge([log]).verdict[0] == "1 graph break (1 record), 1 recompilation of 1 kind."
    assert log.rank == (1 if "rank1" in before else None)
    assert not log.skipped


@pytest.mark.parametrize("mixed", [False, True])
def test_ranks_in_one_text_are_told_apart(mixed: bool) -> None:
    first, second = ([f"[rank{rank}]:{row}" for row in AGAIN] for rank in (0, 1))
    lines = [row for pair in zip(first, second, strict=True) for row in (*pair, "loss 1.2")]
    logs = text_logs(*(lines if mixed else ["loss 1.2", *first, *second]))
    result = judge(logs)
    reconciled(result)
    assert [(log.rank, log.n_recompile_records) for log in logs] == [(0, 1), (1, 1)]
    (row,) = result.recompiles
    assert (row.count, row.ranks, row.values) == (2, (0, 1), ("4", "5"))
    assert row.fix == judge([text_log(*AGAIN)]).recompiles[0].fix
    assert (result.paths, result.divergence) == (("t.log",), ())


def test_processes_without_a_rank_are_told_apart_by_what_torchrun_puts_before_their_lines() -> None:
    later = [row.replace("[0/1]", "[0/2]") for row in AGAIN]
    logs = text_logs(
        *(f"[default{at}]:{row}" for row in AGAIN for at in (0, 1)),
        *(f"[default{at}]:[rank{at}]:{row}" for row in later for at in (0, 1)),
    )
    reconciled(judge(logs))
    assert [(log.rank, log.n_recompile_records) for log in logs] == [(0, 2), (1, 2)]
    logs = text_logs(*(f"[default{at}]:{row}" for row in AGAIN for at in (0, 1)))
    result = judge(logs)
    reconciled(result)
    assert [(log.rank, log.n_recompile_records) for log in logs] == [(None, 1), (None, 1)]
    assert result.verdict[0].startswith("2 recompilations of 1 kind")
    assert [process.restart for process in result.processes] == [0, 0]


def test_ranks_of_two_machines_that_torchrun_numbers_alike_are_told_apart() -> None:
    logs = text_logs(*(f"[default0]:[rank{rank}]:{row}" for row in AGAIN for rank in (0, 8)))
    assert [(log.rank, log.n_recompile_records) for log in logs] == [(0, 1), (8, 1)]


def test_a_printed_break_ends_where_a_rank_logs() -> None:
    printed = break_text("Bad", 7).split("\n")
    (log,) = text_logs(*printed, *(f"[rank0]:{row}" for row in AGAIN), "loss 1.2", "saving")
    assert log.skipped == {"line of the program": 2}
    assert (log.n_break_records, log.n_recompile_records) == (1, 1)


def test_a_text_beside_a_whole_log_is_told_apart() -> None:
    result = judge([log_of(healthy()), text_log(*GUARDED, name="other.log")])
    assert result.verdict[0] == (
        "No graph breaks, no recompilations; graph breaks and recompilations: not logged in 1 of 2 logs."
    )
    assert not result.healthy
    missing = [(one.name, one.missing[0]) for one in result.not_checked]
    assert missing == [
        ("graph breaks", "line of TORCH_LOGS=graph_breaks in other.log"),
        ("recompilations", "line of TORCH_LOGS=recompiles in other.log"),
        ("compile time, kernels, caches", "structured log of other.log"),
    ]


def test_a_text_tells_no_numbers_of_compilations() -> None:
    result = judge([text_log(*BROKEN, *AGAIN)])
    assert result.verdict[1].startswith("A text log records neither")
    assert [(process.n_compiles, process.n_graphs) for process in result.processes] == [(None, None)]
    shown = forms.terminal(result).plain
    assert "inlined" not in shown
    assert "0 ns" not in shown
    assert "1x  train.py" not in shown
    assert "0 compilations" not in forms.page(result)
    assert forms.decode(forms.encode(result), "compile") == result
