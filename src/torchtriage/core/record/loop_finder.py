"""In the script's process: find the loop that repeats, and step the recorder at its boundary.

Three kinds of loop are known, tried in this order. A training loop is a repeated optimizer step,
seen through torch's own post-step hook. Without one, an inference loop is the repeated forward of
the outermost module: a thread looks at the stacks a few times a second until it has seen one, and
only that module gets a hook, so no other call costs anything and no compiled graph is guarded
against it. Where there is neither, a loop is the repeated fetch from a DataLoader, until one of
the others shows. When the recordings are taken every hook is gone again, unless memory is watched
to the script's end.

Nothing here may reach the script: every entry is guarded, and the first failure ends the watching.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import functools
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Protocol

from torchtriage.core.record.call_place import CallPlace
from torchtriage.core.record.environment import process_rank, world_size
from torchtriage.core.record.growth_guard import GrowthGuard
from torchtriage.core.record.loop import Boundary, Loop
from torchtriage.core.record.main_thread import end_main_thread, in_main_thread, main_thread_prepares
from torchtriage.core.record.optimizer_choice import OptimizerChoice
from torchtriage.core.record.output_digest import Answers
from torchtriage.core.record.printed_output import finish_printing, print_by_line
from torchtriage.core.record.recorder import COMPLETE, EARLY, Recorder, RecordPlan
from torchtriage.core.record.side_effects import watch_effects
from torchtriage.core.record.stack_sampler import StackSampler
from torchtriage.core.record.stacks import inside_another, module_codes, outermost_modules, runs, user_call
from torchtriage.core.record.torch_hooks import (
    ForwardHook,
    before_compile,
    before_fetches,
    has_compiled,
    in_backward,
    may_compile,
    optimizer_made,
)
from torchtriage.core.whole_files import replacing

if TYPE_CHECKING:  # here only the script imports torch
    import torch
    from torch.optim.optimizer import Optimizer

    from torchtriage.core.record.structured_log import StructuredLog

LOOK_S = 0.01
SLOWER_LOOK_S = 0.25
"""Between two looks at the stacks: often at first, seldom after ``EAGER_S``."""
EAGER_S = 20.0
LISTEN_S = 0.2
"""So long only stacks are looked at; then module calls are listened to until one repeats."""
SEEN_TWICE = 2
SHORT = {"early_light": 2, "early_heavy": 1, "calls": 2, "warmup": 3, "max_timing_steps": 30, "max_timing_s": 2.0}
"""Of the recorder's plan: a script may be short, and unprofiled steps are timed after it too."""
PATIENCE_S = 15.0
"""So long an optimizer that exists may not step before forwards alone are taken for the loop, and
neither may show before fetches from a DataLoader are."""
MOST_LOOPS = 3
"""So many are recorded, one after the other; the last is reported."""
OVER_S = 5.0
"""So long a found loop takes no step before it is over; an actor and its critic are trained in turns."""
MANY_STEPS = 200
"""Of another optimizer, without one of the found loop's: more than a critic takes for one of a generator's."""
WINDOWS_S = (0.4, 4.0, 15.0)
"""After so long outside of imports a stretch of time is recorded where no boundary was found; the last one is kept."""
WINDOW_S = 0.4
WINDOW = "a stretch of time: no step was found"
ENOUGH_LOOKS, LONGEST_LOOKING_S = 400, 10.0
"""Looks at the stacks in the loop before a script is ended, or the time after its recordings: of short steps the
recordings take a tenth of a second, in which one collection of garbage is half of the account."""


class LeakWatcher(Protocol):
    """What looks for leaks beside the recorder, and knows more than this package may import."""

    def step(self, *, recorded: bool) -> None:
        """Note the end of a step; ``recorded`` once all recordings are complete."""

    def close(self) -> None:
        """Stop and write its report."""


