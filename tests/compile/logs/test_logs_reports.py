"""Reports and the command on logs, made and shared ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click.testing
import jsonschema
import pytest
from compile.logs.judged import healthy, judged, log_of, reconciled, sick
from compile.logs.log_builder import LogBuilder, break_text
from tests.report import forms

from torchtriage.cli.main import cli
from torchtriage.compile.logs.drawings import with_drawings
from torchtriage.compile.logs.judge import judge
from torchtriage.compile.logs.read import read_logs


def hostile() -> LogBuilder:
    bad = "<script>alert(1)</script>\x1b[31m{{style}}|`"
    log = LogBuilder().start("0/0", bad, f"{bad}.py", 5)
    text = break_text("<img src=x>\x1b[2J", 7, context="<b>").replace("me/train.py", f"{bad}.py")
    log.artifact("dynamo_graph_break_reason", text)
    return log.again("0/1", bad, 5, "0/0: mode == '<i>\x1b[0m'")


@pytest.mark.parametrize("make", [healthy, sick, hostile])
def test_every_form_holds_the_result(make: Any) -> None:
    result = judged(make())
    data = forms.encode(result)
    assert forms.decode(data, "compile") == result
    jsonschema.validate(json.loads(data), forms.schema("compile"))
    text = forms.terminal(result).plain
    page = forms.page(result)
    comment = forms.markdown(result)
    for one in (text, page, comment):
        assert "\x1b" not in one
    assert "<script" not in page
    assert "<img" not in page
    assert "<i>" not in page.replace("<td><i></i>", "")
    assert all(len(line) <= 80 or "http" in line or "  " in line for line in text.split("\n"))
    if result.breaks:
        assert "train.py:7" in text or make is hostile


def test_the_waterfall_is_drawn() -> None:
    page = forms.page(judged(sick()))
    assert page.count("<rect x=") == 4
    assert "compile_file 0/0: 700\N{NO-BREAK SPACE}ms" in page


def run(*args: str | Path) -> click.testing.Result:
    found = click.testing.CliRunner().invoke(cli, ["compile", *map(str, args)])
    assert found.exception is None or isinstance(found.exception, SystemExit), found.output
    assert "Traceback" not in found.output
    return found


def test_the_command_prints_saves_and_exits(tmp_path: Path) -> None:
    file = sick().write(tmp_path / "sick.log")
    found = run(file)
    assert found.exit_code == 0
    assert found.output.startswith("1 graph break (2 records), 11 recompilations of 2 kinds")
    assert run(file, "--fail-on", "high").exit_code == 1
    assert run(healthy().write(tmp_path / "fine.log"), "--fail-on", "note").exit_code == 0
    run(file, "--json", "-o", tmp_path / "out.json", "--html", tmp_path / "out.html")
    result = forms.decode((tmp_path / "out.json").read_bytes(), "compile")
    assert len(result.recompiles) == 2
    assert (tmp_path / "out.html").read_text("utf-8").startswith("<!doctype html>")
    assert run(file, "--markdown").output.startswith("### 1 graph break")
    shown = click.testing.CliRunner().invoke(cli, ["show", str(tmp_path / "out.json")])
    assert shown.output.rstrip() == forms.terminal(result).plain.rstrip()


@pytest.mark.parametrize(
    ("data", "said"), [(b"", "an empty file"), (b"\0\1\2" * 100, "binary data"), (b"hello\n", "other text")]
)
def test_unusable_files_give_one_clear_line(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "x.log").write_bytes(data)
    found = run(tmp_path / "x.log")
    assert found.exit_code == 2
    assert said in found.output
    assert found.output.count("\n") <= 2


def test_one_bad_file_does_not_hide_the_others(tmp_path: Path) -> None:
    found = run(sick().write(tmp_path / "a.log"), tmp_path / "missing.log")
    assert found.exit_code == 2
    assert "left out:" in found.output
    assert "1 graph break" in found.output


# -- the shared logs ---------------------------------------------------------------------------


@pytest.fixture
def logs(recordings: Path) -> Path:
    return recordings.parent / "logs"


@pytest.mark.data
def test_every_shared_log_is_read_and_reconciled(logs: Path) -> None:
    found, refused = read_logs([str(logs / "torch_trace"), str(logs / "graph_breaks")])
    assert refused == []
    for log in found:
        reconciled(judge([log]))
    names = {Path(log.path).name for log in found}
    assert "dedicated_log_torch_trace_rank_0.log.gz" in names


@pytest.mark.data
def test_damaged_json_loses_its_entry_alone(logs: Path) -> None:
    (fine,), _ = read_logs([str(logs / "torch_trace" / "simple.log.gz")])
    (harmed,), _ = read_logs([str(logs / "torch_trace" / "simple_corrupted_json.log.gz")])
    assert harmed.n_read == fine.n_read
    lost = fine.n_used - harmed.n_used
    assert lost == harmed.skipped["damaged: chromium_event"] > 0
    assert judge([harmed]).notes[0].code == "log-damaged"


@pytest.mark.data
def test_the_corpus_of_breaks_is_read_whole(logs: Path) -> None:
    file = logs / "graph_breaks" / "break_reasons_pt2.10_vision.txt"
    n_breaks = sum(row.startswith("Graph break") for row in file.read_text("utf-8").split("\n"))
    result = judge(read_logs([str(file)])[0])
    reconciled(result)
    assert result.books.n_breaks == n_breaks
    assert all(one.frame is not None and one.frame.line for one in result.breaks)
    keys = {(one.id or one.type, one.frame, one.caller) for one in result.breaks}
    assert len(keys) == len(result.breaks)


@pytest.mark.data
def test_a_rank_without_a_collective_is_found(logs: Path) -> None:
    result = judge(read_logs([str(logs / "torch_trace" / "multi_rank_schedule")])[0])
    (one,) = result.findings
    assert (one.code, one.evidence["compile_ids"]) == ("COM053", ["0/0"])
    assert [row["ranks"] for row in one.evidence["orders"]] == [[0, 2], [1]]


@pytest.mark.data
def test_ranks_of_a_job_share_their_rows(logs: Path) -> None:
    result = judge(read_logs([str(logs / "torch_trace" / "multi_rank_runtime")])[0])
    reconciled(result)
    (row,) = result.recompiles
    assert (row.count, row.cause, row.source, row.ranks) == (12, "object", "fn", (0, 1, 2, 3))
    assert result.inductor.n_fused_ops == 108


# -- in a browser ------------------------------------------------------------------------------


BEYOND = """
const width = document.documentElement.clientWidth, found = [];
for (const one of document.querySelectorAll('.row *, .phases td:last-child'))
  if (one.getBoundingClientRect().right > width + 1 && !one.closest('pre, .scroll'))
    found.push(one.tagName + ' ' + one.textContent.slice(0, 40));
