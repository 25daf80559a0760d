"""What a benchmark measured as the samples that ``torchtriage gate`` stores and compares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from torchtriage.core.machine import judge_noise
from torchtriage.core.samples import Kind, Run, Series, Session
from torchtriage.core.units import NS_PER_MS
from torchtriage.measure.bench.measurements import Measurements
from torchtriage.measure.bench.result import Setting
from torchtriage.measure.gate.row_verdict import LEAST_SESSIONS
from torchtriage.measure.gate.run import HOST


def samples_of(measured: Measurements, here: Run) -> Run:
    """Return the sessions of all settings that did not fail, by metric.

    ``here`` : a run without samples, which knows the machine, the commit and the time. Sessions of one round carry
    its number: they ran in turns. No series where nothing could be measured.
    """
    facts = {**measured.opened["facts"], "device": str(measured.opened["device"])}
    environment = {**dict(here.environment), **facts, HOST: str(judge_noise(measured.uses()))}
    where, _, name = measured.plan.target.rpartition(":")
    file = where.replace("\\", "/").rpartition("/")[2]
    return replace(
        here,
        benchmark=here.benchmark or f"bench {file}:{name}",
        environment=tuple(sorted(environment.items())),
        series=tuple(
            series
            for setting in measured.plan.settings
            if measured.is_alive(setting)
            for series in _series(measured, setting)
        ),
    )


def _series(measured: Measurements, setting: Setting) -> Iterator[Series]:
    """Yield what was measured of one setting, a session of each round.

    What was measured once or twice, such as the start with empty caches, would hold up every check: of so few
    sessions none can be sure.
    """
    found = [(number, measured.session(setting, number)) for number in sorted(measured.rounds)]
    steps = [
        Session(tuple((session.values / NS_PER_MS).tolist()), round=number - 1)
        for number, session in found
        if session is not None
    ]
    if not steps:
        return
    raws = [(number - 1, measured.rounds[number][setting.key]) for number, session in found if session is not None]

    def series(what: str, unit: str, kind: Kind, sessions: Iterable[Session]) -> Series:
        return Series(f"{setting.name}: {what}", unit, "lower", kind, tuple(sessions))

    yield series("step", "ms", "latency", steps)
    # by what was asked for, not by how many rounds it took: the gate refuses what one side alone has
    if measured.plan.rounds > LEAST_SESSIONS:
        warm = (_single(at, raw["first"]["ns"] / 1e9) for at, raw in raws if "cold" not in raw)
        yield series("first call, caches kept", "s", "compile_time", warm)
    for what, values in (
        ("peak host memory", [raw.get("peak") for _, raw in raws]),
        ("peak device memory", [raw["finish"]["memory"].get("device_peak_bytes") for _, raw in raws]),
    ):
        if all(value is not None for value in values):
            sessions = (_single(at, value) for (at, _), value in zip(raws, values, strict=True))
            yield series(what, "B", "memory", sessions)
    if setting.backend:
        compiled = [(at, raw["finish"]["compiling"]) for at, raw in raws]
        breaks = (_single(at, counts["graph_breaks"]) for at, counts in compiled)
        yield series("graph breaks", "1", "count", breaks)
        again = (_single(at, counts["recompiles"]) for at, counts in compiled)
        yield series("recompilations", "1", "count", again)


def _single(number: int, value: Any) -> Session:
    return Session((float(value),), round=number)
