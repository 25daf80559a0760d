"""An experiment of two versions: assigns, records, and says when it is certain."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import starmap
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from torchtriage.core.errors import StoreError, UsageError
from torchtriage.core.stats.sequential_ab import SplitCheck
from torchtriage.operate.experiment.metrics import Metric, SequentialTest, Typical, begin, check_metrics
from torchtriage.operate.experiment.result import Arm, Decision, ExperimentResult
from torchtriage.operate.experiment.sentences import notes, sentence, verdict
from torchtriage.operate.experiment.split import Split

MISMATCH = 1e-4  # chance of calling a right split wrong: nothing can be concluded after that
N_REPLICAS = 1000  # names of replicas that are kept per arm
# Ids are kept, so that none is counted twice. Of more than so many of an arm those are kept whose place is a multiple
# of 2, then of 4, and so on: a random part, whoever comes first or more often, and all of an arm that gets few.
N_IDS = 1 << 12
_Every = Annotated[int, msgspec.Meta(ge=1)]


class Arrived(NamedTuple):
    """What was counted of one arm: units without an id, ids that are kept, and how many each of these stands for."""

    n_counted: int
    n_ids: int
    every: int

    @property
    def units(self) -> int:
        """How many arrived, as far as the kept ids tell."""
        return self.n_counted + self.every * self.n_ids


class Experiment:
    """Which of two versions is better, with a look after every request.

    ``name`` : also the salt of the split unless ``salt`` is given.
    ``arms`` : two names and their shares, which add up to 1; the first is the control.
    ``metric`` : what decides, in both directions.
    ``guardrails`` : what must not get worse; the chance of a false alarm is shared between them.
    ``alpha`` : chance that the metric ever decides though there is no difference; again as much for all guardrails
    together.
    ``unit`` : what is assigned, such as a user. Of any other than a request, give its id to :meth:`record`: all
    requests of one user go to one arm, so that the split is right or wrong by users.

    ``record`` takes some 10 us: call it where answers are collected, not on the way of a request. Any thread may call
    it. Requests are recorded in the order they came. Nothing here reads a clock or random numbers; :meth:`state` is
    plain JSON, and an experiment that goes on from it decides as if it had never stopped.

    Raises ``UsageError``: other than two arms, shares that do not add up to 1, a metric twice.
    """

    def __init__(
        self,
        name: str,
        *,
        arms: Mapping[str, float],
        metric: Typical,
        guardrails: Sequence[Metric] = (),
        alpha: float = 0.05,
        unit: str = "request",
        salt: str | None = None,
    ) -> None:
        if not name:
            raise UsageError("expected a name of the experiment, found none")
        if len(arms) != 2 or not all(0 < share < 1 for share in arms.values()):
            raise UsageError(
                f"expected two arms with shares between 0 and 1, found {dict(arms)}",
                where=name,
                hint='arms={"control": 0.95, "candidate": 0.05}; for several candidates, run several experiments',
            )
        if abs(sum(arms.values()) - 1) > 1e-9:
            raise UsageError(f"expected shares that add up to 1, found {sum(arms.values()):g}", where=name)
        if not 0 < alpha < 0.5:
            raise UsageError(f"expected alpha between 0 and 0.5, found {alpha}", where=name)
        check_metrics(metric, guardrails, name)
        self.name = name
        self.arms = dict(arms)
        self.unit = unit
        self.control, self.candidate = arms
        share = arms[self.candidate]
        self.split = Split(salt or name, share)
        each = alpha / max(len(guardrails), 1)
        self._rows: list[SequentialTest] = [
            begin(metric, "metric", alpha, share),
            *(begin(guardrail, "guardrail", each, share) for guardrail in guardrails),
        ]
        self._n_counted = [0, 0]  # without an id
        self._places: list[set[int]] = [set(), set()]  # of the ids of each arm
        self._every = [1, 1]  # those are kept whose place is a multiple
        self._broken: tuple[int, int] | None = None  # the units that showed it
        self._n = [0, 0]
        self._replicas: tuple[set[str], set[str]] = (set(), set())
        self._lock = threading.Lock()

    def assign(self, id: str | int | bytes) -> str:
        """Return the arm of a unit, always the same one (see ``operate/experiment/split.py``)."""
        return self.candidate if self.split.treats(id) else self.control

    def count(self, arm: str) -> None:
        """Count a unit for the check of the split; ``record`` does it of ids, and where units are requests."""
        treated = self._treated(arm)
        with self._lock:
            self._count(treated)

    def record(
        self, arm: str, /, *, id: str | int | bytes | None = None, replica: str | int | None = None, **values: Any
    ) -> None:
        """Take in one request: a value for each metric that it has.

        ``id`` : what was assigned; the check of the split counts each once, and of more than 4096 of an arm a random
        part.
        ``replica`` : the process, pod or machine that answered; without at least three per arm
        nobody can tell a version from where it ran.
        Raises ``UsageError``: an arm that the experiment does not have, or an id that is none.
        """
        treated = self._treated(arm)
        place = None if id is None else self.split.place(id)
        with self._lock:
            self._n[treated] += 1
            if replica is not None and len(self._replicas[treated]) < N_REPLICAS:
                self._replicas[treated].add(str(replica))
            if place is None:
                if self.unit == "request":
                    self._count(treated)
            elif place % self._every[treated] == 0 and place not in self._places[treated]:
                self._places[treated].add(place)
                self._thin(treated)
                self._look()
            for row in self._rows:
                row.add(treated, values)

    def _count(self, treated: bool) -> None:
        self._n_counted[treated] += 1
        self._look()

    def _look(self) -> None:
        # logarithms of the gamma function: not at each of thousands
        n = sum(self._n_counted) + sum(map(len, self._places))
        if n & 63 == 0 and self._broken is None:
            self._judge()

    def _judge(self) -> None:
        arrived = self.arrived()
        self._broken = (arrived[0].units, arrived[1].units) if self.deviation(*arrived) else None

    def arrived(self) -> tuple[Arrived, Arrived]:
        """Return what the check of the split has counted of the control and of the candidate."""
        control, candidate = starmap(Arrived, zip(self._n_counted, map(len, self._places), self._every, strict=True))
        return control, candidate

    def deviation(self, control: Arrived, candidate: Arrived) -> Literal[-1, 0, 1]:
        """Return whether too few (-1) or too many (1) are the candidate's to be chance."""
        # the kept ids have the share that follows from the part that is kept of each arm
        of_control, of_candidate = self.arms[self.control] / control.every, self.split.share / candidate.every
        ids = SplitCheck(of_candidate / (of_control + of_candidate), [control.n_ids, candidate.n_ids])
        counted = SplitCheck(self.split.share, [control.n_counted, candidate.n_counted])
        if ids.log_evidence + counted.log_evidence < -math.log(MISMATCH):
            return 0
        return 1 if candidate.units > self.split.share * (control.units + candidate.units) else -1

    def _thin(self, treated: int, every: int = 1) -> None:
        # only ids whose place is a multiple, and no more than there is room for
        while every > self._every[treated] or len(self._places[treated]) > N_IDS:
            self._every[treated] = max(every, 2 * self._every[treated])
            self._places[treated] = {place for place in self._places[treated] if place % self._every[treated] == 0}

    @property
    def decision(self) -> Decision:
        """What is certain now: never undecided again, though better may become worse, and all of it broken."""
        if self._broken is not None:
            return "broken"
        if any(row.verdict == "worse" for row in self._rows):
            return "worse"
        return "better" if self._rows[0].verdict == "better" else "undecided"

    def result(self) -> ExperimentResult:
        """Return what is known, for reports."""
        with self._lock:
            rows = [replace(row, sentence=sentence(row)) for row in (test.row() for test in self._rows)]
            control, candidate = (
                Arm(name, share, n, len(replicas) if replicas else None)
                for (name, share), n, replicas in zip(self.arms.items(), self._n, self._replicas, strict=True)
            )
            arrived = self.arrived()
            units = arrived[0].units, arrived[1].units
            split = self._broken or units
            decision = self.decision
        return ExperimentResult(
            name=self.name,
            decision=decision,
            verdict=verdict(decision, control, candidate, rows, split),
            control=control,
            candidate=candidate,
            rows=tuple(rows),
            unit=self.unit,
            notes=notes(control, candidate, rows, self.unit, units),
        )

    def state(self) -> dict[str, Any]:
        """Return everything that was learned, as plain JSON values."""
        with self._lock:
            return {
                "arms": list(self.arms.items()),
                "rows": [msgspec.to_builtins(row) for row in self._rows],
                "counted": list(self._n_counted),
                "every": list(self._every),
                "places": [sorted(places) for places in self._places],
                "broken": self._broken,
                "n": list(self._n),
                "replicas": [sorted(names) for names in self._replicas],
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from the state of an experiment with the same arms and metrics; ``StoreError`` for any other."""
        try:
            if [tuple(arm) for arm in state["arms"]] != list(self.arms.items()):
                raise ValueError(f"its arms are {state['arms']}")
            rows = [msgspec.convert(row, type(fresh)) for fresh, row in zip(self._rows, state["rows"], strict=True)]
            counted = msgspec.convert(state["counted"], tuple[int, int])
            for fresh, row in zip(self._rows, rows, strict=True):
                if _plan(row) != _plan(fresh):
                    raise ValueError(f"it has {_plan(row)}")
            n = msgspec.convert(state["n"], tuple[int, int])
            control, candidate = msgspec.convert(state["replicas"], tuple[set[str], set[str]])
            broken = msgspec.convert(state["broken"], tuple[int, int] | None)
            every = msgspec.convert(state["every"], tuple[_Every, _Every])
            places = msgspec.convert(state["places"], tuple[set[int], set[int]])
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"expected the state of this experiment, found another: {error}", where=self.name
            ) from error
        with self._lock:
            self._rows, self._n_counted, self._broken = rows, list(counted), broken
            self._every, self._places = list(every), list(places)
            self._n, self._replicas = list(n), (control, candidate)

    def join(self, other: Experiment) -> None:
        """Take in what another process recorded of the same experiment, and judge all of it together.

        Only to be looked at after that: nothing can be recorded any more.
        """
        for row, others in zip(self._rows, other._rows, strict=True):
            row.join(others)
        for treated, places in enumerate(other._places):
            self._n_counted[treated] += other._n_counted[treated]
            # both sides by the same multiple: of a unit that both recorded, one counts
            self._thin(treated, other._every[treated])
            self._places[treated] |= {place for place in places if place % self._every[treated] == 0}
            self._thin(treated)
        self._judge()
        self._n = [a + b for a, b in zip(self._n, other._n, strict=True)]
        for names, more in zip(self._replicas, other._replicas, strict=True):
            names.update(more)

    def _treated(self, arm: str) -> bool:
        if arm not in self.arms:
            raise UsageError(f"expected an arm of {self.control} and {self.candidate}, found {arm!r}", where=self.name)
        return arm == self.candidate


def _plan(row: Any) -> Any:
    return row.spec, row.role, row.alpha
