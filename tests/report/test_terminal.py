from __future__ import annotations

import functools
import io
import re
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.color import Color
from rich.console import Console
from tests.report import forms
from tests.report.sample_result import SERVING, all_results, healthy, partial, problems, refused, unmarked

from torchtriage.core.finding import Fix, NotChecked, Note
from torchtriage.core.names import visible
from torchtriage.diagnose.verdict.result import ModelFlops
from torchtriage.report import terminal
from torchtriage.report.documents import pictures, trace

SEQUENCE = re.compile(r"\x1b\[[0-9;]*m|\x1b]8;.*?\x1b\\")
UNPRINTABLE = re.compile(r"[^\n\x20-\x7e\xa0-\U0010ffff]|[\u200b-\u200f\u2028-\u202e\u2066-\u2069]")


def printed(results, *, doctor=False, colour=False, width=80, encoding="utf-8", **options):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="")
    console = Console(file=file, width=width, force_terminal=colour, color_system="truecolor" if colour else None)
    for document in map(trace.doctor, results) if doctor else [trace.document(results, **options)]:
        terminal.put(functools.partial(terminal.render, document), console)
    file.flush()
    return raw.getvalue().decode(encoding)


def wrapped(text, *results):
    """Return the lines that must fit: all but links and code, which are never broken."""
    whole = {
        visible(row).strip()
        for result in results
        for finding in result.findings
        for row in (finding.fix.link, *finding.fix.code.replace("\r\n", "\n").split("\n"))
    }
    return [line for line in text.splitlines() if line.strip() not in whole]


@pytest.mark.parametrize("width", [40, 80, 97, 120])
@pytest.mark.parametrize("result", all_results(), ids=lambda result: result.trace.path[:8])
def test_no_line_is_wider_than_asked_or_ends_in_spaces(result, width):
    for text in (forms.traces([result], width=width).plain, forms.doctor(result, width=width).plain):
        assert all(cell_len(line) <= width for line in wrapped(text, result))
        assert all(line == line.rstrip() for line in text.splitlines())


def test_a_long_label_keeps_its_distance():
    page = terminal.TerminalPage(40)
    page.labelled("missing-rows", ("rows are missing in the run after", ""))
    assert page.text.plain.splitlines() == ["  missing-rows rows are missing in the", "            run after"]


def test_a_pipe_gets_eighty_columns_without_escape_codes():
    text = printed(all_results(), width=200)
    assert "\x1b" not in text
    assert max(cell_len(line) for line in wrapped(text, *all_results())) == 80


def test_hostile_names_reach_neither_the_terminal_nor_the_markup_parser():
    text = printed([problems()])
    assert not UNPRINTABLE.search(text)
    joined = re.sub(r"\s+", " ", text)
    assert r"\x1b[31mred" in joined
    assert "[bold]not markup[/bold] [/]" in joined
    assert r"\u202egnitfel" in joined


def test_colours_are_the_only_escape_codes_of_a_screen():
    text = printed([problems(), partial()], colour=True)
    assert "\x1b[1;38;5;160mHIGH\x1b[0m" in text
    assert not UNPRINTABLE.search(re.sub(SEQUENCE, "", text))


def luminance(red: int, green: int, blue: int) -> float:
    """Return the relative luminance of WCAG 2."""
    parts = [
        value / 255 / 12.92 if value <= 10 else ((value / 255 + 0.055) / 1.055) ** 2.4 for value in (red, green, blue)
    ]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


@pytest.mark.parametrize("name", terminal.INK)
def test_a_colour_can_be_read_on_white_and_on_black(name):
    light = luminance(*Color.parse(terminal.INK[name]).get_truecolor())
    assert min(1.05 / (light + 0.05), (light + 0.05) / 0.05) >= 3.5


