"""What the README shows is what a user gets."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from tests.conftest import DATA
from tests.ports import free_port

import torchtriage as tt

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def demo() -> str:
    environment = {**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8", "NO_COLOR": "1"}
    run = subprocess.run(
        [sys.executable, "-m", "torchtriage", "demo", "--no-open"],
        check=True,
        capture_output=True,
        encoding="utf-8",
        env=environment,
    )
    return run.stdout


def test_the_first_screen_is_the_output_of_the_demo() -> None:
    block = re.search(r"<!-- demo.*?```text\n(.*?)```", README, re.DOTALL)
    assert block is not None
    assert demo().startswith(block[1])


@pytest.mark.data
@pytest.mark.parametrize("page", ["tutorial-compare.md", "compare.md"])
def test_the_comparison_of_two_public_recordings_is_what_its_pages_show(page: str) -> None:
    sides = [DATA / "traces" / "cv" / f"resnet50_v100_train_workers{n}.json.gz" for n in (0, 4)]
    shown = re.search(
        r"^\$ torchtriage compare .*\n(Faster by [^`]*)```", (ROOT / "docs" / page).read_text("utf-8"), re.M
    )
    assert shown is not None
    # the pages break lines at other widths
    assert " ".join(str(tt.compare(*sides)).split()).startswith(" ".join(shown[1].split()))


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150


def test_the_monitored_function_can_be_scraped() -> None:
    (block,) = re.findall(r"```python\n([^`]*?monitor\.start.*?)```", README, re.DOTALL)
    port = free_port()
    assert "9464" in block
    code = block.replace("9464", str(port)) + "\ndetect(None)\ninput()\n"
    metrics = b""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as service:
        end_s = time.monotonic() + 60
        while b'duration_seconds_count{model="detector",version="2.1"} 1\n' not in metrics:
            assert time.monotonic() < end_s, metrics
            time.sleep(0.05)
            with contextlib.suppress(OSError):
                metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read()
        service.communicate(b"\n")
    assert service.returncode == 0


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
    # python tests/test_readme.py writes the current output, up to the second finding, into the README
    text = re.sub(
        r"(<!-- demo.*?```text\n).*?(```)",
        lambda match: f"{match[1]}{demo().partition(chr(10) + '2. ')[0]}{match[2]}",
        README,
        flags=re.DOTALL,
    )
    (ROOT / "README.md").write_text(text, encoding="utf-8")
