"""A memory result reads the same everywhere, and nothing in a snapshot's names can break out."""

from __future__ import annotations

import html
import io
import json
import pickle
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result
from tests.memory.recorder import FORWARD, GIB, MIB, Recorder, frame, training_step
from tests.report import forms
from tests.report.sample_result import HOSTILE

from torchtriage.api.traces import sample_path
from torchtriage.cli.main import cli
from torchtriage.core.errors import SnapshotError, TraceFormatError
from torchtriage.memory.leaks import leak_watch
from torchtriage.memory.leaks.leak_report import REPORT, judge_watch, parse_watch
from torchtriage.memory.snapshot.categories import CATEGORIES, judge_categories, parse_categories
from torchtriage.memory.snapshot.peak_usage import MAX_LINES
from torchtriage.memory.snapshot.peak_usage import _parts as peak_parts
from torchtriage.memory.snapshot.read import read_memory, read_snapshot
from torchtriage.memory.snapshot.result import MemoryPart, MemoryResult
from torchtriage.memory.snapshot.verdict import judge
from torchtriage.report.documents import memory as words
from torchtriage.report.pages import memory as memory_page

PUBLISHED = Path(__file__).parents[2] / "docs" / "schema" / "torchtriage-memory-1.json"
A = 0x10_0000_0000


def failing(name: str = "/home/me/model.py", function: str = "forward") -> dict[str, Any]:
    one = Recorder()
    where = [frame(name, 41, function), *FORWARD]
    one.reserve(A, 8 * GIB)
    one.alloc(A, 7 * GIB, where)
    one.alloc(A + 7 * GIB + 512 * MIB, 512 * MIB, where)
    one.oom(GIB, 3 * MIB, where)
    one.annotations += [{"name": name, "stage": "START", "device": 0, "time_us": 1}]
    return one.dump()


def result_of(document: dict[str, Any]) -> MemoryResult:
    return judge(read_snapshot(io.BytesIO(pickle.dumps(document, 4))))


@cache
def results() -> tuple[MemoryResult, ...]:
    timeline = judge_categories(parse_categories(raw(), "timeline.json"))
    empty = result_of({"segments": [], "device_traces": []})
    return result_of(training_step().dump()), result_of(failing()), timeline, empty


def raw() -> bytes:
    return json.dumps(
        [
            [-1, 1, 1000, 0],
            [5_000_000, 2, 500, 4],
            [6_000_000, 3, -500, 4],
            [6_000_000, 3, 500, 3],
            [9_000_000, 4, -500, 3],
        ]
    ).encode()


def test_every_result_follows_the_schema_and_comes_back() -> None:
    schema = forms.schema("memory")
    assert json.loads(PUBLISHED.read_text("utf-8")) == schema, "run: python -m tests.report.write_schema"
    jsonschema.Draft202012Validator.check_schema(schema)
    data = forms.encode(results())
    jsonschema.validate(json.loads(data), schema)
    assert forms.decode(data, "memory") == list(results())
    assert forms.encode(forms.decode(data, "memory")) == data


@pytest.mark.parametrize("data", [b"", b"[]", b'{"schema": "torchtriage/1"}', b"\xff"])
def test_other_documents_are_refused(data: bytes) -> None:
    with pytest.raises(TraceFormatError, match="expected a memory result"):
        forms.decode(data, "memory")


def test_the_same_file_gives_the_same_bytes() -> None:
    assert forms.encode([result_of(failing())]) == forms.encode([result_of(failing())])


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_terminal_says_verdict_holders_and_causes(width: int) -> None:
    text = forms.terminal(results(), width=width).plain
    flat = " ".join(text.split())
    assert "An allocation of 1.00 GiB failed at /home/me/model.py:41 forward" in flat
    assert "All free memory together was" in flat
    for word in ("MEM048", "peak", "by phase", "Not checked", "reserved"):
        assert word in flat
    assert max(map(len, text.split("\n"))) <= max(width, 120)


def test_a_peak_from_before_the_history_is_said_to_be() -> None:
    one = Recorder()
    one.reserve(A, GIB, recorded=False)
    one.alloc(A, GIB, recorded=False)
    one.free(A)
    assert ", before the first entry" in forms.terminal([result_of(one.dump())]).plain


def test_markdown_has_the_table_of_holders() -> None:
    text = forms.markdown(results())
    assert "| 7.50 GiB | 100 % | me/model.py:41 forward, 2 allocations" in text
    assert "MEM048" in text


def test_markdown_of_a_timeline_has_the_table_of_purposes() -> None:
    text = forms.markdown([judge_categories(parse_categories(raw(), "timeline.json"))])
    assert "| held at the peak of the timeline's device | | by purpose |" in text
    assert "| 1000 B | 67 % | parameters |\n| 500 B | 33 % | activations |\n| **1.46 KiB**" in text


