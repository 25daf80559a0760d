"""The live watch: quiet on healthy loops, names holder and line, and never hurts the loop."""

from __future__ import annotations

import functools
import gc
import inspect
import itertools
import json
import os
import random
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from torchtriage.memory.leaks import leak_candidates, leak_report, leak_watch, line_watch, object_growth, samples
from torchtriage.memory.leaks.leak_report import Leak
from torchtriage.memory.leaks.leak_watch import LeakWarning, Watch

BIG = 4096


@pytest.fixture(autouse=True)
def _no_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests fork; children that watch themselves are tested on their own."""
    monkeypatch.setattr(leak_watch, "watch_children", lambda: None)


@pytest.fixture(autouse=True)
def time_for_all_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that collected thousands of tests has more names than a program: those of the loop come first."""
    monkeypatch.setattr(leak_watch, "WALK_S", 60.0)
    monkeypatch.setattr(leak_candidates, "FIND_S", 60.0)
    monkeypatch.setattr(object_growth, "MAX_NODES", 2_000)


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    """Tests before may have compiled; in a process that did, tensors are not followed."""
    compiled = sys.modules.get("torch._dynamo.utils")
    if compiled is not None:
        compiled.counters.clear()


def quiet(**options: Any) -> Watch:
    # steps that take no time earn no budget, and see time_for_all_names
    return Watch(**{"on_alarm": lambda leak: None, "credit_s": 600.0, **options})


def spend() -> None:
    sum(range(200))


# -- without torch -----------------------------------------------------------------------------


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


# -- it never hurts the loop -------------------------------------------------------------------


def test_a_callback_that_raises_does_not_reach_the_loop() -> None:
    def shout(leak: Leak) -> None:
        raise RuntimeError("no")

    kept = []
    with quiet(on_alarm=shout) as watch:
        for _ in range(250):
            kept.append(bytes(BIG))
            watch.step()
    assert "on_alarm failed: RuntimeError" in watch.report().notes


def test_objects_that_raise_when_looked_at_do_no_harm() -> None:
    class Angry:
        __slots__ = ("a",)

        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError("no")

        def __len__(self) -> int:
            raise RuntimeError("no")

        def __bool__(self) -> bool:
            raise RuntimeError("no")

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no")

        def __hash__(self) -> int:
            return 0

    class AngryList(list):  # type: ignore[type-arg]
        def __len__(self) -> int:
            raise RuntimeError("no")

    angry, also = Angry(), AngryList()
    kept = []
    with quiet() as watch:
        for _ in range(250):
            kept.append(bytes(BIG))
            watch.step()
    assert [leak.holder for leak in watch.report().leaks] == ["kept"]
    assert angry is not None
    assert also is not None


def test_no_reference_to_what_was_looked_at_stays() -> None:
    """The next step frees what the last one made; a look must not keep it until the next look."""

    class Made:
        alive = 0

        def __init__(self) -> None:
            Made.alive += 1

        def __del__(self) -> None:
            Made.alive -= 1

    gc.disable()
    try:
        with quiet() as watch:
            for _ in range(200):
                made = Made()
                watch.step()
                del made
                assert Made.alive == 0
    finally:
        gc.enable()


def test_what_locals_gave_stays_whole() -> None:
    """Up to Python 3.12 it is the very dict that a look would empty."""
    kept = locals()
    before = "what was there"
    for _ in range(2):
        object_growth.walk(inspect.currentframe(), 1.0)
    kept = kept if sys.version_info < (3, 13) else locals()
    assert kept["before"] == before


def test_what_functions_have_as_defaults_counts() -> None:
    kept = []
    with quiet() as watch:
        for _ in range(250):
            batch = bytes(BIG)
            kept.append(lambda batch=batch: batch)
            watch.step()
    assert [leak.holder for leak in watch.report().leaks] == ["kept"]


