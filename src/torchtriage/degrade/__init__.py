"""A ladder of modes per model: full, lower precision, a lite model, an answer without one.

>>> from torchtriage.degrade import Ladder, Mode, Policy
>>> detector = Ladder(
...     "detector",
...     [Mode("full", model), Mode("bf16", model_bf16, check=gate), Mode("skip", last_boxes)],
...     Policy(deadline_s=0.05),
...     fallback=[],
...     dry_run=False,
... )
>>> detector.start()
>>> boxes = detector(frame)
"""

from torchtriage.degrade.check import answers_agree
from torchtriage.degrade.ladder import Ladder, Mode
from torchtriage.degrade.policy import Policy
from torchtriage.degrade.result import Entry, LadderStatus, ModeStatus
from torchtriage.degrade.store import LocalStore, RedisStore, Shared

__all__ = [
    "Entry",
    "Ladder",
    "LadderStatus",
    "LocalStore",
    "Mode",
    "ModeStatus",
    "Policy",
    "RedisStore",
    "Shared",
    "answers_agree",
]
