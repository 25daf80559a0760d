"""Generation with a cache."""

from __future__ import annotations

import pytest
from tests.measure.fix.proposing import proposed

OWN = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, ids, past=None):
        return self.head(self.body(ids, past)), self.kept

def generate(model, ids, n):
    for _ in range(n):
        logits, cache = model(ids)
        token = logits[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, token], dim=1)
    return ids
"""


def test_a_model_of_the_file() -> None:
    for line in ("model(ids)", "torch.cat"):
        (new,) = proposed(OWN, line, "LCH104", "key-value-cache")
        assert new.endswith("""def generate(model, ids, n):
    new_ids = ids
    cache = None
    for _ in range(n):
        logits, cache = model(new_ids, cache)
        token = logits[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, token], dim=1)
        new_ids = token
    return ids
""")
        assert proposed(new, "logits, cache", "LCH104", "key-value-cache") == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "logits = self.model(ids).logits[:, -1]",
            "out = self.model(new_ids, past_key_values=cache, use_cache=True)\n"
            "            cache = out.past_key_values\n            logits = out.logits[:, -1]",
        ),
        (
            "result = self.model(ids)\n            logits = result.logits[:, -1]",
            "result = self.model(new_ids, past_key_values=cache, use_cache=True)\n"
            "            cache = result.past_key_values\n            logits = result.logits[:, -1]",
        ),
    ],
)
def test_a_model_of_transformers(old: str, new: str) -> None:
    text = f"""
import torch

class Writer:
    def write(self, ids):
        while ids.shape[1] < 64:
            {old}
            ids = torch.cat((ids, logits.argmax(-1, keepdim=True)), dim=-1)
        return ids
"""
    (changed,) = proposed(text, "self.model(ids)", "LCH104", "key-value-cache")
    assert f"            {new}\n" in changed
    assert "        new_ids = ids\n        cache = None\n        while" in changed
    assert "            new_ids = logits.argmax(-1, keepdim=True)\n        return ids\n" in changed


def test_generate_without_its_cache() -> None:
    text = "import torch\ntext = model.generate(ids, use_cache=False)\n"
    (new,) = proposed(text, 2, "LCH104", "key-value-cache")
    assert "model.generate(ids, use_cache=True)" in new


def test_nothing_where_all_positions_are_read() -> None:
    for text in (OWN.replace("logits[:, -1]", "logits.mean(1)"), OWN.replace("past=None", "mask=None")):
        assert proposed(text, "model(ids)", "LCH104", "key-value-cache") == []
