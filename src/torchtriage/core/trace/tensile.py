"""What the names of Tensile's kernels say: AMD's matrix products spell their parameters out.

``Cijk_Ailk_Bljk_BBS_BH_MT128x64x64_.._GSU2_.._ISA942_..``. Source: the Tensile repository,
``Common.py``, the abbreviations of its parameters.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from torchtriage.core.trace.columns import Trace


class Tensile(NamedTuple):
    """Parameters of one kernel; 0 and empty where the name does not hold them.

    ``tile_m``, ``tile_n`` : the part of the output that a workgroup computes. ``n_splits`` : workgroups that share the
    inner dimension of one tile.
    """

    tile_m: int
    tile_n: int
    n_splits: int
    isa: str

    def n_groups(self, batch: int, m: int, n: int) -> int:
        """Return how many workgroups a product starts, 0 where the name does not say."""
        if not self.tile_m or not self.tile_n:
            return 0
        # which side a library calls m is not recorded: the more of both
        tiles = max(-(-m // self.tile_m) * -(-n // self.tile_n), -(-n // self.tile_m) * -(-m // self.tile_n))
        return batch * tiles * max(self.n_splits, 1)


@lru_cache(maxsize=1 << 12)
def tensile_of(name: str) -> Tensile | None:
    """Return the parameters in a kernel's name, None when it is none of Tensile's."""
    if not name.startswith("Cijk_"):
        return None
    # stream-k kernels share all tiles among as many workgroups as fit
    tile = None if re.search(r"_SK[1-9]", name) else re.search(r"_MT(\d{1,4})x(\d{1,4})x", name)
    splits = re.search(r"_GSU(\d{1,4})_", name)
    isa = re.search(r"_ISA([0-9a-f]{3,4})(?:_|$)", name)
    m, n = (int(tile[1]), int(tile[2])) if tile else (0, 0)
    return Tensile(m, n, int(splits[1]) if splits else 0, isa[1] if isa else "")


def instruction_set(trace: Trace) -> str:
    """Return the instruction set of a recording's kernels (``942``), empty where it is not known or not one."""
    named = {kernel.isa for kernel in map(tensile_of, trace.names) if kernel is not None and kernel.isa}
    return named.pop() if len(named) == 1 else ""
