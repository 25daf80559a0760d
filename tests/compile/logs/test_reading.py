"""Structured logs: every entry accounted for, whatever happened to the file."""

from __future__ import annotations

import gzip
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from compile.logs.log_builder import LogBuilder, break_text

from torchtriage.compile.logs import entries
from torchtriage.compile.logs.entries import read_entries
from torchtriage.compile.logs.judge import judge
from torchtriage.compile.logs.process_log import ProcessLog
from torchtriage.compile.logs.read import read_logs
from torchtriage.compile.logs.structured_log import read_structured
from torchtriage.core.errors import LogError


def read(log: LogBuilder | bytes) -> ProcessLog:
    data = log if isinstance(log, bytes) else log.bytes()
    found = read_structured(ProcessLog("x.log"), io.BytesIO(data))
    assert found.n_read == found.n_used + found.skipped.total()
    return found


def test_entries_come_whole_from_blocks_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogBuilder().compiled("0/0", "step", 5).artifact("x", "one\n\n\ttwo\n")
    log.raw(b"a stray line\n").artifact("y", "three")
    whole = list(read_entries(io.BytesIO(log.bytes())))
    assert [one.kind for one in whole] == ["str", "dynamo_start", "compilation_metrics", "artifact", "", "artifact"]
    assert whole[3].payload == b"one\n\n\ttwo\n"
    for size in (1, 2, 7, 64, 1000):
        monkeypatch.setattr(entries, "BLOCK_BYTES", size)
        assert list(read_entries(io.BytesIO(log.bytes()))) == whole


def test_a_payload_is_held_against_its_checksum() -> None:
    fine = LogBuilder().artifact("dynamo_graph_break_reason", break_text("Data", 7)).bytes()
    assert read(fine).n_damaged == 0
    assert read(fine).n_break_records == 1
    harmed = read(fine.replace(b"cannot be traced", b"can\xff be traced"))
    assert harmed.n_damaged == 1
    assert harmed.n_break_records == 1


def test_what_is_too_long_is_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "MAX_PAYLOAD_BYTES", 1000)
    monkeypatch.setattr(entries, "BLOCK_BYTES", 100)
    log = LogBuilder().record("dynamo_output_graph", {}, "x = y\n" * 5000, "0/0")
    log.compiled("0/0", "step", 5)
    found = read(log)
    assert found.skipped == {"payload longer than 32 MiB": 1}
    assert [compilation.name for compilation in found.compilations] == ["step"]


def test_damage_is_counted_by_what_it_hit() -> None:
    log = LogBuilder().compiled("0/0", "step", 5)
    log.raw(b'V0524 12:48:44.657000 1401 torch/x.py:19] {"dynamo_start": {"stack": [}\n')
    log.raw(b"\n").raw(b"Traceback (most recent call last):\n").record("describe_tensor", {"id": 1})
    log.record("chromium_event", {}, '{"name": "dynamo", "ph": ', "0/0")
    log.record("chromium_event", {})
    log.raw(b'V0524 12:48:44.657000 1 x.py:9] {"dynamo_cpp_guards_str": {}, "has_payload": "0"}\n')
    found = read(log)
    assert found.skipped == {
        "header with damaged JSON": 1,
        "empty line": 1,
        "line that is no record": 1,
        "not part of this report: describe_tensor": 1,
        "damaged: chromium_event": 2,
        "payload missing": 1,
    }
    assert found.n_used == 3


def test_marks_nest_and_self_times_add_up() -> None:
    log = LogBuilder().mark("dynamo", "B", 0).mark("inductor_compile", "B", 100)
    log.mark("compile_file", "B", 100).mark("compile_file", "E", 500)
    log.mark("inductor_compile", "E", 50).mark("dynamo", "E", 10).mark("late", "E", 1)
    found = read(log)
    phases = found.phases
    assert phases.outer_ns == 760_000
    assert dict(phases.self_ns) == {"compile_file": 500_000, "inductor_compile": 150_000, "dynamo": 110_000}
    assert found.skipped["an end without a beginning"] == 1


