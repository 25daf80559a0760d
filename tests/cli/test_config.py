"""Defaults from ``[tool.torchtriage]``, and what is said about odd ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from torchtriage.diagnose.patterns.base import catalogue

Run = Callable[..., Result]


@pytest.fixture
def configure(folder: Path) -> Callable[[str], None]:
    """Return a function that writes the section."""

    def write(section: str) -> None:
        (folder / "pyproject.toml").write_text(f"[tool.torchtriage]\n{section}\n")

    return write


Configure = Callable[[str], None]


def checked(result: Result) -> list[str]:
    found: list[str] = json.loads(result.stdout)["results"][0]["checked"]
    return found


def test_every_key_is_a_default(run: Run, configure: Configure) -> None:
    configure('fail-on = "high"')
    run("slow.json", code=1)
    configure('only = ["SYN001", "LCH014"]\nskip = ["LCH014"]')
    assert checked(run("slow.json", "--json", code=0)) == ["SYN001"]
    left_out = f"patterns ({len(catalogue()) - 1} left out by --only, --skip or pyproject.toml)"
    assert left_out in " ".join(run("slow.json").stdout.split())
    configure("min-share = 0.99")
    assert "SYN001" not in run("slow.json", code=0).stdout
    configure("max-bytes = 100")
    assert "at most 100 B" in run("slow.json", code=2).stderr
    configure('max-bytes = "1M"')
    run("slow.json", code=0)
    configure("top = 1\nmin-share = 0")
    assert run("slow.json", code=0).stdout.count("saves") == 1


def test_the_command_line_wins(run: Run, configure: Configure) -> None:
    configure('fail-on = "high"\nonly = ["LCH014"]\nmax-bytes = 1\nmin-share = 1')
    result = run(
        *("slow.json", "--fail-on", "never", "--only", "SYN001", "--max-bytes", "1G"),
        *("--min-share", "0.01", "--json"),
        code=0,
    )
    assert checked(result) == ["SYN001"]
    assert json.loads(result.stdout)["results"][0]["findings"]


def test_a_value_equal_to_the_default_is_given_all_the_same(run: Run, configure: Configure) -> None:
    configure('fail-on = "high"')
    run("slow.json", "--fail-on", "never", code=0)


def test_the_nearest_file_above_counts(
    run: Run, folder: Path, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure('fail-on = "high"')
    below = folder / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    run("../../slow.json", code=1)
    # a nearer file ends the search, whether it has the section or not
    (folder / "a" / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    run("../../slow.json", code=0)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("colour = true", "unknown key 'colour' in [tool.torchtriage]"),
        ('fail-on = "fatal"', "invalid value for 'fail-on'"),
        ("fail-on = 3", "invalid value for 'fail-on'"),
        ("top = 0", "invalid value for 'top'"),
        ('top = "many"', "invalid value for 'top'"),
        ("top = 1.5", "invalid value for 'top'"),
        ("top = true", "invalid value for 'top'"),
        ("min-share = 2", "invalid value for 'min-share'"),
        ("min-share = [0.1]", "expected one value, found [0.1]"),
        ('only = "SYN001"', "expected a list, found 'SYN001'"),
        ("only = [[1]]", "expected text or a number, found [1]"),
        ('max-bytes = "huge"', "expected a size such as 500M or 4G, found 'huge'"),
        ("max-bytes = 2020-01-01", "expected text or a number"),
        ("a = {b = ", "cannot be read as TOML"),
    ],
)
def test_odd_values_name_the_file_and_the_key(
    run: Run, folder: Path, configure: Configure, section: str, message: str
) -> None:
    configure(section)
    result = run("slow.json", code=2)
    assert message in result.stderr
    assert str(folder / "pyproject.toml") in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("document", ["tool = 3", "[tool]\ntorchtriage = 3", "\udcff"])
def test_odd_files_are_named(run: Run, folder: Path, document: str) -> None:
    file = folder / "pyproject.toml"
    file.write_bytes(document.encode("utf-8", "surrogateescape"))
    result = run("slow.json")
    if document == "tool = 3":  # somebody else's business
        assert result.exit_code == 0
    else:
        assert result.exit_code == 2
        assert str(file) in result.stderr


def test_an_unknown_code_is_an_error_wherever_it_stands(run: Run, configure: Configure) -> None:
    configure('skip = ["SYN999"]')
    assert "no pattern is called 'SYN999'" in run("slow.json", code=2).stderr


def test_other_commands_do_not_read_the_section(run: Run, configure: Configure) -> None:
    configure("nonsense = 1")
    run("explain", "SYN001", code=0)
    run("doctor", "slow.json", code=0)
