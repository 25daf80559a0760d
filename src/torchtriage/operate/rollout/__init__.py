"""A new version step by step: 1, 5, 20, 50, 100 % of requests, and back at once if it is worse.

>>> from torchtriage.operate.rollout import Plan, Rollout
>>> plan = Plan("detector-int8", metric=Typical("latency_s", worse_than=1.05))
>>> rollout = Rollout(plan)
>>> ticket = rollout.assign("user-17")
>>> rollout.record(ticket, latency_s=0.0123, error=False)
>>> rollout.tick()
"""

from torchtriage.operate.rollout.controller import Rollout, Ticket
from torchtriage.operate.rollout.plan import STEPS, Plan
from torchtriage.operate.rollout.result import Event, RolloutResult
from torchtriage.operate.rollout.router import Router
from torchtriage.operate.rollout.state import StageEvidence, State, advance
from torchtriage.operate.rollout.store import DEFAULT_STORE, RolloutStore, open_rollouts

__all__ = [
    "DEFAULT_STORE",
    "STEPS",
    "Event",
    "Plan",
    "Rollout",
    "RolloutResult",
    "RolloutStore",
    "Router",
    "StageEvidence",
    "State",
    "Ticket",
    "advance",
    "open_rollouts",
]