for (const one of document.querySelectorAll('#phases .scroll'))
  if (width > 1000 && one.scrollWidth > one.clientWidth + 1) found.push('phases scroll');
return found;
"""
"""What stands beyond the page's right edge, out of reach."""


@pytest.mark.browser
def test_the_page_is_shown_without_a_complaint(tmp_path: Path, chrome: Any) -> None:
    log = sick().record("dynamo_output_graph", {}, "    x = torch.relu(y)\n    return (x,)\n", "0/0")
    found = log_of(log)
    result = judge([found])
    page = tmp_path / "page.html"
    page.write_text(forms.page(with_drawings(result, [found])), "utf-8")
    chrome.get(page.as_uri())
    bars = chrome.find_elements("css selector", ".fall rect")
    assert len(bars) == 4
    colours = {bar.value_of_css_property("fill") for bar in bars}
    assert len(colours) > 1  # the page's own style is allowed
    for width in (390, 500, 1200):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        assert chrome.execute_script(BEYOND) == [], width
    chrome.find_element("css selector", "#graphs summary").send_keys("\n")
    boxes = chrome.find_elements("css selector", ".graph rect")
    assert len(boxes) == 2
    assert all(box.is_displayed() for box in boxes)
    assert [one for one in chrome.get_log("browser") if one["level"] == "SEVERE"] == []
