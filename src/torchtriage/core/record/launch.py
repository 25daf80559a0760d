"""Start a script under watch, stand aside while it runs, and end as it ended."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from torchtriage.core.errors import UsageError
from torchtriage.core.names import mask_secrets

BOOTSTRAP = Path(__file__).parent / "bootstrap"
SETTINGS = "TORCHTRIAGE_RUN"
LAUNCHER_MODULES = ("torch.distributed.", "accelerate.", "deepspeed.", "lightning.fabric.")
"""Modules of ``-m`` that start the user's script as processes of their own."""
FORWARDED = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
)
IGNORED = tuple(getattr(signal, name) for name in ("SIGINT", "SIGQUIT") if hasattr(signal, name))
"""The terminal sends these to the script as well; :func:`_hand_on_sent` hands on what a process sends."""


@dataclass(frozen=True)
class Command:
    """What is started: the arguments, and whether it is the user's script or a launcher of it."""

    arguments: tuple[str, ...]
    is_script: bool

    def __str__(self) -> str:
        """Return the command as the user would type it, without secrets: reports are passed on."""
        import shlex

        return shlex.join(mask_secrets(self.arguments))


def find_command(words: Sequence[str]) -> Command:
    """Return what ``script.py args``, ``-m module args`` or ``torchrun … train.py`` stand for.

    Raises UsageError: there is no such script, module name or program.
    """
    if not words:
        raise UsageError("expected a script, -m module or a launcher such as torchrun", hint="torchtriage run train.py")
    first = words[0]
    if first == "-m":
        if len(words) < 2:
            raise UsageError("expected a module after -m", hint="torchtriage run -m package.train")
        is_script = not f"{words[1]}.".startswith(LAUNCHER_MODULES)
        return Command((sys.executable, *words), is_script)
    path = Path(first)
    if path.suffix in (".py", ".pyw") or (path.is_dir() and (path / "__main__.py").exists()):
        if not path.exists():
            raise UsageError("expected a script, found no such file", where=first)
        return Command((sys.executable, *words), is_script=True)
    program = shutil.which(first)
    if program is None:
        raise UsageError(
            "expected a Python script or a program, found neither",
            where=first,
            hint="torchtriage run train.py, or torchtriage run torchrun … train.py",
        )
    is_python = Path(first).name.startswith("python")
    launches = is_python and "-m" in words and _launches(words[words.index("-m") :])
    return Command((program, *words[1:]), is_script=is_python and not launches)


def _launches(words: Sequence[str]) -> bool:
    return len(words) > 1 and f"{words[1]}.".startswith(LAUNCHER_MODULES)


def launch(
    command: Command,
    out: Path,
    *,
    plan: dict[str, Any],
    exit_after: bool = False,
    memory: bool = False,
    compile_log: bool = False,
    answers: bool = False,
    sample: bool = False,
    effects: bool = False,
    log: Path | None = None,
    cwd: Path | None = None,
    extra_paths: Sequence[str] = (),
    while_running: Callable[[], int | None] | None = None,
) -> int:
    """Run the command to its end and return its exit code (negative: the signal that ended it).

    Standard streams, folder, terminal and signals are the script's own. ``while_running`` is called
    about twice a second and may return a signal for the script. ``memory`` : watch for leaks to the
    script's end. ``compile_log`` : keep what torch.compile logs. ``answers`` : have its first losses or outputs noted.
    ``sample`` : look at its stacks from beginning to end. ``effects`` : note what it writes, connects to and starts.
    ``log`` : a file that takes its output; its standard input is empty then. ``cwd`` : the folder it runs in.
    ``extra_paths`` : folders that its modules are looked for in first.

    Raises UsageError: the program cannot be started.
    """
    settings = {
        "out": str(out.resolve()),
        "plan": plan,
        "exit_after": exit_after,
        "memory": memory,
        "compile_log": compile_log,
        "hide": command.is_script,
        "answers": answers,
        "sample": sample,
        "effects": effects,
    }
    paths = [str(BOOTSTRAP), *extra_paths, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), SETTINGS: json.dumps(settings)}
    children: list[subprocess.Popen[bytes]] = []
    with _standing_aside(children), _streams(log) as streams:
        try:
            child = subprocess.Popen(command.arguments, env=environment, cwd=cwd, **streams)
        except OSError as error:
            raise UsageError(f"cannot be started: {error.strerror}", where=command.arguments[0]) from error
        children.append(child)
        if hasattr(signal, "sigtimedwait"):  # not before: the child would begin with them blocked
            signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
        while (code := _ended(child)) is None:
            _hand_on_sent(child)
            number = while_running() if while_running is not None else None
            if number is not None:
                child.send_signal(number)
        return code


def _ended(child: subprocess.Popen[bytes]) -> int | None:
    try:
        return child.wait(timeout=0.5)
    except subprocess.TimeoutExpired:
        return None


def _hand_on_sent(child: subprocess.Popen[bytes]) -> None:
    """Hand on what a process has sent to us, and not the terminal to both; macOS does not tell who sent it."""
    if not hasattr(signal, "sigtimedwait"):
        return
    while (sent := signal.sigtimedwait(IGNORED, 0)) is not None:
        if sent.si_code <= 0:  # the kernel's own are above
            child.send_signal(sent.si_signo)


@contextlib.contextmanager
def _streams(log: Path | None) -> Iterator[dict[str, Any]]:
    if log is None:
        yield {}
        return
    with log.open("wb") as file:
        yield {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}


@contextlib.contextmanager
def _standing_aside(children: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Let the script answer the signals: hand on those that only we get, sit out the others.

    Handlers are set before the start and are functions, so the child begins with the defaults; what
    was ignored when we began (nohup) stays ignored for both.
    """

    def hand_on(number: int, _frame: FrameType | None) -> None:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(number)

    def sit_out(_number: int, _frame: FrameType | None) -> None:
        pass

    before: dict[int, Any] = {}
    for numbers, handler in ((FORWARDED, hand_on), (IGNORED, sit_out)):
        for number in numbers:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, handler)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ()) if hasattr(signal, "pthread_sigmask") else None
    try:
        yield
    finally:
        if blocked is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in before.items():
            signal.signal(number, handler)


def end_like(code: int) -> int:
    """Return the exit code to end with; where a signal ended the script, end by it and not return.

    ``code`` is what :func:`launch` returned.
    """
    if code >= 0:
        return code
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        # one core file, the script's, is enough
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError, ValueError):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    return 128 - code
