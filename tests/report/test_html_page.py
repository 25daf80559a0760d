"""The page as text: safe against its data, exact in its figures, small whatever it is given."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import itertools
import json
import re
import time
from html.parser import HTMLParser
from typing import Any

import pytest
from tests.report.maximal_result import N_SPANS, maximal
from tests.report.sample_result import HOSTILE, all_results, healthy, problems, refused, unmarked

from torchtriage.core.finding import Cost, Fix, NotChecked
from torchtriage.diagnose.verdict.result import Result, TimelineLane
from torchtriage.report.pages import trace as html_page
from torchtriage.report.pages.trace import MAX_PAGE_BYTES, render


class Document(HTMLParser):
    """Every tag with its attributes, and what scripts and styles hold, as a browser sees it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[str] = []
        self._inside = ""
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in {"script", "style"}:
            self._inside = tag
            self.raw.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.raw[-1] += data
        else:
            self.text += data

    def named(self, name: str) -> list[dict[str, str | None]]:
        return [attrs for tag, attrs in self.tags if tag == name]


def data_of(page: str) -> Any:
    style, data, script = Document(page).raw
    assert style
    assert script
    return json.loads(data, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def with_evidence(result: Result, evidence: dict[str, Any]) -> Result:
    first = dataclasses.replace(result.findings[0], evidence=evidence)
    return dataclasses.replace(result, findings=(first, *result.findings[1:]))


# -- safety ------------------------------------------------------------------------------------


def test_hostile_names_add_no_tag_and_no_attribute() -> None:
    def fixed(page: str) -> list[tuple[str, frozenset[str]]]:
        before, _, rest = page.partition("<noscript>")
        return [(tag, frozenset(attrs)) for tag, attrs in Document(before + rest.partition("</noscript>")[2]).tags]

    plain, hostile = render([healthy()]), render([problems()])
    assert fixed(hostile) == fixed(plain)
    # what is there without scripts grows with the findings
    (summary,) = re.findall("<noscript>(.*)</noscript>", hostile, re.DOTALL)
    tags = Document(summary).tags
    blocks = {"header", "section", "div", "h1", "h2", "h3", "p", "dl", "dt", "dd", "ul", "li", "pre"}
    tables = {"table", "thead", "tbody", "tr", "th", "td"}
    assert {tag for tag, _ in tags} <= {*blocks, *tables, "a", "b", "code", "span"}
    assert {name for _, attrs in tags for name in attrs} <= {"class", "href", "rel"}
    assert len(Document(hostile).raw) == 3
    assert HOSTILE[:27] in Document(hostile).text  # shown, as text


def test_no_name_can_close_the_data_block() -> None:
    result = with_evidence(problems(), {"</script><img src=x onerror=alert(1)>": "<!--<script>"})
    page = render([result])
    evidence = data_of(page)["results"][0]["findings"][0]["evidence"]
    assert evidence == [["</script><img src=x onerror=alert(1)>", "<!--<script>"]]
    assert not Document(page).named("img")


def test_policy_names_exactly_the_script_and_the_style_of_the_page() -> None:
    document = Document(render(all_results()))
    style, _, script = document.raw
    (policy,) = [
        attrs["content"] for attrs in document.named("meta") if attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for rule, source in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert "unsafe" not in policy
    # the policy stands before what it rules
    names = [tag for tag, _ in document.tags]
    assert names.index("meta") < names.index("style")


def test_nothing_on_the_page_is_fetched() -> None:
    document = Document(render(all_results()))
    for tag, attrs in document.tags:
        assert tag not in {"img", "iframe", "object", "embed", "video", "audio", "base", "form"}
        assert "src" not in attrs
        assert "style" not in attrs
        assert not any(name.startswith("on") for name in attrs)
        if tag == "link":
            assert str(attrs["href"]).startswith("data:")
    style, _, script = document.raw
    assert not re.search(r"@import|url\(", style)
    code = script.split("(() => {", 1)[1]
    for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write"):
        assert word not in code
    for word in ("eval(", "Function(", "fetch(", "XMLHttpRequest", "WebSocket", "import("):
        assert word not in code


def test_only_web_links_become_links() -> None:
    def link(value: str) -> str:
        finding = dataclasses.replace(problems().findings[0], fix=Fix("do", link=value))
        page = render([dataclasses.replace(problems(), findings=(finding,))])
        return str(data_of(page)["results"][0]["findings"][0]["fix"]["link"])

    assert link("https://pytorch.org/docs") == "https://pytorch.org/docs"
    for bad in ("javascript:alert(1)", " javascript:alert(1)", "data:text/html,x", "file:///etc"):
        assert link(bad) == ""


def test_marks_that_hide_or_reorder_text_are_shown_by_number() -> None:
    page = render([with_evidence(problems(), {"a\u202eb": "c\x1bd\u200be\ud800f\u2028g"})])
    page.encode("utf-8")  # a lone surrogate could not be written
    evidence = data_of(page)["results"][0]["findings"][0]["evidence"]
    assert evidence == [["a\\u202eb", "c\\x1bd\\u200be\\ud800f\\u2028g"]]
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028]", page)


def test_a_name_that_looks_like_a_slot_of_the_template_stays_a_name() -> None:
    result = with_evidence(problems(), {"k": "{{script}} {{policy}}"})
    assert data_of(render([result]))["results"][0]["findings"][0]["evidence"] == [["k", "{{script}} {{policy}}"]]


def test_folders_of_the_machine_stay_private() -> None:
    result = problems()
    for path in ("/home/someone/secret/run.json", "C:\\Users\\someone\\secret\\run.json"):
        trace = dataclasses.replace(result.trace, path=path)
        page = render([dataclasses.replace(result, trace=trace)])
        assert "secret" not in page
        assert data_of(page)["results"][0]["trace"]["file"] == "run.json"


# -- figures -----------------------------------------------------------------------------------


def test_spans_unpack_to_the_nanosecond() -> None:
    result = problems()
    assert result.summary is not None
    data = data_of(render([result]))
    for lane, packed in zip(result.summary.timeline, data["results"][0]["summary"]["lanes"], strict=True):
        at = result.summary.window_start_ns
        rows = [packed["spans"][i : i + 4] for i in range(0, len(packed["spans"]), 4)]
        for (gap, dur, kind, _), span in zip(rows, lane.spans, strict=True):
            at += gap
            assert (at, at + dur, data["classes"][kind]) == span[:3]


def test_epoch_nanoseconds_survive_numbers_of_53_bits() -> None:
    result = maximal()
    assert result.summary is not None
    packed = data_of(render([result]))["results"][0]

    def numbers(value: Any) -> Any:
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list):
            return itertools.chain.from_iterable(numbers(item) for item in value)
        return [value] if isinstance(value, (int, float)) else []

    assert max(abs(value) for value in numbers(packed)) < 2**53
    example = result.findings[0].place.examples[1]
    shown = packed["findings"][0]["place"]["examples"][1]
    assert shown["startNs"] + result.summary.window_start_ns == example.start_ns
    assert shown["ts"] == f"{example.start_ns // 1000}.{example.start_ns % 1000:03d}"


