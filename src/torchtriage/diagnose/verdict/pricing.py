"""What a finding costs: replayed where the model of the run can be trusted, else arithmetic.

Replay asks what the step would have been without what the claim points at, so it sees that a wait hidden behind device
work is free and that a shorter kernel frees nothing while the host is late. A profiler that slows the host hides what
the device could save, and adds to what the host could: both are also asked of a host as fast as it is without.
Ownership bounds it: no finding gets more than the time it owns, so findings never promise more than the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.finding import Cost, Finding, Note
from torchtriage.core.intervals import Spans
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.device import UNKNOWN
from torchtriage.core.units import format_share, ms
from torchtriage.diagnose.calibration import calibrated, margins, step_noise, widened
from torchtriage.diagnose.patterns import Claim, Edit
from torchtriage.diagnose.replay import ReplayModel, ReplayPrediction, WhatIf, model
from torchtriage.diagnose.verdict.result import Answer, Replay
from torchtriage.diagnose.verdict.time_ownership import Share

Grade = Literal["A", "B", "C"]
Basis = Literal["measured", "modelled", "bounded"]

_GRADES: dict[str, Grade] = {"measured": "A", "modelled": "B", "bounded": "C"}
SURE_STRICT, SURE_UNEXPLAINED, SURE_PINNED = 0.01, 0.01, 0.05
"""Within these the replay repeats the run from its causes (90 % of real recordings)."""
HIDDEN = 0.5
"""A fix that wins less than this part of the time it points at: other work bounds the step."""
SURE_UNHIDDEN = 0.5
"""The part that counts for sure of what shorter device work saves without the profiler's cost, which is an estimate."""
SLOWED_NS = 10_000
"""How long after its begin an event is slowed by being recorded: what is farther away (NumPy, sleep, input) is not.
Device-bound steps of recordings with shapes and stacks on an H200 come out at 1.0-1.4 times those without a profiler;
as recorded they take up to 2.2 times as long."""
PIECE = 1 << 14
SURE_INFERRED, HALF_INFERRED = 0.10, 0.50
"""Share of a saving that rests on edges inferred from coinciding times."""


