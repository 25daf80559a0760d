"""The options that several commands have."""

from __future__ import annotations

import click
import pytest

from torchtriage.cli.options import POSITIVE


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "0", "-1", "many"])
def test_what_is_no_number_above_zero_is_refused(value: str) -> None:
    with pytest.raises(click.BadParameter):
        POSITIVE.convert(value, None, None)
    assert POSITIVE.convert("0.5", None, None) == 0.5
