"""Padding to few sizes, so that ``torch.compile`` compiles few graphs.

``planning`` chooses the sizes, ``drift`` and ``planner`` follow sizes that change, ``advice`` says when a dynamic
graph is the better way, ``declarations`` says which dimensions are padded: none of them needs torch. ``tensors``
pads and crops, ``padding_check`` checks, ``graphs`` compiles, ``cache_file`` keeps what was compiled and ``module``
is the :class:`~torchtriage.compile.bucketing.module.BucketedModule`.
"""

from __future__ import annotations

from torchtriage.compile.bucketing.declarations import Mask
from torchtriage.compile.bucketing.drift import Revision, revise
from torchtriage.compile.bucketing.planning import BucketPlan, plan, powers_of_two
from torchtriage.compile.bucketing.statistics import BucketingWarning, Stats

__all__ = ["BucketPlan", "BucketingWarning", "Mask", "Revision", "Stats", "plan", "powers_of_two", "revise"]