def test_no_colour_is_used_where_none_is_wanted(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", printed([problems()], colour=True))


def test_a_link_is_opened_by_what_it_stands_for_and_on_a_screen_alone():
    link = problems().findings[0].fix.link
    assert re.search(rf"\x1b]8;[^;]*;{re.escape(link)}\x1b\\", printed([problems()], colour=True, short=True))
    assert "\x1b" not in printed([problems()], short=True)


def test_the_screen_shows_the_lines_the_pipe_shows():
    coloured = printed([problems()], colour=True, width=80)
    assert re.sub(SEQUENCE, "", coloured) == printed([problems()])


def test_an_output_without_unicode_gets_ascii():
    text = printed(all_results(), encoding="ascii")
    assert "##" in text
    assert "6.10 us" in text
    assert max(cell_len(line) for line in wrapped(text, *all_results())) <= 80


def test_the_first_three_lines_are_the_verdict():
    for result in all_results():
        lines = forms.traces([result]).plain.splitlines()
        assert tuple(lines[:3]) == result.verdict


def test_a_finding_says_what_it_costs_where_it_is_and_what_to_change():
    text = forms.traces([problems()]).plain
    block = text[text.index("1. HIGH") : text.index("2. MEDIUM")]
    assert block == (
        "1. HIGH The host waits for the GPU to read a scalar (SYN001)  certain\n"
        "   saves     9.10-11.9 ms of 48.2 ms per step (19-25 %)  measured, grade A\n"
        "   what      2 reads of a GPU scalar per step stop the host 21.4 ms; the GPU\n"
        "             then runs dry 11.9 ms\n"
        "   where     train.py:31 in train_step (the function's line, not the call's)\n"
        "             aten::item > aten::_local_scalar_dense > cudaStreamSynchronize\n"
        "             steps 11-14, 8 events, thread 4242 (main)\n"
        "   evidence  reads 2 per step, wait 21.4 ms per step, GPU idle 11.9 ms per step\n"
        "   fix       Keep the loss on the GPU and read it every N steps.\n"
        "             if step % 50 == 0:\n"
        "                 log(loss.item())\n"
        "             https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html\n"
        "   also      explains CPY006\n"
        "\n"
    )


def test_an_exact_line_is_not_called_the_start_of_its_function():
    text = forms.traces([problems()], width=120).plain
    assert "loops/train.py:27 in train_step\n" in text


def test_a_cost_without_a_lower_bound_promises_nothing():
    assert "up to 15.1 ms of 48.2 ms per step (up to 31 %)" in forms.traces([problems()]).plain


def test_a_cost_per_window_names_the_window():
    assert "90.0-120 ms of 480 ms in the window (19-25 %)" in forms.traces([unmarked()]).plain


def test_findings_keep_their_order_and_top_says_what_it_left():
    text = forms.traces([problems()], top=2).plain
    assert re.findall(r"^\d\. [^(]*\((\w+)\)", text, re.MULTILINE) == ["SYN001", "CPY007"]
    assert "3 more findings not shown" in text
    assert "not shown" not in forms.traces([problems()], top=5).plain
    assert "5 more findings not shown" in forms.traces([problems()], top=0).plain


def test_the_joint_saving_is_shown_once():
    text = forms.traces([problems()]).plain
    assert text.count("All together 12.3-27.8 ms of 48.2 ms per step (26-58 %)") == 1
    assert "All together" not in forms.traces([unmarked()]).plain


def test_warnings_come_before_findings_and_plain_notes_stay_with_the_doctor():
    text = forms.traces([problems()]).plain
    assert text.index("DQ010") < text.index("1. HIGH")
    assert "DQ007" not in text
    assert "DQ007" in forms.doctor(problems()).plain


def test_a_healthy_recording_says_what_was_checked():
    text = forms.traces([healthy()]).plain
    assert "No findings. 28 patterns checked." in text
    assert "Not checked" not in text


def test_what_was_not_checked_is_grouped_with_how_to_record():
    text = forms.traces([partial()]).plain
    assert "No findings. 23 patterns checked, 4 not checked, 1 failed." in text
    assert (
        "  no shapes: KRN023 matmul-misaligned, KRN025 attention-unfused\n    to check: profile(record_shapes=True)\n"
    ) in text
    assert "HST021 IndexError" in text


def test_losses_are_counted():
    text = forms.traces([partial()]).plain
    assert "salvaged: 1,204 events lost, 3 values repaired" in text
    assert "the file ends inside a string" in text


def test_a_refusal_claims_no_check_and_says_how_to_record():
    text = forms.traces([refused()]).plain
    assert "refused   DQ001" in text
    assert "patterns checked" not in text
    assert "4 patterns not checked." in text
    assert "No finding" not in text
    assert "ProfilerActivity.CUDA])" in text


def test_several_traces_are_told_apart_by_path():
    text = forms.traces([healthy(), refused()]).plain
    assert text.startswith("runs/good/worker0.pt.trace.json\n────")
    assert "\ncut.json\n────" in text


def test_the_device_bar_fills_its_width_and_its_shares_name_what_they_are_of():
    lines = forms.traces([problems()]).plain.splitlines()
    bar = next(line for line in lines if line.startswith("  GPU 0"))
    assert len(re.findall("[█▓▒·]", bar)) == pictures.BAR
    assert bar.endswith("193 ms in 4 steady steps")
    assert any("host late 24 %, queued 6.0 %, cause unknown 1.0 %" in line for line in lines)


def test_device_time_is_a_short_table_that_hides_no_category():
    lines = forms.traces([problems()]).plain.split("1. HIGH")[0].splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("  category"))
    rows = [" ".join(line.split()) for line in lines[first : first + 10]]
    assert rows[0] == "category per step busy launches mean"
    assert rows[1] == "GEMM 15.0 ms 45 % 96 156 µs"
    assert rows[8] == "embedding, other 750 µs 2.3 %"
    assert rows[9] == "GPU 0 is busy for 33.2 ms per step (4 steady steps); overlaps count once."
    second = next(index for index, line in enumerate(lines) if line.startswith("  operator"))
    assert lines[second + 3].split()[:2] == ["outside", "operators"]
    assert all(len(line) <= 80 for line in lines)


