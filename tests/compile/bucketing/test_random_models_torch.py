"""Random models that people pad: those once answered wrongly, and a few beside them."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

pytest.importorskip("torch")

from bucketed_models import run  # noqa: E402 - it needs torch


@pytest.mark.parametrize("seed", [72, 124, 164, 174])
def test_what_was_answered_wrongly_is_refused(seed: int) -> None:
    assert run(seed).verdict == "refused rightly"


@pytest.mark.parametrize("seed", [138, 144])
def test_padding_that_is_right_is_served(seed: int) -> None:
    assert run(seed).verdict == "served"
