"""What the README shows is what a user gets."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

import torchtriage as tt

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


RECORDING = "cv/resnet50_v100_train_workers0.json.gz"


def test_the_page_is_short_and_begins_with_the_two_commands() -> None:
    assert README.count("\n") <= 150
    assert re.findall(r"^\$ (make \w+)", README, re.MULTILINE)[:2] == ["make demo", "make test"]
    assert "make demo" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.data
def test_the_report_shown_is_a_real_one(recordings: Path) -> None:
    """Lines may be left out between those shown, none is changed."""
    block = re.search(r"<!-- report.*?```text\n(.*?)```", README, re.DOTALL)
    assert block is not None
    shown = [line for line in block[1].splitlines() if line]
    assert len(shown) > 10
    environment = {**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "torchtriage", "analyze", str(recordings / RECORDING)]
    run = subprocess.run(command, check=True, capture_output=True, encoding="utf-8", env=environment)
    lines = iter(run.stdout.splitlines())
    assert [line for line in shown if line not in lines] == []


@pytest.mark.data
def test_the_gain_shown_is_the_measured_one(recordings: Path) -> None:
    after = recordings / RECORDING.replace("workers0", "workers4")
    (saved,) = re.findall(r"Faster by (.*? ms) ", " ".join(tt.compare(recordings / RECORDING, after).verdict))
    assert f"{saved} saved" in README


def test_the_monitored_function_can_be_scraped() -> None:
    (block,) = re.findall(r"```python\n([^`]*?monitor\.start.*?)```", README, re.DOTALL)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
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
