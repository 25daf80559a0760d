"""The progress line: only on a terminal, only after a second, and gone at the end."""

from __future__ import annotations

import io

import pytest

from torchtriage.cli import progress
from torchtriage.core.engine import Engine


class Screen(io.StringIO):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a clock that stands still until it is told otherwise."""
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    return clock


@pytest.mark.parametrize(("terminal", "quiet"), [(False, False), (True, True)])
def test_nothing_without_a_terminal_or_when_quiet(monkeypatch: pytest.MonkeyPatch, terminal: bool, quiet: bool) -> None:
    screen = Screen(terminal=terminal)
    monkeypatch.setattr("sys.stderr", screen)
    with progress.reading("trace.json", quiet=quiet) as told:
        assert told is None
    assert screen.getvalue() == ""


def test_a_short_read_shows_nothing(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> None:
    screen = Screen(terminal=True)
    monkeypatch.setattr("sys.stderr", screen)
    with progress.reading("trace.json", quiet=False) as told:
        assert told is not None
        now[0] = 0.9
        told(1 << 20, 1 << 30)
    assert screen.getvalue() == ""


def test_a_long_read_shows_bytes_and_rate_and_cleans_up(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> None:
    screen = Screen(terminal=True)
    monkeypatch.setattr("sys.stderr", screen)
    with progress.reading("\x1b[31mtrace.json", quiet=False) as told:
        assert told is not None
        for now[0] in (2.0, 2.05, 4.0):  # the second comes too soon to be drawn
            told(200 << 20, 1 << 30)
    text = screen.getvalue()
    assert text.count("reading ") == 2
    assert "200 MiB, 100 MiB/s" in text
    assert text.endswith("\r\x1b[K")
    assert "\x1b[31m" not in text  # a name cannot colour the terminal


def test_the_line_goes_away_when_reading_fails(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> None:
    screen = Screen(terminal=True)
    monkeypatch.setattr("sys.stderr", screen)

    def fail() -> None:
        with progress.reading("trace.json", quiet=False) as told:
            assert told is not None
            now[0] = 2.0
            told(1, 2)
            raise ValueError("odd")

    with pytest.raises(ValueError, match="odd"):
        fail()
    assert screen.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize(
    ("seconds", "asked", "there", "said"),
    [(6.0, "", False, 1), (4.0, "", False, 0), (6.0, "python", False, 0), (6.0, "", True, 0)],
)
def test_a_long_read_by_the_python_engine_names_the_faster_one(
    monkeypatch: pytest.MonkeyPatch, now: list[float], seconds: float, asked: str, there: bool, said: int
) -> None:
    screen = Screen(terminal=True)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TORCHTRIAGE_READER", asked)
    library = object() if there else None
    monkeypatch.setattr("torchtriage.core.engine._load", lambda _: Engine(library, "a.so is not there"))
    progress._name_faster_engine.cache_clear()
    for now[0] in (0.0, 20.0):  # two files
        with progress.reading("trace.json", quiet=False) as told:
            assert told is not None
            now[0] += seconds
            told(1 << 30, 1 << 30)
            now[0] += 9.0  # what comes after the last byte is no reading
    assert screen.getvalue().count("read by the Python engine, several times slower") == said


def test_what_is_judged_is_said_after_a_second_of_reading(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> None:
    screen = Screen(terminal=True)
    monkeypatch.setattr("sys.stderr", screen)
    with progress.doing("snapshot.pickle", quiet=False, since_s=0.0) as told:
        assert told is not None
        told("at once")
        assert screen.getvalue() == ""
        now[0] = 1.5
        told("replaying the history")
    assert screen.getvalue().endswith("analysing snapshot.pickle: replaying the history\r\x1b[K")
    with progress.doing("snapshot.pickle", quiet=True, since_s=0.0) as told:
        assert told is None


def test_work_that_takes_long_is_told_at_once(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> None:
    screen = Screen(terminal=True)
    monkeypatch.setattr("sys.stderr", screen)
    with progress.working(quiet=False) as told:
        told("eager: session 1 of 4\x1b[31m", 0.25)
        told("", 0.5)
    assert screen.getvalue().startswith("\r\x1b[K 25%  eager: session 1 of 4")
    assert screen.getvalue().count("\x1b") == 2
    assert screen.getvalue().endswith("\r\x1b[K")


def test_work_is_not_told_when_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(terminal=True)
    monkeypatch.setattr("sys.stderr", screen)
    with progress.working(quiet=True) as told:
        told("eager", 0.5)
    assert screen.getvalue() == ""
