"""Running routes in sessions that answer from here: no torch_xla."""

from __future__ import annotations

from typing import Any

import pytest

from torchtriage.compile.xla import run
from torchtriage.core.errors import UsageError
from torchtriage.core.isolate.session_client import SessionError

METRICS = ("CompileTime", "ExecuteTime", "TransferToDeviceTime", "TransferFromDeviceTime")
COUNTS = {name: [1, 1e6] for name in (*METRICS, "InboundData", "OutboundData")}
WRITTEN = {"debug": 0, "saved": 0}
ANSWERS: dict[str, Any] = {
    "start": {"facts": {}},
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


def test_a_route_that_fails_when_first_timed_has_its_counts_and_the_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "session", lambda *_: Session())
    plan = run.XlaPlan(("m:f",), steps=1)
    with pytest.raises(UsageError, match="crashed while timing: it died"):
        run.measure(plan)
    model, _ = run._measure(plan, "m:f", False, lambda *_: None)
    assert {route.name: (len(route.steps), route.times) for route in model.routes} == {
        "eager": (0, None),
        "lazy": (1, None),
        "openxla": (1, None),
    }
