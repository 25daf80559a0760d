"""Running routes in sessions that answer from here: no torch_xla."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from torchtriage.compile.xla import run
from torchtriage.compile.xla.verdict import judge
from torchtriage.core.errors import UsageError
from torchtriage.core.isolate.session_client import SessionError

METRICS = ("CompileTime", "ExecuteTime", "TransferToDeviceTime", "TransferFromDeviceTime")
COUNTS = {name: [1, 1e6] for name in (*METRICS, "InboundData", "OutboundData")}
WRITTEN = {"debug": 0, "saved": 0}
ANSWERS: dict[str, Any] = {
    "start": {"facts": {"PJRT device": "CPU"}},
    "written": WRITTEN,
    "step": {"written": WRITTEN, "counts": COUNTS, "fallbacks": {}, "compiles": []},
    "answers": {"verdict": "same"},
    "graphs": [],
}


class Session:
    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None: ...

    def ask(self, command: str, _: float, **_more: Any) -> Any:
        if command not in ANSWERS:
            raise SessionError("crash", "it died", 1.0)
        return ANSWERS[command]


class Forks:
    start = None

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture(autouse=True)
def sessions_from_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "session", lambda *_: Session())
    monkeypatch.setattr(run, "fork_server", lambda *_: Forks())


def test_a_route_that_fails_when_first_timed_has_its_counts_and_the_failure() -> None:
    plan = run.XlaPlan(("m:f",), steps=1)
    with pytest.raises(UsageError, match="crashed while timing: it died"):
        run.measure(plan)
    model, _ = run._measure(plan, None, "m:f", False, 0.0, lambda *_: None)
    assert {route.name: (len(route.steps), route.times) for route in model.routes} == {
        "eager": (0, None),
        "lazy": (1, None),
        "openxla": (1, None),
    }


def test_what_is_not_decided_names_what_would(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_ns = itertools.cycle([1e6, 3e6, 2e6])
    monkeypatch.setitem(ANSWERS, "first_counted", {"ns": 10**6, "compiled": 1})
    monkeypatch.setitem(ANSWERS, "warm_up", [10**6] * 5)

    class Timed(Session):
        def ask(self, command: str, _: float, **more: Any) -> Any:
            if command == "block":
                return {"ns": [next(steps_ns)] * 1000}
            return super().ask(command, _, **more)

    monkeypatch.setattr(run, "session", lambda *_: Timed())
    for thorough, fix in ((False, "--thorough"), (True, "--rounds 12")):
        (model,), notes = run.measure(run.XlaPlan(("m:f",), steps=1, thorough=thorough, rounds=6))
        assert model.dynamo_over_lazy is not None
        assert model.dynamo_over_lazy.verdict == "undecided"
        (note,) = [one for one in notes if one.code == "not-decided"]
        assert "not decided in 6 rounds: dynamo's step is " in note.message
        assert note.fix == fix
        assert "not decided in 6 rounds" in judge([model]).verdict[2]
        assert ("fork" in dict(model.facts)["sessions"]) != thorough