def test_one_left_out_is_one_other() -> None:
    seven = [MemoryPart(f"cause {i}", 1, 1 / 7) for i in range(7)]
    assert words.parts(seven).endswith(", 1 other 1 B")
    assert words.parts([*seven, seven[0]]).endswith(", 2 others 2 B")
    sizes = {f"purpose {i}": 1 for i in range(MAX_LINES + 1)}
    assert peak_parts(sizes, len(sizes))[-1].name == "1 other"


@cache
def hostile() -> MemoryResult:
    return result_of(failing(name=f"/home/{HOSTILE}.py", function=HOSTILE))


def test_the_page_is_whole_small_and_runs_one_script() -> None:
    page = forms.page(results())
    assert len(page.encode()) < memory_page.MAX_PAGE_BYTES
    assert page.count("<script>") == 1
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert "default-src 'none'" in html.unescape(policy[1])
    assert not re.search(r'(src|href)="https?://(?!docs\.pytorch)', page)
    data = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    pictures = json.loads(data[1])["pictures"]
    assert [picture["id"] for picture in pictures] == ["0-0", "1-0", "2-0"]


def test_nothing_in_a_name_breaks_out() -> None:
    page = forms.page([hostile()])
    body = page.split('id="data">')[0]
    assert "<img" not in body
    assert page.count("<script") == 2
    assert "</script><" not in page.split('id="data">')[1].split("</script>")[0]
    text = forms.terminal([hostile()]).plain
    assert "\x1b" not in text


def test_pictures_that_do_not_fit_are_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_page, "MAX_PAGE_BYTES", 1000)
    page = forms.page(results())
    assert "left out to keep the page small" in page
    assert '"pictures":[]}</script>' in page


# -- the profiler's own timeline ---------------------------------------------------------------


def test_a_raw_timeline_is_read_by_category() -> None:
    told = parse_categories(raw(), "raw.json")
    assert told.held_bytes.sum(axis=0).tolist() == [1000, 1500, 1000, 1500, 1000]
    assert told.held_bytes[CATEGORIES.index("temporaries")].tolist() == [0, 0, 0, 500, 0]
    result = judge_categories(told)
    (device,) = result.devices
    assert device.peak is not None
    assert (device.peak.allocated_bytes, device.peak.at_us) == (1500, 0)
    assert {part.name: part.size_bytes for part in device.peak.categories} == {"parameters": 1000, "activations": 500}
    assert {one.code for one in result.not_checked} == {"MEM029", "MEM049", "MEM052"}


def test_numbers_beyond_64_bits_are_no_timeline() -> None:
    for text in (b"[[%d, 1, 2, 3]]", b"[[1, %d], [[0], [0]]]"):
        with pytest.raises(SnapshotError, match="other JSON"):
            parse_categories(text % 10**30, "raw.json")