def test_marks_that_never_end_are_counted_as_far_as_is_known() -> None:
    log = LogBuilder().mark("dynamo", "B", 0).mark("inductor_compile", "B", 100)
    log.mark("compile_file", "B", 100).mark("compile_file", "E", 500)
    log.mark("other", "B", 9000, "1/0").mark("other", "E", 40, "1/0")
    phases = read(log).phases
    assert phases.n_unended == 2
    # until the last of 0/0; not until 1/0, nine milliseconds later
    assert phases.outer_ns == phases.self_ns.total() == 700_000
    assert phases.self_ns["inductor_compile"] == 60_000
    (note,) = judge([read(log)]).notes
    assert note.code == "marks-unended"
    assert "2 marks" in note.message


def test_the_backends_own_time_is_not_dynamos() -> None:
    log = LogBuilder().mark("dynamo", "B", 0).mark("OutputGraph.call_user_compiler", "B", 10)
    log.mark("backend_compile", "B", 10).mark("backend_compile", "E", 70)
    log.mark("OutputGraph.call_user_compiler", "E", 10).mark("dynamo", "E", 20)
    told = {phase.name: phase.self_ms for phase in judge([read(log)]).phases}
    assert told == {"Dynamo: tracing Python": 0.03, "Backend, where it has no marks": 0.09}


class Endless:
    """A log of this many bytes that is nowhere whole."""

    def __init__(self, log: bytes, size_bytes: int) -> None:
        self.block = log * (entries.BLOCK_BYTES // len(log) + 1)
        self.left = size_bytes // len(self.block)
        self.held = b""

    def read(self, size: int, /) -> bytes:
        while len(self.held) < size and self.left:
            self.held, self.left = self.held + self.block, self.left - 1
        data, self.held = self.held[:size], self.held[size:]
        return data


def test_memory_does_not_grow_with_the_log() -> None:
    log = LogBuilder().mark("dynamo", "B", 0).mark("compile_file", "B", 1)
    log.mark("compile_file", "E", 90).mark("dynamo", "E", 1).record("describe_tensor", {"id": 1})
    log.artifact("fx_graph_runnable", "import torch\n" * 20_000)
    log.artifact("dynamo_graph_break_reason", break_text("Data", 7))

    def peak(size_bytes: int) -> int:
        tracemalloc.start()
        found = read_structured(ProcessLog("x.log"), Endless(log.bytes(), size_bytes))
        assert found.n_break_records > 2
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(2 << 20)  # what is made once
    small, large = peak(4 << 20), peak(24 << 20)
    assert large < small + (2 << 20)


def test_a_cut_gzip_gives_what_is_there(tmp_path: Path) -> None:
    log = LogBuilder()
    for number in range(3000):
        log.compiled(f"{number}/0", f"f{number * 7919 % 3001}", number)
    whole = gzip.compress(log.bytes())
    (tmp_path / "cut.log.gz").write_bytes(whole[: len(whole) // 2])
    ((found,), refused) = read_logs([str(tmp_path / "cut.log.gz")])
    assert not refused
    assert 100 < len(found.compilations) < 3000
    assert "cannot be read to its end" in found.end


@pytest.mark.parametrize("n_bytes", [700, 2_000, 20_000])
def test_a_short_gzip_that_was_cut_gives_what_is_there(tmp_path: Path, n_bytes: int) -> None:
    log = LogBuilder()
    for number in range(3000):
        log.compiled(f"{number}/0", f"f{number * 7919 % 3001}", number)
    whole = gzip.compress(log.bytes())
    assert len(whole) > 2 * n_bytes
    (tmp_path / "cut.log.gz").write_bytes(whole[:n_bytes])
    ((found,), _) = read_logs([str(tmp_path / "cut.log.gz")])
    assert len(found.compilations) >= n_bytes // 200
    assert "ends before its end marker" in found.end
    result = judge([found])
    assert not result.healthy
    assert result.verdict[0].endswith("; the log cannot be read to the end.")


def test_a_damaged_gzip_gives_what_comes_before(tmp_path: Path) -> None:
    log = LogBuilder()
    for number in range(3000):
        log.compiled(f"{number}/0", f"f{number * 7919 % 3001}", number)
    whole = bytearray(gzip.compress(log.bytes()))
    middle = len(whole) // 2
    whole[middle : middle + 99] = bytes(99)
    (tmp_path / "harmed.log.gz").write_bytes(whole)
    ((found,), _) = read_logs([str(tmp_path / "harmed.log.gz")])
    assert 100 < len(found.compilations) < 3000
    assert "cannot be read to its end" in found.end


def test_a_gzip_of_several_members_is_read_whole(tmp_path: Path) -> None:
    parts = [LogBuilder().compiled(f"{number}/0", f"f{number}", 5).bytes() for number in range(3)]
    packed = b"".join(gzip.compress(part) + b"\0" * 7 for part in parts)
    (tmp_path / "x.log.gz").write_bytes(packed)
    ((found,), _) = read_logs([str(tmp_path / "x.log.gz")])
    assert [compilation.name for compilation in found.compilations] == ["f0", "f1", "f2"]
    assert found.end == ""


@pytest.mark.parametrize("n_lines", [20_000, 200_000])
def test_a_break_after_much_other_output_is_found(tmp_path: Path, n_lines: int) -> None:
    noise = "".join(f"[2026-01-01] epoch {number}\n" for number in range(n_lines))
    rows = [f"V1121 21:56:44.7 17239 x.py:5] [0/0] [__graph_breaks] {row}" for row in break_text("Bad", 7).split("\n")]
    file = tmp_path / "train.log"
    file.write_text(noise + "\n".join(rows))
    ((found,), _) = read_logs([str(file)])
    assert (found.form, found.n_break_records) == ("text", 1)
    assert found.n_read == n_lines + len(rows) == found.n_used + found.skipped.total()
    file.write_bytes(noise.encode() + LogBuilder().compiled("0/0", "step", 5).bytes())
    ((found,), _) = read_logs([str(file)])
    assert (found.form, len(found.compilations)) == ("structured", 1)
    assert found.skipped["line that is no record"] == n_lines


def test_a_folder_gives_its_logs_alone(tmp_path: Path) -> None:
    for rank in (0, 1, 10):
        name = f"dedicated_log_torch_trace_rank_{rank}_ab{rank}.log"
        LogBuilder(rank).compiled("0/0", "step", 5).write(tmp_path / name)
    (tmp_path / "train.log").write_text("epoch 1\n")
    logs, refused = read_logs([str(tmp_path)])
    assert [log.named_rank for log in logs] == [0, 1, 10]
    assert refused == []


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "an empty file"),
        (b" \n\n", "an empty file"),
        (b"epoch 1, loss 3\n" * 50, "other text"),
        (b"\x00\x01\xfe" * 400, "binary data"),
        (b'{"traceEvents": []}', "JSON"),
        (b"\x80\x04\x95", "a pickle"),
        (b"\x1f\x8b\x08\x00broken", "gzip"),
    ],
)
def test_what_is_no_log_is_refused_by_name(tmp_path: Path, data: bytes, said: str) -> None:
    file = tmp_path / "x.log"
    file.write_bytes(data)
    with pytest.raises(LogError, match=said):
        read_logs([str(file)])


