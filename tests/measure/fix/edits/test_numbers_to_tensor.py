"""Tensors of Python numbers."""

from __future__ import annotations

import pytest
from tests.measure.fix.proposing import proposed


def test_columns_of_transitions() -> None:
    text = """
        import numpy as np
        import torch

        class Agent:
            def learn(self):
                batch = Transition(*zip(*self.memory.sample(64)))
                states = torch.FloatTensor(batch.state)
                actions = torch.tensor(batch.action)
                loss = self.net(states)
    """
    for line in ("states = ", "actions = "):
        (new,) = proposed(text, line, "CPY102", "numbers-to-tensor")
        assert "states = torch.FloatTensor(np.array(batch.state))\n" in new
        assert "actions = torch.tensor(np.array(batch.action))\n" in new
        assert proposed(new, line, "CPY102", "numbers-to-tensor") == []


def test_a_comprehension_whose_type_is_a_guess() -> None:
    text = """
        import random

        import torch

        for rows in batches:
            x = torch.tensor([r.state for r in rows], device=device)
    """
    floats, plain = proposed(text, "x = ", "CPY102", "numbers-to-tensor")
    assert "import random\n\nimport numpy as np\nimport torch\n" in floats
    assert "x = torch.tensor(np.array([r.state for r in rows], dtype=np.float32), device=device)" in floats
    assert "x = torch.tensor(np.array([r.state for r in rows]), device=device)" in plain


def test_a_stack_of_tensors_of_arrays() -> None:
    text = """
        import numpy as np
        import torch

        def collate(rows):
            return torch.stack([torch.from_numpy(row) for row in rows])
    """
    (new,) = proposed(text, "return", "HST114", "numbers-to-tensor")
    assert new.endswith("    return torch.from_numpy(np.stack(rows))\n")
    (new,) = proposed(text.replace("(row)", "(row.x)"), "return", "HST114", "numbers-to-tensor")
    assert new.endswith("    return torch.from_numpy(np.stack([row.x for row in rows]))\n")


@pytest.mark.parametrize("given", ["np.array(rows)", "[1.0, 2.0]", "3", "x.size()"])
def test_nothing_for_arrays_and_what_is_written_out(given: str) -> None:
    text = f"import numpy as np\nimport torch\n\nfor rows in batches:\n    y = torch.tensor({given})\n"
    assert proposed(text, "y = ", "CPY102", "numbers-to-tensor") == []
