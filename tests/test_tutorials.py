"""Tutorials that need torch do what they say: their files are written and their commands run, one after the other."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(r"(?:<!-- (?P<note>[^>]*) -->\n)?```(?P<kind>console|python)\n(?P<text>.*?)```", re.DOTALL)


def steps(page: Path, folder: Path) -> list[tuple[list[str], set[int]]]:
    """Write the files that a page shows, and return its commands with the exit codes of each."""
    commands = []
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        note = block["note"] or ""
        if block["kind"] == "python":
            name = re.match(r"# (\w+\.py)\n", block["text"])
            assert name is not None, block["text"]
            (folder / name[1]).write_text(block["text"], encoding="utf-8")
        elif not note.startswith("not run"):
            codes = {int(code) for code in re.findall(r"\d", note)} or {0}
            commands += [(shlex.split(line[2:]), codes) for line in block["text"].splitlines() if line.startswith("$ ")]
    return commands


@pytest.mark.torch
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_the_commands_of_a_tutorial_run(page: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    commands = steps(page, tmp_path)
    assert commands
    outputs = []
    for words, codes in commands:
        program = [sys.executable, "-m", "torchtriage"] if words[0] == "torchtriage" else [sys.executable]
        arguments = [word.replace("python ", f"{sys.executable} ") for word in words[1:]]
        run = subprocess.run(
            [*program, *arguments], cwd=tmp_path, capture_output=True, encoding="utf-8", errors="replace"
        )
        assert run.returncode in codes, f"{shlex.join(words)}\n{run.stdout[-2000:]}\n{run.stderr[-2000:]}"
        outputs.append(run.stdout)
    named = {"script": "HST021", "trace": "DAT018"}[page.stem].lower()
    assert any(named in output.lower() for output in outputs)