def test_mfu_states_what_it_is_a_share_of():
    category = problems().device_time[0]
    text = " ".join(forms.traces([problems()]).plain.split())
    peaks = "989 TFLOP/s for 97 %, 495 TFLOP/s for 3.0 %"
    assert f"MFU 18 %: 8.64 TFLOP in a step of 48.2 ms, over the dense peak of {peaks}." in text
    why = replace(category, mfu=ModelFlops(unchecked="the recording has no steps"))
    assert (
        "MFU not checked: the recording has no steps." in forms.traces([replace(problems(), device_time=(why,))]).plain
    )
    none = replace(category, mfu=None)
    assert "MFU" not in forms.traces([replace(problems(), device_time=(none,))]).plain


def test_bandwidths_of_collectives_say_what_they_are_and_what_has_none():
    text = forms.traces([problems()], width=100).plain
    rows = [" ".join(line.split()) for line in text[text.index("  collective ") :].splitlines()[:3]]
    assert rows == [
        "collective size ranks per step mean algorithm bus",
        "allreduce in default_pg 12.5-25.0 MiB 8 8 210 µs 162 GB/s 284 GB/s",
        "all_to_allv in mesh_ep 64.0 KiB 4 4 80.0 µs 2.05 GB/s 1.54 GB/s",
    ]
    said = " ".join(text.split())
    assert "includes waiting for other ranks, so the link does at least that" in said
    assert "Bus bandwidth of 8 of 56 collectives not checked: their sizes are not recorded." in said
    none = replace(problems().bus_bandwidth, rows=(), n_rows=0)
    said = forms.traces([replace(problems(), bus_bandwidth=none)]).plain
    assert "Bus bandwidth not checked: their sizes are not recorded." in said
    assert "algorithm" not in said


def test_a_share_of_the_roof_has_a_column_where_one_is_known_and_a_reason_where_none_is():
    category, operator = problems().device_time
    rows = (replace(operator.rows[0], of_roof=0.64, roof="memory"), *operator.rows[1:])
    text = forms.traces([replace(problems(), device_time=(category, replace(operator, rows=rows)))]).plain
    head, first, *_ = text[text.index("  operator") :].splitlines()
    assert (head.split()[-2:], first.split()[-3:]) == (["of", "roof"], ["64", "%", "memory"])
    why = replace(operator, peak_unchecked="the peak rates of X are not known")
    text = forms.traces([replace(problems(), device_time=(category, why))]).plain
    assert "of roof" not in text
    assert "Share of the roof not checked: the peak rates of X are not known." in text