def test_the_tracer_is_taken_away_again() -> None:
    before = sys.gettrace()
    kept = []
    with quiet() as watch:
        for _ in range(250):
            kept.append(bytes(BIG))
            watch.step()
    assert watch.report().leaks
    assert sys.gettrace() is before
    assert inspect.currentframe().f_trace is None  # type: ignore[union-attr]


def test_a_measure_that_raises_does_not_reach_the_traced_code() -> None:
    calls = []

    def measure(frame: Any) -> int:
        calls.append(frame)
        if len(calls) > 2:
            raise RuntimeError("no")
        return 0

    lines = line_watch.LineWatch([measure], inspect.currentframe())
    spend()
    spend()
    assert sys.gettrace() is None
    lines.stop()
    assert len(calls) == 3


def test_endless_steps_are_not_traced_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_watch, "MAX_EVENTS", 50)
    calls = []

    def measure(frame: Any) -> int:
        calls.append(1)
        return 0

    line_watch.LineWatch([measure], inspect.currentframe())
    for _ in range(500):
        spend()
    assert sys.gettrace() is None
    assert len(calls) <= 51


def test_another_tracer_is_left_alone() -> None:
    def tracer(frame: Any, event: str, arg: Any) -> None:
        return None

    before = sys.gettrace()
    kept = []
    sys.settrace(tracer)
    try:
        with quiet() as watch:
            for _ in range(250):
                kept.append(bytes(BIG))
                watch.step()
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
    (leak,) = watch.report().leaks
    assert leak.holder == "kept"
    assert any("another tracer" in note for note in watch.report().notes)


