"""Recurrent layers over whole sequences."""

from __future__ import annotations

from tests.measure.fix.proposing import proposals, proposed

HEAD = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.CELL(8, 16)

"""


def test_the_last_state() -> None:
    text = f"""{HEAD.replace("CELL", "GRUCell")}    def forward(self, x):
        h = x.new_zeros(x.shape[0], 16)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return h
"""
    (new,) = proposed(text, "h = self.cell", "LCH106", "whole-sequence")
    assert "self.cell = nn.GRU(8, 16, batch_first=True)" in new
    assert "        _, h = self.cell(x, h[None])\n        h = h[0]\n        return h\n" in new
    assert proposed(new, "self.cell(x", "LCH106", "whole-sequence") == []


def test_all_states_of_an_lstm() -> None:
    text = f"""{HEAD.replace("CELL", "LSTMCell")}    def forward(self, x, h, c):
        outputs = []
        for t in range(x.size(1)):
            h, c = self.cell(x[:, t, :], (h, c))
            outputs.append(h)
        return torch.stack(outputs, dim=1)
"""
    (new,) = proposed(text, "outputs.append", "LCH106", "whole-sequence")
    assert new.endswith("""    def forward(self, x, h, c):
        outputs, (h, c) = self.cell(x, (h[None], c[None]))
        h, c = h[0], c[0]
        return outputs
""")


def test_steps_of_a_sequence_that_comes_first() -> None:
    text = f"""{HEAD.replace("CELL", "RNNCell")}    def forward(self, x, h):
        outputs = []
        for step in x:
            h = self.cell(step, h)
            outputs.append(h)
        return torch.stack(outputs)
"""
    (new,) = proposed(text, "self.cell(step", "LCH106", "whole-sequence")
    assert "self.cell = nn.RNN(8, 16)\n" in new
    assert "        outputs, h = self.cell(x, h[None])\n" in new


def test_nothing_where_a_step_needs_the_one_before() -> None:
    for step in ("h = self.cell(self.embed(token), h)", "h = self.cell(x[:, t], h * mask)"):
        text = f"""{HEAD.replace("CELL", "GRUCell")}    def forward(self, x, h):
        for t in range(x.shape[1]):
            {step}
        return h
"""
        assert proposed(text, "h = self.cell", "LCH106", "whole-sequence") == []


def test_nothing_for_a_part_of_a_sequence_or_a_cell_used_again() -> None:
    for over, more in (("n", ""), ("x.size(1)", "\n    def generate(self, x, h):\n        return self.cell(x, h)\n")):
        text = f"""{HEAD.replace("CELL", "GRUCell")}    def forward(self, x, h, n):
        for t in range({over}):
            h = self.cell(x[:, t], h)
        return h
{more}"""
        assert proposed(text, "h = self.cell", "LCH106", "whole-sequence") == []


def test_other_names_of_parameters_are_said() -> None:
    text = f"""{HEAD.replace("CELL", "GRUCell")}    def forward(self, x, h):
        for t in range(x.size(1)):
            h = self.cell(x[:, t], h)
        return h
"""
    (proposal,) = proposals(text, "h = self.cell", "LCH106", "whole-sequence")
    assert proposal.changes
