"""What the names of Tensile's kernels say."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

from torchtriage.core.trace.tensile import instruction_set, tensile_of

NAME = "Cijk_Ailk_Bljk_BBS_BH_MT256x128x64_MI16x16x16x1_SN_GSU2_GSUAMB_GLS0_ISA942_IU1_K1_WG64_4_1"


def test_tile_splits_and_instruction_set() -> None:
    kernel = tensile_of(NAME)
    assert kernel is not None
    assert (kernel.tile_m, kernel.tile_n, kernel.n_splits, kernel.isa) == (256, 128, 2, "942")
    assert kernel.n_groups(1, 256, 512) == 8
    assert kernel.n_groups(3, 257, 512) == 3 * 8 * 2


@pytest.mark.parametrize("name", ["Cijk_B_PostGSU2", NAME.replace("_GSU2", "_SK3_GSU0")])
def test_a_name_without_a_tile_starts_an_unknown_number_of_workgroups(name: str) -> None:
    kernel = tensile_of(name)
    assert kernel is not None
    assert kernel.n_groups(1, 256, 512) == 0


def test_other_kernels_are_none_of_tensiles() -> None:
    assert tensile_of("ampere_sgemm_128x64_tn") is None


@pytest.mark.parametrize(
    ("names", "isa"), [([NAME], "942"), ([NAME, NAME.replace("942", "90a")], ""), (["kernel"], "")]
)
def test_the_instruction_set_of_a_recording_is_that_of_all_its_kernels(names: list[str], isa: str) -> None:
    builder = TraceBuilder(vendor="rocm")
    for index, name in enumerate(names):
        builder.launch(index * 10, 2, index * 10 + 5, 4, name)
    assert instruction_set(builder.build()) == isa
