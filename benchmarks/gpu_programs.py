"""Time and record programs on a GPU, two versions of each, one at a time.

    python benchmarks/gpu_programs.py benchmarks/programs_gpu OUT [--minutes 5] [NAME ...]

Each program is run in a child forked from this process, which has imported torch but not begun CUDA: imports are paid
once. The comment ``# STEP`` in its loop becomes a call that lets eight steps pass, times three windows, records three
steps with shapes and stacks, and ends the program. Building and exporting overlap; from its first step on a program is
alone on the device. OUT/NAME_VERSION gets ``times.json`` (``ms``: the mean step of each window, unprofiled),
``trace.json.gz``, ``log.txt`` and what torch.compile logs.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import fcntl
import gzip
import json
import logging
import os
import shutil
import signal
import sys
import time
import traceback
import types
from pathlib import Path
from typing import Any

LEFT_OUT, WINDOWS, WINDOW_S, RECORDED = 8, 3, 0.35, 3
LONGEST_S = 120


class _Over(BaseException):
    """Ends a program from inside its loop."""


class Steps:
    """What is called at the beginning of each step."""

    def __init__(self, out: Path, torch: Any) -> None:
        self.out, self.torch = out, torch
        self.count = self.left = 0
        self.at = 0.0
        self.times: dict[str, object] = {}
        self.windows: list[float] = []
        self.profiler: Any = None
        self.lock = (out.parent / "lock").open("w")

    def __call__(self) -> None:
        """Count a step, and do what is due between two of them."""
        self.count += 1
        if self.count == 1:
            self._synchronize()
            fcntl.flock(self.lock, fcntl.LOCK_EX)
        elif self.profiler is not None:
            self.profiler.step()
            self.left -= 1
            if not self.left:
                self.profiler.stop()
                raise _Over
        elif self.count == LEFT_OUT // 2:
            self._synchronize()
            self.at = time.perf_counter()
        elif self.count == LEFT_OUT:
            self._synchronize()
            usual_s = (time.perf_counter() - self.at) / (LEFT_OUT - LEFT_OUT // 2)
            self.n_steps = self.left = max(4, min(12, int(WINDOW_S / usual_s)))
            self.at = time.perf_counter()
        elif self.count > LEFT_OUT:
            self.left -= 1
            if not self.left:
                self._end_window()

    def _end_window(self) -> None:
        self._synchronize()
        self.windows.append((time.perf_counter() - self.at) / self.n_steps * 1e3)
        if len(self.windows) < WINDOWS:
            self.left, self.at = self.n_steps, time.perf_counter()
            return
        profiler = self.torch.profiler
        plan = profiler.schedule(wait=0, warmup=1, active=RECORDED, repeat=1)
        self.left = RECORDED + 1
        self.profiler = profiler.profile(schedule=plan, record_shapes=True, with_stack=True)
        self.profiler.start()

    def _synchronize(self) -> None:
        if self.torch.cuda.is_available():
            self.torch.cuda.synchronize()

    def save(self, ended: str) -> None:
        """Write down the times, and after that the recording: others may go on meanwhile."""
        cuda = self.torch.cuda
        device = cuda.get_device_name() if cuda.is_available() else "cpu"
        times = {"ms": self.windows, "steps": self.count, "device": device, "ended": ended}
        fcntl.flock(self.lock, fcntl.LOCK_UN)
        (self.out / "times.json").write_text(json.dumps(times))
        if ended == "recorded":
            self.profiler.export_chrome_trace(str(self.out / "trace.json"))
            with (self.out / "trace.json").open("rb") as plain, gzip.open(self.out / "trace.json.gz", "wb") as packed:
                shutil.copyfileobj(plain, packed)
            (self.out / "trace.json").unlink()


def run(script: Path, out: Path, torch: Any, small: bool) -> None:
    """Run one script in this process, which ends with it."""
    os.setsid()
    log = os.open(out / "log.txt", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for handler in logging.getLogger("torch.__trace").handlers:
        if hasattr(handler, "root_dir"):
            handler.root_dir = str(out / "compile")
    text = script.read_text()
    if text.count("# STEP\n") != 1:
        raise SystemExit(f"{script}: expected one line '# STEP', found {text.count('# STEP')}")
    steps = Steps(out, torch)
    builtins.__step__ = steps  # type: ignore[attr-defined]
    main = types.ModuleType("__main__")
    main.__file__ = str(script)
    sys.modules["__main__"] = main
    sys.argv = [str(script), *["--small"] * small]
    sys.path[0] = str(script.parent)
    ended = "by itself"
    try:
        exec(compile(text.replace("# STEP\n", "__step__()\n"), str(script), "exec"), main.__dict__)
    except _Over:
        ended = "recorded"
    except BaseException:
        ended = traceback.format_exc()[-1000:]
    steps.save(ended)


def main() -> None:
    """Run what is asked for and print the times."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--minutes", type=float, default=10.0, help="begin nothing after so many")
    parser.add_argument("--at-once", type=int, default=4, help="programs that build and export at the same time")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the programs without a GPU")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TORCH_TRACE", str(given.out / "compile"))  # read when torch is imported
    import torch
    import torch.profiler

    for name in ("transformers", "torchvision", "scipy", "cv2"):
        with contextlib.suppress(ImportError):
            __import__(name)
    waiting = [
        path
        for path in sorted(given.folder.resolve().glob("*_*.py"))
        if not given.names or path.stem.rpartition("_")[0] in given.names
    ]
    began = time.monotonic()
    running: dict[int, tuple[Path, float]] = {}
    while running or waiting:
        late = time.monotonic() - began > 60 * given.minutes
        if waiting and not late and len(running) < given.at_once:
            script = waiting.pop(0)
            out = given.out.resolve() / script.stem
            out.mkdir(exist_ok=True)
            sys.stdout.flush()
            pid = os.fork()
            if not pid:
                try:
                    run(script, out, torch, given.small)
                finally:
                    os._exit(0)
            running[pid] = (out, time.monotonic())
        elif waiting and late:
            print(f"no time left for {len(waiting)}: {', '.join(path.stem for path in waiting)}")
            waiting = []
        for pid, (out, since) in list(running.items()):
            over = os.waitpid(pid, os.WNOHANG)[0]
            if over or time.monotonic() - since > LONGEST_S:
                del running[pid]
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
                if not over:
                    os.waitpid(pid, 0)
                times = out / "times.json"
                result: dict[str, Any] = (
                    json.loads(times.read_text()) if times.exists() else {"ms": [], "ended": "without times"}
                )
                shown = " ".join(f"{value:.2f}" for value in result["ms"])
                print(f"{out.name:32} {shown or str(result['ended']).strip().splitlines()[-1]}", flush=True)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