def test_classes_of_time_keep_their_sum() -> None:
    summary = data_of(render([problems()]))["results"][0]["summary"]
    for classes in [summary["devices"][0]["classes"], *(step[5] for step in summary["steps"])]:
        assert classes[0] == sum(classes[1:])


def test_idle_time_is_given_to_its_findings_and_the_rest_to_none() -> None:
    result = problems()
    assert result.summary is not None
    steady = [step.classes for step in result.summary.steps if step.steady and step.classes]
    total = sum(c.idle_host_late_ns + c.idle_queued_ns + c.idle_unknown_ns for c in steady)
    owned = [[0, 47_600_000], [2, 5_600_000]]
    idle = {"idleNs": total, "causes": owned, "restNs": total - 53_200_000}
    assert data_of(render([result]))["results"][0]["idle"] == idle
    # the largest cause first, whatever the findings' order
    turned = dataclasses.replace(result, findings=tuple(reversed(result.findings)))
    causes = data_of(render([turned]))["results"][0]["idle"]["causes"]
    assert causes == [[4, 47_600_000], [2, 5_600_000]]


def test_a_recording_without_a_device_has_no_idle_time() -> None:
    assert data_of(render([unmarked()]))["results"][0]["idle"] is None


def test_patterns_for_a_gpu_are_told_apart_on_a_recording_of_the_cpu() -> None:
    missing = (NotChecked("AAA001", "a", ("GPU rows",), "x"), NotChecked("BBB002", "b", ("shapes",), "y"))
    for vendor, found in (("cpu", [True, False]), ("cuda", [False, False])):
        trace = dataclasses.replace(unmarked().trace, vendor=vendor)
        page = render([dataclasses.replace(unmarked(), trace=trace, not_checked=missing)])
        packed = data_of(page)["results"][0]
        assert [item["device"] for item in packed["notChecked"]] == found
        assert bool(packed["withoutDevice"]) == found[0]


