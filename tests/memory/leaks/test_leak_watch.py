"""The live watch: quiet on healthy loops, names holder and line."""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import random
import sys
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.memory.leaks.watching import BIG, quiet, spend

from torchtriage.memory.leaks import leak_report, leak_watch, line_watch, object_growth
from torchtriage.memory.leaks.leak_report import Leak
from torchtriage.memory.leaks.leak_watch import LeakWarning, Watch


def test_a_level_loop_is_quiet() -> None:
    with quiet() as watch:
        for _ in range(250):
            spend()
            watch.step()
    report = watch.report()
    assert (report.answer, report.leaks) == ("no leak", ())
    assert report.n_steps == 250


def test_few_steps_are_too_early() -> None:
    kept = []
    with quiet() as watch:
        for _ in range(60):
            kept.append(bytes(BIG))
            watch.step()
    assert watch.report().answer == "too early"


def test_a_list_is_named_with_its_line() -> None:
    kept = []
    told: list[Leak] = []
    with quiet(on_alarm=told.append) as watch:
        for _ in range(250):
            kept.append(bytes(BIG))
            watch.step()
    (leak,) = watch.report().leaks
    assert told == [leak]
    assert (leak.kind, leak.holder) == ("growing list", "kept")
    assert leak.file == __file__
    assert "kept.append(bytes(BIG))" in Path(__file__).read_text().splitlines()[leak.line - 1]
    assert leak.function is not None
    assert leak.function.endswith("test_a_list_is_named_with_its_line")
    assert leak.bytes_per_step == pytest.approx(BIG, rel=0.05)
    assert leak.per_step == 1
    assert leak.found_step <= 200


def test_numbers_that_are_logged_are_no_leak() -> None:
    history = []
    with quiet() as watch:
        for step in range(250):
            history.append({"step": step, "loss": step / 3})
            watch.step()
    assert watch.report().answer == "no leak"


def test_a_cache_that_stops_is_no_leak() -> None:
    cache = {}
    with quiet() as watch:
        for step in range(300):
            cache.setdefault(step % 100, bytearray(BIG))
            watch.step()
    assert watch.report().answer == "no leak"


def test_a_list_that_is_cleared_is_no_leak() -> None:
    kept = []
    with quiet() as watch:
        for step in range(300):
            kept.append(bytes(BIG))
            if step % 70 == 69:
                kept.clear()
            watch.step()
    assert watch.report().answer == "no leak"


class Registry:
    seen: dict[int, bytes] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.inner: dict[str, list[bytes]] = {"a": []}

    def note(self, step: int) -> None:
        self.seen[step] = bytes(BIG)

    def note_inside(self) -> None:
        self.inner["a"].append(bytes(BIG))


@pytest.mark.parametrize(("method", "holder"), [("note", "registry.seen"), ("note_inside", "registry.inner['a']")])
def test_what_an_object_or_its_class_holds_is_named(method: str, holder: str) -> None:
    registry = Registry()
    with quiet() as watch:
        for step in range(250):
            if method == "note":
                registry.note(step)
            else:
                registry.note_inside()
            watch.step()
    Registry.seen.clear()
    (leak,) = watch.report().leaks
    assert leak.holder == holder
    assert leak.function == f"Registry.{method}" or sys.version_info < (3, 11)
    lines, first = inspect.getsourcelines(getattr(Registry, method))
    assert leak.line == first + len(lines) - 1


def test_the_names_of_a_large_program_do_not_hide_those_of_the_loop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(object_growth, "MAX_NODES", 5_000)
    module = ModuleType("large_program")
    module.__file__ = str(tmp_path / "large_program.py")
    vars(module).update({f"name_{i}": [i] for i in range(10_000)})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    registry = Registry()
    with quiet() as watch:
        for _ in range(250):
            registry.note_inside()
            watch.step()
    (leak,) = watch.report().leaks
    assert leak.holder == "registry.inner['a']"


def test_late_leaks_are_found() -> None:
    kept = []
    with quiet() as watch:
        for step in range(900):
            if step > 400:
                kept.append(bytes(BIG))
            watch.step()
    (leak,) = watch.report().leaks
    assert 340 <= leak.since_step <= 480
    assert leak.found_step <= 800


def test_without_a_callback_one_warning_is_given_per_leak() -> None:
    kept = []
    with warnings.catch_warnings(record=True) as told, quiet(on_alarm=None) as watch:
        warnings.simplefilter("always")
        for _ in range(400):
            kept.append(bytes(BIG))
            watch.step()
    assert [one.category for one in told] == [LeakWarning]
    assert "`kept`" in str(told[0].message)


