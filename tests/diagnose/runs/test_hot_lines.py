"""What looks at the stacks become: findings at exact lines, with what they promise; and what stays quiet."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.diagnose.runs.samples_builder import OTHER, SamplesBuilder

from torchtriage.core.finding import Finding
from torchtriage.core.units import format_ms
from torchtriage.diagnose import calibration
from torchtriage.diagnose.runs.account import OPERATORS
from torchtriage.diagnose.runs.causes import SLEEPING
from torchtriage.diagnose.runs.hot_lines import growing_step, hot_lines
from torchtriage.diagnose.runs.memory_growth import growing_memory, growth_per_step
from torchtriage.diagnose.runs.source_view import elementwise, for_all_rows, sequential
from torchtriage.diagnose.runs.threads import rival_threads

SOURCE = """\
def clean(image):
    for row in image:
        for value in row:
            total = value * 2

def walk(graph):
    while graph:
        graph = graph.next

def smooth(values):
    for value in values:
        last = last * value

def save(step):
    torch.save(step, "last.pt")

def log(path, loss):
    with open(path, "a") as file:
        file.write(loss)

def poll(queue):
    time.sleep(0.01)

def pace(due):
    time.sleep(due - clock())

def spin():
    while True:
        count = count + 1

for batch in loader:
    clean(batch)
    walk(batch)
    smooth(batch)
    total = len(batch) // 3
    loss = model(batch)
    optimizer.step()
    save(loss)
    log(path, loss)
    poll(queue)
    pace(due)
    image = image.resize(size)
    text = json.dumps(state)