def test_numbers_json_cannot_hold_become_words_or_nothing() -> None:
    nan = float("nan")
    cost = Cost(nan, float("inf"), "step", 1.0, nan, nan, 0.0, "bounded", "m", "C")
    finding = dataclasses.replace(
        problems().findings[0], cost=cost, evidence={"ratio": nan, "pair": (1, float("-inf"))}
    )
    page = render([dataclasses.replace(problems(), findings=(finding,))])
    packed = data_of(page)["results"][0]["findings"][0]
    assert packed["cost"]["lowMs"] is None
    assert packed["evidence"] == [["ratio", "nan"], ["pair", {"first": [1, "-inf"], "n": 2}]]


# -- without scripts ---------------------------------------------------------------------------


def test_summary_without_scripts_names_every_finding_note_and_gap() -> None:
    text = re.sub(r"\s+", " ", Document(render(all_results())).text)
    for result in all_results():
        for line in result.verdict:
            assert line in text
        for finding in result.findings:
            assert f"{finding.title} ({finding.code})" in text
        for note in result.notes:
            assert note.message in text
        for item in (*result.not_checked, *result.crashes):
            assert item.code in text
    assert "9.10-11.9 ms of 48.2 ms per step (19-25 %) measured, grade A" in text


# -- size and time -----------------------------------------------------------------------------


def test_the_largest_result_fits_with_nothing_left_out() -> None:
    result = maximal()
    started = time.process_time()
    page = render([result])
    took_s = time.process_time() - started
    assert len(page.encode()) <= MAX_PAGE_BYTES
    data = data_of(page)
    assert data["cut"] == []
    packed = data["results"][0]
    assert [len(lane["spans"]) for lane in packed["summary"]["lanes"]] == [4 * N_SPANS] * 12
    assert [len(f["place"]["marks"]) for f in packed["findings"]] == [400] * 50
    assert all(f["place"]["costliest"] for f in packed["findings"])
    few = data_of(render([problems()]))["results"][0]["findings"]
    assert not any(f["place"]["costliest"] for f in few)
    # processor time: 0.2 s on a core
    assert took_s < 2


def test_many_ranks_carry_less_each_and_say_so() -> None:
    base = maximal()
    results = [dataclasses.replace(base, trace=dataclasses.replace(base.trace, rank=rank)) for rank in range(16)]
    page = render(results)
    assert len(page.encode()) <= MAX_PAGE_BYTES
    data = data_of(page)
    assert len(data["results"]) == 16
    assert any("of 50 findings" in line for line in data["cut"])
    assert all(result["nFindings"] == 50 for result in data["results"])
    assert {result["summary"]["nKernelNames"] for result in data["results"]} == {812}


def test_of_many_ranks_the_page_holds_as_many_as_fit() -> None:
    base = maximal()
    results = [
        dataclasses.replace(base, trace=dataclasses.replace(base.trace, rank=rank, path=f"rank{rank}.json"))
        for rank in range(300)
    ]
    page = render(results)
    assert 0.5 * MAX_PAGE_BYTES < len(page.encode()) <= MAX_PAGE_BYTES
    data = data_of(page)
    n = len(data["results"])
    assert 5 < n < 300
    assert f"the first {n} of 300 traces' own reports" in data["cut"]


def test_endless_names_are_cut_before_they_reach_the_page() -> None:
    name = "x<" * 5_000_000
    result = with_evidence(problems(), {name: name})
    finding = dataclasses.replace(result.findings[0], title=name, message=name, name=name)
    page = render([dataclasses.replace(result, findings=(finding,))])
    assert len(page) < 200_000


