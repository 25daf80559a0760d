"""Where a rollout stands and what happened to it, as one result for every report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from torchtriage.core.database import undamaged
from torchtriage.core.finding import Note
from torchtriage.core.units import format_count
from torchtriage.operate.rollout.result import RolloutEvent, RolloutResult, Stage
from torchtriage.operate.rollout.state import RolloutState
from torchtriage.operate.rollout.store import LEASE_S, RolloutStore, boot_id, boot_seconds


def percent(share: float) -> str:
    """Return a planned share as people write it: ``5 %``, ``0.5 %``."""
    return f"{100 * share:g} %"


def summary(store: RolloutStore, name: str) -> RolloutResult:
    """Return what the store knows of a rollout; raises what :meth:`RolloutStore.read` does."""
    stored = store.read(name)
    events = store.history(name)
    state = stored.state
    plan = state.plan
    watched = stored.is_held(*store.clock(boot_id(), boot_seconds()))
    recorded = [text for _, text in store.published(name, state.epoch).values()]
    return RolloutResult(
        name=name,
        status=state.status,
        share=state.share,
        verdict=tuple(_verdict(state, events)),
        control=plan.control,
        candidate=plan.candidate,
        stages=tuple(_stages(state)),
        waiting=state.waiting,
        owner=stored.owner if watched else "",
        watched_s=state.watched_s,
        events=events,
        rows=stored.rows or (events[-1].rows if events and state.status == "rolled back" else ()),
        notes=tuple(_notes(state, watched, recorded)),
    )


def _verdict(state: RolloutState, events: tuple[RolloutEvent, ...]) -> list[str]:
    plan = state.plan
    if state.status == "rolled back":
        share = events[-1].share_before if events else 0
        at = f" at {percent(share)}" if share else ""
        return [f"Rolled back{at}: {plan.candidate} gets no requests", state.waiting]
    if state.status == "done":
        return [f"Done: {plan.candidate} answers all requests"]
    step = f"step {state.stage + 1} of {format_count(len(plan.steps))}"
    lines = [f"Running: {percent(state.share)} of requests go to {plan.candidate}, {step}"]
    return [*lines, f"waiting: {state.waiting}"] if state.waiting else lines


def _stages(state: RolloutState) -> list[Stage]:
    current: Literal["passed", "now", "left"] = "left"
    if state.status != "rolled back":
        current = "passed" if state.status == "done" else "now"
    return [
        Stage(share, "passed" if index < state.stage else "ahead" if index > state.stage else current)
        for index, share in enumerate(state.plan.steps)
    ]


def _notes(state: RolloutState, watched: bool, recorded: Sequence[str]) -> list[Note]:
    if state.status != "running":
        return []
    notes = []
    if not watched:
        message = (
            f"no process has polled for {LEASE_S:g} s: nothing is promoted, and a process that does"
            " not poll sends nothing to the candidate"
        )
        notes.append(Note("unwatched", "warn", message, "Rollout(plan).run() in the service"))
    if state.share == 1:
        message = "the control gets no more requests: only alarms can roll this step back"
        notes.append(Note("alone", "info", message))
    with undamaged(state.plan.name, "what a process recorded"):
        found = [experiment for text in recorded if (experiment := msgspec.json.decode(text)["experiment"])]
        if any(sum(each["n"]) for each in found) and not any(any(each["places"]) for each in found):
            message = "the split is not checked: no request was recorded with its id"
            fix = "record(ticket, ...) with what assign returned, or record((arm, epoch), id=..., ...)"
            notes.append(Note("split", "warn", message, fix))
    return notes
