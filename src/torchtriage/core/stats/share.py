"""How far a share can be trusted that was counted in clusters, such as the late steps of some sessions."""

from __future__ import annotations

import math

from torchtriage.core.arrays import Floats, Ints
from torchtriage.core.stats.difference import student_quantile

Z = 1.96


def share_interval(counts: Ints | Floats, sizes: Ints | Floats) -> tuple[float, float]:
    """Return a 95 % interval for ``counts.sum() / sizes.sum()``: Wilson's (1927), sensible for none and for all.

    ``counts``, ``sizes`` : of each cluster, what was counted and of how many; clusters are independent.
    """
    n = _independent(counts, sizes)
    share = float(counts.sum()) / float(sizes.sum())
    centre = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    reach = Z * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n)) / (1 + Z * Z / n)
    return max(centre - reach, 0.0), min(centre + reach, 1.0)


def _independent(counts: Ints | Floats, sizes: Ints | Floats) -> float:
    """Return how many independent ones say as much as those of these clusters.

    What is counted is alike in a cluster. The share's variance is that between clusters, their number takes Student's
    place of the normal (Korn and Graubard 1998). Where all or none was counted nothing tells how alike they are: each
    counts.
    """
    n, k = float(sizes.sum()), len(sizes)
    share = float(counts.sum()) / n
    if not 0 < share < 1:
        return n
    if k == 1:
        return 1.0
    residuals = counts - share * sizes
    variance = k / (k - 1) * float((residuals**2).sum()) / n**2
    if not variance:
        return n
    t = student_quantile(0.975, k - 1)
    return min(share * (1 - share) / variance * (Z / t) ** 2, n)