def test_longest_spans_and_intervals_are_the_ones_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    small = dataclasses.replace(html_page._DETAILS[0], spans=2, intervals=1)
    monkeypatch.setattr(html_page, "_DETAILS", (small,))
    result = problems()
    assert result.summary is not None
    spans = ((0, 5, "op", "a"), (10, 11, "op", "b"), (20, 29, "op", "c"))
    lane = TimelineLane("t", "thread", spans)
    finding = dataclasses.replace(
        result.findings[0], place=dataclasses.replace(result.findings[0].place, intervals_ns=((1, 2), (5, 9), (9, 11)))
    )
    summary = dataclasses.replace(result.summary, window_start_ns=0, timeline=(lane,))
    data = data_of(render([dataclasses.replace(result, summary=summary, findings=(finding,))]))
    assert [data["names"][i] for i in data["results"][0]["summary"]["lanes"][0]["spans"][3::4]] == ["a", "c"]
    place = data["results"][0]["findings"][0]["place"]
    assert place["marks"] == [5, 4]
    assert place["costliest"] is True
    assert data["cut"] == ["the 2 longest spans of a timeline lane", "the 1 longest intervals of a finding"]


def test_same_results_give_the_same_page() -> None:
    assert render(all_results()) == render(all_results())


def test_a_refused_result_without_summary_renders() -> None:
    packed = data_of(render([refused()]))["results"][0]
    assert packed["refused"] is True
    assert packed["summary"] is None
    assert packed["idle"] is None


def test_nothing_to_render_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one result"):
        render([])


# -- colours -----------------------------------------------------------------------------------


def palette(theme: int) -> dict[str, tuple[float, float, float]]:
    """Return the style sheet's colours in linear light: theme 0 is light, 1 is dark."""
    style = Document(render([healthy()])).raw[0]
    pairs = re.findall(r"--([\w-]+): light-dark\((#\w{6})\w*, (#\w{6})\w*\)", style)
    colours = {}
    for name, *both in pairs:
        channels = [int(both[theme][i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
        colours[name] = (red, green, blue)
    return colours


def luminance(colour: tuple[float, float, float]) -> float:
    return 0.2126 * colour[0] + 0.7152 * colour[1] + 0.0722 * colour[2]


def contrast(a: tuple[float, float, float], b: tuple[float, float, float]) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_stands_out_from_what_it_is_written_on(theme: int) -> None:
    colours = palette(theme)
    written = [("ink", "paper"), ("ink", "card"), ("ink", "sunk"), ("soft", "paper")]
    written += [("soft", "card"), ("link", "paper"), ("mark", "paper"), ("good", "paper")]
    written += [("mark", "card"), ("on-fill", "mark")]
    written += [("on-fill", name) for name in colours if name.startswith("fill-")]
    assert len(written) == 19
    weak = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in written}
    assert {pair: ratio for pair, ratio in weak.items() if ratio < 4.5} == {}


# Linear RGB seen without long- or middle-wave cones: Viénot, Brettel & Mollon (1999).
PROTAN = ((0.11238, 0.88762, 0.0), (0.11238, 0.88762, 0.0), (0.00401, -0.00401, 1.0))
DEUTAN = ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0))


def oklab(colour: tuple[float, ...]) -> tuple[float, ...]:
    """Return Oklab coordinates of linear RGB. Source: Ottosson (2020)."""
    red, green, blue = (max(0.0, value) for value in colour)
    long = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3)
    middle = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3)
    short = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    )


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("matrix", [PROTAN, DEUTAN], ids=["protan", "deutan"])
def test_classes_of_device_time_stay_apart_for_colour_blind_readers(
    theme: int, matrix: tuple[tuple[float, ...], ...]
) -> None:
    colours = palette(theme)
    names = ["fill-compute", "fill-comm", "fill-copy", "fill-late", "idle-unknown"]
    seen = {}
    for name in names:
        red, green, blue = colours[name]
        seen[name] = oklab(tuple(a * red + b * green + c * blue for a, b, c in matrix))
    close = {}
    for one, other in itertools.combinations(names, 2):
        gap = sum((a - b) ** 2 for a, b in zip(seen[one], seen[other], strict=True)) ** 0.5
        if gap < 0.05:  # about 2.5 just noticeable differences
            close[one, other] = round(gap, 3)
    assert close == {}
