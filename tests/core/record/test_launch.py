"""Whatever a script does, it does the same under ``torchtriage run``."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from torchtriage.core.errors import UsageError
from torchtriage.core.record.launch import BOOTSTRAP, Command, end_like, find_command

RUN = (sys.executable, "-m", "torchtriage", "run")
SEEN = """
import os, sys
print(sys.argv, __file__, sys.path, __name__, os.getcwd(), sys.orig_argv[1:])
print(sorted(name for name in os.environ if name != "_"), os.environ.get("PYTHONPATH"))
print("sitecustomize" in sys.modules, [type(one).__name__ for one in sys.meta_path[-3:]])
"""
SCRIPTS = {
    "sees": SEEN,
    "ends with 3": "import sys; print('out'); sys.exit(3)",
    "ends with a message": "raise SystemExit('not today')",
    "raises": "def f():\n    raise ValueError('wrong')\nprint('before')\nf()\n",
    "refuses its arguments": (
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--lr', type=float, required=True)\nparser.parse_args()\n"
    ),
    "reads its input": "import sys; print(sys.stdin.read().upper(), input.__name__)",
    "changes its folder": "import os; os.chdir('/'); print(os.getcwd()); raise SystemExit(4)",
    "leaves at once": "import os; print('out', flush=True); os._exit(5)",
    "kills itself": ("import os, signal\nprint('out', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"),
    "is terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "is interrupted": "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)",
    "forks": (
        "import os\npid = os.fork()\nif not pid:\n    print('child', flush=True); os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    ),
    "has threads": (
        "import threading\n"
        "threads = [threading.Thread(target=print, args=(n,)) for n in range(3)]\n"
        "for one in threads:\n    one.start(); one.join()\n"
        "print([one.name for one in threading.enumerate()], threading.active_count())\n"
    ),
    "spawns": (
        "import multiprocessing as mp, sys\n"
        "def work(n):\n    return n * n, 'torchtriage' in sys.modules\n"
        "if __name__ == '__main__':\n"
        "    with mp.get_context('spawn').Pool(1) as pool:\n        print(pool.map(work, [2, 3]))\n"
    ),
    "starts a Python": (
        "import os, subprocess, sys\n"
        "print(subprocess.run([sys.executable, '-c', 'import sys; print(sys.path)'],\n"
        "      capture_output=True, text=True, env=dict(os.environ)).stdout)\n"
    ),
    "looks for what is not there": (
        "import importlib.util\nprint(importlib.util.find_spec('torch_that_is_not_there'))\n"
        "import torch_that_is_not_there\n"
    ),
    "is no Python": "def broken(:\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a script, a package and a sitecustomize of the user's own."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "other.py").write_text("VALUE = 11\n")
    (package / "train.py").write_text("from .other import VALUE\nprint(VALUE)\n" + SEEN)
    (package / "__main__.py").write_text("from package import train\n" + SEEN)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 'the user is here'\n")
    return tmp_path


def run(
    words: list[str], folder: Path, *, watched: bool, paths: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run Python on some words, plainly or watched, and return how it ended."""
    before = [sys.executable]
    if watched:
        before += ["-m", "torchtriage", "run", "--out", "recordings"]
    source = str(BOOTSTRAP.parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, source])}
    return subprocess.run(
        [*before, *words],
        cwd=folder,
        env=environment,
        input="some input",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_secrets_in_arguments_are_not_repeated(folder: Path) -> None:
    (folder / "script.py").write_text("print(1)")
    done = run(["script.py", "--token", "hunter2", "--api-key=sk-abc"], folder, watched=True)
    assert "script.py --token '***' '--api-key=***'" in done.stderr
    assert "hunter2" not in done.stderr + done.stdout


def same(words: list[str], folder: Path, paths: tuple[str, ...] = ()) -> tuple[str, str]:
    """Run plainly and watched; return the output, and what only the watched one said."""
    plain = run(words, folder, watched=False, paths=paths)
    watched = run(words, folder, watched=True, paths=paths)
    assert watched.returncode == plain.returncode
    assert watched.stdout == plain.stdout
    assert watched.stderr.startswith(plain.stderr)
    return plain.stdout, watched.stderr[len(plain.stderr) :]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_does_the_same(name: str, folder: Path) -> None:
    (folder / "script.py").write_text(SCRIPTS[name])
    _, said = same(["script.py", "--flag", "value", "-m", "x"], folder)
    assert said.startswith("torchtriage: ")
    assert "imported torch\n" in said  # never did, or ended with … before it did
    assert "Traceback" not in said


def test_a_module_and_its_relative_imports_do_the_same(folder: Path) -> None:
    out, _ = same(["-m", "package.train", "--steps", "7"], folder)
    assert out.startswith("11\n")
    same(["-m", "package", "-q"], folder)


def test_a_folder_with_a_main_does_the_same(folder: Path) -> None:
    (folder / "app").mkdir()
    (folder / "app" / "__main__.py").write_text(SEEN)
    same(["app", "x"], folder)


def test_the_users_sitecustomize_still_runs(folder: Path) -> None:
    (folder / "script.py").write_text(SEEN + "import builtins; print(builtins.mine)\n")
    out, _ = same(["script.py"], folder, paths=(str(folder / "mine"),))
    assert out.endswith("the user is here\n")


def test_a_broken_sitecustomize_is_reported_as_without_us(folder: Path) -> None:
    (folder / "mine" / "sitecustomize.py").write_text("import nothing_of_that_name\n")
    (folder / "script.py").write_text("print('goes on')")
    out, _ = same(["script.py"], folder, paths=(str(folder / "mine"),))
    assert out == "goes on\n"


def test_nothing_is_left_where_nothing_was_recorded(folder: Path) -> None:
    (folder / "script.py").write_text("print(1)")
    before = {*folder.iterdir()}
    source = str(BOOTSTRAP.parents[2])
    subprocess.run(
        [*RUN, "script.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert {*folder.iterdir()} == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the output is left open to the end
def test_a_reader_of_the_report_may_go_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtriage.cli.diagnose import run as cli

    def closed(*_given: object) -> None:
        raise BrokenPipeError

    (tmp_path / "script.py").write_text("raise SystemExit(3)")
    monkeypatch.setattr(cli, "_report", closed)
    ended = CliRunner().invoke(cli.command, ["--out", str(tmp_path / "out"), str(tmp_path / "script.py")])
    assert ended.exit_code == 3
    assert ended.output == ""


@pytest.mark.parametrize(
    ("number", "by_terminal"), [(signal.SIGTERM, False), (signal.SIGINT, False), (signal.SIGINT, True)]
)
def test_a_signal_reaches_the_script_once(number: signal.Signals, by_terminal: bool, folder: Path) -> None:
    if number == signal.SIGINT and not by_terminal and not hasattr(signal, "sigtimedwait"):
        pytest.skip("this system does not tell who sent a signal")
    (folder / "script.py").write_text(
        "import signal, time\n"
        "got = []\n"
        f"signal.signal({int(number)}, lambda *_: got.append('got it'))\n"
        "print('ready', flush=True)\n"
        "end = time.monotonic() + 30\n"
        "while not got and time.monotonic() < end:\n    time.sleep(0.01)\n"
        "time.sleep(2)  # for another one\n"
        "print(got, flush=True)\nraise SystemExit(9)\n"
    )
    ours, terminal = pty.openpty()
    with subprocess.Popen(
        # a session's leader that opens a terminal has it as its own
        ["setsid", "sh", "-c", f'exec "$0" "$@" <{os.ttyname(terminal)}', *RUN, "script.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(BOOTSTRAP.parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        if by_terminal:
            os.write(ours, b"\x03")
        else:
            parent.send_signal(number)
        out, _ = parent.communicate(timeout=60)
    assert out == "['got it']\n"
    assert parent.returncode == 9


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "expected a script"),
        (["-m"], "expected a module after -m"),
        (["nothing_here.py"], "found no such file"),
        (["no-such-program-here"], "found neither"),
    ],
)
def test_what_cannot_be_started_is_said(words: list[str], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        find_command(words)


@pytest.mark.parametrize(
    ("words", "is_script"),
    [
        (["-m", "package.train", "x"], True),
        (["-m", "torch.distributed.run", "train.py"], False),
        (["-m", "accelerate.commands.launch", "train.py"], False),
        ([sys.executable, "x.py"], True),
        ([sys.executable, "-m", "torch.distributed.run", "x.py"], False),
        (["env", "A=1"], False),
    ],
)
def test_launchers_are_told_from_scripts(words: list[str], is_script: bool) -> None:
    assert find_command(words).is_script is is_script


def test_ends_with_the_scripts_code() -> None:
    assert [end_like(code) for code in (0, 1, 255)] == [0, 1, 255]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--hf-token", "abc", "--lr", "1"], "--hf-token '***' --lr 1"),
        (["--api_key=abc"], "'--api_key=***'"),
        (["--max-tokens", "256", "--tokenizer", "bpe"], "--max-tokens 256 --tokenizer bpe"),
        (["--token", "--fast"], "--token --fast"),
        (["--password", "a b"], "--password '***'"),
        (["--token", "-abc", "--fast"], "--token '***' --fast"),
        (["--auth", "b", "--authors", "c"], "--auth '***' --authors c"),
        (["--auth-header=b", "--author=c"], "'--auth-header=***' --author=c"),
        (["--db", "postgresql://me:pass@db/x"], "--db 'postgresql://me:***@db/x'"),
        (["--db=redis://:p@ss@db:6379/0"], "'--db=redis://:***@db:6379/0'"),
        (["https://key@sentry.io/1", "s3://bucket/a@b"], "'https://***@sentry.io/1' s3://bucket/a@b"),
        (["https://x/y?lr=1&sig=a&api_key=b#c"], "'https://x/y?lr=1&sig=***&api_key=***#c'"),
    ],
)
def test_secrets_among_the_arguments_are_not_shown(words, shown):
    command = Command(("python", "train.py", *words), is_script=True)
    assert str(command) == f"python train.py {shown}"