def test_a_drawn_timeline_is_the_same_in_microseconds(tmp_path: Path) -> None:
    sizes = [[0, 1000, 0, 0, 0, 0, 0, 0, 0], [0, 1000, 0, 0, 0, 500, 0, 0, 0]]
    start_ns = 1_700_000_000_000_000_000
    file = tmp_path / "drawn.json"
    file.write_text(json.dumps([[start_ns // 1000, start_ns // 1000 + 98_000], sizes]))
    told = read_memory(file)
    assert not hasattr(told, "segments")
    assert told.held_bytes.sum(axis=0).tolist() == [1000, 1500]
    same = parse_categories(json.dumps([[start_ns, 0, 1000, 0], [start_ns + 98_000_000, 1, 500, 4]]).encode(), "raw")
    for one in (told, same):
        (device,) = judge_categories(one).devices
        assert device.peak is not None
        assert device.peak.at_us == 98_000


# -- memory from step to step -------------------------------------------------------------------


def leaking() -> MemoryResult:
    one = Recorder()
    one.reserve(A, GIB)
    for step in range(12):
        one.annotate(f"ProfilerStep#{step}", "START")
        one.alloc(A + step * MIB, MIB, [frame("/home/me/train.py", 15, "main")])
        one.alloc(A + 512 * MIB, 4 * MIB)
        one.free(A + 512 * MIB)
    return result_of(one.dump())


def watched(answer: str = "leak", n_steps: int = 400) -> dict[str, Any]:
    leak = {
        "kind": "growing list",
        "holder": "kept",
        "root": "main() of train.py",
        "file": "/home/me/train.py",
        "line": 8,
        "function": "main",
        "unit": "items",
        "per_step": 1.0,
        "bytes_per_step": 4096.0,
        "since_step": 100,
        "found_step": 270,
    }
    steps = list(range(0, n_steps, 10))
    return {
        "schema": "torchtriage-watch/1",
        "answer": answer,
        "n_steps": n_steps,
        "n_looks": 20,
        "leaks": [leak] if answer == "leak" else [],
        "rss_first_bytes": GIB,
        "rss_last_bytes": GIB + 2 * MIB,
        "rss_why": "",
        "own_s": 0.1,
        "own_share": 0.002,
        "notes": ["on_alarm failed: KeyError"],
        "rss_peak_bytes": GIB + 3 * MIB,
        "series": [
            {
                "name": "resident memory of the process",
                "steps": steps,
                "size_bytes": [GIB + max(step - 100, 0) * 4096 for step in steps],
            },
            {"name": "reserved on the CUDA device", "steps": steps, "size_bytes": [GIB] * len(steps)},
        ],
    }


def test_growth_is_on_the_page_and_on_the_terminal() -> None:
    result = leaking()
    page = forms.page([result])
    assert '<div id="slope-0-0">' in page
    (drawn,) = json.loads(page.split('id="data">')[1].split("</script>")[0])["growing"]
    assert drawn["slopes"] == [MIB, MIB, MIB]
    assert drawn["areas"][0]["label"] == "me/train.py:15 main"
    text = " ".join(forms.terminal([result]).plain.split())
    assert "▁▂▂▃▄▅▅▆▇▇█" in text
    assert "1.00 MiB to 11.0 MiB over 11 steps, 1.00 MiB per step from step 1 on" in text
    assert forms.decode(forms.encode([result]), "memory") == [result]


def test_the_report_of_a_watch_is_shown_like_a_snapshot(tmp_path: Path) -> None:
    file = tmp_path / "memory_watch.json"
    file.write_text(json.dumps(watched()))
    found = run(file, "--html", tmp_path / "page.html", "--fail-on", "high")
    assert found.exit_code == 1
    text = " ".join(found.output.split())
    assert "Leak: growing list `kept` in main() of train.py grows by 1 item per step" in text
    assert "4.00 KiB per step from step 100 on" in text
    assert "Resident memory: 1.00 GiB at the first step" in text
    assert "on_alarm failed: KeyError" in text
    page = (tmp_path / "page.html").read_text("utf-8")
    resident, reserved = json.loads(page.split('id="data">')[1].split("</script>")[0])["growing"]
    assert (resident["leak"], resident["from"]) == (True, 100)
    # it does not grow: the leak is not drawn into it
    assert not reserved["leak"]


def test_what_a_watch_leaves_can_be_read(tmp_path: Path) -> None:
    with leak_watch.watch(out_dir=tmp_path) as watch:
        for _ in range(6000):
            watch.step()
    told = parse_watch((tmp_path / REPORT).read_bytes(), "memory_watch.json")
    assert told.report.leaks == watch.report().leaks == ()
    (resident,) = told.report.series
    assert resident.steps[-1] == 6000
    assert len(resident.steps) <= leak_watch.MAX_POINTS
    assert judge_watch(told).growth[0].steps == resident.steps


@pytest.mark.parametrize(
    ("answer", "n_steps", "healthy", "missing"),
    [
        ("no leak", 400, False, {"MEM052", "MEM029"}),
        ("no leak", 4000, True, {"MEM052"}),
        ("too early", 40, False, {"MEM052", "MEM029"}),
    ],
)
def test_a_short_watch_is_not_a_clean_one(answer: str, n_steps: int, healthy: bool, missing: set[str]) -> None:
    result = judge_watch(parse_watch(json.dumps(watched(answer, n_steps)).encode(), "w.json"))
    assert result.healthy is healthy
    assert {one.code for one in result.not_checked} == missing
    assert result.findings == ()


@pytest.mark.parametrize(
    "change",
    [{"schema": "torchtriage-watch/2"}, {"leaks": 3}, {"series": [{"name": "", "steps": [1], "size_bytes": []}]}],
)
def test_a_broken_report_of_a_watch_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    file = tmp_path / "memory_watch.json"
    file.write_text(json.dumps({**watched(), **change}))
    found = run(file)
    assert found.exit_code == 2
    assert "watch" in found.output or "series" in found.output


# -- the command -------------------------------------------------------------------------------


def run(*args: str | Path) -> Result:
    found = CliRunner().invoke(cli, ["memory", *map(str, args)])
    assert found.exception is None or isinstance(found.exception, SystemExit), found.output
    assert "Traceback" not in found.output
    return found


def test_a_trace_beside_the_snapshot_is_read(files: Path) -> None:
    assert run(files / "fine.pickle", "--trace", sample_path()).exit_code == 0
    assert "empty.pickle" in run(files / "fine.pickle", "--trace", files / "empty.pickle").output
    assert run(files / "fine.pickle", "--trace", files / "empty.pickle").exit_code == 2


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "fine.pickle").write_bytes(pickle.dumps(training_step().dump(), 4))
    (tmp_path / "oom.pickle").write_bytes(pickle.dumps(failing(), 5))
    (tmp_path / "empty.pickle").write_bytes(b"")
    (tmp_path / "text.pickle").write_text("hello")
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    (tmp_path / "other.pickle").write_bytes(pickle.dumps({"a": 1}, 4))
    (tmp_path / "nothing.pickle").write_bytes(pickle.dumps([], 4))
    nowhere = {"action": "alloc", "addr": float("nan"), "size": 512, "stream": 0, "frames": []}
    (tmp_path / "nan.pickle").write_bytes(pickle.dumps({"segments": [], "device_traces": [[nowhere]]}, 4))
    (tmp_path / "code.pickle").write_bytes(pickle.dumps({"segments": [Path()]}, 4))
    return tmp_path


def test_the_command_prints_saves_and_exits(files: Path) -> None:
    found = run(files / "fine.pickle")
    assert found.exit_code == 0
    assert found.output.startswith("Peak: 256 MiB allocated on device 0")
    assert run(files / "oom.pickle", "--fail-on", "high").exit_code == 1
    assert run(files / "oom.pickle", "--json", "-o", files / "out.json").exit_code == 0
    (result,) = forms.decode((files / "out.json").read_bytes(), "memory")
    assert result.findings[0].code == "MEM048"
    assert run(files / "oom.pickle", "--html", files / "out.html").exit_code == 0
    assert (files / "out.html").read_text("utf-8").startswith("<!doctype html>")
    assert run(files / "fine.pickle", "--markdown").output.startswith("### Peak")


@pytest.mark.parametrize(("form", "name"), [("--json", "out.json"), ("--markdown", "out.md")])
def test_a_file_to_write_is_not_taken_for_a_snapshot(files: Path, form: str, name: str) -> None:
    found = run(files / "fine.pickle", form, files / name)
    assert found.exit_code == 2
    assert f"try: {form} prints; to write a file: {form} -o {files / name}" in found.stderr
    assert found.stdout == ""


def test_a_result_is_not_taken_for_a_snapshot(files: Path) -> None:
    assert run(files / "fine.pickle", "--json", "-o", files / "out.json").exit_code == 0
    found = run(files / "fine.pickle", "--json", files / "out.json")
    assert found.exit_code == 2
    assert "expected a memory snapshot, found a result of torchtriage" in found.stderr
    shown = f"torchtriage show {files / 'out.json'}; to write it again: --json -o"
    assert shown in found.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("empty.pickle", "found an empty file"),
        ("text.pickle", "expected a memory snapshot"),
        ("trace.json", "expected"),
        ("other.pickle", "a dict without segments"),
        ("nothing.pickle", "a pickle of an empty list"),
        ("nan.pickle", "found nan where a whole number belongs"),
        ("code.pickle", "nothing was run"),
        ("missing.pickle", "No such file"),
        (".", "found a folder"),
    ],
)
def test_unusable_files_give_one_clear_line(files: Path, name: str, said: str) -> None:
    found = run(files / name)
    assert found.exit_code == 2
    assert said in found.output
    assert found.output.count("\n") <= 2


def test_one_bad_file_does_not_hide_the_others(files: Path) -> None:
    found = run(files / "fine.pickle", files / "text.pickle")
    assert found.exit_code == 2
    assert "left out:" in found.output
    assert "Peak: 256 MiB" in found.output


# -- in a browser ------------------------------------------------------------------------------


@pytest.mark.browser
def test_the_pictures_are_drawn_without_a_complaint(tmp_path: Path, chrome: Any) -> None:
    page = tmp_path / "page.html"
    page.write_text(forms.page([*results(), hostile(), leaking()]), "utf-8")
    chrome.get(page.as_uri())
    assert len(chrome.find_elements("css selector", ".over svg path")) > 8
    assert len(chrome.find_elements("css selector", ".map canvas")) == 4
    assert len(chrome.find_elements("css selector", ".slope .fit.leak")) == 1
    said = chrome.find_element("css selector", ".say").text
    assert said.startswith("The peak, entry 5")
    assert "256 MiB allocated" in said.replace("\N{NO-BREAK SPACE}", " ")
    first = chrome.find_element("css selector", ".owners button")
    first.send_keys("\n")
    assert first.get_attribute("aria-pressed") == "true"
    chrome.find_element("id", "theme").send_keys("\n")
    assert [one for one in chrome.get_log("browser") if one["level"] == "SEVERE"] == []
