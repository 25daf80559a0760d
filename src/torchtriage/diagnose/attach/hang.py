"""Why nothing moves: what the flight recorders and the stacks of all ranks say together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torchtriage.core.finding import Note
from torchtriage.diagnose.attach import flight_recorder
from torchtriage.diagnose.attach.flight_recorder import Dump
from torchtriage.diagnose.attach.processes import Thread, grouped, user_call
from torchtriage.diagnose.attach.result import CollectiveWait, HangResult, at_words, ranks_words

MAX_WAITS = 8


def judge(
    target: str,
    dumps: Mapping[int, Dump],
    stacks: Mapping[str, Sequence[Thread]],
    notes: Iterable[Note] = (),
    *,
    ranks: Iterable[int] = (),
) -> HangResult:
    """Return what a job waits for.

    ``stacks`` : by the name of a process, ``rank 0``. ``ranks`` : that the job is known to have.
    """
    waits = flight_recorder.waits(dumps, ranks)
    lines = [_sentence(wait, waits, stacks) for wait in waits[:MAX_WAITS]]
    if not waits and any(dump.records for dump in dumps.values()):
        lines.append("No recorded collective is unfinished.")
    if not waits:
        lines += _places(stacks) or ([] if lines else ["The flight recorders hold no collective."])
    own = list(notes)
    if not dumps and stacks:
        own.append(
            Note(
                "no-flight-recorder",
                "info",
                "no flight recorder was read: which rank is missing in which collective is not checked",
                "start the job with TORCH_FR_BUFFER_SIZE=2000, and pass what it wrote with --dumps",
            )
        )
    return HangResult(target, tuple(lines), waits, grouped(stacks), tuple(own))


def _sentence(wait: CollectiveWait, waits: Iterable[CollectiveWait], stacks: Mapping[str, Sequence[Thread]]) -> str:
    what = f"{wait.op} number {wait.number} of {wait.group}"
    waiting = f"{ranks_words(wait.arrived)} {'wait' if len(wait.arrived) > 1 else 'waits'}{at_words(wait.at)}"
    missing = f"{ranks_words(wait.missing)} never entered" if wait.missing else ""
    who = (*wait.missing[:MAX_WAITS], *(wait.arrived[:1] if wait.at is None else ()))
    doing = [_doing(rank, wait, waits, stacks) for rank in who]
    unknown = f"no record tells about {ranks_words(wait.unknown)}" if wait.unknown else ""
    if wait.kind == "p2p":
        parts = [f"{waiting} in {wait.op} of {wait.group}", *doing]
    elif wait.kind == "mismatch":
        begin = f"the ranks call different things as collective number {wait.number} of {wait.group}"
        parts = [f"{begin}: {'; '.join(wait.calls)}", missing and f"{missing} it", *doing, unknown]
    elif wait.kind == "missing":
        parts = [f"{missing} {what}, in which {waiting}", *doing, unknown]
    elif wait.unknown:
        parts = [f"{what} is not finished: {waiting}", *doing, unknown]
    else:
        parts = [f"{waiting} in {what}, which all have entered and which does not end", *doing]
    return " ".join(f"{part[0].upper()}{part[1:]}." for part in parts if part)


def _doing(
    rank: int, wait: CollectiveWait, waits: Iterable[CollectiveWait], stacks: Mapping[str, Sequence[Thread]]
) -> str:
    for other in waits:
        if other is not wait and rank in other.arrived:
            return f"rank {rank} waits in {other.op} number {other.number} of {other.group}{at_words(other.at)} instead"
    place = _place(stacks.get(f"rank {rank}", ()))
    return f"rank {rank} is{place}" if place else ""


def _places(stacks: Mapping[str, Sequence[Thread]]) -> list[str]:
    """Return where the main threads are, each place once."""
    names: dict[str, list[str]] = {}
    for name, threads in stacks.items():
        names.setdefault(_place(threads), []).append(name)
    return [
        f"{_short(known)} {'is' if len(known) == 1 else 'are'}{place or ' in no Python'}."
        for place, known in sorted(names.items(), key=lambda item: len(item[1]))
    ]


def _short(names: list[str]) -> str:
    rest = len(names) - MAX_WAITS
    words = ", ".join(names[:MAX_WAITS]) + (f" and {rest} more" if rest > 0 else "")
    return f"{words[0].upper()}{words[1:]}"


def _place(threads: Sequence[Thread]) -> str:
    main = next((thread for thread in threads if thread.name == "MainThread"), threads[0] if threads else None)
    if main is None:
        return ""
    at = main.calls.index(call) if (call := user_call(main.calls)) else 0
    called = f", inside {main.calls[0].function}" if at else ""
    return f"{at_words(main.calls[at])} in {main.calls[at].function}{called}"
