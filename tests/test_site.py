"""The documentation site: complete, without dead links, short where it tells how, and its tutorials run."""

from __future__ import annotations

import gzip
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NAV = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
LISTED = re.findall(r"^ +- (?:[^#\n]*: )?([\w/-]+\.md)$", NAV, re.MULTILINE)
HOW_TOS = re.findall(r": ([\w/-]+\.md)$", NAV.partition("- How-tos:")[2].partition("- Reference:")[0], re.MULTILINE)
WORDS = 1_000
TUTORIALS = sorted(DOCS.glob("tutorial-*.md"))


def prose(page: Path) -> str:
    return re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.*)$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return found


def test_every_page_is_in_the_navigation_once() -> None:
    pages = {str(page.relative_to(DOCS)) for page in (*DOCS.glob("*.md"), *DOCS.glob("tutorials/*.md"))}
    pages.add("patterns/index.md")
    assert sorted(LISTED) == sorted(pages)


def test_every_link_leads_to_a_page_and_a_heading() -> None:
    pages = [*DOCS.rglob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"))]
    links = 0
    dead = []
    for page in pages:
        for path, anchor in re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)", prose(page)):
            target = (page.parent / path).resolve() if path else page
            links += 1
            if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
                dead.append(f"{page.relative_to(ROOT)}: {path}#{anchor}")
    assert dead == []
    assert links > 300


def test_how_tos_are_short() -> None:
    assert len(HOW_TOS) > 20
    long = {name for name in HOW_TOS if len(prose(DOCS / name).split()) > WORDS}
    assert long == set(), f"over {WORDS} words: move measurements and explanations to pages of their own"


def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="the site is built by mkdocs-material")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    first = (tmp_path / "index.html").read_text(encoding="utf-8")
    local = {*re.findall(r'<(?:script|img)[^>]* src="([^":]+)"', first)}
    local |= {*re.findall(r'<link[^>]* href="([^":]+)" ?[^>]*rel="stylesheet"', first)}
    local |= {*re.findall(r'<link rel="stylesheet" href="([^":]+)"', first)}
    assert len(local) >= 3, "style sheets and a script"
    assert not re.findall(r'<(?:script|img)[^>]* src="(?:https?:)?//', first), "nothing is fetched from other hosts"
    # gzip, as every server of static pages sends them
    files = [first.encode(), *((tmp_path / name.partition("?")[0]).read_bytes() for name in local)]
    assert sum(len(gzip.compress(file, 6)) for file in files) <= 300_000
    assert (tmp_path / "search" / "search_index.json").exists()


def commands(page: Path) -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


@pytest.mark.process
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_the_commands_of_a_tutorial_run(page: Path, tmp_path: Path) -> None:
    """Each command ends with 0 in a folder that looks like a clone."""
    lines = commands(page)
    assert len(lines) >= 2
    for name in () if any(line.startswith("git ") for line in lines) else ("src", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, words in {"torchtriage": "-m torchtriage", "python": ""}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
        (programs / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    for line in lines:
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", timeout=300
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
