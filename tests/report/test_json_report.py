from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from tests.report import forms
from tests.report.sample_result import HOSTILE, SYNC, all_results, healthy, problems

from torchtriage.core.errors import TraceFormatError
from torchtriage.report import json_report, sarif

PUBLISHED = Path(__file__).parents[2] / "docs" / "schema" / "torchtriage-1.json"


def test_the_published_schema_is_up_to_date():
    published = PUBLISHED.read_text(encoding="utf-8")
    assert json.loads(published) == json_report.schema(), "run: python -m tests.report.write_schema"


def test_the_schema_is_a_schema_and_every_result_follows_it():
    schema = json_report.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(json.loads(json_report.encode(all_results())))
    validator.validate(json.loads(json_report.encode([])))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), "torchtriage/2"),
        (("results", 0, "findings", 0, "severity"), "catastrophic"),
        (("results", 0, "findings", 0, "cost", "low_ms"), "9.1 ms"),
        (("results", 0, "verdict"), ["one line"]),
    ],
)
def test_the_schema_rejects_another_shape(path, value):
    document = json.loads(json_report.encode([problems()]))
    target = document
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(json_report.schema()).validate(document)


def test_a_document_comes_back_as_the_results_it_was_made_from():
    results = all_results()
    assert tuple(json_report.decode(json_report.encode(results))) == results


def test_a_document_read_back_renders_the_same_reports():
    results = all_results()
    again = json_report.decode(json_report.encode(results))
    assert forms.traces(again).plain == forms.traces(results).plain
    assert forms.traces_in_markdown(again) == forms.traces_in_markdown(results)
    assert sarif.encode(again) == sarif.encode(results)


def test_equal_results_give_equal_bytes():
    assert json_report.encode(all_results()) == json_report.encode(all_results())


def test_the_document_names_its_schema_and_version_first():
    head = json_report.encode([healthy()])[:60]
    assert head.startswith(b'{"schema":"torchtriage/1","version":"0.1.0","results":[{')


def test_hostile_names_survive_as_data():
    document = json.loads(json_report.encode([problems()]))
    assert document["results"][0]["findings"][-1]["place"]["lane"] == HOSTILE
    assert b"\x1b" not in json_report.encode([problems()])


def test_a_path_that_is_no_utf8_still_encodes():
    result = problems()
    result = replace(result, trace=replace(result.trace, path="runs/\udcff.json"))
    document = json.loads(json_report.encode([result]))
    assert document["results"][0]["trace"]["path"] == "runs/\\udcff.json"


def test_evidence_from_arrays_becomes_plain_numbers():
    evidence = {
        "count": np.int64(3),
        "share": np.float64(0.25),
        "ids": np.arange(3),
        "names": {"b", "a"},
        "undefined": float("nan"),
    }
    result = replace(problems(), findings=(replace(SYNC, evidence=evidence),))
    document = json.loads(json_report.encode([result]))
    assert document["results"][0]["findings"][0]["evidence"] == {
        "count": 3,
        "share": 0.25,
        "ids": [0, 1, 2],
        "names": ["a", "b"],
        "undefined": None,
    }


def test_a_cost_that_is_no_number_is_refused_by_name():
    broken = replace(SYNC, cost=replace(SYNC.cost, high_ms=float("inf")))
    with pytest.raises(ValueError, match=r"results\[0\].findings\[0\].cost.high_ms is inf"):
        json_report.encode([replace(problems(), findings=(broken,))])


def test_fields_of_a_newer_version_are_ignored():
    document = json.loads(json_report.encode([healthy()]))
    document["results"][0]["mood"] = "serene"
    assert json_report.decode(json.dumps(document).encode()) == [healthy()]


def test_a_result_written_before_a_field_existed_still_reads():
    document = json.loads(json_report.encode([healthy()]))
    del document["results"][0]["checked"]
    assert json_report.decode(json.dumps(document).encode()) == [replace(healthy(), checked=())]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "found no JSON"),
        (b"\xff\xfe", "found no JSON"),
        (b"[" * 100_000, "found no JSON"),
        (b"[]", 'schema "torchtriage/1", found none'),
        (b'{"traceEvents": []}', "found none"),
        (b'{"schema": "torchtriage/9", "results": []}', "found 'torchtriage/9'"),
        (b'{"schema": "torchtriage/1", "version": "1", "results": [{}]}', r"\$.results\[0\]"),
    ],
)
def test_another_file_is_refused_with_what_it_is(data, message):
    with pytest.raises(TraceFormatError, match=message):
        json_report.decode(data)


def test_only_the_terminal_imports_rich():
    code = (
        "import sys, torchtriage.report.json_report, torchtriage.report.markdown, "
        "torchtriage.report.documents.trace, torchtriage.report.sarif; sys.exit('rich' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