@pytest.mark.parametrize("odd", [{"frame_id": 0}, {"compiled_autograd_id": 1}])
def test_an_odd_compile_id_costs_no_more_than_its_record(odd: dict[str, int]) -> None:
    reasons = '\n\t["0/0: x == 3"]\n'
    head = {"artifact": {"name": "recompile_reasons"}, **odd}
    line = f"V0524 12:48:44.657000 1401 torch/_dynamo/x.py:19] {json.dumps(head)}{reasons}"
    found = read_structured(
        ProcessLog("x.log"), io.BytesIO(LogBuilder().compiled("0/0", "step", 5).bytes() + line.encode())
    )
    assert [row.function.function for row in judge([found]).recompiles] == ["step"]


def test_a_missing_path_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="No such file"):
        read_logs([str(tmp_path / "none.log")])
    with pytest.raises(LogError, match="in the folder, found none"):
        read_logs([str(tmp_path)])


def explained(tmp_path: Path, text: str, name: str = "explain.json") -> ProcessLog:
    file = tmp_path / name
    file.write_text(text)
    (log,), refused = read_logs([str(file)])
    assert refused == []
    assert log.n_read == log.n_used + log.skipped.total()
    return log


def test_explain_kept_as_json_gives_its_breaks(tmp_path: Path) -> None:
    cannot = (
        "Graph break: torch.compile cannot properly resume from this graph break, which results in"
        " a skip.\ntorch.compile will skip tracing the frame f (me/train.py line 1) and fall back"
        ' to eager.\nThe graph break occurred in the following user code:\n  File "me/train.py",'
        " line 9, in f\n    x\n"
    )
    reasons: list[object] = [
        {"reason": break_text("Data-dependent branching", 7), "file": "me/train.py", "line": 7},
        {"reason": break_text("Data-dependent branching", 7)},
        {"reason": cannot},
        {"reason": ""},
        3,
    ]
    rows = [{"name": "a", "break_reasons": reasons}, {"name": "b", "break_reasons": []}]
    log = explained(tmp_path, json.dumps({"metadata": {"torch": "2.10"}, "results": rows}))
    assert (log.n_read, log.n_used, log.n_break_records) == (5, 3, 3)
    result = judge([log])
    assert [(one.id, one.count, one.frame.line) for one in result.breaks if one.frame] == [("GB0170", 2, 7), ("", 1, 9)]
    assert result.verdict[0] == "2 graph breaks (3 records); recompilations: not logged."
    assert not result.healthy
    none = judge([explained(tmp_path, json.dumps([{"break_reasons": []}]))])
    assert none.verdict[0] == "No graph breaks; recompilations: not logged."