@dataclass(eq=False)
class Pricing:
    """Costs of the claims of one trace.

    ``notes`` : facts about the recording. ``replayed`` : the model, None when it is refused.
    """

    trace: Trace
    notes: tuple[Note, ...]
    facts: Replay
    replayed: ReplayModel | None

    @classmethod
    def of(cls, trace: Trace, notes: tuple[Note, ...], step_ms: float | None = None) -> Pricing:
        """Build the model of a trace and judge it."""
        built = model(trace, step_ms=step_ms)
        quality = built.quality
        if step_ms is not None:
            # nothing but the profiler's own cost can be taken away
            step_ms = ms(built.step_ns) if quality.accepted else None
        facts = Replay(
            quality.accepted,
            quality.reason,
            round(quality.strict_error, 6),
            round(quality.unexplained, 6),
            round(quality.pinned, 6),
            quality.n_nodes,
            quality.n_edges,
            step_ms,
        )
        return cls(trace, notes, facts, built if quality.accepted else None)

    @property
    def wall_ns(self) -> float:
        """Wall time of a step, the denominator of all costs: the unprofiled one where given."""
        if self.replayed is not None and self.facts.unprofiled_step_ms is not None:
            return max(self.replayed.step_ns, 1.0)
        return max(self.trace.steps.wall_ns, 1)

    def predict(self, claims: Sequence[Claim]) -> list[ReplayPrediction | None]:
        """Return what each claim's edits save on their own, None where replay cannot say."""
        out: list[ReplayPrediction | None] = [None] * len(claims)
        if self.replayed is None:
            return out
        asked = [
            index
            for index, claim in enumerate(claims)
            if claim.edits and claim.time_class != "none" and len(claim.spans)
        ]
        found = self.replayed.predict_many([claims[index].edits for index in asked])
        for index, prediction in zip(asked, found, strict=True):
            out[index] = prediction
        self._without_profiler(claims, out)
        return out

    def _without_profiler(self, claims: Sequence[Claim], out: list[ReplayPrediction | None]) -> None:
        """Ask predictions again of a host that the profiler does not slow.

        Work of the device alone may save more there, and idle time surely saves no more than there.
        """
        assert self.replayed is not None
        # where the step without the profiler is known, the model's own steps are as long
        known = self.facts.unprofiled_step_ms is not None
        fast = [] if known else [Edit("threads", factor=1 / self.trace.origin.inflation, spans=self._near_events)]
        replayed = [index for index, replay in enumerate(out) if replay is not None]
        idle = [index for index in replayed if claims[index].time_class == "idle" and not known]
        alone = [index for index in replayed if index not in idle and self._on_device(claims[index].edits)]
        sets = [
            fast,
            *([*(replace(edit, best=None) for edit in claims[index].edits), *fast] for index in (*idle, *alone)),
            *([*(self._at_best(edit, everywhere=known) for edit in claims[index].edits), *fast] for index in alone),
        ]
        if len(sets) == 1:
            return
        base, *savings = self.replayed.savings(sets)
        for place, index in enumerate((*idle, *alone)):
            prediction, low = out[index], savings[place] - base
            assert prediction is not None
            if place < len(idle):
                low, high = min(prediction.low_ns, low), prediction.high_ns
            else:
                high = max(prediction.high_ns, savings[place + len(alone)] - base)
                # what goes with its operator may have been slow on the host as recorded, too: only more is possible
                dropped = any(edit.kind == "drop" for edit in claims[index].edits)
                low = prediction.low_ns if dropped else max(prediction.low_ns, SURE_UNHIDDEN * low)
                high = max(high, low)
            out[index] = replace(
                prediction, low_ns=low, high_ns=high, saving_ns=min(max(prediction.saving_ns, low), high)
            )

    def _at_best(self, edit: Edit, *, everywhere: bool) -> Edit:
        """Return the hopeful edit, else of the judged steps: taking the backlog they begin with would lengthen them."""
        steps = self.trace.steps
        mine = steps.in_steady(steps.of_work(edit.rows)) | everywhere
        return replace(edit, rows=edit.rows[mine], factor=edit.remains(hopeful=True)[mine], best=None)

    @cached_property
    def _near_events(self) -> Spans:
        events, near = self.trace.is_kind(Kind.OP, Kind.PYTHON, Kind.RUNTIME), [intervals.EMPTY]
        # piece by piece: of all events at once the spans take more memory than the trace
        for first in range(0, len(events), PIECE):
            start = self.trace.start_ns[first : first + PIECE][events[first : first + PIECE]]
            near.append(intervals.union(intervals.spans(start, start + SLOWED_NS)))
        return intervals.union(np.concatenate(near))

    def _on_device(self, edits: Sequence[Edit]) -> bool:
        return all(
            edit.kind == "drop" or (edit.kind == "shrink" and self.trace.works[edit.rows].all()) for edit in edits
        )

    def cost(self, share: Share, prediction: ReplayPrediction | None) -> Cost | None:
        """Return what a share of the time costs per step; None for a claim on no time."""
        claim = share.claim
        if claim.time_class == "none" or not len(claim.spans):
            return None
        if prediction is None:
            method = claim.method
            if len(self.trace.devices) > 1:
                method = f"{method}; on the busiest device".lstrip("; ")
            low = share.low_ns * (1 - self.unlaunched(share))
            return self._priced(low, share.high_ns, share.naive_ns, claim.basis, method)
        n = self.trace.steps.n_steady
        owned = self._at_most(float(share.owned_ns.sum()) / n) * n
        high = min(max(prediction.high_ns, 0.0) * n, owned)
        low = min(max(prediction.low_ns, 0.0) * n, high)
        cost = self._priced(low, high, share.naive_ns, "modelled", self._method(prediction))
        cost = replace(cost, grade=self._grade(prediction, low, high))
        return calibrated(cost, "replay", self.noise, most_ms=share.most_ns / n / 1e6)

    def _at_most(self, took_ns: float) -> float:
        """Return what can go of a step at most where this much was recorded.

        Without the profiler the rest of a step took less than was recorded, but not less than the slow-down explains:
        the usual one, or that of the whole step where it is known to be more.
        """
        recorded = self.trace.steps.wall_ns
        slower = max(self.trace.origin.inflation, recorded / self.wall_ns if self.wall_ns else 1.0)
        rest = max(recorded - took_ns, 0.0) / slower
        return min(took_ns, max(self.wall_ns - rest, 0.0))

    @cached_property
    def noise(self) -> float:
        """How far two such recordings' steps lie apart by chance, as a share of the step."""
        return step_noise(self.trace)

    def hides(self, share: Share, prediction: ReplayPrediction | None) -> bool:
        """Return whether replay finds less than half of what the share's time suggests."""
        if prediction is None or not share.high_ns:
            return False
        high = share.high_ns / self.trace.steps.n_steady
        return bool(prediction.high_ns < HIDDEN * high)

    def joint(self, findings: Sequence[Finding], claims: Sequence[Claim]) -> Cost | None:
        """Return what all findings give back together: one replay, plus what it cannot say."""
        costs = [finding.cost for finding in findings if finding.cost is not None and finding.cost.high_ms > 0]
        if not costs:
            return None
        n = self.trace.steps.n_steady
        lows = sum(cost.low_ms for cost in costs) * 1e6 * n
        highs = sum(cost.high_ms for cost in costs) * 1e6 * n
        naive = sum(cost.naive_ms for cost in costs) * 1e6 * n
        method = "sum over findings that share no millisecond"
        edits = [edit for claim in claims for edit in claim.edits]
        if self.replayed is None or not edits:
            return self._priced(lows, highs, naive, "bounded", method)
        other = [finding.cost for finding in findings if finding.cost and finding.cost.together_ms is None]
        together = self.replayed.predict(edits)
        rest_low = sum(cost.low_ms for cost in other) * 1e6 * n
        rest_high = sum(cost.high_ms for cost in other) * 1e6 * n
        high = max(together.high_ns, 0.0) * n + rest_high
        low = max(together.low_ns, 0.0) * n + rest_low
        cost = self._priced(low, high, naive, "modelled", "one replay with all fixes")
        cost = replace(cost, grade=self._grade(together, low, high))
        cost = calibrated(cost, "replay", self.noise, most_ms=cost.naive_ms)
        # all of them give no less than any, and no more than each adds
        low, high = (
            min(max(getattr(each, end) for each in (cost, *costs)) * 1e6 * n, highs) for end in ("low_ms", "high_ms")
        )
        most = self._priced(low, high, naive, "modelled", "")
        return replace(cost, **{name: getattr(most, name) for name in ("low_ms", "high_ms", "share_low", "share_high")})

    def together(self, findings: Sequence[Finding], claims: Sequence[Claim]) -> list[Finding]:
        """Return the findings with the saving of each one and all above it, in this order."""
        asked = [
            index
            for index, (finding, claim) in enumerate(zip(findings, claims, strict=True))
            if finding.cost is not None and finding.cost.high_ms > 0 and claim.edits
        ]
        out = list(findings)
        if self.replayed is None or not asked:
            return out
        savings = self.replayed.cumulative([claims[index].edits for index in asked])
        for index, saving in zip(asked, savings, strict=True):
            cost = out[index].cost
            assert cost is not None
            out[index] = replace(out[index], cost=replace(cost, together_ms=ms(max(saving, 0.0))))
        return out

    def unlaunched(self, share: Share) -> float:
        """Return how much of an idle share is before work without a recorded launch (0-1); its cause is not known."""
        if share.claim.time_class != "idle" or not self.trace.devices:
            return 0.0
        gaps = self.trace.devices[0].gaps
        unknown = intervals.intersect(share.taken, gaps.spans[gaps.blame == UNKNOWN])
        return intervals.length(unknown) / max(intervals.length(share.taken), 1)

    def _method(self, prediction: ReplayPrediction) -> str:
        n_devices = len(self.trace.devices)
        parts = ["replay with the fix"]
        if n_devices > 1:
            parts.append(f"on all {n_devices} devices, capped by the busiest one's lost time")
        else:
            parts.append("capped by the time this finding owns")
        if prediction.inferred_share >= SURE_INFERRED:
            share = format_share(prediction.inferred_share)
            parts.append(f"{share} of it rests on inferred dependencies")
        return ", ".join(parts)

    def _grade(self, prediction: ReplayPrediction, low_ns: float, high_ns: float) -> Grade:
        facts = self.facts
        sure = (
            abs(facts.strict_error) <= SURE_STRICT
            and facts.unexplained <= SURE_UNEXPLAINED
            and facts.pinned <= SURE_PINNED
            and 2 * low_ns >= high_ns
        )
        if sure and prediction.inferred_share <= SURE_INFERRED:
            return "A"
        return "B" if prediction.inferred_share <= HALF_INFERRED else "C"

    def _priced(self, low_ns: float, high_ns: float, naive_ns: float, basis: Basis, method: str) -> Cost:
        steps, wall = self.trace.steps, self.wall_ns
        n = steps.n_steady
        # per step is an average over the judged steps, and never more than the step itself
        low, high = min(low_ns / n, wall), min(high_ns / n, wall)
        return Cost.of(
            *(ns / 1e6 for ns in (low, high, wall, naive_ns / n)),
            per="step" if len(steps) else "window",
            basis=basis,
            method=method or "time owned by this finding, each millisecond counted once",
            grade=_GRADES[basis],
        )