def test_steps_of_other_threads_are_not_looked_at() -> None:
    kept = []
    with quiet() as watch:
        watch.step()
        other = threading.Thread(target=lambda: [watch.step() for _ in range(50)])
        other.start()
        other.join()
        for _ in range(250):
            kept.append(bytes(BIG))
            watch.step()
    assert watch.report().leaks[0].holder == "kept"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_does_not_go_on_watching(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with quiet(out_dir=tmp_path) as watch:
            for _ in range(30):
                watch.step()
            pid = os.fork()
            if not pid:
                for _ in range(300):
                    watch.step()
                os._exit(0 if watch._n_looks <= 2 else 1)
            assert os.waitpid(pid, 0)[1] == 0


def test_what_is_kept_is_bounded() -> None:
    watch = quiet(credit_s=0.05)
    for _ in range(60_000):
        watch.step()
    assert len(watch._rss) <= samples.MAX_SAMPLES
    assert watch._n_looks < 200
    watch.close()
    watch.close()
    watch.step()


def test_budget_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks that cost much are made seldom: own time stays under credit and share."""
    spent = {"loop": 0.0, "looks": 0.0}
    monkeypatch.setattr(leak_watch, "thread_time", lambda: sum(spent.values()))

    def walk(frame: Any, limit_s: float) -> dict[Any, Any]:
        spent["looks"] += 0.1
        return {}

    monkeypatch.setattr(leak_watch, "walk", walk)
    watch = quiet(credit_s=leak_watch.CREDIT_S)
    for _ in range(40_000):
        spent["loop"] += 0.005
        watch.step()
    # 200 s of steps: the credit, its share of them, and the last look
    assert spent["looks"] <= leak_watch.CREDIT_S + leak_watch.SHARE * 201 + 0.1 + 1e-6
    assert watch.report().n_looks >= 5


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


# -- naming ------------------------------------------------------------------------------------


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


# -- torch: planted programs -------------------------------------------------------------------


def planted(name: str, kind: str) -> Callable[[Watch, random.Random, int], object]:
    from memory.leaky import healthy, leaks

    return getattr(leaks if kind == "leak" else healthy, name)  # type: ignore[no-any-return]


def run(name: str, kind: str, seed: int = 0) -> leak_report.WatchReport:
    import torch

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    program = planted(name, kind)
    with quiet() as watch:
        program(watch, random.Random(seed), 200)
    return watch.report()


@pytest.mark.parametrize("steps", [2_000, 100_000, 400_000])
def test_no_more_objects_is_known_in_loops_of_any_length(steps: int) -> None:
    watch = Watch()
    for step in range(1, steps):
        if watch._blocks.due(step):
            watch._blocks.add(step, 1_000_000)
    watch._step = steps
    assert watch._new_objects() == 0


@pytest.mark.torch
@pytest.mark.parametrize(
    "name",
    [
        "graph_in_validation",
        "graph_after_backward",
        "state_never_detached",
        "global_cache",
        "unbounded_lru_cache",
        "forward_hooks",
        "tensor_hooks",
        "tensor_that_grows",
        "sets_in_closure",
    ],
)
def test_planted_leaks_are_found_with_their_line(name: str) -> None:
    from memory.leaky import leaks

    lines = inspect.getsource(leaks).splitlines()
    report = run(name, "leak")
    assert report.answer == "leak"
    assert any(
        leak.file == leaks.__file__ and leak.line and lines[leak.line - 1].endswith("# HOLDS") for leak in report.leaks
    ), report
    assert all(leak.found_step <= 200 for leak in report.leaks)


@pytest.mark.torch
@pytest.mark.parametrize(
    "name",
    [
        "nothing",
        "cache_that_fills",
        "sawtooth_of_cycles",
        "rings_that_wait_for_the_collector",
        "list_cleared_every_epoch",
        "accumulated_loss",
        "graph_made_once",
        "numbers_logged",
        "load_swing",
        "best_and_average",
        "hooks_removed",
    ],
)
def test_healthy_look_alikes_stay_quiet(name: str) -> None:
    report = run(name, "healthy")
    assert report.answer == "no leak", report


@pytest.mark.torch
def test_where_something_is_compiled_tensors_are_not_followed_and_that_is_said() -> None:
    import torch

    torch.compile(torch.sin, backend="eager")(torch.ones(2))
    report = run("graphs_in_list", "leak")
    (leak,) = report.leaks
    assert leak.holder == "losses"
    assert leak.made_line is None
    assert [note.rpartition(": ")[2] for note in report.notes] == ["torch.compile is in use"]


@pytest.mark.torch
def test_sampled_steps_compute_the_same() -> None:
    import torch

    def train(watch: Watch | None) -> torch.Tensor:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(60):
            loss = model(torch.randn(4, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if watch is not None:
                watch.step()
        return torch.cat([one.detach().flatten() for one in model.parameters()])

    with quiet() as watch:
        assert torch.equal(train(watch), train(None))
    assert watch.report().n_looks >= 3


@pytest.mark.torch
def test_a_graph_names_the_line_that_made_its_tensors() -> None:
    report = run("graphs_in_list", "leak")
    (leak,) = report.leaks
    assert leak.made_line is not None
    assert leak.bytes_per_step > 1000


@pytest.mark.torch
def test_start_counts_optimizer_steps_and_leaves_a_report(tmp_path: Path) -> None:
    import subprocess

    script = tmp_path / "train.py"
    script.write_text(
        "from pathlib import Path\n"
        "import torch\n"
        "from torchtriage.memory.leaks import leak_watch\n"
        "leak_watch.start(Path(__file__).parent / 'out')\n"
        "model = torch.nn.Linear(32, 32)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "outputs = []\n"
        "for _ in range(1000):\n"
        "    out = model(torch.randn(16, 32))\n"
        "    out.square().mean().backward()\n"
        "    outputs.append(out)\n"
        "    optimizer.step()\n"
    )
    ran = subprocess.run([sys.executable, str(script)], check=False, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    assert "LeakWarning: growing list `outputs`" in ran.stderr
    told = json.loads((tmp_path / "out" / "memory_watch.json").read_text())
    assert told["n_steps"] == 1000
    assert (told["leaks"][0]["holder"], told["leaks"][0]["line"]) == ("outputs", 11)
