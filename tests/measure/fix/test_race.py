"""Rounds of the program as it is and with changes, with runs made up."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from torchtriage.core.errors import UsageError
from torchtriage.core.stats.paired_interval import LEAST_PAIRS
from torchtriage.measure.fix import race as module
from torchtriage.measure.fix.project import ProjectCopy
from torchtriage.measure.fix.race import MOST_ROUNDS, Entrant, race


@pytest.fixture
def copy(tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a.py").write_text("slow")
    monkeypatch.chdir(tmp_path / "project")
    return ProjectCopy.make(tmp_path / "project", tmp_path / "copy", ("a.py",))


@pytest.fixture
def ran(copy, monkeypatch):
    """Let runs be what the file says; trials are the runs so far, settled by ``settled``."""
    texts: list[str] = []

    def sample(_command, _out, **_options):
        text = (copy.root / "a.py").read_text()
        texts.append(text)
        if text == "broken":
            raise UsageError("the program ended with exit code 1")
        return SimpleNamespace(answers=text)

    monkeypatch.setattr(module, "sample", sample)
    monkeypatch.setattr(module, "trial_of", lambda base, runs, firsts: MadeUp(len(base), len(runs), tuple(firsts)))
    monkeypatch.setattr(module, "is_settled", lambda trial, _fewest: trial.n >= 4)
    differ = lambda _, after: SimpleNamespace(status="differ" if "other" in after else "same")  # noqa: E731
    monkeypatch.setattr(module, "agreement", differ)
    return texts


class MadeUp(NamedTuple):
    n: int
    n_runs: int
    firsts: tuple[str, ...]

    @property
    def ratio(self):
        return SimpleNamespace(low=0.5, value=0.7)


def run(copy, *entrants: Entrant, left_s: float = 60.0) -> None:
    race(
        copy,
        entrants,
        copy.root.parent / "out",
        steps=5,
        deadline_s=time.monotonic() + left_s,
        progress=lambda *_: None,
    )


def test_all_run_in_turns_until_settled_and_the_copy_is_as_before(copy, ran):
    fast, faster = Entrant({"a.py": b"fast"}), Entrant({"a.py": b"faster"})
    run(copy, fast, faster)
    assert ran[:6] == ["slow", "fast", "faster", "faster", "fast", "slow"]
    assert fast.trial == faster.trial == (4, 4, ("before", "after", "before", "after"))
    assert len(ran) == 12
    assert (copy.root / "a.py").read_text() == "slow"


def test_what_fails_or_computes_something_else_is_out_and_the_others_go_on(copy, ran):
    broken, other, fast = (Entrant({"a.py": text}) for text in (b"broken", b"other", b"fast"))
    run(copy, broken, other, fast)
    assert "exit code 1" in broken.error
    assert broken.trial is None
    assert other.over
    assert (ran.count("broken"), ran.count("other"), ran.count("fast")) == (1, 3, 4)


def test_who_has_left_a_race_that_is_interrupted_is_known(copy, ran, monkeypatch):
    broken, fast = Entrant({"a.py": b"broken"}), Entrant({"a.py": b"fast"})

    def interrupted(command, out, **options):
        if broken.over:
            raise KeyboardInterrupt
        return made_up(command, out, **options)

    made_up = module.sample
    monkeypatch.setattr(module, "sample", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(copy, broken, fast)
    assert "exit code 1" in broken.error
    assert not fast.over


def test_other_results_stay_on_trial_where_they_are_allowed(copy, ran):
    run(copy, Entrant({"a.py": b"other"}, allow=True))
    assert ran.count("other") == 4


def test_after_the_deadline_three_rounds_are_enough(copy, ran):
    run(copy, Entrant({"a.py": b"fast"}), left_s=-1)
    assert ran.count("fast") == 3


def test_a_short_time_is_for_the_better_half(copy, ran, monkeypatch):
    monkeypatch.setattr(module, "is_settled", lambda *_: False)
    ratios = {1: 0.9, 2: 0.6, 3: 0.8}
    monkeypatch.setattr(module, "_ratio", lambda entrant: ratios[len(entrant.files["a.py"])])
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: len(ran)))
    entrants = [Entrant({"a.py": b"x" * n}) for n in ratios]
    race(copy, entrants, copy.root.parent / "out", steps=5, deadline_s=14, progress=lambda *_: None)
    assert (ran.count("x"), ran.count("xx"), ran.count("xxx")) == (3, 4, 4)


def test_what_never_settles_ends(copy, ran, monkeypatch):
    monkeypatch.setattr(module, "is_settled", lambda *_: False)
    run(copy, Entrant({"a.py": b"fast"}))
    assert ran.count("fast") == MOST_ROUNDS


def test_the_program_as_it_is_must_run(copy, ran):
    (copy.original / "a.py").write_text("broken")
    copy.restore()
    with pytest.raises(UsageError, match="exit code 1"):
        run(copy, Entrant({"a.py": b"fast"}))


def test_what_saves_next_to_nothing_at_best_is_not_measured_to_the_end(copy, ran, monkeypatch):
    monkeypatch.setattr(module, "is_settled", lambda *_: False)
    monkeypatch.setattr(MadeUp, "ratio", SimpleNamespace(low=0.99, value=1.0))
    entrant = Entrant({"a.py": b"fast"})
    run(copy, entrant)
    assert entrant.trial.n == LEAST_PAIRS