class LoopFinder:
    """Finds the loop of one process; ``settings`` are those of :func:`torchtriage.core.record.launch.launch`."""

    def __init__(self, settings: dict[str, Any], leak_watch: Callable[[Path], LeakWatcher] | None = None) -> None:
        self.settings = settings
        self.leak_watch = leak_watch
        self.out = Path(settings["out"])
        self.pid = os.getpid()
        self.roots = [str(Path.cwd()), *sys.path[:1]]  # the script may change both
        self.loop: Loop | None = None
        self.recorder: Recorder | None = None
        self.window: Recorder | None = None
        self.memory: LeakWatcher | None = None
        self.memory_problem = ""
        self.compile_log: StructuredLog | None = None
        self.compile_problem = ""
        self.folder = ""
        self.optimizers = OptimizerChoice()
        self.undo: list[Callable[[], object]] = []
        self.over = False
        self.forward_found = False
        self.n_in_backward = 0
        self.fetches: dict[int, int] = {}
        self.fetched = 0
        self.drop_loader: Callable[[], object] = lambda: None
        self.choosing = threading.Lock()
        self.n_done = 0  # boundaries since the recorder ended, and that one
        self.begun_s = self.done_s = self.trains_s = 0.0
        self.n_loops = self.n_others = self.end_at = 0
        self.sampler = StackSampler(self.out) if settings.get("sample") else None

    # -- life ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Put the hooks in; the process file says that torch was imported here."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        if self.settings.get("compile_log"):
            self._listen_to_compiler()
        self._note()
        if self.sampler is not None:
            self.sampler.guards.append(GrowthGuard(lambda: self.recorder or self.window))
            self.sampler.start()
        handle = register_optimizer_step_post_hook(self._optimizer_stepped)
        # compiled steps are guarded against another number of hooks: it stays and does nothing
        self.undo.append(lambda: None if has_compiled() else handle.remove())
        atexit.register(self._ended)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)
        _thread.start_new_thread(self._look_for_forward, ())  # threading.enumerate stays as it was

    def stop(self) -> None:
        """End the watching; what is open is closed."""
        self.over = True
        self._drop_hooks()
        self._ended()

    def _listen_to_compiler(self) -> None:
        from torchtriage.core.record.structured_log import COMPILE_FOLDER, StructuredLog

        try:
            self.compile_log = StructuredLog(self.out / COMPILE_FOLDER)
            self.compile_log.start()
        except Exception as error:  # a torch that logs in another way
            self.compile_problem = f"{type(error).__name__}: {error}"

    def _forked(self) -> None:
        self.over = True
        self.recorder = self.window = self.memory = None
        if self.sampler is not None:
            self.sampler.forked()

    def _ended(self) -> None:
        """Close what is open when the script ends by itself, by an exception or by sys.exit."""
        if os.getpid() != self.pid:
            return
        try:
            for recorder in filter(None, (self.recorder, self.window)):
                recorder.close("exit")
            if self.memory is not None:
                self.memory.close()
            if self.sampler is not None:
                self.sampler.stop()
            self._note()
        except Exception:
            self._failed()

    def _failed(self) -> None:
        self.over = True
        self._drop_hooks()
        with contextlib.suppress(OSError):
            note = self.out / f"errors-{self.pid}.txt"
            note.write_text(traceback.format_exc(), encoding="utf-8")

    def _drop_hooks(self) -> None:
        while self.undo:
            self.undo.pop()()

    def _note(self) -> None:
        """Write what is known of this process; the parent reads it when the script has ended."""
        text = json.dumps(
            {
                "pid": self.pid,
                "roots": self.roots,
                "python": sys.version.split()[0],
                "executable": sys.executable,
                "torch": getattr(sys.modules.get("torch"), "__version__", None),
                "rank": process_rank(),
                "world_size": world_size(),
                "loop": asdict(self.loop) if self.loop else None,
                "folder": self.folder,
                "n_optimizer_steps": sum(self.optimizers.n_steps.values()) + self.n_in_backward,
                "sampled": self.sampler is not None,
                "done": self.recorder.done if self.recorder else False,
                "memory_problem": self.memory_problem,
                "compile_log": bool(self.settings.get("compile_log")),
                "compile_problem": self.compile_problem or (self.compile_log.problem if self.compile_log else ""),
            },
            indent=1,
        )
        with replacing(self.out / f"process-{self.pid}.json") as part:
            part.write_text(text, encoding="utf-8")

    # -- training ------------------------------------------------------------------------------

    def _optimizer_stepped(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        import torch

        # part of a compiled step this would break its graph
        if torch.compiler.is_compiling() or self.over:
            return
        if in_backward():  # nothing can be recorded from here: forwards are the steps then
            self.n_in_backward += 1
            return
        if self.optimizers.is_chosen(optimizer) or self._made_anew(optimizer, sys._getframe(1)):
            self.trains_s, self.n_others = 0.0, 0  # one that follows begins after the last step of this one
            self._boundary()
            return
        recorder = None if self._by_loader else self.recorder
        longer = recorder is not None and not recorder.capturing and self._trains_longer()
        if recorder is not None and recorder.done and not longer:
            return  # the loop that is watched further is known
        with self._alone() as alone:
            if alone and recorder is not None and longer:
                recorder.close("it is over")
            if alone:
                self._count(optimizer)

    def _trains_longer(self) -> bool:
        """Return whether this training has gone on for longer than all since the begin of the found loop, now over.

        An evaluation comes before it, or a training of something else.
        """
        if self.n_loops >= MOST_LOOPS or process_rank() is not None:
            return False  # ranks must record the same steps, so none may decide by its own clock
        self.trains_s, self.n_others = self.trains_s or time.monotonic(), self.n_others + 1
        longer = time.monotonic() - self.trains_s > max(self.trains_s - self.begun_s, OVER_S)
        return longer and (self._recorded or self.n_others > MANY_STEPS)

    def _made_anew(self, optimizer: Optimizer, frame: FrameType) -> bool:
        """Take an optimizer for the chosen one that was made since, and steps at the same line."""
        if not self.optimizers.may_be_anew(optimizer, self.loop, frame):
            return False
        with self._alone() as alone:
            return alone and self.optimizers.replace(optimizer)
        return False  # it failed

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        """Let one thread at a time choose the loop, without a wait; a failure ends the watching."""
        alone = self.choosing.acquire(blocking=False)
        try:
            yield alone
        except Exception:
            self._failed()
        finally:
            if alone:
                self.choosing.release()

    def _count(self, optimizer: Optimizer) -> None:
        """Count a step; one that shows only later may take the chosen one's place while nothing has been recorded."""
        recorder, optimizers = self.recorder, self.optimizers
        if self._recorded:  # the loop before this one had others
            optimizers.forget()
        optimizers.count(optimizer)
        if recorder is None:
            begins = optimizers.ends_iteration(optimizer)
        elif (self.loop is None or self.loop.boundary == "optimizer") and not recorder.done:
            begins = optimizers.is_rarer(optimizer, recorder.steps_seen) and recorder.state in EARLY
        else:
            begins = True
        if begins:
            self._begin("optimizer", *optimizers.choose(optimizer))

    # -- inference -----------------------------------------------------------------------------

    def _look_for_forward(self) -> None:
        """Look at the stacks until the outermost module that is called repeatedly is known."""
        sampler = self.sampler
        try:
            codes = module_codes()
            begun = time.monotonic()
            seen: dict[int, int] = {}
            listening: Callable[[], None] | None = None
            fetches_count = False
            worked_s = 0.0
            windows = list(WINDOWS_S) if sampler is not None else []
            while not self.over and not self.optimizers.n_steps:
                passed = time.monotonic() - begun
                time.sleep(LOOK_S if passed < EAGER_S else SLOWER_LOOK_S)
                if self.forward_found:
                    return
                if sampler is not None and sampler.paused:
                    continue
                if windows and not main_thread_prepares():
                    worked_s += time.monotonic() - begun - passed
                    if worked_s > windows[0]:
                        windows.pop(0)
                        _thread.start_new_thread(self._record_window, ())
                if passed < PATIENCE_S and not self.n_in_backward and optimizer_made():
                    continue
                if passed > PATIENCE_S and not fetches_count:
                    fetches_count = self._hook_loader()
                if listening is None and passed > LISTEN_S:
                    listening = self._listen_to_calls(codes)
                elif listening is not None and may_compile():
                    listening()
                for module in outermost_modules(codes):
                    seen[id(module)] = seen.get(id(module), 0) + 1
                    if seen[id(module)] >= SEEN_TWICE and not self.optimizers.n_steps:
                        if listening is not None:
                            listening()
                        self._hook_forward(module)
                        return
        except Exception:
            self._failed()

    def _listen_to_calls(self, codes: frozenset[CodeType]) -> Callable[[], None] | None:
        """Hear every module call until the outermost one repeats; return how to stop that.

        For forwards too short beside the rest of their loop to be looked at. Not where something
        is compiled, nor after the first ``torch.compile``, which stops it.
        """
        import torch
        from torch.nn.modules.module import register_module_forward_pre_hook

        if may_compile():
            return None

        heard: dict[int, int] = {}

        def called(module: torch.nn.Module, _args: Any) -> None:
            if torch.compiler.is_compiling():
                return  # the little that a graph may hold, where it was traced all the same
            try:
                frame = sys._getframe(1)
                if self.forward_found or self.over or inside_another(module, frame, codes):
                    return
                heard[id(module)] = heard.get(id(module), 0) + 1
                if heard[id(module)] >= SEEN_TWICE and not self.optimizers.n_steps:
                    stop()
                    self._hook_forward(module)
            except Exception:
                self._failed()

        def stop() -> None:
            restore()
            remove()
            if stop in self.undo:
                self.undo.remove(stop)

        compile_ = torch.compile
        restore = before_compile(stop)
        remove = register_module_forward_pre_hook(called).remove
        self.undo.append(stop)
        # since it was asked, or in a call that began before: importing the compiler takes seconds
        if may_compile() or runs(compile_.__code__):
            stop()
        return stop

    def _hook_forward(self, module: torch.nn.Module) -> None:
        """Step at each forward of this module, of several in an iteration at one."""
        if self.forward_found:
            return
        self.forward_found = True
        name = type(getattr(module, "_orig_mod", module)).__name__
        optimizers = "optimizers step in backward" if self.n_in_backward else "no optimizer steps were seen"
        how = f"one forward of {name}, the outermost module called; {optimizers}"

        place = CallPlace()

        def before() -> None:
            if self.over or in_backward():
                return
            trains = self.loop is not None and self.loop.boundary == "optimizer"
            if trains or (self.optimizers.n_steps and not self._recorded):
                # it trains after all: what was recorded of the forwards is no longer wanted
                self._drop_hooks_of_forward(undo)
                return
            if self.recorder is not None and not self._by_loader:
                if place.begins_step(sys._getframe(1)):
                    self._boundary()
                return
            with self._alone() as alone:
                if alone and (self.recorder is None or self._by_loader):
                    place.begins_step(sys._getframe(1))
                    self._begin("forward", name, how, user_call(sys._getframe(1)))

        compiled = getattr(module, "_compiled_call_impl", None)
        if compiled is not None:
            # a hook would be compiled with the module: stand before the compiled call
            def stepping(*args: Any, **kwargs: Any) -> Any:
                before()
                return compiled(*args, **kwargs)

            module._compiled_call_impl = stepping

            def undo() -> None:
                if module._compiled_call_impl is stepping:
                    module._compiled_call_impl = compiled
        else:
            remove = module.register_forward_pre_hook(ForwardHook(before)).remove

            def undo() -> None:
                restore()
                remove()

            def stop() -> None:  # in a graph the hook would break it
                self._drop_hooks_of_forward(undo)
                if not self._recorded and not self.over:
                    if self.recorder is not None:
                        self.recorder.close("torch.compile was called")
                        self.recorder = None
                    self.forward_found = False
                    _thread.start_new_thread(self._look_for_forward, ())

            restore = before_compile(stop)
        self.undo.append(undo)

    def _drop_hooks_of_forward(self, undo: Callable[[], None]) -> None:
        undo()
        if undo in self.undo:
            self.undo.remove(undo)

    # -- no boundary at all --------------------------------------------------------------------

    def _record_window(self) -> None:
        """Record a stretch of time on the main thread, lightly, where steps cannot be found.

        The profiler sees the thread that starts it: the main thread is asked to, between two of its instructions. One
        recording is all: no boundary says when another may begin (:data:`capture_ended`).
        """
        if self.loop is not None or self.over:
            return
        self.window = recorder = self._new_recorder(WINDOW)
        self._note()

        def begin() -> None:
            if self.loop is None:  # this may come in the middle of the first step's recording
                recorder.record_block(heavy=False)

        if in_main_thread(begin):
            time.sleep(WINDOW_S)
            in_main_thread(recorder.end_block)
            in_main_thread(functools.partial(recorder.close, "the window is over"))

    # -- neither -------------------------------------------------------------------------------

    def _hook_loader(self) -> bool:
        """Step at each fetch from a DataLoader, until an optimizer or a module shows.

        Returns whether there is such a thing in the process.
        """
        undo = before_fetches(self._fetches)
        if undo is None:
            return False
        self.undo.append(undo)
        self.drop_loader = undo
        return True

    def _fetches(self, iterator: Any) -> None:
        """Count what is fetched from the same data, and step at it."""
        key = id(getattr(iterator, "_dataset", None))
        if self.over or (self.loop is not None and not self._by_loader):
            return
        if self.recorder is not None:
            watched = self.memory is not None or self.settings["exit_after"]
            if key == self.fetched and (watched or not self.recorder.done):
                self._boundary()
            return
        with self._alone() as alone:
            self.fetches[key] = self.fetches.get(key, 0) + 1
            if alone and self.fetches[key] >= SEEN_TWICE:
                self.fetched = key
                how = "one fetch from a DataLoader; no optimizer steps and no modules were seen"
                self._begin("loader", "DataLoader", how)

    # -- recording -----------------------------------------------------------------------------

    def _begin(self, boundary: Boundary, name: str, how: str, call: tuple[str, int, str] | None = None) -> None:
        file, line, function = call or user_call(sys._getframe(1))
        self.loop = Loop(boundary, name, file, line, function, how)  # from here on no window begins
        for recorder in filter(None, (self.recorder, self.window)):
            recorder.close("another loop was found")
        if self.memory is not None:
            self.memory.close()
        if boundary != "loader":
            self.drop_loader()
        if self.sampler is not None:
            self.sampler.forget_marks()
        self.recorder, self.n_done, self.n_loops = self._new_recorder(how), 0, self.n_loops + 1
        self.begun_s, self.trains_s, self.n_others = time.monotonic(), 0.0, 0
        if self.leak_watch is not None and self.settings.get("memory"):
            try:
                self.memory = self.leak_watch(self.out / self.folder)
            except ImportError as error:  # numpy, which torch does without
                self.memory_problem = f"{error} in the script's interpreter"
                self.memory = None
        self._note()
        self._boundary()

    def _new_recorder(self, boundary: str) -> Recorder:
        rank = process_rank()
        self.folder = f"rank{rank}" if rank is not None else f"process{self.pid}"
        if (self.out / self.folder).exists():
            self.folder += f"-{self.pid}-{time.monotonic_ns()}"
        plan = RecordPlan(**{**SHORT, **self.settings["plan"]})
        sampler = self.sampler
        watched: dict[str, Any] = {}
        if sampler is not None:
            watched = {"may_trace": lambda: not sampler.others_spin, "on_stacks": sampler.pause}
        return Recorder(self.out / self.folder, plan, rank=rank, boundary=boundary, **watched)

    @property
    def _recorded(self) -> bool:
        return self.recorder is not None and self.recorder.done

    @property
    def _by_loader(self) -> bool:
        return self.loop is not None and self.loop.boundary == "loader"

    def _boundary(self) -> None:
        """Tell the recorder that a step ended; the loop may be asked to end here."""
        recorder, memory = self.recorder, self.memory
        if self.over or recorder is None:
            return
        begun_ns = time.perf_counter_ns()
        try:
            recorder.step()
            if memory is not None:
                memory.step(recorded=recorder.done)
            if self.sampler is not None:
                self.sampler.mark(begun_ns, recorder.state)
            self.n_done += recorder.done
            if self.n_done == 1:
                self.done_s = time.monotonic()
                if memory is None and self.sampler is None and not self._by_loader:
                    self.over = True
                    self._drop_hooks()
                self._note()
        except Exception:
            self._failed()
            return
        # where nothing could be recorded the stacks are looked at for as long as that would have taken
        enough = 1 if recorder.ended == COMPLETE or self.over else recorder.plan.n_steps
        # what cleans up may take steps, too, and what goes on after an exception is ended again
        if self.settings["exit_after"] and self.n_done >= max(enough, self.end_at) and self._looked_enough():
            self.end_at = self.n_done + MANY_STEPS
            self._end_script()

    def _looked_enough(self) -> bool:
        return (
            self.sampler is None
            or process_rank() is not None  # ranks end at one step, or those that are left wait for the others
            or self.sampler.n_looks >= ENOUGH_LOOKS
            or time.monotonic() - self.done_s >= LONGEST_LOOKING_S
        )

    def _end_script(self) -> None:
        finish_printing(self.out if self.settings["answers"] else None)
        if threading.current_thread() is not threading.main_thread():
            _thread.start_new_thread(self._end_main_thread, ())  # the main one may wait for this
        raise SystemExit(0)

    def _end_main_thread(self) -> None:
        if not end_main_thread():
            self._ended()
            os._exit(0)


def start_watching(settings: dict[str, Any], leak_watch: Callable[[Path], LeakWatcher]) -> None:
    """Watch this process; called once, right after torch was imported.

    ``leak_watch`` makes what looks for leaks, given the folder for its report.
    """
    if settings["answers"]:
        print_by_line()
        Answers(Path(settings["out"])).start()
    if settings.get("effects"):
        watch_effects(Path(settings["out"]))
    LoopFinder(settings, leak_watch).start()
