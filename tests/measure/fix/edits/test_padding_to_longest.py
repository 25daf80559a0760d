"""Batches padded to their own longest row."""

from __future__ import annotations

import pytest
from tests.measure.fix.proposing import proposed


def test_texts_of_a_batch() -> None:
    text = """
        def collate(rows):
            texts = [row["text"] for row in rows]
            return tokenizer(texts, truncation=True, padding="max_length", max_length=128)
    """
    (new,) = proposed(text, "padding=", "DAT102", "padding-to-longest")
    assert 'tokenizer(texts, truncation=True, padding="longest", max_length=128)' in new
    assert proposed(new, "padding=", "DAT102", "padding-to-longest") == []


@pytest.mark.parametrize(
    ("made", "taken"),
    [("Trainer(model=model, train_dataset=rows)", "data_collator"), ("DataLoader(rows, batch_size=8)", "collate_fn")],
)
def test_texts_of_a_data_set(made: str, taken: str) -> None:
    text = f"""
        from torch.utils.data import DataLoader
        from transformers import AutoTokenizer, Trainer

        class Texts:
            def __init__(self, texts, tokenizer):
                self.encoded = tokenizer(texts, truncation=True, padding="max_length", max_length=128)

        tok = AutoTokenizer.from_pretrained("small")
        rows = Texts(texts, tok)
        made = {made}
    """
    (new,) = proposed(text, "padding=", "DAT102", "padding-to-longest")
    assert "tokenizer(texts, truncation=True, max_length=128)" in new
    assert "from transformers import AutoTokenizer, DataCollatorWithPadding, Trainer\n" in new
    assert f"{taken}=DataCollatorWithPadding(tok)" in new


def test_rows_of_a_buffer() -> None:
    text = """
        import torch

        class Collator:
            def __call__(self, features):
                rows = [item["ids"] for item in features]
                width = self.max_length
                out = torch.full((len(rows), width), 0)
                for i, row in enumerate(rows):
                    out[i, : len(row)] = torch.tensor(row)
                return out
    """
    (new,) = proposed(text, "torch.full", "DAT102", "padding-to-longest")
    assert "width = min(self.max_length, max(len(row) for row in rows))\n" in new
    assert proposed(new, "torch.full", "DAT102", "padding-to-longest") == []


def test_rows_of_a_buffer_as_long_as_a_constant() -> None:
    text = """
        MAX_LEN = 256

        def collate(rows):
            out = np.zeros((len(rows), MAX_LEN))
            for i, (ids, _) in enumerate(rows):
                out[i, : len(ids)] = ids
            return out
    """
    (new,) = proposed(text, "np.zeros", "DAT102", "padding-to-longest")
    assert (
        "    longest = min(MAX_LEN, max(len(ids) for ids, _ in rows))\n    out = np.zeros((len(rows), longest))\n"
        in new
    )


def test_lists_that_are_filled_up() -> None:
    text = (
        "MAX_LEN = 256\n\ndef collate(rows):\n    return torch.tensor([r + [0] * (MAX_LEN - len(r)) for r in rows])\n"
    )
    (new,) = proposed(text, "return", "DAT102", "padding-to-longest")
    assert "    longest = min(MAX_LEN, max(len(r) for r in rows))\n" in new
    assert "[r + [0] * (longest - len(r)) for r in rows]" in new


def test_nothing_for_a_sample_by_itself() -> None:
    text = "MAX_LEN = 256\n\ndef pad(row):\n    return row + [0] * (MAX_LEN - len(row))\n"
    assert proposed(text, "return", "DAT102", "padding-to-longest") == []
