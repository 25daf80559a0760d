"""How much of the texts that modules are given is padding."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from torchtriage.core.record.call_probe import CallProbe  # noqa: E402

pytestmark = pytest.mark.torch
ROWS, POSITIONS, LONGEST = 4, 32, 20


class Classifier(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(100, 8)

    def forward(self, ids: Any, mask: Any = None) -> Any:
        return self.table(ids).mean(1)


def texts(*, left: bool = False) -> Any:
    """Return int64[ROWS, POSITIONS] of which the longest row has LONGEST."""
    ids = torch.randint(1, 100, (ROWS, POSITIONS))
    ids[0, LONGEST - 1], ids[1, LONGEST - 1] = 5, 6
    ids[:, LONGEST:] = 0
    ids[0, 0], ids[1, 0] = 7, 8
    return ids.flip(1) if left else ids


def padding(call: Any) -> dict[str, tuple[int, int, int]]:
    """Return the calls, positions and padding of each module that ``call`` gives texts, in two steps."""
    probe = CallProbe()
    assert probe.start()
    for _ in range(2):
        call()
        probe.step()
    probe.stop()
    return {seen["module"]: (seen["n_calls"], seen["n_positions"], seen["n_padding"]) for seen in probe.padding.facts()}


@pytest.mark.parametrize("left", [False, True])
def test_positions_without_a_text_in_any_row_are_padding(left: bool) -> None:
    model = Classifier()
    seen = (2, 2 * POSITIONS, 2 * (POSITIONS - LONGEST))
    assert padding(lambda: model(texts(left=left))) == {"Classifier": seen, "Embedding": seen}
    assert padding(lambda: model(**{"ids": texts(left=left)}))["Classifier"] == seen
    inside = torch.nn.Sequential(model)
    assert padding(lambda: inside(texts(left=left))) == dict.fromkeys(("Sequential", "Classifier", "Embedding"), seen)


def test_what_may_not_be_cut_is_no_padding() -> None:
    model, pixels = Classifier(), torch.nn.Linear(32, 2)
    full, dummy = torch.arange(64).reshape(2, 32), torch.zeros(2, 32, dtype=torch.int64)
    assert not padding(lambda: model(full))
    assert not padding(lambda: model(dummy))
    assert not padding(lambda: model(texts()[:1]))
    assert not padding(lambda: model(texts()[:, 10:25]))
    assert not padding(lambda: pixels(texts().float()))
    segments = (texts() > 0).long()
    assert not padding(lambda: model(segments))


def test_a_mask_before_the_texts_is_none() -> None:
    class Masked(Classifier):
        def forward(self, mask: Any, ids: Any) -> Any:
            return super().forward(ids)

    model = Masked()
    seen = (2, 2 * POSITIONS, 2 * (POSITIONS - LONGEST))
    assert padding(lambda: model((ids := texts()) > 0, ids))["Masked"] == seen
    assert padding(lambda: model((ids := texts()).ne(0).long(), ids))["Masked"] == seen


def test_recurrent_layers_may_have_packed_their_texts() -> None:
    class Recurrent(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.GRU(8, 8)

    model = Recurrent()
    assert "Recurrent" not in padding(lambda: model(texts()))


def test_modules_made_anew_are_each_looked_at() -> None:
    assert padding(lambda: (torch.nn.Identity()(texts()), torch.nn.Embedding(100, 8)(texts())))["Embedding"][0] == 2


def test_code_of_the_script_is_not_asked() -> None:
    class Odd(Classifier):
        def modules(self) -> Any:
            raise RuntimeError("not today")

        def forward(self, given: Any) -> Any:
            return super().forward(dict.__getitem__(given, "ids"))

    asked: list[str] = []

    class Fields(dict):  # type: ignore[type-arg]
        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            raise AttributeError(name)

        def values(self) -> Any:
            asked.append("values")
            return super().values()

    odd = Odd()
    padding(lambda: odd(Fields(ids=texts())))
    assert not asked
