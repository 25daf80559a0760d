"""The GitHub action's and the GitLab template's own lines, run in a checkout as CI makes it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.measure.gate.repositories import git
from tests.measure.gate.test_commands import BENCH

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.slow


def action_lines(step: str = "id: check") -> str:
    """Return what one of the action's steps runs."""
    text = (ROOT / "action.yml").read_text("utf-8")
    found = re.search(rf"{step}\n.*?run: \|\n(.*?)\n\n    - name", text, re.DOTALL)
    assert found is not None
    return textwrap.dedent(found[1])


def template_lines() -> str:
    """Return the template's script after the installation."""
    text = (ROOT / "ci" / "gitlab" / "gate.yml").read_text("utf-8")
    found = re.search(r"  script:\n(.*?)\n  allow_failure", text, re.DOTALL)
    assert found is not None
    lines = re.sub(r">-\n((?:      .*\n)+)", lambda m: " ".join(m[1].split()) + "\n", found[1] + "\n")
    return "\n".join(re.sub("^'(.*)'$", r"\1", line.strip().removeprefix("- ")) for line in lines.split("\n")[1:])


@pytest.fixture
def clone(tmp_path: Path, repository: Path) -> Path:
    """Return a checkout with one commit and no other branch, of a topic that is 20 % slower."""
    bench = repository / "benchmarks" / "bench.sh"
    for branch, ms in (("main", 10), ("topic", 12)):
        git(repository, "checkout", "-q", branch)
        bench.write_text(BENCH.format(ms=ms))
        git(repository, "add", ".")
        git(repository, "commit", "-q", "-m", f"{ms} ms")
    git(tmp_path, "clone", "-q", "--bare", str(repository), "origin.git")
    git(tmp_path, "clone", "-q", "--depth", "1", "--branch", "topic", (tmp_path / "origin.git").as_uri(), "clone")
    return tmp_path / "clone"


