"""What the README shows is what a user gets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def demo() -> str:
    environment = {**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8", "NO_COLOR": "1"}
    run = subprocess.run(
        [sys.executable, "-m", "torchtriage", "demo"],
        check=True,
        capture_output=True,
        encoding="utf-8",
        env=environment,
    )
    return run.stdout


def test_the_first_screen_is_the_output_of_the_demo() -> None:
    block = re.search(r"<!-- demo.*?```text\n(.*?)```", README, re.DOTALL)
    assert block is not None
    assert block[1].rstrip() == demo().rstrip()


def test_every_linked_file_exists() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert len(links) > 5
    missing = [link for link in links if not (ROOT / link).exists()]
    assert not missing


def test_every_command_shown_exists() -> None:
    from torchtriage.cli.main import COMMANDS

    shown = set(re.findall(r"^\$ (?:eval \"\$\()?torchtriage (\w+)\b(?!\.)", README, re.MULTILINE))
    shown.discard("trace")
    assert shown
    assert shown <= set(COMMANDS)


if __name__ == "__main__":
    # python tests/test_readme.py writes the current output into the README
    text = re.sub(
        r"(<!-- demo.*?```text\n).*?(```)",
        lambda match: f"{match[1]}{demo().rstrip()}\n{match[2]}",
        README,
        flags=re.DOTALL,
    )
    (ROOT / "README.md").write_text(text, encoding="utf-8")
