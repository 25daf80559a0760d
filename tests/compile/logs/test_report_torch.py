"""A report of what runs in this process: the compiler's log is heard, and nothing else changes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.report import forms

import torchtriage as tt
from torchtriage.compile.logs.read import read_logs

# torch's own, on its way to the C++ compiler
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
torch: Any = import_module("torch") if find_spec("torch") else None


class Kept(logging.Handler):
    """What another listener of the compiler's log hears."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.n += 1


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    torch._dynamo.reset()
    before = list(logging.getLogger("torch.__trace").handlers)
    yield
    after = logging.getLogger("torch.__trace").handlers
    assert [one for one in after if one not in before] == []


def breaking(x: Any) -> Any:
    y = x.sin()
    print(end="")  # the break
    return y.cos()


LINE = Path(__file__).read_text("utf-8").split("\n").index('    print(end="")  # the break') + 1


def eager(fn: Any, **how: Any) -> Any:
    return torch.compile(fn, backend="eager", **how)


def test_a_break_is_named_at_its_line_and_the_report_shows_itself() -> None:
    report = tt.compile_report(eager(breaking), torch.ones(4))
    (one,) = report.breaks
    assert one.frame is not None
    assert (one.frame.file, one.frame.line) == (__file__, LINE)
    assert report.torch == (torch.__version__,)
    assert report.paths == ("breaking",)
    assert f"{Path(__file__).name}:{LINE} in breaking" in str(report)
    assert forms.encode(forms.decode(report.to_json(), "compile")) == report.to_json()
    assert str(LINE) in report.to_markdown()
    assert "<title>breaking · torchtriage</title>" in report.to_html()
    assert 'sandbox=""' in report._repr_html_()
    books = report.books
    assert books.n_damaged == 0
    assert all(one.name.startswith("not part of") for one in books.skipped), books.skipped


def test_files_are_named_in_every_report_of_a_process() -> None:
    for _ in range(2):  # torch tells the name of a file once
        torch._dynamo.reset()
        report = tt.compile_report(eager(breaking), torch.ones(4))
        assert {function.frame.file for function in report.functions} == {__file__}


def test_several_calls_show_what_another_size_does() -> None:
    def sizes(x: Any) -> Any:
        return x.sin()

    report = tt.compile_report(eager(sizes), calls=[torch.ones(4), (torch.ones(5),)])
    (one,) = report.recompiles
    assert (one.cause, one.source, one.values) == ("size", "x", ("4", "5"))
    marked = torch.ones(4)
    torch._dynamo.mark_dynamic(marked, 0)
    torch._dynamo.reset()
    assert tt.compile_report(eager(sizes), calls=[marked, torch.ones(5)]).recompiles == ()


def test_what_is_not_compiled_is_and_what_is_stays_as_it_was() -> None:
    class Net(torch.nn.Module):
        def forward(self, x: Any, scale: float = 1.0) -> Any:
            return x.sin() * scale

    net = Net()
    net.compile(backend="eager")
    assert tt.compile_report(net, torch.ones(3), scale=2.0).processes[0].n_graphs == 1

    def step(x: Any) -> Any:
        return float(compiled(x).sum())

    compiled = eager(Net())
    report = tt.compile_report(step, torch.ones(3), as_is=True)
    assert "step" not in {function.frame.function for function in report.functions}
    assert report.processes[0].n_graphs == 1
    torch._dynamo.reset()
    report = tt.compile_report(lambda x: x.sin(), torch.ones(3))
    assert report.inductor.n_modules == 1
    assert report.verdict[2].endswith("Inductor wrote 1 kernel.")


def test_what_was_compiled_before_is_not_seen_and_the_report_says_so() -> None:
    compiled = eager(breaking)
    compiled(torch.ones(4))
    report = tt.compile_report(compiled, torch.ones(4))
    assert report.verdict[0] == "Nothing was compiled."
    assert not report.healthy
    assert [note.code for note in report.notes] == ["compiled-before"]
    assert "torch._dynamo.reset()" in str(report)


def test_others_hear_the_log_as_before() -> None:
    logger = logging.getLogger("torch.__trace")
    other = Kept()
    logger.addHandler(other)
    try:
        report = tt.compile_report(eager(breaking), torch.ones(4))
        heard = other.n
        torch._dynamo.reset()
        tt.compile_report(eager(breaking), torch.ones(4))
        assert heard > 0
        assert other.n > heard
        assert report.books.n_read >= heard
    finally:
        logger.removeHandler(other)


def test_an_exception_comes_through_with_the_report_until_then() -> None:
    def failing(x: Any) -> Any:
        breaking(x)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        tt.compile_report(eager(failing), torch.ones(4))
    report = caught.value.compile_report  # type: ignore[attr-defined]
    assert isinstance(report, tt.CompileReport)
    assert LINE in {one.frame.line for one in report.breaks if one.frame}


def test_wrong_use_is_refused_in_one_line() -> None:
    with pytest.raises(tt.UsageError, match="expected a module or a function, found Tensor"):
        tt.compile_report(torch.ones(3))
    with pytest.raises(tt.UsageError, match=r"tt\.compile_logs"):
        tt.compile_report("logs")  # type: ignore[arg-type]
    with pytest.raises(tt.UsageError, match="found one tensor"):
        tt.compile_report(breaking, calls=torch.ones(3))
    with pytest.raises(tt.UsageError, match="arguments or calls"):
        tt.compile_report(breaking, torch.ones(3), calls=[torch.ones(4)])


def test_a_log_that_cannot_be_written_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torchtriage.core.record.structured_log.StructuredLog._begun", full)
    report = tt.compile_report(eager(breaking), torch.ones(4))
    assert "No space left on device" in report.notes[0].message
    assert not report.healthy


def test_a_forked_process_writes_a_log_of_its_own(tmp_path: Path) -> None:
    import os

    from torchtriage.core.record.structured_log import StructuredLog

    log = StructuredLog(tmp_path)
    log.start()
    try:
        eager(breaking)(torch.ones(4))
        torch._dynamo.reset()
        child = os.fork()
        if not child:
            eager(breaking)(torch.ones(4))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        log.stop()
    logs, refused = read_logs([str(tmp_path)])
    assert refused == []
    assert [one.n_break_records for one in logs] == [1, 1]
    assert {one.compilations[0].file for one in logs} == {__file__}


def test_a_call_that_changes_seven_things_names_them_all() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.k, self.name, self.flag = 2, "a", True

        def forward(self, x: Any, n: int, rows: list[int]) -> Any:
            y = (x * self.k).sin() * n + sum(rows)
            y = y + 1 if self.name == "a" else y
            return y * 2 if self.flag else y

    model = Scaled()
    compiled = eager(model)

    def called(x: Any, n: int, rows: list[int], *attributes: Any) -> Any:
        model.k, model.name, model.flag = attributes
        return compiled(x, n, rows)

    inputs = [(torch.ones(4), 3, [1], 2, "a", True), (torch.ones(5, dtype=torch.float64), 4, [1, 2], 3, "b", False)]
    (row,) = tt.compile_report(called, calls=inputs, as_is=True).recompiles
    told = {(row.cause, row.source), *((one.cause, one.source) for one in row.also)}
    attributes = {("number", "self.k"), ("text", "self.name"), ("flag", "self.flag")}
    assert told == {("number", "n"), ("dtype", "x"), ("size", "x"), ("length", "rows")} | attributes
