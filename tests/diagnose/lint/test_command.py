"""``torchtriage lint``: forms, exit codes, configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.report import forms

from torchtriage.cli.main import cli
from torchtriage.diagnose.lint import lint_text

TEXT = """import torch
for batch in train_loader:
    loss = model(batch.cuda(non_blocking=True)).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    total += loss.item()
"""

LOADER = "train_loader = torch.utils.data.DataLoader(files, num_workers=4"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TEXT, encoding="utf-8")
    return tmp_path / "train.py"


def run(*args: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["lint", *args], input=stdin)


def test_lines_for_editors(file: Path) -> None:
    result = run("train.py", "--concise")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "train.py:6:5: OPT040 gradients are filled with zeros instead of dropped",
        "train.py:7:14: SYN001 item() waits for the device in every step: loss.item()",
    ]


def test_the_report_quotes_the_line_and_says_what_was_left_out(file: Path) -> None:
    said = run(".").stdout
    assert "    7 | total += loss.item()" in said
    assert "2 findings in 1 file." in said
    assert "Source alone is a hint" in said


def test_exit_codes(file: Path) -> None:
    assert run(".", "--fail-on", "high").exit_code == 0
    assert run(".", "--fail-on", "medium").exit_code == 1
    assert run("nowhere.py").exit_code == 2
    file.write_text("import torch\ndef f(:\n", encoding="utf-8")
    assert run(".").exit_code == 2
    assert run(".", "--only", "XYZ123").exit_code == 2


def test_json_reads_back(file: Path) -> None:
    data = run("train.py", "--json").stdout_bytes
    result = forms.decode(data, "lint")
    assert [finding.code for finding in result.findings] == ["OPT040", "SYN001"]
    assert forms.encode(result) == data
    assert json.loads(data)["schema"] == "torchtriage-lint/1"


def test_sarif_points_at_line_and_column(file: Path) -> None:
    document = json.loads(run("train.py", "--sarif").stdout)
    (one, other) = document["runs"][0]["results"]
    region = other["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": 7, "startColumn": 14}
    assert one["ruleId"] == "OPT040"
    assert document["version"] == "2.1.0"


def test_markdown_is_a_table(file: Path) -> None:
    said = run("train.py", "--markdown").stdout
    assert "| `train.py:7:14` | SYN001 |" in said


def test_standard_input(file: Path) -> None:
    result = run("-", "--concise", "--stdin-filename", "editor.py", stdin=TEXT)
    assert result.stdout.splitlines()[1].startswith("editor.py:7:14: SYN001")
    assert run("-", "train.py", stdin=TEXT).exit_code == 2


def test_fix_applies_what_was_shown(file: Path) -> None:
    text = TEXT.replace("for batch", f"{LOADER})\nfor batch")
    file.write_text(text, encoding="utf-8")
    assert f"+{LOADER}, pin_memory=True)" in run("train.py").stdout
    assert file.read_text(encoding="utf-8") == text
    assert "fixed CPY007" in run("train.py", "--fix").stdout
    assert file.read_text(encoding="utf-8") == text.replace(LOADER, f"{LOADER}, pin_memory=True")


def test_after_a_fix_findings_are_those_that_are_left(file: Path) -> None:
    file.write_text(TEXT.replace("for batch", f"{LOADER})\nfor batch"), encoding="utf-8")
    assert "CPY007" in run("train.py", "--concise").stdout
    fixed = run("train.py", "--fix", "--concise")
    assert "train.py: fixed" in fixed.stderr
    assert "CPY007" not in fixed.stdout
    assert fixed.stdout == run("train.py", "--concise").stdout


def test_only_skip_and_exclude(file: Path) -> None:
    assert "OPT040" not in run(".", "--only", "host-sync-scalar", "--concise").stdout
    assert "SYN001" not in run(".", "--skip", "SYN001", "--concise").stdout
    assert run(".", "--exclude", "train*", "--concise").stdout == ""


def test_configuration(file: Path) -> None:
    (file.parent / "pyproject.toml").write_text(
        '[tool.torchtriage]\ntop = 3\n[tool.torchtriage.lint]\nskip = ["SYN001"]\nfail-on = "low"\n', encoding="utf-8"
    )
    result = run(".", "--concise")
    assert (result.exit_code, "SYN001" in result.stdout) == (1, False)
    (file.parent / "pyproject.toml").write_text("[tool.torchtriage.lint]\ntop = 3\n", encoding="utf-8")
    result = run(".")
    assert result.exit_code == 2
    assert "unknown key 'top' in [tool.torchtriage.lint]" in result.stderr


def test_nothing_in_a_source_reaches_the_terminal_raw(file: Path) -> None:
    file.write_text(TEXT.replace("total", 'x["\x1b[31m"]'), encoding="utf-8")
    for form in ((), ("--concise",), ("--markdown",)):
        assert "\x1b" not in run("train.py", *form).stdout


def test_explain_knows_rules_and_both_sides_of_a_code() -> None:
    runner = CliRunner()
    assert "CMP101" in runner.invoke(cli, ["explain", "blind-dynamic"]).stdout
    both = runner.invoke(cli, ["explain", "SYN001"]).stdout
    assert "aten::_local_scalar_dense" in both
    assert "in source" in both
    assert "CMP101" in runner.invoke(cli, ["explain"]).stdout


def test_the_result_has_a_schema() -> None:
    from jsonschema import Draft202012Validator

    data = json.loads(forms.encode(lint_text(TEXT, "train.py")))
    Draft202012Validator(forms.schema("lint")).validate(data)


def test_the_published_schema_is_the_document() -> None:
    published = Path(__file__).parents[3] / "docs" / "schema" / "torchtriage-lint-1.json"
    assert json.loads(published.read_text(encoding="utf-8")) == forms.schema("lint")
