from __future__ import annotations

import json
import re
from dataclasses import replace
from urllib.parse import unquote

import pytest
from tests.report.sample_result import HOSTILE, OPTIMIZER, PAGEABLE, SYNC, all_results, partial, problems, refused

from torchtriage.core.finding import Frame, NotChecked
from torchtriage.report import sarif


def run_of(*results):
    log = json.loads(sarif.encode(results))
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-2.1.0.json")
    assert len(log["runs"]) == 1
    return log["runs"][0]


def only(*findings):
    return run_of(replace(problems(), findings=findings))["results"]


def test_each_result_has_what_the_standard_requires():
    run = run_of(*all_results())
    rules = run["tool"]["driver"]["rules"]
    assert run["tool"]["driver"]["name"] == "torchtriage"
    assert len({rule["id"] for rule in rules}) == len(rules) == 6
    assert len(run["results"]) == 6
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in {"error", "warning", "note"}
        assert result["message"]["text"]
        assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert re.fullmatch("[0-9a-f]{32}", result["partialFingerprints"]["torchtriage/v1"])


def test_the_level_follows_the_severity():
    levels = [result["level"] for result in run_of(problems())["results"]]
    assert levels == ["error", "warning", "warning", "note", "note"]


def test_a_frame_is_the_location_and_an_inexact_line_says_so():
    inexact, exact = only(SYNC, PAGEABLE)
    physical = inexact["locations"][0]["physicalLocation"]
    assert physical == {"artifactLocation": {"uri": "train.py"}, "region": {"startLine": 31}}
    assert "The line is the function's, not the call's." in inexact["message"]["text"]
    assert "The line is" not in exact["message"]["text"]
    assert exact["properties"]["exactLine"] is True
    names = [place["name"] for place in inexact["locations"][0]["logicalLocations"]]
    assert names == ["train_step", "aten::item", "aten::_local_scalar_dense", "cudaStreamSynchronize"]


def test_without_a_frame_the_trace_is_the_location():
    (result,) = only(OPTIMIZER)
    physical = result["locations"][0]["physicalLocation"]
    assert physical == {"artifactLocation": {"uri": problems().trace.path}}
    assert {"name": "nn.Module: ResNet_0", "kind": "module"} in result["locations"][0]["logicalLocations"]


@pytest.mark.parametrize(
    ("file", "uri"),
    [
        ("src/train.py", "src/train.py"),
        ("/srv/a b.py", "file:///srv/a%20b.py"),
        ("C:\\code\\train.py", "file:///C:/code/train.py"),
        ("<string>", "%3Cstring%3E"),
        ("a:b.py", "a%3Ab.py"),
        ("\udcff.py", "%3F.py"),
    ],
)
def test_paths_become_uris(file, uri):
    (result,) = only(replace(SYNC, place=replace(SYNC.place, frame=Frame(file, 3, "f"))))
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri


def test_hostile_paths_are_valid_uris():
    hostile = run_of(problems())["results"][-1]
    uri = hostile["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert re.fullmatch(r"[A-Za-z0-9._~/%-]+", uri)
    assert unquote(uri) == f"src/{HOSTILE}.py"


def test_a_line_of_zero_is_no_region():
    (result,) = only(replace(SYNC, place=replace(SYNC.place, frame=Frame("a.py", 0, "f"))))
    assert "region" not in result["locations"][0]["physicalLocation"]


def test_the_fingerprint_survives_another_run_and_edits_above_the_line():
    moved = replace(
        SYNC,
        message="3 reads of a GPU scalar per step",
        cost=replace(SYNC.cost, low_ms=1.0),
        place=replace(SYNC.place, steps=(99,), frame=Frame("train.py", 58, "train_step")),
    )
    elsewhere = replace(SYNC, place=replace(SYNC.place, frame=Frame("eval.py", 31, "evaluate")))
    first, second, third = (
        only(finding)[0]["partialFingerprints"]["torchtriage/v1"] for finding in (SYNC, moved, elsewhere)
    )
    assert first == second
    assert first != third


def test_two_findings_at_one_place_stay_two():
    first, second = only(SYNC, SYNC)
    assert first["partialFingerprints"] != second["partialFingerprints"]


def test_the_cost_and_the_evidence_are_properties():
    properties = run_of(problems())["results"][0]["properties"]
    assert properties["cost"]["low_ms"] == 9.1
    assert properties["evidence"]["n_reads_per_step"] == 2
    assert properties["certainty"] == "certain"


def test_links_that_are_no_web_address_are_left_out():
    rules = run_of(problems())["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules if "helpUri" in rule] == ["SYN001"]


def test_what_was_not_judged_is_notified():
    (invocation,) = run_of(partial())["invocations"]
    notified = invocation["toolExecutionNotifications"]
    assert invocation["executionSuccessful"] is True
    assert {entry["descriptor"]["id"] for entry in notified} == {
        "DQ003",
        "read",
        "KRN023",
        "KRN025",
        "MEM027",
        "MEM028",
        "HST021",
    }
    assert run_of(refused())["invocations"][0]["executionSuccessful"] is False


def test_patterns_that_were_left_out_are_one_notification():
    left_out = tuple(NotChecked(code, "a pattern", (), "") for code in ("AAA001", "BBB002"))
    run = run_of(replace(problems(), notes=(), not_checked=left_out, crashes=()))
    notes = [note["message"]["text"] for note in run["invocations"][0]["toolExecutionNotifications"]]
    assert len([note for note in notes if "AAA001" in note or "BBB002" in note]) == 1


def test_equal_results_give_equal_bytes():
    assert sarif.encode(all_results()) == sarif.encode(all_results())


def test_no_result_is_a_valid_run_too():
    assert run_of()["results"] == []
