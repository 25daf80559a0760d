"""Runs one script with marks around its statements and records it, in a process of its own.

Every statement of the hot loop runs inside a mark that says its line, in clean scripts as in faulty
ones, and so does every module of the classes in which some fault shows; ``label.py`` reads the
marks and removes them. First some steps are timed without the profiler, then some are recorded.
"""

from __future__ import annotations

import ast
import json
import os
import time
from pathlib import Path
from typing import Any

from torchtriage_benchmark.recording.program_generator import LOOP

MARK = "tt:"
SETTLE, TIMED, ARM, RECORDED = 3, 10, 2, 5
STEPS = SETTLE + TIMED + ARM + RECORDED + 1
"""Steps of a script: to settle, timed without the profiler, to arm it, recorded, and to end it."""


def marked(text: str, filename: str) -> Any:
    """Return a script's code: its loop's statements in marks, and a step at the loop's end."""
    tree = ast.parse(text, filename)
    lines = text.splitlines()
    (loop,) = (node for node in ast.walk(tree) if isinstance(node, ast.For) and lines[node.lineno - 1].strip() == LOOP)
    body: list[ast.stmt] = []
    for statement in loop.body:
        call = ast.Call(ast.Name("__mark__", ast.Load()), [ast.Constant(f"{MARK}line {statement.lineno}")], [])
        body.append(ast.copy_location(ast.With([ast.withitem(call)], [statement], None), statement))
    step = ast.Expr(ast.Call(ast.Name("__step__", ast.Load()), [], []))
    loop.body = [*body, ast.copy_location(step, loop.body[-1])]
    return compile(ast.fix_missing_locations(tree), filename, "exec")


class Recording:
    """Counts steps; times the first ones, records the last ones."""

    def __init__(self, *, stacks: bool) -> None:
        import torch

        self.step_ns: list[int] = []
        self.n_steps = 0
        self.begun_ns = _running_ns()
        self.profiler = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            record_shapes=True,
            with_stack=stacks,
            schedule=torch.profiler.schedule(wait=0, warmup=ARM, active=RECORDED, repeat=1),
        )

    def step(self) -> None:
        """End a step."""
        now_ns = _running_ns()
        if SETTLE <= self.n_steps < SETTLE + TIMED:
            self.step_ns.append(now_ns - self.begun_ns)
        self.n_steps += 1
        if self.n_steps == SETTLE + TIMED:
            self.profiler.start()
        elif self.n_steps > SETTLE + TIMED and self.profiler is not None:
            self.profiler.step()
        self.begun_ns = _running_ns()


def _running_ns() -> int:
    """Return a clock that stands still while the thread waits for a core, where Linux tells."""
    waited_ns = _waited_ns()
    while True:
        now_ns, before_ns = time.perf_counter_ns(), waited_ns
        waited_ns = _waited_ns()
        if waited_ns == before_ns:  # it did not wait between the two clocks
            return now_ns - waited_ns


def _waited_ns() -> int:
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    except (OSError, IndexError):
        return 0


class Modules:
    """Marks around the calls of modules whose class ends so."""

    def __init__(self, classes: list[str]) -> None:
        import torch

        self.endings = tuple(classes)
        self.torch = torch
        self.open: list[Any] = []
        module = torch.nn.modules.module
        module.register_module_forward_pre_hook(self.before)
        module.register_module_forward_hook(self.after)

    def before(self, module: Any, _args: Any) -> None:
        """Open a mark."""
        if type(module).__name__.endswith(self.endings):
            mark = self.torch.profiler.record_function(f"{MARK}module {type(module).__name__}")
            mark.__enter__()
            self.open.append(mark)

    def after(self, module: Any, _args: Any, _out: Any) -> None:
        """Close it."""
        if type(module).__name__.endswith(self.endings):
            self.open.pop().__exit__(None, None, None)


def _keep_groups() -> None:
    """Have process groups outlive the script, to the end of the process.

    A script destroys its group before its model is freed. DDP's reducer is the last owner then, and torch
    (2.13) joins Gloo's threads with the interpreter's lock held, for which one of them may wait.
    """
    import torch.distributed

    kept: list[Any] = []
    destroy = torch.distributed.destroy_process_group

    def keep_and_destroy(*args: Any, **kwargs: Any) -> None:
        kept.append(torch.distributed.group.WORLD)
        destroy(*args, **kwargs)

    torch.distributed.destroy_process_group = keep_and_destroy


def run(item: dict[str, Any], rank: int = 0) -> None:
    """Run and record what an item says, into ``marked-RANK.json`` and ``facts-RANK.json``."""
    folder = Path(item["folder"])
    import torch

    torch.set_num_threads(item["threads"])
    recording = Recording(stacks=item["stacks"])
    if item["modules"] is not None:
        Modules(item["modules"])
    if item["ranks"] > 1:
        _keep_groups()
    code = marked((folder / "train.py").read_text(), "train.py")
    space: dict[str, Any] = {
        "__name__": "__main__",
        "__file__": "train.py",
        "__mark__": torch.profiler.record_function,
        "__step__": recording.step,
    }
    os.chdir(folder)
    exec(code, space)
    recording.profiler.stop()
    recording.profiler.export_chrome_trace(f"marked-{rank}.json")
    facts = {"step_ns": recording.step_ns, "torch": torch.__version__}
    Path(f"facts-{rank}.json").write_text(json.dumps(facts))
