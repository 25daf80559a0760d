"""An XLA result reads the same everywhere, and nothing in it can break a page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner
from compile.xla.xla_samples import model, program, whole
from tests.report import forms
from tests.report.sample_result import HOSTILE

from torchtriage.cli.main import cli
from torchtriage.compile.xla.verdict import judge
from torchtriage.core.errors import TraceFormatError

PUBLISHED = Path(__file__).parents[3] / "docs" / "schema" / "torchtriage-xla-1.json"


def test_json_is_what_its_schema_says_and_comes_back() -> None:
    result = whole()
    data = forms.encode(result)
    jsonschema.validate(json.loads(data), json.loads(PUBLISHED.read_text(encoding="utf-8")))
    assert forms.decode(data, "xla") == result


def test_another_document_is_refused() -> None:
    with pytest.raises(TraceFormatError, match="torchtriage-xla/1"):
        forms.decode(b'{"schema":"torchtriage-bench/1"}', "xla")


def test_the_terminal_shows_every_route_and_reason() -> None:
    text = forms.terminal(judge([model("gpt")])).plain
    assert "HLO graphs per step in inference: 3 by dynamo, 2 by LazyTensor" in text
    assert "1 extra (1 fallback)" in text
    assert re.search(r"LazyTensor +2 +1 +2 ", text)
    assert "6 more in --json and --html: 6 fallback" in text
    text = " ".join(text.split())
    assert "aten::median is not lowered: 3 calls in the first step, 1 per steady step" in text


def test_many_models_are_held_together() -> None:
    result = whole()
    assert "dynamo runs more HLO graphs per step than LazyTensor in 10, as many in 1" in (result.verdict[0])
    told = {correlation.of: correlation for correlation in result.correlations}
    ratio = told["HLO graphs per steady step, openxla over LazyTensor"]
    assert (ratio.n, ratio.rho) == (12, 1.0)
    constant = told["HLO graphs per steady step, LazyTensor"]
    assert (constant.rho, constant.why_not) == (None, "all values of one side are equal")
    (failed,) = [note for note in result.notes if note.code == "route-failed"]
    assert "crashed while counting" in failed.message


def test_a_few_models_have_no_correlation() -> None:
    result = judge([model("a"), model("b")])
    assert {correlation.why_not for correlation in result.correlations} == {"2 pairs, and it takes 10"}


def test_nothing_hostile_gets_out() -> None:
    result = whole()
    page = forms.page(result)
    assert HOSTILE not in page
    assert "<script" not in page
    assert "\x1b" not in forms.terminal(result).plain
    assert "\n#" not in forms.markdown(judge([model()])).replace("\n### ", "")


def test_of_dumps_each_count_has_its_source() -> None:
    text = forms.terminal(judge(programs=[program()])).plain
    assert "9 HLO graphs compiled and 42 executions, as the metrics count" in text
    assert "8 compilations and 40 executions (PT_XLA_DEBUG)" in text
    assert "36 transfers, 468 MiB" in text


def test_show_renders_it_again(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(forms.encode(judge([model("gpt")])))
    shown = CliRunner().invoke(cli, ["show", str(path)])
    assert shown.exit_code == 0, shown.output
    assert "3 by dynamo, 2 by LazyTensor" in shown.output
