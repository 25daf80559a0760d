"""Random histories of load with two to eight workers do not flap; ``benchmarks/histories.py ladder`` runs thousands."""

from __future__ import annotations

import pytest
from histories import ladder_history

N_HISTORIES = 20


@pytest.mark.parametrize("plain", [True, False])
def test_no_history_falls_more_than_three_times_in_an_overload(plain: bool) -> None:
    falls = [(max(ladder_history(seed, plain=plain).falls, default=0), seed) for seed in range(N_HISTORIES)]
    assert max(falls)[0] <= 3, max(falls)
