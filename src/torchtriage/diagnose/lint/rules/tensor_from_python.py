"""A tensor is made of Python numbers, one by one, in every step.

Looks like: ``torch.tensor([f(x) for x in rows])`` in a loop of steps, or in what it calls.
Slow because: the comprehension and the conversion handle one Python object at a time: about a
    millisecond for ten thousand numbers, while the device waits.
Fix: keep the data in tensors or arrays, and index those (a ring buffer for replay).
Quiet when: it is in a data set or its ``collate_fn``, pads rows to one length, goes over a short
    constant range, or is behind ``if step % n``. A remark where nothing is trained: requests come as
    Python objects.
Source: PyTorch documentation of ``torch.tensor``.
"""

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, text_of

RULE = Rule("CPY102", "tensor-from-python", "copy", "Tensors are made of Python numbers in every step", "low")

FIX = Fix(
    text="Keep the data in tensors and index them.",
    code="""states = torch.zeros(capacity, width)      # once
states[position] = observation
batch = states[torch.randint(filled, (64,))]   # instead of a comprehension""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.tensor.html",
)

_FACTORIES = tuple(f"torch.{name}" for name in ("tensor", "as_tensor", "Tensor", "FloatTensor", "LongTensor"))
_FEW = 16


def find(module: Module) -> Iterator[Hit]:
    """Yield tensors that hot code makes of a comprehension."""
    for call in module.called(*_FACTORIES):
        if call.context.hot and call.node.args and _is_gathered(module, call):
            yield Hit(
                call.node,
                f"made of Python numbers one by one: {text_of(call.node)}",
                call.attr,
                severity=None if module.trains else "note",
            )


def _is_gathered(module: Module, call: SourceCall) -> bool:
    node = call.node.args[0]
    if isinstance(node, ast.Name):
        made = [
            one.expression
            for one in module.assigns
            if one.target == node.id and one.context.function is call.context.function
        ]
        node = made[0] if len(made) == 1 and isinstance(made[0], ast.ListComp) else node
    if isinstance(node, ast.Call) and module.name_of(node.func) in ("list", "numpy.array") and node.args:
        node = node.args[0]
    if not isinstance(node, ast.ListComp) or _pads(node.elt):
        return False
    loop = next((loop for loop in module.loops if loop.node is node.generators[0]), None)
    return loop is None or loop.n_constant is None or loop.n_constant > _FEW


def _pads(node: ast.expr) -> bool:
    """Return whether a row is filled up, as the texts of a batch are: ``row + [0] * n``."""
    return any(
        isinstance(item, ast.BinOp) and isinstance(item.op, ast.Mult) and isinstance(item.left, ast.List)
        for item in ast.walk(node)
    )
