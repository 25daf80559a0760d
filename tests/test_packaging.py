"""What several files say of the package is the same in all, and errors name the extra that is missing."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import torchtriage
from torchtriage.core.errors import MissingExtraError
from torchtriage.core.toml import read_toml
from torchtriage.operate import monitor
from torchtriage.operate.fleet.stream_reader import StreamReader

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = read_toml(ROOT / "pyproject.toml")["project"]
EXTRAS = PROJECT["optional-dependencies"]
OURS = {"dev", "dev-torch", "fuzz"}
"""Extras for whoever works on torchtriage."""


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("native/Cargo.toml", 'version = "{}"'),
        ("native/Cargo.lock", 'version = "{}"'),
        ("packages/torchtriage-benchmark/pyproject.toml", 'version = "{}"'),
        ("packages/torchtriage-benchmark/pyproject.toml", '"torchtriage=={}"'),
        ("CITATION.cff", "version: {}"),
        ("recipe/recipe.yaml", 'version: "{}"'),
        ("docs/ci.md", "`v{}`"),
        ("docs/install.md", "v{}"),
        ("CHANGELOG.md", "## [{}] - "),
    ],
)
def test_every_file_names_the_same_version(file: str, line: str) -> None:
    assert line.format(torchtriage.__version__) in text(file)


def test_conda_installs_what_pip_does() -> None:
    run = re.search(r"^  run:\n((?:    - .*\n)+)", text("recipe/recipe.yaml"), re.MULTILINE)
    assert run is not None
    conda = {line.strip("- ").replace(" ", "").replace("python-isal", "isal") for line in run[1].splitlines()}
    pip = {item.partition(";")[0].strip() for item in PROJECT["dependencies"]}
    assert conda == {*pip, f"python{PROJECT['requires-python']}"}


def test_every_extra_is_named_where_it_is_missed_and_no_other_is() -> None:
    pages = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    named = {name for path in pages for name in re.findall(r"torchtriage\[([a-z-]+)\]", path.read_text("utf-8"))}
    assert named - EXTRAS.keys() == set()
    in_source = {
        name
        for path in (ROOT / "src").rglob("*.py")
        for name in re.findall(r"pip install 'torchtriage\[([a-z-]+)\]", path.read_text("utf-8"))
    }
    # nvml is measured where it is there; the commands that train are those of another distribution
    assert EXTRAS.keys() - OURS - in_source == {"nvml", "learn"}
    assert set(re.findall(r"^\| `([a-z]+)` \|", text("docs/install.md"), re.MULTILINE)) == EXTRAS.keys() - OURS


@pytest.mark.parametrize(
    ("extra", "module", "use"),
    [
        ("monitor", "prometheus_client.core", lambda: monitor.Collector(monitor.Monitor())),
        ("monitor", "redis", lambda: monitor.RedisStream("redis://localhost")),
        ("monitor", "redis", lambda: StreamReader("redis://localhost", stream="s", group="g", name="n")),
        ("otel", "opentelemetry.metrics", monitor.OpenTelemetry),
    ],
)
def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, extra: str, module: str, use: Callable[[], object]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'torchtriage\[{extra}\]'"):
        use()


@pytest.fixture
def hooks() -> Any:
    """Return hatch_build.py, whose hatchling need not be installed."""
    pytest.importorskip("hatchling")
    sys.path.insert(0, str(ROOT))
    import hatch_build

    return hatch_build


def page(hooks: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"version": "0.2.0"}
    hooks.PageOnPyPI.update(SimpleNamespace(root=str(ROOT)), metadata)
    return metadata


def test_the_page_on_pypi_has_no_link_that_leads_nowhere(hooks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHTRIAGE_URL", "https://host.example/a/b")
    found = page(hooks)
    assert found["urls"]["Changelog"] == "https://host.example/a/b/blob/v0.2.0/CHANGELOG.md"
    links = re.findall(r"\]\(([^)]*)\)", found["readme"]["text"])
    assert len(links) > 10
    assert [link for link in links if not re.match(r"https?:|#", link)] == []
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", found["readme"]["text"])
    assert all("/raw/v0.2.0/" in link for link in pictures if "host.example" in link)


def test_without_an_address_the_page_is_the_readme(hooks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHTRIAGE_URL", raising=False)
    assert page(hooks) == {
        "version": "0.2.0",
        "urls": {},
        "readme": {"content-type": "text/markdown", "text": text("README.md")},
    }