def test_what_no_launch_was_recorded_with_is_said_instead_of_a_table():
    row = replace(problems().device_time[1].rows[0], name="")
    time = replace(problems().device_time[1], by="module", rows=(row,), n_rows=1, busy_ns=row.busy_ns)
    text = forms.traces([replace(problems(), device_time=(problems().device_time[0], time))]).plain
    assert "No module is recorded around a launch: that needs Python stacks." in text
    assert "outside modules" not in text


def test_the_steps_of_an_engine_are_a_table_by_phase():
    text = forms.traces([replace(problems(), serving=SERVING)]).plain
    lines = text[text.index("  phase") : text.index("  category")].splitlines()
    rows = [" ".join(line.split()) for line in lines if line]
    assert rows[:4] == [
        "phase steps tokens per step busy tokens/s graphs",
        "prefill 2 768 30.0 ms 75 % 25,600 piecewise (1), none (1)",
        "decode 10 32 10.0 ms 75 % 3,200 full",
        "not known 1 not known 9.00 ms 75 % not known",
    ]
    assert " ".join(rows[4:]) == (
        "vLLM, means over 13 steady steps, 169 ms in all as recorded; requests and tokens: prefill + decode."
    )
    assert all(len(line) <= 80 for line in lines)
    frames = replace(SERVING, basis="frames", phases=(replace(SERVING.phases[1], n_steps=12, n_steady=10),))
    text = " ".join(forms.traces([replace(problems(), serving=frames)]).plain.split())
    assert "decode 10 of 12 32 32 10.0 ms" in text
    assert "means over 10 steady steps of 12" in text
    assert "No range says what a step holds" in text


def test_a_recording_of_captures_says_so():
    captures = replace(SERVING, phases=(), captures=("capture_8192_PIECEWISE",))
    text = " ".join(forms.traces([replace(problems(), serving=captures)]).plain.split())
    assert "vLLM captures graphs here: capture_8192_PIECEWISE. The recording holds no step of vLLM." in text


def test_a_device_without_time_draws_no_bar():
    result = problems()
    device = result.summary.devices[0]
    empty = replace(device, classes=replace(device.classes, **dict.fromkeys(vars(device.classes), 0)))
    result = replace(result, summary=replace(result.summary, devices=(empty,)), device_time=())
    assert "GPU 0 " not in forms.traces([result]).plain.split("1. HIGH")[0]


@pytest.mark.parametrize(
    ("result", "trust"),
    [
        (healthy(), "This recording can be analysed."),
        (partial(), "This recording can be analysed, within limits."),
        (refused(), "This recording cannot be analysed."),
    ],
    ids=["healthy", "partial", "refused"],
)
def test_the_doctor_starts_with_how_far_to_trust(result, trust):
    text = forms.doctor(result).plain
    assert text.splitlines()[0] == trust
    assert "cpu_op 201,340" in text


@pytest.mark.parametrize(
    ("shared", "trust"),
    [([], "This recording can be analysed, as a job of 2 ranks."), (["0"], "This recording cannot be analysed.")],
)
def test_the_doctor_knows_ranks_in_one_file(shared, trust):
    note = Note("merged-ranks", "refuse", "2 ranks are in one file", evidence={"ranks": [0, 1], "shared": shared})
    assert forms.doctor(replace(refused(), notes=(note,))).plain.splitlines()[0] == trust


def test_the_doctor_view_is_written_for_each_trace():
    text = printed([healthy(), refused()], doctor=True)
    assert text.count("This recording can") == 2


def test_wide_characters_count_their_cells():
    result = problems()
    finding = replace(result.findings[0], message="負荷が高い " * 30)
    text = forms.traces([replace(result, findings=(finding,))], width=60).plain
    assert max(cell_len(line) for line in wrapped(text, result)) <= 60


def with_fix(**fix):
    result = problems()
    return replace(result, findings=(replace(result.findings[0], fix=Fix("Do it.", **fix)),))


