"""A tensor is made from Python numbers, one by one, in every step.

Looks like: ``torch.tensor([f(x) for x in rows])`` in a loop of steps, or in what it calls;
    ``torch.FloatTensor(states)`` of the columns of ``zip(*samples)``, or of a list, that are arrays by their name.
Slow because: the comprehension and the conversion handle one Python object at a time: about a
    millisecond for ten thousand numbers, while the device waits.
Fix: keep the data in tensors or arrays, and index those (a ring buffer for replay); ``np.stack`` first.
Quiet when: it is in a data set or its ``collate_fn``, pads rows to one length, goes over a short
    constant range, or is behind ``if step % n``. A remark where nothing is trained: requests come as
    Python objects.
Source: PyTorch documentation of ``torch.tensor``.
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, text_of
from torchtriage.diagnose.lint.syntax import path_of

RULE = Rule("CPY102", "tensor-from-python", "copy", "Tensors are built from Python numbers in every step", "low")

FIX = Fix(
    text="Keep the data in tensors and index them.",
    code="""states = torch.zeros(capacity, width)      # once
states[position] = observation
batch = states[torch.randint(filled, (64,))]   # instead of a comprehension""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.tensor.html",
)

_FACTORIES = tuple(f"torch.{name}" for name in ("tensor", "as_tensor", "Tensor", "FloatTensor", "LongTensor"))
_FEW = 16
# what samples hold one array of; rewards and actions are numbers
_ARRAYS = re.compile(
    r"(^|_)(states?|obs|observations?|frames?|images?|imgs?|features?|feats?|vectors?|embeddings?|windows?|signals?|next_s|s2?)"
    r"(_?\d|_t|_tp1|_next|_batch|_list|_)?$"
)


def find(module: Module) -> Iterator[Hit]:
    """Yield tensors that hot code makes of a comprehension."""
    for call in module.called(*_FACTORIES):
        if not call.node.args or not module.repeats(call.context):
            continue
        if _is_column(module, call):
            yield Hit(call.node, f"built from many arrays, number by number: {text_of(call.node)}", call.attr)
        elif call.context.hot and _is_gathered(module, call):
            yield Hit(
                call.node,
                f"built from Python numbers one by one: {text_of(call.node)}",
                call.attr,
                severity=None if module.trains else "note",
            )


_DRAWN = re.compile(r"batch|sampl|transition|experience|memory|replay|episode|trajector|buffer", re.IGNORECASE)


def _is_column(module: Module, call: SourceCall) -> bool:
    """Return whether a tensor is made of a list of arrays, or of what ``zip(*samples)`` gives of them: a tuple."""
    node = call.node.args[0]
    root = node.value if isinstance(node, ast.Attribute) else node
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    if not isinstance(root, ast.Name) or not _ARRAYS.search(name):
        return False
    # what comes after, states = torch.tensor(states), is another
    before = call.node.lineno
    made = [item for item in module.made_in(call.context.function, root.id) if item.lineno < before]
    if made and isinstance(made[0], ast.List) and root is node:
        return not made[0].elts and len(made) > 1 and all(map(_is_array, made[1:]))
    if len(made) != 1 or not isinstance(made[0], ast.Call):
        return False
    # of map(np.stack, zip(*samples)) the columns are arrays already
    record = [item.value for item in made[0].args if isinstance(item, ast.Starred)]
    listed = made[0].args if path_of(made[0].func) in ("list", "tuple") else []
    return any(map(_transposes, (made[0], *record, *listed)))


def _is_array(node: ast.expr) -> bool:
    """Return whether what a list gets is an array by its name: an observation, a frame."""
    return isinstance(node, ast.Name) and _ARRAYS.search(node.id) is not None


def _transposes(node: ast.AST) -> bool:
    """Return whether drawn samples become columns: ``zip(*batch)``, ``zip(*memory.sample(n))``."""
    return (
        isinstance(node, ast.Call)
        and path_of(node.func) == "zip"
        and len(node.args) == 1
        and isinstance(node.args[0], ast.Starred)
        and _DRAWN.search(text_of(node.args[0], 200)) is not None
    )


def _is_gathered(module: Module, call: SourceCall) -> bool:
    node = call.node.args[0]
    if isinstance(node, ast.Name):
        made = module.made_in(call.context.function, node.id)
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
