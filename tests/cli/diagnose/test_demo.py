"""The demo: a recording of a GPU with one large, true finding, its page opened where somebody can see it."""

from __future__ import annotations

import re
import sys
import webbrowser
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import torchtriage as tt
from torchtriage.api import traces
from torchtriage.cli.diagnose import demo
from torchtriage.cli.main import cli

SAMPLE = traces.sample_path().parent
KINETO = "cv/resnet50_v100_train_workers{}.json.gz"


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Keep pages and browsers away from the machine; the addresses that were opened come back."""
    addresses: list[str] = []

    def opens(address: str) -> bool:
        addresses.append(address)
        return True

    monkeypatch.setattr(webbrowser, "open", opens)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return addresses


def run(*words: str) -> Result:
    ended = CliRunner().invoke(cli, ["demo", *words], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return ended


def test_the_demo_is_a_gpus_recording_whose_fix_was_measured() -> None:
    said = run().stdout
    assert "V100" in said
    assert re.search(r"1\. .*\(DAT018\)\n +HIGH", said)
    assert "num_workers=4" in said
    assert "pytorch/kineto" in said
    assert str(SAMPLE) not in said


def test_the_cpu_demo_is_our_own_recording() -> None:
    said = run("--cpu").stdout
    assert "sample_cpu_training.json.gz" in said
    assert "kineto" not in said


def test_where_nobody_sees_a_page_its_path_is_said(opened: list[str], tmp_path: Path) -> None:
    ended = run()
    (page,) = tmp_path.glob("torchtriage-demo-*.html")
    assert f"wrote {page}" in ended.stderr
    assert str(page) not in ended.stdout
    assert "<header" in page.read_text(encoding="utf-8")
    assert opened == []


@pytest.mark.parametrize(("words", "count"), [([], 1), (["--no-open"], 0)])
def test_with_a_display_the_page_opens(
    words: list[str], count: int, opened: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "has_display", lambda: True)
    run("--html", str(tmp_path / "page.html"), *words)
    assert (tmp_path / "page.html").is_file()
    assert not list(tmp_path.glob("torchtriage-demo-*"))
    assert opened == [(tmp_path / "page.html").as_uri()] * count


@pytest.mark.parametrize(
    ("platform", "variables", "tty", "seen"),
    [
        ("linux", {"DISPLAY": ":0"}, True, True),
        ("linux", {"WAYLAND_DISPLAY": "wayland-0"}, True, True),
        ("linux", {}, True, False),
        ("linux", {"DISPLAY": ":0"}, False, False),
        ("darwin", {}, True, True),
        ("darwin", {"SSH_CONNECTION": "10.0.0.1 22"}, True, False),
        ("win32", {}, True, True),
        ("win32", {}, False, False),
    ],
)
def test_a_display_is_a_terminal_beside_a_screen(
    platform: str, variables: dict[str, str], tty: bool, seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: tty, raising=False)
    assert demo.has_display() is seen


def test_bundled_recordings_are_small_and_say_whose_they_are() -> None:
    for path in SAMPLE.glob("*.gz"):
        assert path.stat().st_size < 400_000, path.name
        assert path.name in (SAMPLE / "README.md").read_text(encoding="utf-8")
    assert "Copyright (c) 2020, pytorch" in (SAMPLE / "LICENSE-kineto").read_text(encoding="utf-8")


@pytest.mark.data
def test_the_bundled_part_is_judged_like_the_whole(recordings: Path) -> None:
    whole, part = tt.analyze(recordings / KINETO.format(0)), tt.analyze(traces.sample_path("gpu"))
    assert [finding.code for finding in part.findings] == [finding.code for finding in whole.findings]
    assert [finding.severity for finding in part.findings] == [finding.severity for finding in whole.findings]
    for one, other in zip(part.findings, whole.findings, strict=True):
        assert one.cost is not None
        assert other.cost is not None
        assert one.cost.share_high == pytest.approx(other.cost.share_high, abs=0.015)


@pytest.mark.data
def test_what_the_fix_gained_was_measured(recordings: Path) -> None:
    gained = tt.compare(recordings / KINETO.format(0), recordings / KINETO.format(4))
    said = run().stdout
    assert gained.verdict[0].split(":")[0] == "Faster by 42.7 ms (24 %)"
    assert "133 ms instead of 176 ms, 24 % less" in " ".join(said.split())
