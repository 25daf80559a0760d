"""A recurrent cell runs step by step over a sequence that is there as a whole.

Looks like: ``for t in range(x.shape[1]): h = self.cell(x[:, t], h)`` with ``nn.GRUCell``,
    ``nn.LSTMCell`` or ``nn.RNNCell``.
Slow because: every step launches a dozen small kernels, forward and backward; ``nn.GRU`` and the
    like do the input's part for all steps at once and the rest in one call.
Fix: ``nn.GRU(..., batch_first=True)(x)``.
Quiet when: the input of a step is made from the step before (a decoder that feeds itself).
Source: PyTorch documentation of ``torch.nn.GRU``.
"""

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, names_in, text_of

RULE = Rule("LCH106", "unrolled-recurrence", "launch", "A recurrent cell runs step by step in Python", "low")

FIX = Fix(
    text="Give the whole sequence to the layer of the same kind.",
    code="""self.rnn = nn.GRU(width, hidden, batch_first=True)
out, h = self.rnn(x)      # instead of a loop over GRUCell""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.GRU.html",
)

_FEW = 8


def find(module: Module) -> Iterator[Hit]:
    """Yield calls of cells on slices that the loop's counter picks."""
    for call in module.calls:
        loop = call.context.statement_loop
        if loop is None or not call.receiver.of.endswith("Cell") or not call.node.args or call.context.rare:
            continue
        if loop.n_constant is not None and loop.n_constant < _FEW:
            continue
        given = call.node.args[0]
        if not isinstance(given, ast.Subscript) or not names_in(given.slice) & loop.targets:
            direct = (
                isinstance(given, ast.Name) and given.id in loop.targets and loop.iterates.kind in ("tensor", "list")
            )
            if not direct:
                continue
        yield Hit(call.node, f"one step of a sequence that is there as a whole: {text_of(call.node)}", "forward")
