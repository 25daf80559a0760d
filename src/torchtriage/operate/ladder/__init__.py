"""A ladder of modes per model: full, lower precision, a lite model, an answer without one.

>>> from torchtriage.operate.ladder import Ladder, Mode, Policy
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

from torchtriage.operate.ladder.check import answers_agree
from torchtriage.operate.ladder.ladder import Ladder, Mode
from torchtriage.operate.ladder.policy import Policy
from torchtriage.operate.ladder.result import LadderEntry, LadderStatus, ModeStatus
from torchtriage.operate.ladder.store import LocalStore, RedisStore, Shared

__all__ = [
    "Ladder",
    "LadderEntry",
    "LadderStatus",
    "LocalStore",
    "Mode",
    "ModeStatus",
    "Policy",
    "RedisStore",
    "Shared",
    "answers_agree",
]