@pytest.mark.parametrize("width", [40, 80])
def test_code_and_links_are_never_broken(width):
    code = "if ready:\n    out = model(inputs.to(device, non_blocking=True))  # after the copy began"
    link = "https://docs.pytorch.org/docs/stable/" + "a-long-page/" * 6
    lines = forms.traces([with_fix(code=code, link=link)], width=width).plain.splitlines()
    at = lines.index("     if ready:")
    assert lines[at : at + 3] == [f"     {row}" for row in (*code.split("\n"), link)]


def test_short_code_stands_below_its_sentence():
    assert "             a = 1\n" in forms.traces([with_fix(code="a = 1")]).plain


def test_a_number_stays_on_the_line_of_its_unit():
    result = problems()
    for length in range(40, 70):
        finding = replace(result.findings[0], message=f"{'x' * length} waits 21.4 ms, 31 % of it")
        text = forms.traces([replace(result, findings=(finding,))]).plain
        assert re.search(r"21\.4 ms,\s+31 %\s+of", text)


def test_a_recording_without_a_gpu_says_so_once_and_shows_its_host():
    result = unmarked()
    names = [f"AAA{n:03}" for n in range(18)]
    missing = tuple(NotChecked(name, f"name-{name}", ("GPU rows",), "") for name in names)
    result = replace(result, trace=replace(result.trace, vendor="cpu"), not_checked=missing)
    text = forms.traces([result]).plain
    assert "  18 GPU patterns: need GPU rows; add ProfilerActivity.CUDA" in text
    assert not any(name in text for name in names)
    assert "  top ops   2.00 ms  aten::conv2d, 20 calls\n" in text
    everything = forms.doctor(result).plain
    assert all(f"{name} name-{name}" in " ".join(everything.split()) for name in names)


def test_steps_without_a_device_are_drawn_by_height():
    result = problems()
    result = replace(result, summary=replace(result.summary, devices=()), findings=())
    text = forms.traces([result]).plain
    assert "  steps     █▃▃▃▃ 47.9-142 ms\n" in text


def test_a_sentence_of_the_verdict_is_not_repeated_by_its_note():
    result = refused()
    note = replace(result.notes[0], message="3,412 launches were recorded, 0 GPU rows")
    text = forms.traces([replace(result, notes=(note,))]).plain
    assert text.count("0 GPU rows") == 1
    assert "  refused   DQ001\n            try: profile(" in text


def test_several_traces_end_with_one_line_each():
    text = forms.traces([problems(), healthy(), refused()]).plain
    last = text[text.index("\n3 traces, each on its own\n") :]
    assert "  cut.json\n    rank 0: no verdict\n" in last
    assert "  runs/good/worker0.pt.trace.json\n    rank 0: nothing found\n" in last
    assert "traces\n" not in forms.traces([problems()]).plain


def test_a_long_path_keeps_its_name():
    result = healthy()
    path = "/data/" + "folder/" * 20 + "worker0.json"
    text = forms.traces([replace(result, trace=replace(result.trace, path=path))]).plain
    (line,) = [line for line in text.splitlines() if "worker0.json" in line]
    assert line.startswith("  /data/folder/")
    assert len(line) <= 80


def test_only_what_was_checked_whole_is_green():
    assert "\x1b[1;38;5;28mNothing to win" in printed([healthy()], colour=True)
    some = replace(healthy(), not_checked=partial().not_checked)
    assert "\x1b[1mNothing to win" in printed([some], colour=True)


def test_a_finding_without_a_saving_has_no_number_and_stands_after_the_others():
    result = problems()
    first, *rest = result.findings
    none = replace(first.cost, low_ms=0.0, high_ms=0.0)
    nothing = replace(first, cost=none, severity="medium", title="Nothing to win")
    result = replace(result, findings=(first, *(finding for finding in rest if finding.saves), nothing))
    for text in (printed([result]), forms.traces_in_markdown([result])):
        head, _, tail = text.partition("Without a saving in time:")
        assert first.code in head
        assert "Nothing to win" in tail
        assert not re.search(r"^\d+\. .*Nothing to win", text, re.MULTILINE)
        assert "saves     0 ns" not in text