def answers(pricing: Pricing, questions: Sequence[WhatIf]) -> tuple[Answer, ...]:
    """Return what each question would change in the step."""
    trace = pricing.trace
    per: Literal["step", "window"] = "step" if len(trace.steps) else "window"
    replayed, wall = pricing.replayed, ms(pricing.wall_ns)
    if replayed is None or not questions:
        return tuple(Answer(question.text, per, wall, reason=pricing.facts.reason) for question in questions)
    edits = [question.edits(trace) for question in questions]
    asked = [index for index, some in enumerate(edits) if some]
    found = dict(zip(asked, replayed.predict_many([edits[i] for i in asked]), strict=True))
    out = []
    for index, question in enumerate(questions):
        prediction = found.get(index)
        if prediction is None:
            out.append(Answer(question.text, per, wall, reason="nothing in the recording is that"))
            continue
        shares = prediction.low_ns / pricing.wall_ns, prediction.high_ns / pricing.wall_ns
        low, high = widened(*shares, margins("replay"), pricing.noise)
        # no more than the time taken away, unless the model itself finds more
        high = min(high, max(prediction.naive_ns, prediction.high_ns) / pricing.wall_ns)
        out.append(
            Answer(
                question.text,
                per,
                wall,
                after_ms=ms(replayed.step_ns - prediction.saving_ns),
                saving_ms=ms(prediction.saving_ns),
                low_ms=ms(low * pricing.wall_ns),
                high_ms=ms(high * pricing.wall_ns),
                naive_ms=ms(prediction.naive_ns),
            )
        )
    return tuple(out)
