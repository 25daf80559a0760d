"""The page of peers: current, and its rule as written."""

from __future__ import annotations

import json

import proof
import pytest
from peers import Label, labels, names_cause, ours, ours_in_part, settled, wilson


def label(*causes: str, quiet: bool = False) -> Label:
    return Label("a.json.gz", "d0000", causes, quiet or not causes, True, "traces")


def peer(names: tuple[str, ...] = (), **parts: float) -> dict[str, object]:
    return {"says": {"parts": parts, "names": list(names)}}


def test_the_page_is_what_was_measured() -> None:
    assert proof.page(json.loads(proof.STORE.read_text(encoding="utf-8"))) == proof.PAGE.read_text(encoding="utf-8")


def test_every_label_that_was_settled_says_why() -> None:
    known = {label.ident for label in labels()}
    assert set(settled()) <= known
    assert all(one["why"] for one in settled().values())


@pytest.mark.parametrize(
    ("causes", "says", "named"),
    [
        (["LCH014"], peer(host=60, kernels=40), True),
        (["LCH014"], peer(host=40, kernels=60), False),
        (["CPY007", "LCH014"], peer(copies=60, kernels=40), True),
        (["KRN022"], peer(("GEMM",), kernels=60, host=40), True),
        (["KRN022"], peer(("elementwise",), kernels=60, host=40), False),
        (["KRN056"], peer(("elementwise",), kernels=60, host=40), True),
        (["COM036"], peer(host=60, communication=40), False),
        ([], peer(("GEMM",), kernels=60, host=40), True),
        ([], peer(kernels=40, host=60), False),
        (["LCH014"], {"failure": "more than 120 s"}, False),
        ([], {"failure": "ValueError"}, False),
        ([], peer(host=0.0, kernels=0.0), False),
    ],
)
def test_a_peer_names_the_cause_where_its_largest_part_is_its_own(
    causes: list[str], says: dict[str, object], named: bool
) -> None:
    assert names_cause(label(*causes), says) is named


@pytest.mark.parametrize(
    ("found", "verdict", "in_part"),
    [
        (["LCH014", "KRN022"], "right", True),
        (["HST055"], "another", True),
        (["KRN022", "LCH014"], "second", False),
        ([], "quiet", False),
    ],
)
def test_ours_is_held_to_the_code(found: list[str], verdict: str, in_part: bool) -> None:
    said = {"says": {"findings": found}}
    assert ours(label("LCH014"), said) == verdict
    assert ours_in_part(label("LCH014"), said) is in_part


def test_parts_of_kernels_count_by_code_for_us() -> None:
    assert not ours_in_part(label("KRN022"), {"says": {"findings": ["KRN056"]}})
    assert ours(label("LCH014", quiet=True), {"says": {"findings": []}}) == "right"


def test_wilson() -> None:
    assert wilson(36, 54) == pytest.approx((0.534, 0.778), abs=0.001)
