"""The smaller commands, the help, and what every command promises."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from tests.memory.recorder import training_step

import torchtriage as tt
from torchtriage.api import traces
from torchtriage.api.catalogue import pages
from torchtriage.cli.main import COMMANDS, GROUPS, cli
from torchtriage.cli.options import Finite
from torchtriage.diagnose.patterns import PatternEntry, catalogue

Run = Callable[..., Result]


def commands() -> list[click.Command]:
    context = click.Context(cli)
    found = [cli.get_command(context, name) for name in cli.list_commands(context)]
    return [one for one in found if one is not None]


# -- help --------------------------------------------------------------------------------------


def test_the_overview_names_every_command_on_one_line_in_its_group(run: Run) -> None:
    text = run("--help", code=0).stdout
    assert re.findall(r"^(\w+):$", text, re.MULTILINE) == ["Options", *GROUPS]
    for group in GROUPS.values():
        for name, (_, what) in group.items():
            assert re.search(rf"^  {name} +{re.escape(what)}$", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 80
    assert run("-h", code=0).stdout == text


@pytest.mark.parametrize("name", ["dataset", "learn"])
def test_a_command_that_moved_says_where_it_is(run: Run, folder: Path, name: str) -> None:
    assert f"torchtriage benchmark {name}" in run(name, "--help", code=2).stderr
    (folder / name).mkdir()
    assert f"torchtriage benchmark {name}" in run(name, code=2).stderr
    assert run("benchmark", name, "--help", code=0).stdout


def test_every_module_is_a_command() -> None:
    names = "__init__ dataset learn anonymising config main options output progress reviewing record_sample"
    shared = set(names.split())
    modules = {path.stem for path in Path(traces.__file__).parents[1].joinpath("cli").rglob("*.py")}
    # gate_check and gate_record are commands of gate
    parts = {module for module in modules if module.partition("_")[0] in COMMANDS}
    assert (modules - parts - shared) | (modules & set(COMMANDS)) == set(COMMANDS)


@pytest.mark.parametrize("command", commands(), ids=lambda one: one.name)
def test_every_command_and_option_is_documented(run: Run, command: click.Command) -> None:
    assert command.help
    text = run(str(command.name), "--help", code=0).stdout
    for param in command.params:
        if isinstance(param, click.Option):
            assert param.help, param.name
            assert all(opt in text for opt in param.opts)


def test_no_option_takes_what_is_no_number() -> None:
    open_ended = []
    found = commands()
    while found:
        command = found.pop()
        if isinstance(command, click.Group):
            context = click.Context(command)
            found += [item for name in command.list_commands(context) if (item := command.get_command(context, name))]
        numbers = [item for item in command.params if item.type.name in ("float", "float range")]
        open_ended += [(command.name, item.name) for item in numbers if not isinstance(item.type, Finite)]
    assert not open_ended


def test_version(run: Run) -> None:
    assert run("--version", code=0).stdout == f"torchtriage {tt.__version__}\n"


def test_usage_errors_are_exit_code_2(run: Run) -> None:
    for args in (["analyze"], ["--nope"], ["explain", "a", "b"], ["completion", "csh"]):
        assert "Usage: torchtriage" in run(*args, code=2).stderr


# -- explain -----------------------------------------------------------------------------------


def test_explain_lists_every_pattern_by_family(run: Run) -> None:
    text = run("explain", code=0).stdout
    for entry in catalogue():
        assert re.search(rf"^  {entry.pattern.name} +{entry.pattern.code}  ", text, re.MULTILINE)
        assert f"\n{entry.pattern.family}\n" in text


def test_explain_counts_the_patterns_and_says_why_codes_have_gaps(run: Run) -> None:
    *_, counted, numbers, words = run("explain", code=0).stdout.splitlines()
    assert "docs/definitions.md" in words
    assert run("explain", "HST020", code=0).stdout.splitlines()[-1] == words
    assert counted.startswith(f"{len({page.code for page in pages()})} patterns: {len(catalogue())} in traces, ")
    assert "gaps" in numbers


@pytest.mark.parametrize("name", ["SYN001", "syn001", "host-sync-scalar", " SYN001 "])
def test_explain_by_code_or_name(run: Run, name: str) -> None:
    text = run("explain", name, code=0).stdout
    assert text.startswith("SYN001 host-sync-scalar\n")
    for section in ("Looks like:", "Slow because:", "Cost:", "Fix:", "Leave it when:", "Code:"):
        assert section in text


def test_explain_offers_what_is_near(run: Run) -> None:
    assert "host-sync-scalar" in run("explain", "host-sync-scaler", code=2).stderr
    assert "torchtriage explain lists all" in run("explain", "@@@@", code=2).stderr


# -- doctor, show, demo ------------------------------------------------------------------------


def test_doctor_says_what_a_recording_can_answer(run: Run) -> None:
    text = run("doctor", "slow.json", code=0).stdout
    assert "no Python stacks" in text
    assert "with_stack=True" in text
    assert "no GPU row" in run("doctor", "refused.json", code=2).stdout
    assert run("doctor", "broken.json", code=2).stdout == ""


def test_show_renders_a_saved_result_as_it_was(run: Run, folder: Path) -> None:
    run("analyze", "slow.json", "--json", "-o", "result.json", code=0)
    assert run("show", "result.json", code=0).stdout == run("slow.json", code=0).stdout
    assert (
        run("show", "result.json", "--markdown", code=0).stdout.strip()
        == run("slow.json", "--markdown", code=0).stdout.strip()
    )
    assert run("show", "result.json", "--html", "page.html", code=0).stdout == ""
    assert "SYN001" in (folder / "page.html").read_text(encoding="utf-8")
    assert run("show", "result.json", "--top", "1", code=0).stdout


@pytest.mark.parametrize(
    "words", [["memory", "snapshot.pickle"], ["compare", "slow.json", "slow.json"], ["lint", "slow.py"]]
)
def test_show_renders_what_other_commands_saved(run: Run, folder: Path, words: list[str]) -> None:
    (folder / "snapshot.pickle").write_bytes(pickle.dumps(training_step().dump(), 4))
    (folder / "slow.py").write_text("import torch\nx = torch.ones(3)\nfor i in range(3): print(x)\n")
    run(*words, "--json", "-o", "saved.json", code=0)
    assert run("show", "saved.json", code=0).stdout == run(*words, code=0).stdout
    assert (
        run("show", "saved.json", "--markdown", code=0).stdout.strip()
        == run(*words, "--markdown", code=0).stdout.strip()
    )
    run("show", "saved.json", "--html", "page.html", code=0)
    assert "<header" in (folder / "page.html").read_text(encoding="utf-8")
    assert "results of analyze" in run("show", "saved.json", "--top", "1", code=2).stderr


def test_show_wants_a_result(run: Run, folder: Path) -> None:
    for name, where in (("broken.json", ""), ("slow.json", ", $.schema")):
        said = run("show", name, code=2).stderr
        assert said.startswith(f"torchtriage: {name}{where}: expected a torchtriage result")
        assert "\n  try: write one with: torchtriage analyze" in said
    said = run("show", "nowhere.json", code=2).stderr
    assert said.startswith(
        "torchtriage: nowhere.json: expected a readable file, found: No such file or directory\n  try:"
    )
    run("analyze", "slow.json", "--json", "-o", "result.json", code=0)
    before = (folder / "result.json").read_bytes()
    assert "input itself" in run("show", "result.json", "--html", "result.json", code=2).stderr
    assert (folder / "result.json").read_bytes() == before


def test_demo_finds_something_in_the_bundled_recording(run: Run, folder: Path) -> None:
    result = run("demo", "--html", "demo.html", code=0)
    assert "Largest savings; together " in result.stdout
    assert "torchtriage analyze TRACE" in result.stdout
    assert (folder / "demo.html").stat().st_size > 10_000
    assert "folder does not exist" in run("demo", "--html", "no/demo.html", code=2).stderr


# -- completion --------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_call_us_back(run: Run, shell: str) -> None:
    text = run("completion", shell, code=0).stdout
    assert f"_TORCHTRIAGE_COMPLETE={shell}_complete" in text


def complete(words: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("COMP_WORDS", f"torchtriage {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" "))))
    monkeypatch.setenv("_TORCHTRIAGE_COMPLETE", "bash_complete")
    result = CliRunner().invoke(cli, [], prog_name="torchtriage")
    return [line.partition(",")[2] for line in result.stdout.splitlines()]


def test_completion_knows_commands_options_codes_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    assert complete("do", monkeypatch) == ["doctor"]
    assert complete("analyze --mi", monkeypatch) == ["--min-share"]
    assert complete("explain SYN00", monkeypatch) == [f"SYN00{n}" for n in range(1, 6)]
    assert complete("analyze ./x", monkeypatch) == ["./x"]  # the shell lists the files


# -- failures of our own -----------------------------------------------------------------------


def test_a_defect_is_one_message_with_its_place(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr(traces, "diagnose", broken)
    result = run("slow.json", code=2)
    assert result.stderr.startswith("torchtriage: a bug in torchtriage: KeyError: 'oops' - at test_commands.py:")


def test_a_crashing_pattern_is_part_of_the_report(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtriage.diagnose.verdict import verdict

    def find(_trace: object) -> None:
        raise ValueError("half way")

    entries = [
        PatternEntry(one.pattern, find, one.fix, one.page) if one.pattern.code == "LCH014" else one  # type: ignore[arg-type]
        for one in catalogue()
    ]
    monkeypatch.setattr(verdict, "catalogue", lambda: tuple(entries))
    result = run("slow.json", code=0)
    assert "LCH014 ValueError: half way" in result.stdout
    assert "SYN001" in result.stdout


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 2, "out of memory"),
        (OSError(28, "No space left on device"), 2, "No space left on device"),
    ],
)
def test_what_the_system_does_to_us_is_one_line(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(traces, "diagnose", fail)
    result = run("slow.json", code=code)
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


# -- real processes ----------------------------------------------------------------------------

PROGRAM = [sys.executable, "-m", "torchtriage"]


def test_the_program_runs_and_exits_as_it_says(folder: Path) -> None:
    for args, code in (
        (["slow.json"], 0),
        (["slow.json", "--fail-on", "high"], 1),
        (["missing.json"], 2),
        (["refused.json"], 2),
    ):
        done = subprocess.run([*PROGRAM, *args], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr


def test_a_pipe_as_standard_input(folder: Path) -> None:
    done = subprocess.run(
        f"cat slow.json | {' '.join(PROGRAM)} - --json | head -c 23",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ('{"schema":"torchtriage/', "")


@pytest.mark.parametrize("args", ["explain", "slow.json --json", "slow.json", "slow.json --markdown"])
def test_a_reader_that_goes_away_is_no_failure(folder: Path, args: str) -> None:
    # the reading end is closed before anything is written
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as stdout:
        done = subprocess.run([*PROGRAM, *args.split()], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_output_that_is_no_utf8_terminal(folder: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    for line in (
        "slow.json",
        "explain SYN001",
        "doctor slow.json",
        "slow.json --json",
        "slow.json --markdown",
        "demo --html page.html",
        "--help",
    ):
        done = subprocess.run([*PROGRAM, *line.split()], capture_output=True, check=False, env=environment)
        assert done.returncode == 0, line
        assert done.stderr.strip() == (b"wrote page.html" if "--html" in line else b""), line


def test_without_the_benchmark_package_its_commands_are_listed_and_say_what_they_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith("torchtriage_benchmark")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchtriage_benchmark", None)
    listed = CliRunner().invoke(cli, ["benchmark", "dataset", "--help"])
    assert listed.exit_code == 0
    assert all(f"  {name} " in listed.output for name in ("export", "record", "score", "synthesize", "verify"))
    for words in (["record", "--help"], ["record", "--count", "3"], ["verify"]):
        done = CliRunner().invoke(cli, ["benchmark", "dataset", *words])
        assert done.exit_code == 2
        assert "pip install ./packages/torchtriage-benchmark" in done.output