def test_the_report_is_written_at_the_alarm_and_at_the_end(tmp_path: Path) -> None:
    kept = []
    seen: list[bool] = []
    file = tmp_path / "out" / "memory_watch.json"
    with quiet(out_dir=file.parent, on_alarm=lambda _: seen.append(file.exists())) as w:
        for _ in range(300):
            kept.append(bytes(BIG))
            w.step()
    assert seen == [True]
    told = json.loads(file.read_text())
    assert told["schema"] == leak_report.SCHEMA
    assert (told["answer"], told["n_steps"]) == ("leak", 300)
    assert told["leaks"][0]["holder"] == "kept"
    assert [one.name for one in file.parent.iterdir()] == ["memory_watch.json"]


def test_findings_have_the_exact_line() -> None:
    kept = []
    with quiet() as watch:
        for _ in range(250):
            kept.append(bytes(BIG))
            watch.step()
    (finding,) = leak_report.findings(watch.report())
    assert (finding.code, finding.certainty) == ("MEM029", "certain")
    assert finding.place.frame is not None
    assert finding.place.frame.exact
    assert "`kept`" in finding.message


class Box:
    """Stands for a module: names in dicts of their own, and a dozen empty ones."""

    def __init__(self, **inner: Any) -> None:
        self._modules = inner
        self._parameters: dict[str, Any] = {}
        self._buffers: dict[str, Any] = {}
        self._forward_hooks: dict[int, Any] = {}
        self.kept: list[Any] = []
        self.text = ""

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["_modules"][name]


def small(n: int = 512) -> bytearray:
    return bytearray(n)


def test_a_small_leak_deep_in_a_module_is_named_as_one_writes_it() -> None:
    inner = Box()
    model = Box(encoder=Box(layers=Box(**{"3": Box(attn=Box(cache=inner))})))
    trainer = SimpleNamespace(wrapped=Box(module=model))
    with quiet() as watch:
        for _ in range(250):
            inner.kept.append(small())
            watch.step()
    (leak,) = watch.report().leaks
    assert leak.holder == "inner.kept"
    del inner
    with quiet() as watch:
        for _ in range(250):
            trainer.wrapped.module.encoder.layers._modules["3"].attn.cache.kept.append(small())
            watch.step()
    (leak,) = watch.report().leaks
    assert leak.holder in ("model.encoder.layers[3].attn.cache.kept", "trainer.wrapped.module.encoder.layers[3].kept")
    assert leak.line is not None


def test_a_text_that_grows_is_a_leak_and_one_that_changes_is_not() -> None:
    log, other = Box(), Box()
    with quiet() as watch:
        for step in range(350):
            log.text += "x" * 512
            other.text = "y" * (8000 + step % 7)
            watch.step()
    (leak,) = watch.report().leaks
    assert (leak.holder, leak.unit, leak.bytes_per_step) == ("log.text", "bytes", 512)


def test_what_has_a_bound_is_no_leak() -> None:
    memory: deque[bytearray] = deque(maxlen=10_000)

    @functools.lru_cache(maxsize=10_000)
    def load(index: int) -> bytearray:
        return small()

    with quiet() as watch:
        for step in range(300):
            memory.append(small())
            load(step)
            watch.step()
    assert watch.report().answer == "no leak"


def test_what_is_filled_at_random_is_no_leak() -> None:
    rng, cache = random.Random(0), {}
    with quiet() as watch:
        for _ in range(900):
            cache.setdefault(rng.randrange(300), small(4096))
            watch.step()
    assert watch.report().answer == "no leak"


def stream() -> Any:
    seen = []
    while True:
        seen.append(small())
        yield len(seen)


@pytest.mark.parametrize("wrapped", [iter, enumerate, lambda one: zip(one, itertools.count(), strict=False)])
def test_locals_of_a_generator_that_has_no_name_are_named(wrapped: Any) -> None:
    with quiet() as watch:
        for _ in itertools.islice(wrapped(stream()), 250):
            watch.step()
    (leak,) = watch.report().leaks
    assert (leak.holder, leak.root) == ("seen", "stream() of test_leak_watch.py")
    _, first = inspect.getsourcelines(stream)
    assert leak.line == first + 3


def test_what_cycle_keeps_is_named() -> None:
    batches = itertools.cycle(small() for _ in range(10_000))
    with quiet() as watch:
        for _ in range(250):
            next(batches)
            watch.step()
    (leak,) = watch.report().leaks
    assert leak.holder.startswith("batches")
    assert leak.line is not None
    assert "next(batches)" in Path(__file__).read_text().splitlines()[leak.line - 1]


