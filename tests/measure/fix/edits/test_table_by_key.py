"""Rows of tables by their key."""

from __future__ import annotations

import pytest
from tests.measure.fix.proposing import proposed

HEAD = """
import pandas as pd
from torch.utils.data import Dataset

class Boxes(Dataset):
    def __init__(self, df, names):
        self.df = df
        self.names = names

    def __getitem__(self, i):
        name = self.names[i]
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('self.df[self.df["image"] == name]', "self.df_rows.get(name, self.df[:0])"),
        ("self.df.loc[name == self.df.image]", "self.df_rows.get(name, self.df[:0])"),
        ('self.df.loc[self.df["image"] == name, "box"].iloc[0]', 'self.df_rows.get(name, self.df[:0])["box"].iloc[0]'),
    ],
)
def test_rows_of_a_key(old: str, new: str) -> None:
    (text,) = proposed(f"{HEAD}        return {old}\n", "return", "DAT110", "table-by-key")
    assert '        self.names = names\n        self.df_rows = dict(tuple(self.df.groupby("image")))\n' in text
    assert text.endswith(f"        return {new}\n")
    assert proposed(text, "return", "DAT110", "table-by-key") == []


@pytest.mark.parametrize("old", ["self.df[self.df.size > i]", "table_of(i)[table_of(i).x == name]", "self.df[i == 3]"])
def test_nothing_for_other_searches(old: str) -> None:
    assert proposed(f"{HEAD}        return {old}\n", "return", "DAT110", "table-by-key") == []
