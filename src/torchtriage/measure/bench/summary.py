"""From sessions to the result: one row per setting, comparisons, advice, the verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np

from torchtriage.core.finding import Note
from torchtriage.core.isolate.dynamo_counters import PHASES
from torchtriage.core.machine import Noise, gather_machine, judge_noise, variables
from torchtriage.core.stats.difference import student_quantile
from torchtriage.core.stats.paired_interval import LEAST_PAIRS
from torchtriage.core.stats.quantiles import quantile_interval
from torchtriage.core.stats.share import share_interval
from torchtriage.core.units import NS_PER_MS, format_count, format_ms, ms
from torchtriage.core.version import __version__
from torchtriage.measure.bench.advice import advise, compare, compare_all, is_measured, is_right, listed, times
from torchtriage.measure.bench.measurements import Measurements, WarmSession
from torchtriage.measure.bench.result import (
    BENCH_SCHEMA,
    BenchAdvice,
    BenchResult,
    CompileCost,
    CompilePhase,
    Misses,
    Numerics,
    OtherSize,
    PeakMemory,
    Quantile,
    Setting,
    SettingComparison,
    SettingFailure,
    SettingRow,
    Start,
    Throughput,
)

QUANTILES = (("P50", 0.5), ("P95", 0.95), ("P99", 0.99))

SHOWN = 200
"""Steps of the warm-up curve that are kept."""


def summarise(measured: Measurements) -> BenchResult:
    """Return the result of what has been measured so far."""
    plan = measured.plan
    rows = [_row(measured, setting) for setting in plan.settings]
    noise = judge_noise(measured.uses())
    advice = advise(measured, rows)
    where, _, name = plan.target.rpartition(":")
    machine = {name: value for name, value in gather_machine().fields if name not in ("host", "kernel")}
    return BenchResult(
        schema=BENCH_SCHEMA,
        version=__version__,
        target=f"{Path(where).name if where.endswith('.py') else where}:{name}",
        train=plan.train,
        device=measured.opened["device"],
        verdict=_verdict(measured, rows, advice, noise),
        rows=tuple(rows),
        comparisons=compare_all(measured),
        advice=advice,
        noise=noise,
        n_rounds=len(measured.rounds),
        interleaved=measured.interleaved,
        facts=(*{**measured.opened["facts"], **machine}.items(), *sorted(variables().items())),
        notes=tuple(_notes(measured, rows, noise)),
    )


def _row(measured: Measurements, setting: Setting) -> SettingRow:
    cold = measured.cold.get(setting.key, {})
    raws = measured.raw(setting)
    sessions = measured.sessions(setting)
    failed = measured.failure(setting)
    arrays = [session.values for session in sessions]
    steady = [session.steady.begin for session in sessions if session.steady.begin is not None]
    started = _start([cold]) if "warm_up" in cold else None
    again = [raw for raw in raws if "cold" not in raw]
    restarted = _start(again) if again else None
    step_ns = float(np.exp(np.mean([np.log(np.median(array)) for array in arrays]))) if arrays else 0.0
    eager = _eager_beside(measured.plan.settings, setting)
    against = compare(measured, setting, eager) if eager not in (None, setting) else None
    pays = _pays(setting, against, cold)
    break_even: list[int | None] = [None, None]
    if eager is not None and pays == "after":
        warm = [raw for raw in measured.raw(eager) if "cold" not in raw]
        eagers = ([measured.cold.get(eager.key, {})], warm)
        break_even = [
            _break_even(start, against, raws, step_ns) for start, raws in zip((started, restarted), eagers, strict=True)
        ]
    return SettingRow(
        setting=setting,
        label=setting.name,
        dtype=cold.get("open", {}).get("dtype", ""),
        failure=SettingFailure(**failed) if failed else None,
        cold=started,
        warm=restarted,
        compilation=_compilation(cold, again),
        warm_up_ms=_curve(cold, sessions),
        steady_from=round(median(steady)) if 2 * len(steady) > len(sessions) else None,
        n_steady=len(steady),
        n_sessions=len(sessions),
        n_steps=sum(map(len, arrays)),
        quantiles=tuple(_quantile(name, q, arrays) for name, q in QUANTILES) if arrays else (),
        throughput=_throughput(measured, setting) if arrays else None,
        device_ms=_device_ms(raws),
        misses=_misses(measured.plan.deadline_ms, arrays),
        memory=_memory(raws) if raws else None,
        numerics=_numerics(cold),
        pays=pays,
        break_even_cold=break_even[0],
        break_even_warm=break_even[1],
        sessions_ms=tuple(ms(float(np.median(array))) for array in arrays),
    )


def _start(raws: Sequence[dict[str, Any]]) -> Start:
    costs = []
    for raw in raws:
        times = [raw["first"]["ns"], *raw["warm_up"]]
        level = median(times[-max(len(times) // 3, 1) :])
        # from the first step that is no longer than steady ones scatter, nothing is added
        slow = [time_ns - level for time_ns in times if time_ns > 1.5 * level]
        costs.append(sum(slow) / 1e9)
    return Start(
        n=len(raws),
        import_s=round(median(raw["open"]["import_s"] for raw in raws), 4),
        build_s=round(median(raw["open"]["build_s"] for raw in raws), 4),
        first_call_s=round(median(raw["first"]["ns"] for raw in raws) / 1e9, 6),
        cost_s=round(median(costs), 6),
    )


def _compilation(cold: dict[str, Any], raws: Sequence[dict[str, Any]]) -> CompileCost | None:
    first = cold.get("first", {}).get("compiling")
    if first is None:
        return None
    later = [cold["finish"]["compiling"]] if "finish" in cold else [first]
    later += [raw["finish"]["compiling"] for raw in raws if "finish" in raw]
    other = cold.get("other")
    warm = [raw["first"]["compiling"]["phases"] for raw in raws if "first" in raw]
    return CompileCost(
        graphs=max(counts["graphs"] for counts in later),
        graph_breaks=first["graph_breaks"],
        recompiles=max(counts["recompiles"] for counts in later),
        reasons=tuple((text, n) for text, n in first["reasons"]),
        phases=tuple(
            CompilePhase(
                name,
                round(first["phases"].get(name, 0.0), 6),
                round(median(phases.get(name, 0.0) for phases in warm), 6) if warm else None,
            )
            for name in PHASES
        ),
        other_size=OtherSize(other["batch_size"], round(other["ns"] / 1e9, 6), other["recompiles"])
        if other is not None
        else None,
    )


def _curve(cold: dict[str, Any], sessions: Sequence[WarmSession]) -> tuple[float, ...]:
    if sessions:
        session = sessions[0]
        times = np.concatenate([session.warm_up_ns, *session.blocks])[:SHOWN].tolist()
    else:
        times = [cold["first"]["ns"], *cold.get("warm_up", [])] if "first" in cold else []
    return tuple(ms(value) for value in times[:SHOWN])


def _quantile(name: str, q: float, arrays: Sequence[Any]) -> Quantile:
    try:
        value, low, high = quantile_interval(list(arrays), q)
    except ValueError as error:
        return Quantile(name, None, None, None, str(error))
    known = len(arrays) >= LEAST_PAIRS
    return Quantile(name, ms(value), ms(low) if known else None, ms(high) if known else None)


def _throughput(measured: Measurements, setting: Setting) -> Throughput:
    """Return what steps back to back reach: the geometric mean over sessions."""
    means_ns = measured.step_means(setting)
    logs = np.log([1e9 * (setting.batch_size or 1) / mean for mean in means_ns.values()])
    value = float(np.exp(logs.mean()))
    low = high = None
    if len(logs) >= LEAST_PAIRS:
        reach = student_quantile(0.975, len(logs) - 1) * float(logs.std(ddof=1)) / len(logs) ** 0.5
        low, high = (round(value * math.exp(ends), 6) for ends in (-reach, reach))
    unit = "samples/s" if setting.batch_size else "steps/s"
    return Throughput(unit, round(value, 6), low, high)


def _device_ms(raws: Sequence[dict[str, Any]]) -> float | None:
    means = [block["device_ns"] / len(block["ns"]) for raw in raws for block in raw["blocks"] if "device_ns" in block]
    return ms(median(means)) if means else None


def _misses(deadline_ms: float | None, arrays: Sequence[Any]) -> Misses | None:
    if deadline_ms is None or not arrays:
        return None
    sizes = np.array([len(array) for array in arrays])
    counts = np.array([(array > deadline_ms * NS_PER_MS).sum() for array in arrays])
    total, missed = int(sizes.sum()), int(counts.sum())
    share = missed / total
    if len(arrays) < LEAST_PAIRS:
        return Misses(deadline_ms, missed, total, round(share, 6), None, None)
    low, high = share_interval(counts, sizes)
    return Misses(deadline_ms, missed, total, round(share, 6), round(low, 6), round(high, 6))


def _memory(raws: Sequence[dict[str, Any]]) -> PeakMemory:
    memories = [raw["finish"]["memory"] for raw in raws]
    return PeakMemory(
        host_peak_bytes=_most(raw.get("peak") for raw in raws),
        host_steady_bytes=_most(memory.get("host_now_peak_bytes") for memory in memories),
        device_peak_bytes=_most(memory.get("device_peak_bytes") for memory in memories),
        device_reserved_bytes=_most(memory.get("device_reserved_bytes") for memory in memories),
    )


def _most(values: Any) -> int | None:
    return max((int(value) for value in values if value is not None), default=None)


def _numerics(cold: dict[str, Any]) -> Numerics | None:
    failed = cold.get("failure")
    if failed is not None and failed["stage"] == "numerics":
        return Numerics("not checked", "", "", None, None, None, None, None, "", None, failed["message"])
    found = cold.get("numerics")
    if found is None:
        return None
    fields = ("error", "eager_error", "low_error", "worst", "eager_worst", "cosine")
    return Numerics(
        verdict=found["verdict"],
        of=found["of"],
        reference=found.get("reference", ""),
        worst_at=found.get("worst_at", ""),
        reason=found.get("reason", ""),
        **{name: found.get(name) for name in fields},
    )


def _pays(
    setting: Setting, against: SettingComparison | None, cold: dict[str, Any]
) -> Literal["after", "never", "not told"]:
    """Return whether a setting wins back its start.

    A gap that does not count saves nothing; of wrong answers there is nothing to say.
    """
    if setting.mode == "eager":
        return "after"
    if against is None or not against.resolved or cold.get("numerics", {}).get("verdict") == "wrong":
        return "not told"
    return "never" if against.tie or against.faster != setting.name else "after"


def _break_even(
    start: Start | None, against: SettingComparison | None, eager: Sequence[dict[str, Any]], step_ns: float
) -> int | None:
    """Return after how many calls a faster setting has paid for its start; 0 for eager itself."""
    if start is None or not step_ns:
        return None
    if against is None:
        return 0
    if not eager or not all("warm_up" in raw for raw in eager):
        return None
    saved_s = step_ns * (against.ratio - 1) / 1e9
    return max(math.ceil((start.cost_s - _start(eager).cost_s) / saved_s), 1)


def _eager_beside(settings: Sequence[Setting], setting: Setting) -> Setting | None:
    same = (setting.batch_size, setting.dtype)
    of_same = (setting for setting in settings if (setting.batch_size, setting.dtype) == same)
    return next((setting for setting in of_same if setting.mode == "eager"), None)


def _verdict(
    measured: Measurements, rows: Sequence[SettingRow], advice: Sequence[BenchAdvice], noise: Noise
) -> tuple[str, str, str]:
    latency = next((choice for choice in advice if choice.need == "latency"), None)
    chosen = next((row for row in rows if latency and row.label == latency.setting), None)
    if latency is None or chosen is None:
        return ("Nothing could be measured.", _failures(rows), _answers(rows))
    busy = "The machine was noisy." if noise.status == "noisy" else ""
    rest = " ".join(filter(None, [_answers(rows), _failures(rows), busy]))
    return (_first(measured, rows, chosen), _costs(chosen), rest)


def _first(measured: Measurements, rows: Sequence[SettingRow], chosen: SettingRow) -> str:
    p50 = chosen.quantile("P50")
    at = f" at batch {chosen.setting.batch_size}" if chosen.setting.batch_size else ""
    took = f"{format_ms(p50)} per step{at}" if p50 is not None else "no P50"
    if chosen.setting.mode == "eager":
        return _stay(measured, rows, chosen, took)
    eager = _eager_beside(measured.plan.settings, chosen.setting)
    found = compare(measured, chosen.setting, eager) if eager is not None else None
    way = chosen.setting.way
    if found is None or found.tie:
        return f"Use {way}: {took}."
    calls = chosen.break_even_cold
    after = f" after {format_count(calls, 'call')}" if calls is not None else ""
    return f"Use {way}: {took}, {times(found)} as fast as eager{after}."


def _stay(measured: Measurements, rows: Sequence[SettingRow], eager: SettingRow, took: str) -> str:
    """Return why eager: of what has the same batch size and right answers nothing is faster."""
    size = eager.setting.batch_size
    same = [row for row in rows if is_measured(row) and row.setting.batch_size == size]
    pairs = [compare(measured, eager.setting, row.setting) for row in same if row is not eager and is_right(row)]
    left = {row.numerics.verdict for row in same if row.numerics and not is_right(row)}
    which = " with right answers" if "wrong" in left else " as precise" if left else ""
    if not pairs:
        only = {"": "", " as precise": ", and nothing else is as precise"}
        return f"Stay with eager: {took}{only.get(which, ', and nothing else has right answers')}."
    if all(pair is not None and pair.resolved and (pair.tie or pair.faster == eager.setting.name) for pair in pairs):
        return f"Stay with eager: {took}, and nothing{which} is faster by 5 %."
    return f"Stay with eager for now: {took}; whether anything{which} is faster was not resolved."


def _costs(chosen: SettingRow) -> str:
    if chosen.setting.mode == "eager" or chosen.cold is None:
        return "It compiles nothing."
    text = f"Its first call takes {format_ms(chosen.cold.first_call_s * 1e3)} with empty caches"
    if chosen.warm is not None:
        text += f", {format_ms(chosen.warm.first_call_s * 1e3)} with warm ones"
        if chosen.break_even_warm is not None:
            text += f", which is paid for after {format_count(chosen.break_even_warm, 'call')}"
    return f"{text}."


def _answers(rows: Sequence[SettingRow]) -> str:
    by: dict[str, list[str]] = {}
    for row in rows:
        if row.numerics is not None and (row.setting.mode != "eager" or not is_right(row)):
            by.setdefault(row.numerics.verdict, []).append(row.label)
    if by and set(by) <= {"exact", "rounding"}:
        return "All answers agree with eager's up to rounding."
    names = {"wrong": "WRONG answers", "lower precision": "Lower precision", "not checked": "Answers not checked"}
    return " ".join(f"{name}: {listed(by[verdict])}." for verdict, name in names.items() if verdict in by)


def _failures(rows: Sequence[SettingRow]) -> str:
    failed = [row for row in rows if row.failure is not None]
    if not failed:
        return ""
    return f"{len(failed)} of {len(rows)} failed: {listed(row.label for row in failed)}."


def _notes(measured: Measurements, rows: Sequence[SettingRow], noise: Noise) -> list[Note]:
    notes = []
    if noise.status != "quiet":
        fix = "stop other programs, or measure elsewhere" if noise.status == "noisy" else ""
        level: Any = "warn" if noise.status == "noisy" else "info"
        notes.append(Note("noise", level, f"The machine while measuring: {noise}.", fix))
    shaky = [row.label for row in rows if row.n_sessions and 2 * row.n_steady <= row.n_sessions]
    if shaky:
        notes.append(
            Note(
                "not-steady",
                "warn",
                f"No steady state in most sessions of {listed(shaky)}: their"
                " numbers cover all steps after the warm-up.",
                f"--warm-up {measured.plan.warm_up_s * 4:g} gives them more time",
            )
        )
    compared = compare_all(measured)
    if any(comparison.low is None for comparison in compared):
        notes.append(
            Note(
                "few-rounds",
                "info",
                f"{format_count(len(measured.rounds), 'round')} of each setting:"
                f" nothing is compared with fewer than {LEAST_PAIRS}.",
                "--rounds 5",
            )
        )
    unresolved = [pair for pair in compared if pair.tie and not pair.resolved and pair.low is not None]
    if unresolved:
        pairs = ", ".join(f"{listed([pair.faster])} and {listed([pair.slower])}" for pair in unresolved[:3])
        notes.append(
            Note(
                "not-resolved",
                "info",
                f"{format_count(len(unresolved), 'pair')} called a tie because the gap is not resolved: {pairs}.",
                "more rounds: --max-rounds, on a quiet machine",
            )
        )
    refused = {quantile.refused for row in rows for quantile in row.quantiles if quantile.refused}
    if refused:
        notes.append(Note("tails", "info", f"Tails refused: {sorted(refused)[0]}.", "--steps 100 gives P99"))
    if not measured.interleaved:
        notes.append(
            Note(
                "one-by-one", "info", "Settings ran one by one within a round: together they would not fit into memory."
            )
        )
    return notes
