"""A new version step by step: 1, 5, 20, 50, 100 % of requests, and back at once if it is worse.

>>> from torchtriage.rollout import Plan, Rollout
>>> plan = Plan("detector-int8", metric=Typical("latency_s", worse_than=1.05))
>>> rollout = Rollout(plan)
>>> ticket = rollout.assign("user-17")
>>> rollout.record(ticket, latency_s=0.0123, error=False)
>>> rollout.tick()
"""

from torchtriage.rollout.controller import Rollout, Ticket
from torchtriage.rollout.plan import STEPS, Plan
from torchtriage.rollout.result import Event, RolloutResult
from torchtriage.rollout.router import Router
from torchtriage.rollout.state import Evidence, State, advance
from torchtriage.rollout.store import DEFAULT_STORE, RolloutStore, open_rollouts

__all__ = [
    "DEFAULT_STORE",
    "STEPS",
    "Event",
    "Evidence",
    "Plan",
    "Rollout",
    "RolloutResult",
    "RolloutStore",
    "Router",
    "State",
    "Ticket",
    "advance",
    "open_rollouts",
]
