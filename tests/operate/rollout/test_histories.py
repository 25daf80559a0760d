"""Random histories: kills, clocks that jump, evidence of every kind, two controllers.

The full number of histories is run by ``TORCHTRIAGE_HISTORIES=10000``.
"""

from __future__ import annotations

import math
import os
from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from torchtriage.operate.rollout import Rollout, RolloutPlan, RolloutState, StageEvidence, open_rollouts
from torchtriage.operate.rollout.store import LEASE_S

N_HISTORIES = int(os.environ.get("TORCHTRIAGE_HISTORIES", "80"))
PLAN = RolloutPlan("int8", least_s=2, least_requests=100)
odd = st.sampled_from([math.nan, math.inf, -1.0, 0.0, 99.0])


class Histories(RuleBasedStateMachine):
    """What the world does, and what must hold whatever it does."""

    @initialize()
    def begin(self) -> None:
        self.now_s = 1000.0
        self.wall_s = 1.7e9
        self.number = 0
        self.store = open_rollouts(":memory:")
        self.evidence: StageEvidence | None = None
        self.kept: list[StageEvidence] = []
        self.n_born = 0
        self.controllers = [self.born(), self.born()]
        self.before = self.stored()
        self.good = False

    def born(self) -> Rollout:
        self.n_born += 1
        return Rollout(
            PLAN,
            self.store,
            judge=lambda _state: self.evidence,
            owner=f"controller-{self.n_born}",
            clock=lambda: self.now_s,
            wall=lambda: self.wall_s,
        )

    def stored(self) -> RolloutState:
        return self.store.read("int8").state

    def look(self, which: int, evidence: StageEvidence | None) -> None:
        """Let one controller look, and hold the change against what it was shown."""
        self.evidence = evidence
        before = self.stored()
        controller = self.controllers[which]
        controller.tick()
        after = self.stored()
        if before.status != "running":
            assert after == before
        elif evidence is not None and evidence.worse:
            # rolled back by this very look, by whomever
            assert after.status == "rolled back"
            assert after.share == 0
        elif after.epoch != before.epoch:
            assert self.is_whole(evidence, before)
            assert after.epoch == before.epoch + 1
            assert after.stage - before.stage == (after.status == "running")
            assert self.store.read("int8").owner == controller.owner
        # the one that looked sends no more than the stage's share, from now on
        assert controller.state.share <= after.share
        self.check_routes(controller, after)

    @staticmethod
    def is_whole(evidence: StageEvidence | None, before: RolloutState) -> bool:
        return (
            evidence is not None
            and evidence.epoch == before.epoch
            and evidence.number > before.last_number
            and evidence.age_s is not None
            and 0 <= evidence.age_s <= PLAN.fresh_s
            and not evidence.missing
            and evidence.n_candidate >= 100
            and math.isfinite(evidence.n_candidate)
            and (before.share == 1 or 100 <= evidence.n_control < math.inf)
        )

    def check_routes(self, controller: Rollout, state: RolloutState) -> None:
        n = sum(controller.assign(id).arm == "candidate" for id in IDS)
        assert n / len(IDS) <= state.share + ROUGH

    def fresh(self) -> StageEvidence:
        self.number += 1
        one = StageEvidence(self.stored().epoch, self.number, 0.5, 1000, 1000)
        self.kept.append(one)
        return one

    @rule(which=st.integers(0, 1), elapsed_s=st.floats(0.1, 6))
    def good_look(self, which: int, elapsed_s: float) -> None:
        self.now_s += elapsed_s
        self.look(which, self.fresh())

    @rule(which=st.integers(0, 1), n=st.integers(1, 6))
    def good_looks(self, which: int, n: int) -> None:
        for _ in range(n):
            self.now_s += 1
            self.look(which, self.fresh())

    def ripen(self, which: int) -> None:
        """Bring a stage so far that the next whole evidence would promote."""
        self.now_s += LEASE_S + 1  # whoever looks now owns it
        for _ in range(4):
            self.now_s += 1
            self.number += 1
            self.look(which, StageEvidence(self.stored().epoch, self.number, 0.5, 1000, 99))

    @rule(which=st.integers(0, 1))
    def ripens(self, which: int) -> None:
        self.ripen(which)

    @rule(which=st.integers(0, 1))
    def nothing(self, which: int) -> None:
        self.now_s += 1
        self.look(which, None)

    @rule(which=st.integers(0, 1), data=st.data())
    def again(self, which: int, data: st.DataObject) -> None:
        self.ripen(which)
        self.now_s += 1
        if self.kept:
            self.look(which, data.draw(st.sampled_from(self.kept)))

    @rule(which=st.integers(0, 1), control=odd, candidate=odd, age_s=st.sampled_from([None, math.nan, -5.0, 31.0, 1e9]))
    def no_numbers(self, which: int, control: float, candidate: float, age_s: float | None) -> None:
        self.ripen(which)
        self.now_s += 1
        epoch = self.stored().epoch
        self.number += 1
        self.look(which, StageEvidence(epoch, self.number, 0.1, control, candidate))
        self.number += 1
        self.look(which, StageEvidence(epoch, self.number, age_s, 1000, 1000))

    @rule(which=st.integers(0, 1))
    def missing(self, which: int) -> None:
        self.ripen(which)
        self.now_s += 1
        self.number += 1
        epoch = self.stored().epoch
        self.look(which, StageEvidence(epoch, self.number, 0.1, 1000, 1000, missing=("error: NaN",)))

    @rule(which=st.integers(0, 1), apart=st.sampled_from([-1, 1]))
    def of_another_stage(self, which: int, apart: int) -> None:
        self.ripen(which)
        self.now_s += 1
        self.number += 1
        self.look(which, StageEvidence(self.stored().epoch + apart, self.number, 0.1, 1000, 1000))

    @rule(which=st.integers(0, 1), late=st.booleans())
    def worse(self, which: int, late: bool) -> None:
        self.now_s += 1
        self.number += 1
        epoch = self.stored().epoch - late
        self.look(which, StageEvidence(epoch, self.number, 0.1, 9, 9, worse=("p99",)))

    @rule(which=st.integers(0, 1))
    def kill(self, which: int) -> None:
        """Nothing is released, nothing said; another one is born."""
        self.controllers[which] = self.born()

    @rule(jump_s=st.sampled_from([-3600.0, -30.0, 30.0, 86_400.0]), wall=st.booleans())
    def clock_jumps(self, jump_s: float, wall: bool) -> None:
        if wall:
            self.wall_s += jump_s
        else:
            self.now_s += jump_s

    @rule()
    def a_person_rolls_back(self) -> None:
        self.store.roll_back("int8", "by hand", actor="person", at_s=self.wall_s)

    @rule()
    def a_person_starts_again(self) -> None:
        if self.stored().status != "running":
            self.store.restart("int8", actor="person", at_s=self.wall_s)

    @rule()
    def time_passes_without_an_owner(self) -> None:
        self.now_s += LEASE_S + 1

    @invariant()
    def the_share_is_never_more_than_the_stages(self) -> None:
        state = self.stored()
        assert state.share in (0.0, PLAN.steps[state.stage])

    @invariant()
    def the_history_tells_every_change_once(self) -> None:
        events = self.store.history("int8")
        changes = [event for event in events if event.kind != "taken over"]
        assert [change.epoch for change in changes] == list(range(1, len(changes) + 1))
        assert changes[-1].share_after == self.stored().share
        for one, other in pairwise(changes):
            assert one.share_after == other.share_before
        # one owner: tokens grow, and each belongs to one controller
        tokens = [(event.token, event.actor) for event in events if event.token is not None]
        assert [token for token, _ in tokens] == sorted(token for token, _ in tokens)
        assert len(dict(tokens)) == len(set(tokens))

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


IDS = [f"user-{n}" for n in range(200)]
ROUGH = 0.11
"""Three standard deviations of 200 ids at one half; the split's own test is exact."""

Histories.TestCase.settings = settings(
    max_examples=N_HISTORIES, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
TestHistories = Histories.TestCase