"""
OP = ("torch/nn/modules/module.py:Module._call_impl",)


def found(built: SamplesBuilder, operators: float = 0.5) -> list[Finding]:
    """The findings of a hundred steps of 10 ms that ``built`` has begun."""
    loop = built.loop(boundary="optimizer.step()", operators=operators)
    assert loop is not None
    return list(hot_lines(loop, built.view, 10.0))


def hundred_steps(
    folder: Path, *lines: str, below: tuple[str, ...] = (), source: str = SOURCE, called: str = ""
) -> SamplesBuilder:
    """Half of each step in operators, half at these lines, at the call of ``called`` in the last where it has more."""
    built = SamplesBuilder(folder, source, called)
    built.step()
    for _ in range(100):
        built.look("loss = model", below=OP, ms=5)
        built.look(*lines, below=below, ms=5)
        built.step()
    return built


@pytest.mark.parametrize(
    ("lines", "below", "code"),
    [
        (("clean(batch)", "total = value"), (), "HST020"),
        (("walk(batch)", "graph = graph.next"), (), "HST020"),
        (("save(loss)", "torch.save"), ("torch/serialization.py:save",), "HST102"),
        (("log(path, loss)", "with open"), (), "HST101"),
        (("poll(queue)", "time.sleep(0.01)"), (), "HST104"),
        (("image = image.resize",), ("PIL/Image.py:Image.resize",), "HST110"),
        (("text = json.dumps",), ("json/__init__.py:dumps",), "HST103"),
        (("loss = model(batch)",), ("torch/_tensor_str.py:_str",), "HST115"),
        (("loss = model(batch)",), ("copy.py:deepcopy",), "HST109"),
        (("loss = model(batch)",), ("torch/distributions/constraints.py:_Simplex.check",), "HST125"),
        (("loss = model(batch)",), ("torch/distributions/distribution.py:Distribution.__init__",), "HST125"),
        (("loss = model(batch)",), ("torch/distributions/categorical.py:Categorical.sample",), "HST114"),
        (("loss = model(batch)",), ("matplotlib/pyplot.py:pause", "matplotlib/figure.py:Figure.draw"), "HST122"),
        (("loss = model(batch)",), ("torch/nn/modules/linear.py:Linear.__init__",), "HST105"),
        (("loss = model(batch)",), ("subprocess.py:run",), "HST104"),
        (("loss = model(batch)",), ("socket.py:create_connection",), "HST116"),
        (("loss = model(batch)",), ("pandas/core/frame.py:DataFrame.iterrows",), "HST111"),
        (("loss = model(batch)",), ("threading.py:Condition.wait",), "HST112"),
        (("loss = model(batch)",), ("traceback.py:format_stack",), "HST113"),
        (("total = len(batch)",), (), "HST114"),
    ],
)
def test_half_a_step_at_a_line_is_a_finding_there(
    tmp_path: Path, lines: tuple[str, ...], below: tuple[str, ...], code: str
) -> None:
    (finding,) = found(hundred_steps(tmp_path, *lines, below=below))
    assert finding.code == code
    assert finding.place.frame is not None
    line = next(at for at, text in enumerate(SOURCE.splitlines(), 1) if text.strip().startswith(lines[-1]))
    assert (finding.place.frame.line, finding.place.frame.exact) == (line, True)
    assert [frame.line for frame in finding.place.stack][:1] == [line]
    assert finding.cost is not None
    assert finding.cost.of_ms == 10.0
    assert finding.cost.naive_ms == pytest.approx(5.0, abs=0.1)
    assert finding.cost.low_ms <= 5.0 * 1.1
    assert finding.cost.high_ms <= 5.5


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (("clean(batch)", "total = value"), "one operation on the whole array"),
        (("smooth(batch)", "last = last"), "Each iteration needs the previous result"),
        (("walk(batch)", "graph = graph.next"), "Look at what each iteration does"),
        (("total = len(batch)",), "Look at what this line does"),
    ],
)
def test_the_advice_follows_what_the_line_does(tmp_path: Path, lines: tuple[str, ...], says: str) -> None:
    (finding,) = found(hundred_steps(tmp_path, *lines))
    assert says in finding.fix.text
    assert "compute once" not in finding.fix.text


@pytest.mark.parametrize(
    ("lines", "below", "other", "most", "says"),
    [
        (("image = image.resize",), "PIL/Image.py:Image.resize", "", 0.5, ""),
        (("loss = model(batch)",), "torch/_tensor.py:Tensor.mul", "", 0.5, ""),
        (("loss = model(batch)",), "torch/_tensor.py:Tensor.mul", "torch/autograd/function.py:backward", 0.7,
         "the backward pass and "),
        (("walk(batch)", "graph = graph.next"), "", "torch/_tensor.py:Tensor.mul", 0.7, "the rest of the loop and "),
    ],
)  # fmt: skip
def test_no_line_saves_more_than_is_found_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: tuple[str, ...],
    below: str,
    other: str,
    most: float,
    says: str,
) -> None:
    monkeypatch.setattr(calibration, "margins", lambda family: calibration.Margins(1.0, 20.0, 0.0, 0.8))
    built = SamplesBuilder(tmp_path, SOURCE)
    built.step()
    for _ in range(16):
        built.look(*lines, below=(below,) if below else (), ms=5)
        built.look(*lines, below=(other or "torch/optim/adam.py:step",), ms=2)
        built.look("optimizer.step()", below=("torch/optim/adam.py:step",), ms=3)
        built.step()
    finding = found(built)[0]
    assert finding.cost is not None
    error = (most * (1 - most) / 48) ** 0.5
    assert finding.cost.high_ms == pytest.approx(10 * (most + error), abs=0.1)
    with_all = f"; up to {format_ms(finding.cost.high_ms)} with {says}the sampling error"
    assert finding.message.endswith(with_all) == bool(says)


def test_a_loop_is_looked_up_in_its_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "margins", lambda family: calibration.Margins(1.0, 20.0, 0.0, 0.8))
    built = SamplesBuilder(tmp_path, SOURCE.replace("graph = graph.next", "graph = follow(graph)"))
    built.step()
    for _ in range(16):
        built.look("walk(batch)", "graph = follow", below=(f"{tmp_path}/helpers.py:follow",), ms=5)
        built.look("walk(batch)", "graph = follow", below=("torch/_tensor.py:Tensor.mul",), ms=2)
        built.look("optimizer.step()", below=("torch/optim/adam.py:step",), ms=3)
        built.step()
    (finding,) = [finding for finding in found(built) if finding.code == "HST020"]
    assert "a loop in Python (lines 7-8 of train.py)" in finding.message
    assert "in follow(), helpers.py:1, called from line 8 of train.py; up to" in finding.message
    assert finding.message.endswith(" with the rest of the loop and the sampling error")


@pytest.mark.parametrize("last", ["total", "graph"])
@pytest.mark.parametrize("by_element", [1, 4])
def test_a_loop_is_told_by_what_most_of_its_time_is(tmp_path: Path, by_element: int, last: str) -> None:
    source = SOURCE.replace(
        "            total = value * 2", "            total = value * 2\n        graph = follow(row)"
    )
    built = SamplesBuilder(
        tmp_path, source.replace("def walk(graph):\n    while graph:\n        graph = graph.next", "")
    )
    built.step()
    took = {"total": by_element, "graph": 5 - by_element}
    for _ in range(100):
        built.look("loss = model", below=OP, ms=5)
        for line in sorted(took, key=lambda line: line == last):
            built.look("clean(batch)", line, ms=took[line])
        built.step()
    (finding,) = found(built)
    mostly = by_element == 4
    assert ("element by element" in finding.message) == mostly
    assert ("one operation on the whole array" in finding.fix.text) == mostly
    assert finding.cost is not None
    assert finding.cost.low_ms == pytest.approx(by_element * 0.75 + (5 - by_element) * 0.3, rel=0.1)


def test_loops_of_one_function_are_one_finding_and_those_beside_the_steps_are_not(tmp_path: Path) -> None:
    loops = "for row in image:\n    total = row * 2\nfor row in image:\n    other = row * 3\n"
    inside = "".join(f"    {line}\n" for line in loops.splitlines())
    helper = f"def clean(image):\n{inside}\nfor batch in loader:\n    clean(batch)\n    optimizer.step()\n"
    beside = f"for batch in loader:\n{inside}    optimizer.step()\n"
    findings = []
    for source, call in ((helper, ("clean(batch)",)), (beside, ())):
        built = SamplesBuilder(tmp_path, source)
        built.step()
        for _ in range(100):
            built.look("optimizer.step()", below=("torch/optim/adam.py:step",), ms=4)
            built.look(*call, "total", ms=4)
            built.look(*call, "other", ms=2)
            built.step()
        findings.append(found(built, operators=0.4))
    (together,), (first, second) = findings
    assert "loops element by element (lines 2-5) take 6.00 ms of 10.0 ms per step (60 %) in clean()" in together.message
    assert "a loop element by element (lines 2-3) takes 4.00 ms" in first.message
    assert "a loop element by element (lines 4-5) takes 2.00 ms" in second.message


def test_methods_of_one_name_are_different_functions(tmp_path: Path) -> None:
    source = "".join(
        f"class {name}:\n    def __call__(self, image):\n        for row in image:\n            {result} = row * 2\n"
        for name, result in (("Crop", "total"), ("Noise", "other"))
    )
    source += "for batch in loader:\n    crop(batch)\n    noise(batch)\n    optimizer.step()\n"
    built = SamplesBuilder(tmp_path, source)
    built.step()
    for _ in range(100):
        built.look("optimizer.step()", below=("torch/optim/adam.py:step",), ms=4)
        built.look("crop(batch)", "total", ms=3)
        built.look("noise(batch)", "other", ms=3)
        built.step()
    first, second = found(built, operators=0.4)
    assert {"called from line 10" in first.message, "called from line 10" in second.message} == {True, False}
    assert {"(lines 3-4)" in first.message, "(lines 3-4)" in second.message} == {True, False}
    assert {"(lines 7-8)" in first.message, "(lines 7-8)" in second.message} == {True, False}


def test_a_method_is_called_by_the_one_of_the_same_name_around_it(tmp_path: Path) -> None:
    source = "def forward(inner):\n    for row in inner:\n        total = row * 2\n"
    source += "def forward(outer):\n    inner = before(outer)\n"
    source += "for batch in loader:\n    out = model(batch)\n    optimizer.step()\n"
    built = SamplesBuilder(tmp_path, source)
    built.step()
    for _ in range(100):
        built.look("optimizer.step()", below=("torch/optim/adam.py:step",), ms=4)
        built.look("out =", "inner =", "total", ms=6)
        built.step()
    assert "called from line 5" in found(built, operators=0.4)[0].message


@pytest.mark.parametrize(("collecting", "says"), [(1, "one operation on the whole array"), (2, "gc.freeze()")])
def test_collections_are_of_the_loop_that_makes_objects(tmp_path: Path, collecting: int, says: str) -> None:
    collected = ("torchtriage/core/record/stack_sampler.py:_collected",)
    built = SamplesBuilder(tmp_path, SOURCE)
    built.step()
    for _ in range(100):
        built.look("optimizer.step()", below=("torch/optim/adam.py:step",), ms=5)
        built.look("clean(batch)", "total = value", ms=3 - collecting)
        built.look("clean(batch)", "total = value", below=collected, ms=collecting)
        built.look("total = len(batch)", below=collected, ms=2)
        built.step()
    (finding,) = found(built)
    assert "a loop element by element (lines 2-4) takes 3.00 ms of 10.0 ms per step" in finding.message
    assert f"{round(100 * collecting / 3)} % of it in the garbage collector" in finding.message
    assert says in finding.fix.text
    assert finding.cost is not None
    surely = 3.0 if says == "gc.freeze()" else 3.0 - collecting  # freezing gives the part of the collector back, too
    assert finding.cost.low_ms <= surely * 0.75


def test_a_library_that_sleeps_is_no_python(tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "client.py"
    library.parent.mkdir()
    library.write_text("time.sleep(0.01)")
    for below, code in (("client.py:ask", "HST104"), ("matplotlib/pyplot.py:pause", "HST122")):
        built = hundred_steps(tmp_path, "loss = model(batch)", below=(below, str(library) + ":wait"))
        loop = built.loop(boundary="optimizer.step()", operators=0.5)
        assert loop is not None
        assert {item.kind for item in loop.seen} == {OPERATORS, SLEEPING}
        assert [finding.code for finding in found(built)] == [code]


@pytest.mark.parametrize(
    ("before", "seconds", "n"),
    [
        ("delay = 0.02", "delay", 1),
        ("poll = 0.02", "poll", 1),
        ("pass", 'float("0.02")', 1),
        ("pass", 'options.get("delay")', 1),
        ("left = due - time.monotonic()", "left", 0),
        ("begin = time.time()", "max(0, period - (time.time() - begin))", 0),
        ("self.rest = due - clock()", "self.rest", 0),
        ("pass", "rate.left()", 0),
        ("pass", "slack", 0),
    ],
)
def test_a_sleep_is_of_a_pace_by_its_value_not_its_name(tmp_path: Path, before: str, seconds: str, n: int) -> None:
    source = SOURCE.replace("time.sleep(0.01)", f"{before}\n    time.sleep({seconds})")
    source = source.replace("def poll(queue)", "def poll(queue, slack)")
    built = hundred_steps(tmp_path, "poll(queue)", f"time.sleep({seconds})", source=source)
    assert [finding.code for finding in found(built)] == ["HST104"] * n


@pytest.mark.parametrize(
    ("line", "code", "certainty"),
    [
        ("blob = io.BytesIO(); blob.write(loss)", "HST114", "hint"),
        ("out = open(path); out.write(loss)", "HST101", "certain"),
        ("sink.write(loss)", "HST101", "likely"),
        ("os.fsync(path)", "HST101", "certain"),
        ("box = queue.SimpleQueue(); box.get()", "HST112", "likely"),
        ("box.get()", "HST114", "hint"),
        ("os.system(path)", "HST104", "certain"),
        ("step(); time.sleep(0.01)", "HST104", "certain"),
        ("time.sleep(0.01); step()", "HST104", "certain"),
    ],
)
def test_a_call_in_c_is_what_its_object_was_made_for(tmp_path: Path, line: str, code: str, certainty: str) -> None:
    source = "import io, os, queue, time\n" + SOURCE.replace("time.sleep(0.01)", line)
    called = next(word for word in ("blob.write", "out.write", "box.get", "time.sleep", "") if word in line)
    built = hundred_steps(tmp_path, "poll(queue)", line, source=source, called=called)
    (finding,) = found(built)
    assert (finding.code, finding.certainty) == (code, certainty)


@pytest.mark.parametrize(
    ("reads", "advice"),
    [
        ("for path in paths:\n  image = np.load(path)", "another"),
        ("for path in paths:\n  place = folder / path\n  image = np.load(place)", "another"),
        ("i = 0\nwhile i < 9:\n  i += 1\n  image = np.load(file=paths[i])", "another"),
        ("for path in paths:\n  file = h5py.File(path)", "another"),
        ("for path in paths:\n  with open(path) as file:\n    image = file.readline()", "another"),
        ("for paths in batches:\n  images = [np.load(path) for path in paths]", "another"),
        ("for i in range(9):\n  image = np.load('%d.npy' % i)", "another"),
        ("for path in paths:\n  image = files.read_async(path)", "another"),
        ("for path in paths:\n  file = np.load(path)\n  image = file.read('x')", "another"),
        ("for i in range(9):\n  image = np.load(f'{i // 1000}.npy')", "unknown"),
        ("for i in range(9):\n  image = np.load(paths[i % 2])", "unknown"),
        ("i = 0\nwhile i < 9:\n  i = (i + 1) % 2\n  image = np.load(paths[i])", "unknown"),
        ("for i in range(9):\n  path = 'a' if i < 5 else 'b'\n  image = np.load(path)", "unknown"),
        ("for path in paths:\n  file = open(path, 'ab')", "same"),
        ("for path in paths:\n  os.fdatasync(path)", "same"),
        ("for path in paths:\n  np.savetxt(path, image)", "same"),
        ("for i in range(9):\n  file[i] = image", "same"),
        ("for i in range(9):\n  image = np.load('all.npy')", "same"),
        ("for i in range(9):\n  image = np.load(PLACE)", "same"),
        ("for i in range(9):\n  image = np.loadtxt(PLACE, skiprows=i)", "same"),
        ("for path in paths:\n  shutil.copy(path, 'copies')", "same"),
        ("for path in paths:\n  shutil.rmtree(path)", "same"),
        ("for path in paths:\n  log = open(path, 'a')\n  log.close()", "same"),
        ("for i in range(9):\n  rows.execute(f'insert into rows values ({i})')", "same"),
        ("ADD = 'INSERT INTO rows VALUES (?)'\nfor i in range(9):\n  rows.execute(ADD, (i,))", "same"),
        ("for path in paths:\n  file = open(path)\n  file.close()", "unknown"),
        ("for path in paths:\n  for i in range(9):\n    image = np.load(path)", "unknown"),
        ("for path in paths:\n  file = h5py.File(path)\n  image = file['a'][:]", "unknown"),
        ("for path in paths:\n  with open(path) as file:\n    for line in file: pass", "unknown"),
        ("for i in range(9):\n  image = rows.execute(f'select {i}')", "unknown"),
        ("for i in range(9):\n  images = [np.load(path) for path in paths]", "unknown"),
        ("for i in range(9):\n  image = np.load(next(paths))", "unknown"),
        ("def read(path):\n  image = np.load(path)", "unknown"),
        ("def read(path):\n  if not path:\n    path = PLACE\n  image = np.load(path)", "unknown"),
        ("for i in range(9):\n  path = 'a'\n  if i:\n    path = PLACE\n  image = np.load(path)", "unknown"),
        ("n = 0\nfor i in range(9):\n  n += 1\ndef read():\n  image = np.load(f'{n}.npy')", "unknown"),
        ("n = 0\ndef read():\n  global n\n  n += 1\n  image = np.load(f'{n}.npy')", "unknown"),
        ("FOLDERS = ['a', 'b']\nfor folder in FOLDERS:\n  images = np.stat(folder)", "unknown"),
        ("def read(self, i):\n  image = np.load(self.path)", "unknown"),
        ("def __getitem__(self, i):\n  image = np.load(self.files[i])", "unknown"),
        ("def __getitem__(self, name):\n  image = np.load(PLACE)", "same"),
    ],
)
def test_a_file_is_kept_or_read_ahead_or_both_are_said(tmp_path: Path, reads: str, advice: str) -> None:
    source = f"import numpy as np\nPLACE = 'all.npy'\n{reads}\nfor batch in loader:\n  loss = model(batch)\n"
    source += "  optimizer.step()\n"
    line = reads.splitlines()[-1].strip()
    built = SamplesBuilder(tmp_path, source, "file[i]")
    built.step()
    for _ in range(100):
        built.look("loss = model", below=OP, ms=5)
        built.look(line, below=("numpy/lib/npyio.py:load",), ms=5)
        built.step()
    (finding,) = [finding for finding in found(built) if finding.code == "HST101"]
    begins = {"another": "Each step reads another", "same": "Open files once", "unknown": "If it is the same file"}
    assert finding.fix.text.startswith(begins[advice])
    assert finding.certainty == ("certain" if advice == "same" else "likely")


@pytest.mark.parametrize("order", [("log.flush", "image ="), ("image =", "log.flush")])
def test_what_is_surely_the_same_file_is_told_apart_in_a_function(tmp_path: Path, order: tuple[str, ...]) -> None:
    source = "log = open('a')\ndef work(path):\n  log.flush()\n  image = np.load(path)\n"
    built = SamplesBuilder(tmp_path, f"{source}for path in paths:\n  work(path)\n  optimizer.step()\n")
    built.step()
    for _ in range(100):
        for line in order:
            built.look("work(", line, below=("numpy/lib/npyio.py:load",) if "image" in line else (), ms=5)
        built.step()
    certain = {finding.place.frame.line: finding.certainty for finding in found(built) if finding.place.frame}
    assert certain == {3: "certain", 4: "likely"}


def test_epochs_around_the_steps_read_no_other_file(tmp_path: Path) -> None:
    source = "for epoch in range(9):\n  for path in paths:\n    image = np.load(path)\n    loss = model(image)\n"
    built = hundred_steps(
        tmp_path, "image = np.load", below=("numpy/lib/npyio.py:load",), source=source + "    optimizer.step()\n"
    )
    (finding,) = found(built)
    assert finding.title == "Every step waits for another file"


def test_an_idle_event_loop_waits_for_no_lock(tmp_path: Path) -> None:
    below = ("asyncio/runners.py:run", "asyncio/base_events.py:BaseEventLoop._run_once", "selectors.py:select")
    (finding,) = found(hundred_steps(tmp_path, "loss = model(batch)", below=below))
    assert (finding.title, finding.certainty) == ("The event loop has nothing to run", "likely")


@pytest.mark.parametrize(("options", "title"), [("", "left on"), ("schedule=schedule(wait=9)", "takes a good part")])
def test_a_profiler_with_a_schedule_is_not_left_on(tmp_path: Path, options: str, title: str) -> None:
    source = SOURCE + f"with profile({options}) as p:\n    pass\n"
    below = ("torch/profiler/profiler.py:profile.step",)
    (finding,) = found(hundred_steps(tmp_path, "loss = model(batch)", below=below, source=source))
    assert finding.code == "MSR045"
    assert title in finding.title
    assert ("schedule, and switch" in finding.fix.text) == (not options)


def test_one_line_is_not_told_as_operators_and_as_python(tmp_path: Path) -> None:
    for operators, said in ((0.8, "Operators take"), (0.6, "Python takes")):
        source = SOURCE.replace("len(batch) // 3", "batch @ batch")
        (finding,) = found(hundred_steps(tmp_path, "total = batch", source=source), operators)
        assert said in finding.message


def test_a_loop_that_keeps_a_rate_is_quiet(tmp_path: Path) -> None:
    assert found(hundred_steps(tmp_path, "pace(due)", "time.sleep(due - clock())")) == []


def test_operators_are_no_python(tmp_path: Path) -> None:
    assert found(hundred_steps(tmp_path, "loss = model(batch)", below=OP), operators=1.0) == []
    # a line that may be either, where the recording saw nothing but operators: told, and nothing promised
    (finding,) = found(hundred_steps(tmp_path, "clean(batch)", "total = value"), operators=1.0)
    assert (finding.code, finding.certainty) == ("HST114", "hint")
    assert finding.cost is not None
    assert (finding.cost.share_low, finding.cost.share_high) == (0.0, pytest.approx(0.5, abs=0.04))


def test_a_little_and_seldom_is_quiet(tmp_path: Path) -> None:
    built = SamplesBuilder(tmp_path, SOURCE)
    built.step()
    for at in range(100):
        built.look("loss = model(batch)", below=OP, ms=10)
        if at in (20, 60):
            built.look("save(loss)", "torch.save", below=("torch/serialization.py:save",), ms=2)
        built.step()
    assert found(built, operators=1.0) == []


def test_steps_that_grow_are_told_with_the_line_that_grows(tmp_path: Path) -> None:
    built = SamplesBuilder(tmp_path, SOURCE)
    built.step()
    for at in range(60):
        built.look("loss = model(batch)", below=OP, ms=5)
        built.look("walk(batch)", "graph = graph.next", ms=1 + at / 4)
        built.step()
    loop = built.loop(boundary="optimizer.step()", operators=0.5)
    assert loop is not None
    (finding,) = growing_step(loop, built.samples(), 13.0, ())
    assert finding.code == "HST106"
    assert finding.place.frame is not None
    assert finding.place.frame.line == 8
    steady = hundred_steps(tmp_path, "walk(batch)", "graph = graph.next")
    loop = steady.loop(boundary="optimizer.step()", operators=0.5)
    assert loop is not None
    assert growing_step(loop, steady.samples(), 10.0, ()) == ()


POLL = ("multiprocessing/connection.py:Connection.poll", "selectors.py:select")


def test_a_thread_that_spins_is_told_and_one_that_waits_is_not(tmp_path: Path) -> None:
    for line, below, n in (
        ("count = count + 1", (), 1),
        ("poll(queue)", (), 0),
        ("count = count + 1", ("threading.py:Condition.wait",), 0),
        ("poll(queue)", ("multiprocessing/queues.py:Queue.get", *POLL), 0),
        ("poll(queue)", POLL, 1),
    ):
        built = SamplesBuilder(tmp_path, SOURCE)
        built.step()
        for _ in range(100):
            built.look("loss = model(batch)", below=OP, ms=10)
            lines = ("poll(queue)", "time.sleep(0.01)") if line == "poll(queue)" and not below else (line,)
            built.look(*lines, below=below, thread=OTHER)
            built.step()
        loop = built.loop(boundary="optimizer.step()", operators=1.0)
        assert loop is not None
        rivals = list(rival_threads(loop, built.samples(), built.view, 10.0))
        assert [finding.code for finding in rivals] == ["HST108"] * n, line


@pytest.mark.parametrize(
    ("line", "waits", "n"),
    [("time.sleep(0.05)", True, 1), ("time.sleep(0.05)", False, 0), ("time.sleep(due - clock())", True, 0)],
)
def test_a_thread_that_polls_while_the_loop_waits_for_work(tmp_path: Path, line: str, waits: bool, n: int) -> None:
    source = SOURCE + "\ndef ask(server):\n    while not server.done:\n        time.sleep(0.05)\n    state.seen = 1\n"
    built = SamplesBuilder(tmp_path, source)
    built.step()
    for _ in range(100):
        built.look("loss = model(batch)", below=OP if not waits else ("queue.py:Queue.get",), ms=5)
        built.look("loss = model(batch)", below=OP, ms=5)
        built.look(line, thread=OTHER)
        built.step()
    loop = built.loop(boundary="optimizer.step()", operators=1.0)
    assert loop is not None
    (*findings,) = rival_threads(loop, built.samples(), built.view, 10.0)
    assert [finding.title for finding in findings] == ["The loop sleeps or polls"] * n
    assert all(finding.cost and finding.cost.share_high == pytest.approx(0.5, abs=0.02) for finding in findings)


def test_a_name_for_a_part_is_no_profiler_and_fetching_a_batch_no_line(tmp_path: Path) -> None:
    for below, codes in (
        ("torch/autograd/profiler.py:record_function.__enter__", []),
        ("torch/autograd/profiler.py:profile._start_trace", ["MSR045"]),
    ):
        built = hundred_steps(tmp_path, "loss = model(batch)", below=(below,))
        assert [finding.code for finding in found(built) if finding.severity != "note"] == codes
    (fetching,) = found(hundred_steps(tmp_path, "for batch in loader", below=("torch/utils/data/dataloader.py:next",)))
    assert fetching.cost is not None
    assert (fetching.code, fetching.cost.low_ms) == ("HST114", 0.0)


def test_memory_that_grows_with_each_step(tmp_path: Path) -> None:
    for per_step, n in ((2.0, 1), (0.0, 0), (0.1, 0)):
        built = SamplesBuilder(tmp_path, SOURCE)
        built.resident(50)  # before torch is imported
        built.step()
        for at in range(40):
            built.look("loss = model(batch)", below=OP, ms=10)
            # of two pages that are handed out one is given back in the same step
            built.resident(300 + per_step * at, system_ms=1.5 * at, faults=1024 * at)
            built.step()
        samples = built.samples()
        findings = growing_memory(samples, growth_per_step(samples), 10.0)
        assert len(findings) == n, per_step
        if findings:
            assert findings[0].message == (
                "the process grows by 2.00 MiB per step: from 320 MiB to 378 MiB over 29 steps"
            )
            cost = findings[0].cost
            assert cost is not None
            assert (cost.low_ms, cost.high_ms) == pytest.approx((0.375, 0.75))


def _loop(text: str) -> ast.For:
    (node,) = ast.parse(text).body
    assert isinstance(node, ast.For)
    return node


def test_what_a_round_needs_of_the_one_before() -> None:
    assert sequential(_loop("for i in range(9):\n  out[i] = last\n  last = step(last)"))
    assert sequential(_loop("for t in steps:\n  hidden = cell(x[t], hidden)"))
    assert not sequential(_loop("for row in rows:\n  total += f(row)"))
    assert not sequential(_loop("for row in rows:\n  near = f(row)\n  out.append(near)"))


def test_what_computes_element_by_element() -> None:
    assert elementwise(_loop("for i in range(9):\n  out[i] = 3"))
    assert elementwise(_loop("for value in values:\n  out.append(value * 2)"))
    assert elementwise(_loop("for t in range(9):\n  out[:, t] = cell(x[:, t])"))
    assert not elementwise(_loop("for item in items:\n  item.run()"))
    assert elementwise(_loop("for i in range(n):\n  model(x[i : i + 1])"))
    assert not elementwise(_loop("for start in range(0, n, 32):\n  end = min(start + 32, n)\n  model(x[start:end])"))


@pytest.mark.parametrize(
    ("body", "all_rows"),
    [
        ("last = x[rows, picked[:, t - 1]]\n    picked[:, t] = far(last)", True),
        ("last = x[picked[t - 1]]\n    picked[:, t] = far(last)", False),
        ("hidden = cell(x[..., t], hidden)", True),
        ("hidden = cell(x[:, t], hidden) * rates[t]", True),
        ("best = score(x[t, :], best)", False),
        ("best = score(boxes[t, :, :4], best)", False),
        ("hidden = cell(x[t], hidden)", False),
        ("hidden = cell(hidden)", False),
    ],
)
def test_what_is_done_for_all_rows(body: str, all_rows: bool) -> None:
    assert for_all_rows(_loop(f"for t in steps:\n    {body}")) == all_rows


@pytest.mark.parametrize(
    ("body", "by_element"),
    [
        ("total = total + scale(x[i])", True),
        ("points = turn(*sweeps[i], angle)", False),
        ("points = turn(*sweeps[i].T[:2])", False),
        ("model(batch)", False),
    ],
)
def test_what_is_spread_out_is_no_element(body: str, by_element: bool) -> None:
    (loop,) = ast.parse(f"for i in rows:\n    {body}").body
    assert isinstance(loop, ast.For)
    assert elementwise(loop) == by_element
