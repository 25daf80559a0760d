"""A recurrent cell runs step by step over a sequence that is available as a whole.

Looks like: ``for t in range(x.shape[1]): h = self.cell(x[:, t], h)`` with ``nn.GRUCell``,
    ``nn.LSTMCell`` or ``nn.RNNCell``, or a cell that is passed in; ``out, h = self.gru(token, h)`` for each token.
Slow because: every step launches a dozen small kernels, forward and backward; ``nn.GRU`` and the
    like do the input's part for all steps at once and the rest in one call.
Fix: ``nn.GRU(..., batch_first=True)(x)``.
Quiet when: the input of a step depends on the previous step (a decoder that feeds itself).
Source: PyTorch documentation of ``torch.nn.GRU``.
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, SourceLoop, names_in, text_of

RULE = Rule("LCH106", "unrolled-recurrence", "launch", "A recurrent cell runs step by step in Python", "low")

FIX = Fix(
    text="Pass the whole sequence to the layer of the same kind.",
    code="""self.rnn = nn.GRU(width, hidden, batch_first=True)
out, h = self.rnn(x)      # instead of a loop over GRUCell""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.GRU.html",
)

_FEW = 8


def find(module: Module) -> Iterator[Hit]:
    """Yield calls of cells, recurrent layers and projections on slices that the loop's counter picks."""
    for call in module.calls:
        loop = call.context.statement_loop
        if loop is None or not call.node.args or call.context.rare or isinstance(loop.node, ast.While):
            continue
        if loop.turns_below(_FEW):
            continue
        given = call.node.args[0]
        of = call.receiver.of if call.receiver.kind == "module" else ""
        if of.endswith("Cell") or (
            _CELL.search(call.attr) and _BUILDS_CELL.search(module.text) and not of and _carries_state(call, loop)
        ):
            if of in module.classes or not _is_slice(given, loop):
                continue
            yield Hit(call.node, f"one step of a sequence that is fully known: {text_of(call.node)}", "forward")
        elif of in _LAYERS and len(call.node.args) > 1 and _carries_state(call, loop) and _is_fed(module, given, loop):
            yield Hit(call.node, f"a layer for whole sequences gets one step of it: {text_of(call.node)}", "forward")


_BUILDS_CELL = re.compile(r"nn\.(LSTM|GRU|RNN)Cell\(")
_CELL = re.compile(r"(^|_)(cell|rnn_cell|lstm_cell|gru_cell)$")
_LAYERS = frozenset(["torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN"])


def _carries_state(call: SourceCall, loop: SourceLoop) -> bool:
    """Return whether a call is given a state that the loop assigns anew."""
    return any(names_in(item) & loop.assigned.keys() for item in call.node.args[1:])


def _is_slice(node: ast.expr, loop: SourceLoop) -> bool:
    """Return whether an input is the step of a sequence that the loop's counter picks, or the loop's own item."""
    if isinstance(node, ast.Subscript) and names_in(node.slice) & loop.targets:
        return True
    return isinstance(node, ast.Name) and node.id in loop.targets and loop.iterates.kind in ("tensor", "list")


def _is_fed(module: Module, node: ast.expr, loop: SourceLoop) -> bool:
    """Return whether an input comes from the sequence that the loop goes over, and from no earlier step."""
    names = names_in(node)
    for _ in range(2):
        for assign in module.assigns:
            if assign.context.loop is loop and assign.target in names:
                names |= names_in(assign.expression)
    return bool(names & loop.targets) and not any(
        loop.assigned.get(name, 0) and _is_older(module, name, loop) for name in names
    )


def _is_older(module: Module, name: str, loop: SourceLoop) -> bool:
    """Return whether a variable has a value before the loop, too: it comes from an earlier step."""
    return any(
        assign.context.function is loop.function and loop not in assign.context.loops()
        for assign in module.assigns_to(name)
    )
