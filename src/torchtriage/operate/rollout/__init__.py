"""A new version step by step: 1, 5, 20, 50, 100 % of requests, and back at once if it is worse.

>>> from torchtriage.operate.rollout import Rollout, RolloutPlan
>>> plan = RolloutPlan("detector-int8", metric=Typical("latency_s", worse_than=1.05))
>>> rollout = Rollout(plan)
>>> ticket = rollout.assign("user-17")
>>> rollout.record(ticket, latency_s=0.0123, error=False)
>>> rollout.tick()
"""

from torchtriage.operate.rollout.controller import Rollout, Ticket
from torchtriage.operate.rollout.result import RolloutEvent, RolloutResult
from torchtriage.operate.rollout.router import Router
from torchtriage.operate.rollout.state import STEPS, RolloutPlan, RolloutState, StageEvidence, advance
from torchtriage.operate.rollout.store import DEFAULT_STORE, RolloutStore, open_rollouts

__all__ = [
    "DEFAULT_STORE",
    "STEPS",
    "Rollout",
    "RolloutEvent",
    "RolloutPlan",
    "RolloutResult",
    "RolloutState",
    "RolloutStore",
    "Router",
    "StageEvidence",
    "Ticket",
    "advance",
    "open_rollouts",
]