def test_explain_as_it_is_printed_gives_its_breaks(tmp_path: Path) -> None:
    text = (
        "a line of the program\nGraph Count: 3\nGraph Break Count: 2\nOp Count: 4\nBreak Reasons:\n"
        "  Break Reason 1:\n    Reason: generic_jump TensorVariable()\n    User Stack:\n"
        "      <FrameSummary file me/main.py, line 3 in <module>>\n"
        "      <FrameSummary file me/train.py, line 7 in step>\n"
        "  Break Reason 2:\n    Reason: Call to `torch._dynamo.graph_break()`\n"
        "  Explanation: Asked for.\n  Hint: Delete it.\n\n  Developer debug context: x\n\n"
        "    User Stack:\n      <FrameSummary file me/train.py, line 9 in step>\n"
        "Ops per Graph:\n  Ops 1:\n    <built-in function add>\n"
    )
    result = judge([explained(tmp_path, text, "explain.txt")])
    assert [
        (one.type, one.frame.file, one.frame.line, one.frame.function, one.explanation)
        for one in result.breaks
        if one.frame
    ] == [
        ("Data-dependent branching", "me/train.py", 7, "step", "generic_jump TensorVariable()"),
        ("Call to `torch._dynamo.graph_break()`", "me/train.py", 9, "step", "Asked for."),
    ]
    assert [frame.line for frame in result.breaks[0].stack] == [7, 3]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"break_reasons": [', "JSON with break_reasons, found some that cannot be read"),
        ('{"traceEvents": [], "x": "Graph break: no"}', "found JSON without break_reasons"),
        ("[" * 5000 + '"break_reasons"', "cannot be read"),
    ],
)
def test_json_that_is_none_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(LogError, match=said):
        read_logs([str(tmp_path / "x.json")])


def test_json_that_the_program_printed_first_hides_no_log(tmp_path: Path) -> None:
    rows = ['{"epoch": 0, "loss": 2.3}', "Graph break in user code at me/train.py:7", "Reason: Bad"]
    assert explained(tmp_path, "\n".join(rows), "x.log").n_break_records == 1
    record = LogBuilder().compiled("0/0", "step", 5).bytes().decode()
    assert explained(tmp_path, f"{rows[0]}\n{record}", "y.log").form == "structured"


@pytest.mark.parametrize("before", ["\ufeff", '{"config": "' + "x" * 300_000 + '", "results": '])
def test_reasons_are_read_behind_anything(tmp_path: Path, before: str) -> None:
    text = before + '{"break_reasons": [{"reason": "builtin: print"}]}' + "}" * before.count("{")
    assert explained(tmp_path, text).n_break_records == 1


@pytest.mark.torch
def test_the_installed_torchs_explain_is_read(tmp_path: Path) -> None:
    import torch

    def step(x: Any) -> Any:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    told = torch._dynamo.explain(step)(torch.ones(3))
    line = step.__code__.co_firstlineno + 2
    kept = {"break_reasons": [{"reason": reason.reason} for reason in told.break_reasons]}
    for log in (explained(tmp_path, str(told), "explain.txt"), explained(tmp_path, json.dumps(kept))):
        (one,) = judge([log]).breaks
        assert (one.id, one.type) == ("GB0025", "Call to `torch._dynamo.graph_break()`")
        if log.path.endswith(".txt"):  # in JSON without the stack the reason may name no line
            assert one.frame is not None
            assert one.frame.line == line
