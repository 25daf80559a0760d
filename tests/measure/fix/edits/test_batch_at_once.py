"""Whole batches at once."""

from __future__ import annotations

import pytest
from tests.measure.fix.proposing import proposed

HEAD = """
import torch
from torchvision import transforms
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("small")
normalize = transforms.Normalize(0.5, 0.2)
augment = transforms.RandomCrop(8)
table = torch.randn(100, 8)

def run(model, loader, texts, device):
    for images, rows in loader:
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("torch.stack([normalize(image) for image in images])", "normalize(images)"),
        ("torch.stack([torch.clamp(image, 0, 1) for image in images], dim=0)", "torch.clamp(images, 0, 1)"),
        ("torch.stack([table[i] for i in rows])", "table[rows]"),
        ("torch.stack([r.to(device) for r in rows])", "torch.stack([r for r in rows]).to(device)"),
        (
            '[tokenizer(text, truncation=True)["input_ids"] for text in texts]',
            'tokenizer(texts, truncation=True)["input_ids"]',
        ),
        ("[tokenizer.encode(t) for t in texts]", 'tokenizer(texts)["input_ids"]'),
    ],
)
def test_a_comprehension_over_a_batch(old: str, new: str) -> None:
    text = f"{HEAD}        x = {old}\n        model(x).sum().backward()\n"
    (changed,) = proposed(text, "        x = ", "HST114", "batch-at-once")
    assert f"        x = {new}\n" in changed


def test_rows_of_a_data_set_of_texts() -> None:
    text = f"""{HEAD}        pass

def encode(rows):
    return tokenizer(rows["text"], truncation=True)

data = data.map(encode)
"""
    (new,) = proposed(text, "data = data.map", "DAT108", "batch-at-once")
    assert new.endswith("data = data.map(encode, batched=True)\n")
    assert proposed(new, "data = data.map", "DAT108", "batch-at-once") == []


@pytest.mark.parametrize(
    "old",
    [
        "torch.stack([augment(image) for image in images])",
        "torch.stack([normalize(image) for image in images], dim=1)",
        "torch.stack([torch.clamp(image, image.min()) for image in images])",
        '[tokenizer(text, return_tensors="pt")["input_ids"] for text in texts]',
    ],
)
def test_nothing_where_elements_differ(old: str) -> None:
    text = f"{HEAD}        x = {old}\n        model(x).sum().backward()\n"
    assert proposed(text, "        x = ", "HST114", "batch-at-once") == []
