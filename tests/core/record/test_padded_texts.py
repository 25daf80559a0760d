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
    one_shape = Classifier()
    one_shape.compile(backend="eager")
    assert not padding(lambda: one_shape(texts()))


def test_code_of_the_script_is_not_asked() -> None:
    class Odd(Classifier):
        def modules(self) -> Any:
            raise RuntimeError("not today")

        def __getattr__(self, name: str) -> Any:
            return super().__getattr__(name) if name in ("table", "_modules") else 1 / 0

    odd = Odd()
    assert "Odd" in padding(lambda: odd(texts()))