def loop_with_memory(
    monkeypatch: pytest.MonkeyPatch, n_steps: int, rss: Callable[[int], float], blocks: Callable[[int], float], log: Any
) -> leak_report.WatchReport:
    """Watch a loop whose process is said to have this memory and so many objects at each step."""
    now = [0]
    monkeypatch.setattr(leak_watch.process, "rss_bytes", lambda: int((100 << 20) + rss(now[0])))
    monkeypatch.setattr(leak_watch.sys, "getallocatedblocks", lambda: int(500_000 + blocks(now[0])))
    kept: list[Any] = []
    with quiet() as watch:
        for step in range(n_steps):
            now[0] = step
            if log is not None:
                kept.append(log(step))
            watch.step()
    return watch.report()


@pytest.mark.parametrize("log", [None, lambda step: step / 3])
def test_native_memory_that_grows_while_python_has_no_more_is_told_early(
    log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = loop_with_memory(monkeypatch, 1400, lambda step: 4096 * step, lambda step: step if log else 0, log)
    (leak,) = report.leaks
    assert leak.kind == "resident memory"
    assert leak.found_step <= 1250
    assert leak.bytes_per_step == pytest.approx(4096, rel=0.05)


def test_memory_that_grows_with_python_s_objects_may_be_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    report = loop_with_memory(monkeypatch, 2000, lambda step: 4096 * step, lambda step: step, None)
    assert report.leaks == ()


def test_what_logs_take_is_no_leak_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(step: int) -> dict[str, float]:
        return {"step": step, "loss": step / 3, "lr": step / 7, "norm": step / 9}

    report = loop_with_memory(monkeypatch, 4000, lambda step: 450 * step, lambda step: 6 * step, row)
    assert report.leaks == ()


@pytest.mark.parametrize("steps", [2_000, 100_000, 400_000])
def test_no_more_objects_is_known_in_loops_of_any_length(steps: int) -> None:
    watch = Watch()
    for step in range(1, steps):
        if watch._blocks.due(step):
            watch._blocks.add(step, 1_000_000)
    watch._step = steps
    assert watch._new_objects() == 0


class FakeCuda:
    """What the watch asks of ``torch.cuda``; allocated memory grows, a snapshot is a file."""

    def __init__(self, growth: int) -> None:
        self.growth, self.n, self.recording = growth, 0, False
        self.memory = self

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        """Asked where a test before has imported torch; then tensors are not followed."""
        return True

    def memory_allocated(self) -> int:
        self.n += 1
        return 100_000_000 + self.growth * self.n

    def memory_reserved(self) -> int:
        return 200_000_000 + 50_000 * self.n

    def _record_memory_history(self, enabled: str | None = "all", **options: Any) -> None:
        self.recording = enabled is not None

    def _dump_snapshot(self, path: str) -> None:
        assert self.recording
        Path(path).write_bytes(b"snapshot")


@pytest.mark.parametrize("growth", [0, 40_960])
def test_device_memory_is_judged_and_a_snapshot_left(
    growth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = FakeCuda(growth)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    with quiet(out_dir=tmp_path) as watch:
        for _ in range(4000):
            watch.step()
    leaks = watch.report().leaks
    if not growth:
        assert leaks == ()
        assert not (tmp_path / "memory_watch.pickle").exists()
        return
    assert [leak.kind for leak in leaks] == ["device memory"], watch.report()
    assert leaks[0].bytes_per_step == pytest.approx(growth / leak_watch.RSS_STEPS, rel=0.05)
    assert leaks[0].found_step <= 3100
    assert (tmp_path / "memory_watch.pickle").read_bytes() == b"snapshot"
    assert not cuda.recording


def test_users_code_is_told_from_libraries() -> None:
    assert object_growth.is_users(__file__)
    assert not object_growth.is_users(json.__file__)
    assert not object_growth.is_users(pytest.__file__)
    assert not object_growth.is_users(leak_watch.__file__)
    assert not object_growth.is_users("<string>")
    assert object_growth.is_users("<stdin>")


def test_a_line_is_found_by_its_text_where_it_cannot_be_traced() -> None:
    held = object_growth.SizedObject((0, "", "items"), 1, ("x() of y.py", ".registry", ".only_here"))
    only_here: list[int] = []
    only_here.append(1)
    place = line_watch.adding_line(held, inspect.currentframe())
    assert place is not None
    assert "only_here.append(1)" in Path(place.file).read_text().splitlines()[place.line - 1]