def run(lines: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", lines],
        cwd=folder,
        env={**os.environ, "PATH": path, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_action_annotates_sums_up_and_fails(clone: Path, tmp_path: Path) -> None:
    given = {
        "COMMAND": "sh benchmarks/bench.sh",
        "AGAINST": "main",
        "SAMPLES": "true",
        "PAIRS": "20",
        "MAX_REGRESS": "3%\nmemory=2%",
        "OPTIONS": "--warm-up 0 --name 'a b'",
        "UNDECIDED": "warn",
        "OUT": str(tmp_path / "out"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
    }
    done = run(action_lines(), clone, **given)
    assert done.returncode == 1, done.stderr
    assert "::error title=a b step%2C typical is worse::" in done.stdout
    assert "outcome=regression" in (tmp_path / "output").read_text()
    assert (tmp_path / "summary").read_text().startswith("### Regression against main: a b step")
    assert (tmp_path / "out" / "gate.html").stat().st_size > 1000
    commit = git(tmp_path / "origin.git", "rev-parse", "main")
    done = run(action_lines(), clone, **{**given, "AGAINST": commit, "MAX_REGRESS": "30%"})
    assert done.returncode == 0, done.stderr
    # now slower, now faster: nobody can tell
    turn = "n=$(cat turn 2> /dev/null || echo 0)\necho $((1 - n)) > turn\n"
    swings = turn + BENCH.replace("level = {ms}", "level = (8 + 4 * '$n')").format(ms=0)
    (clone / "benchmarks" / "bench.sh").write_text(swings)
    done = run(action_lines(), clone, **{**given, "PAIRS": "7"})
    assert done.returncode == 0, done.stderr
    assert "::warning title=Undecided" in done.stdout
    assert (tmp_path / "output").read_text().count("outcome=inconclusive") == 1


STUB = """#!/bin/sh
git rev-parse --quiet --verify "$4^{commit}" || git rev-parse --quiet --verify "origin/$4^{commit}" || exit 3
"""


def test_the_action_finds_what_it_compares_with_and_leaves_a_whole_clone_whole(clone: Path, tmp_path: Path) -> None:
    origin, whole = tmp_path / "origin.git", tmp_path / "whole"
    git(tmp_path, "clone", "-q", "--branch", "topic", origin.as_uri(), "whole")
    git(origin, "tag", "v1", "main")
    main, topic = (git(origin, "rev-parse", name) for name in ("main", "topic"))
    stub = tmp_path / "bin" / "torchtriage"
    stub.parent.mkdir()
    stub.write_text(STUB)
    stub.chmod(0o755)
    given = {
        "PATH": f"{stub.parent}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "OUT": str(tmp_path / "out"),
        **dict.fromkeys(("COMMAND", "SAMPLES", "PAIRS", "MAX_REGRESS", "OPTIONS", "UNDECIDED"), ""),
    }
    # the default branch of this origin is topic
    wanted = {"main": main, "v1": main, main: main, main[:8]: main, "": topic, "0" * 40: topic}
    for folder in (whole, clone):
        for against, commit in wanted.items():
            done = run(action_lines(), folder, **given, AGAINST=against)
            assert (done.returncode, done.stdout.strip()) == (0, commit), (against, done.stderr)
    assert git(whole, "rev-parse", "--is-shallow-repository") == "false"
    done = run(action_lines(), whole, **given, AGAINST="nothing")
    assert done.returncode == 3
    assert "couldn't find remote ref nothing" in done.stderr
    assert (tmp_path / "output").read_text().splitlines()[-2] == "outcome=infrastructure"
    git(origin, "update-ref", "--no-deref", "HEAD", main)
    for is_there in (True, False):
        if not is_there:
            origin.rename(tmp_path / "gone.git")
        done = run(action_lines(), whole, **given, AGAINST="")
        assert (done.returncode, done.stdout.count("::error::expected a revision")) == (3, 1)
        assert (tmp_path / "output").read_text().splitlines()[-1] == "outcome=infrastructure"


def test_the_template_knows_an_answer_of_old_git_from_a_shallow_clone(clone: Path, tmp_path: Path) -> None:
    """Before 2.15 git prints an option that it does not know."""
    old = tmp_path / "bin" / "git"
    old.parent.mkdir()
    old.write_text('#!/bin/sh\necho "$2"\n')
    old.chmod(0o755)
    line = next(line for line in template_lines().splitlines() if "depth=" in line)
    shown = f'{line}\necho "[$depth]"'
    assert run(shown, clone).stdout == "[--depth=1]\n"
    assert run(shown, clone, PATH=f"{old.parent}{os.pathsep}{os.environ['PATH']}").stdout == "[]\n"


@pytest.mark.parametrize(
    ("package", "is_whole", "installed"),
    [("", True, "{action}"), ("", False, "torchtriage"), ("./mine.whl", True, "./mine.whl")],
)
def test_the_action_installs_the_version_it_is_of(tmp_path: Path, package: str, is_whole: bool, installed: str) -> None:
    action = tmp_path / "the action"
    action.mkdir()
    if is_whole:
        (action / "pyproject.toml").touch()
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\nfor last; do :; done; echo "$last"\n')
    python.chmod(0o755)
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", action_lines("name: Install torchtriage")]
    given = {**os.environ, "PATH": path, "PACKAGE": package, "GITHUB_ACTION_PATH": str(action)}
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == installed.format(action=action)


def test_every_input_of_the_action_is_used_and_told() -> None:
    text, page = (ROOT / "action.yml").read_text("utf-8"), (ROOT / "docs" / "ci.md").read_text("utf-8")
    inputs = re.search(r"^inputs:\n(.*?)\n\n\S", text, re.DOTALL | re.MULTILINE)
    assert inputs is not None
    names = re.findall(r"^  ([a-z-]+):$", inputs[1], re.MULTILINE)
    assert len(names) > 5
    assert [name for name in names if f"${{{{ inputs.{name} }}}}" not in text or f"`{name}`" not in page] == []
    assert not re.search(r"OWNER|<[a-z' ]*address", text + page)


def test_the_template_keeps_the_page_and_the_exit_code(clone: Path) -> None:
    done = run(
        template_lines(),
        clone,
        GATE_COMMAND="sh benchmarks/bench.sh",
        GATE_AGAINST="main",
        GATE_OPTIONS="--samples --warm-up 0",
    )
    assert done.returncode == 1, done.stderr
    assert "Regression against main" in done.stdout
    assert (clone / "torchtriage-gate" / "gate.html").exists()
    done = run(template_lines(), clone, GATE_COMMAND="false", GATE_AGAINST="main", GATE_OPTIONS="")
    assert done.returncode == 3
