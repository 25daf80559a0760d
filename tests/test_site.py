"""The pages make a site: all are on it, no link is broken, nothing is fetched, and the first page is light."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="pip install mkdocs-material")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8")
    assert run.returncode == 0, run.stderr
    return folder


def test_every_page_is_on_the_site(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}


def test_the_first_page_is_light_and_fetches_nothing(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    loaded = re.findall(r'<(?:script|img)[^>]* src="([^"]+)"|<link rel="stylesheet" href="([^"]+)"', text)
    files = [script or style for script, style in loaded]
    assert [name for name in files if "//" in name] == []
    assert len(text.encode()) + sum((site / name).stat().st_size for name in files) < 400_000
