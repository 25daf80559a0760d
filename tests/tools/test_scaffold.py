"""What ``make new-pattern`` and ``make new-rule`` write passes the checks and the catalogue as it stands."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from torchtriage.api.catalogue import pages
from torchtriage.core.errors import UsageError
from torchtriage.diagnose.lint import base as rules
from torchtriage.diagnose.lint import check, lint_text
from torchtriage.diagnose.patterns import base as patterns

HERE = Path(__file__).resolve().parents[2]


def load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


scaffold = load(HERE / "tools/scaffold.py", "scaffold")


def lint(root: Path) -> None:
    shutil.copy(HERE / "pyproject.toml", root)
    first_party = ["--config", "lint.isort.known-first-party=['torchtriage']"]
    for command in (["check", "--no-cache", *first_party], ["format", "--check", "--no-cache"]):
        result = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "."], cwd=root, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr


def test_a_new_pattern_has_a_free_code_and_passes_its_own_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, test, _ = scaffold.new_pattern("sync/brand-new-wait", tmp_path)
    lint(tmp_path)
    assert test.parts[-2:] == ("sync", "test_brand_new_wait.py")
    name = "torchtriage.diagnose.patterns.sync.brand_new_wait"
    loaded = load(module, name)
    entry = patterns._entry(loaded)
    assert (entry.pattern.name, entry.pattern.family) == ("brand-new-wait", "sync")
    assert re.fullmatch(r"SYN0\d\d", entry.pattern.code)
    assert entry.pattern.code[3:] not in {page.code[3:] for page in pages()}
    monkeypatch.setitem(sys.modules, name, loaded)
    tests = load(test, "test_brand_new_wait")
    for each in [value for key, value in vars(tests).items() if key.startswith("test_")]:
        each()


def test_a_new_family_gets_its_package(tmp_path: Path) -> None:
    written = scaffold.new_pattern("quantize/slow-scale", tmp_path)
    lint(tmp_path)
    assert written[-1].name == "__init__.py"
    assert 'Pattern.of(__name__, "QUA' in written[0].read_text(encoding="utf-8")


def test_a_new_rule_finds_what_is_planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, corpus = scaffold.new_rule("sync/brand-new-wait", tmp_path)
    lint(tmp_path)
    entry = rules._entry(load(module, "torchtriage.diagnose.lint.rules.brand_new_wait"))
    assert entry.rule.code.startswith("SYN1")
    loud, quiet = re.split(r"^=== .*\n", corpus.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert f"#! {entry.rule.code}" in loud
    monkeypatch.setattr(check, "catalogue", lambda: (entry,))
    (finding,) = lint_text(loud.replace(f"  #! {entry.rule.code}", ""), "loud.py").findings
    assert finding.place.frame is not None
    assert (finding.code, finding.place.frame.line) == (entry.rule.code, 4)
    assert not lint_text(quiet, "quiet.py").findings


def test_a_rule_beside_a_pattern_has_its_code(tmp_path: Path) -> None:
    module, _ = scaffold.new_rule("memory-growth", tmp_path)
    assert 'Rule("MEM029", "memory-growth", "alloc", ' in module.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["host-sync-scalar", "sync/host-sync-scalar", "sync/Bad_Name", ""])
def test_a_name_that_is_taken_or_none_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="expected"):
        scaffold.new_pattern(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    scaffold.new_rule("memory-growth", tmp_path)
    with pytest.raises(UsageError, match="expected a new file"):
        scaffold.new_rule("memory-growth", tmp_path)
