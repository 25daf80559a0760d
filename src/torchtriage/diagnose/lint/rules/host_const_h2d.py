"""A constant is built on the host and copied to the device in every step.

Looks like: ``torch.tensor([...]).to(device)`` or ``torch.zeros(n).cuda()``, and factories without
    ``device=`` whose result moves, in a loop of steps or in ``forward``;
    ``torch.tensor(x.size(1), device=x.device)``.
Slow because: the constant is filled on the CPU, then copied from pageable memory; the copy waits
    for the stream.
Fix: give ``device=`` to the factory; keep constants in a buffer.
Quiet when: the tensor holds input of this step, or random numbers that stand for it, or stays on
    the host.
Source: PyTorch performance tuning guide, "Create tensors directly on the target device".
"""

import ast
from collections.abc import Iterator

from torchtriage.core import fixes
from torchtriage.diagnose.lint.base import Hit, Module, Rule, SourceCall, compiled, keyword, literal, text_of
from torchtriage.diagnose.lint.syntax import method_of, path_of

RULE = Rule(
    "SYN005", "host-const-h2d", "sync", "Small tensors built on the host and copied each step", "medium", device=True
)

FIX = fixes.BUILD_ON_DEVICE


def find(module: Module) -> Iterator[Hit]:
    """Yield moves of tensors that hot code has just built on the host."""
    for call in module.called("torch.tensor", "torch.as_tensor"):
        if not call.context.often or compiled(call.context) or not call.node.args:
            continue
        if _is_size_of(module, call.node.args[0]) and _on_device(call.node) and not _exchanged(module, call):
            said = f"a number on the host is copied to the device {call.context.often}: {text_of(call.node)}"
            yield Hit(call.node, said, call.attr, severity="low")
    for call in module.sent("to", "cuda", "type_as"):
        made = call.receiver.made_by
        if made is None or not call.context.hot or call.value.device != 2 or compiled(call.context):
            continue
        if _of_step(module, made):
            continue
        yield Hit(call.node, f"built on the host and copied in every step: {text_of(call.node)}", call.attr)


def _of_step(module: Module, made: ast.Call) -> bool:
    """Return whether a factory is given data, which must come from the host."""
    name = module.name_of(made.func)
    if keyword(made, "pin_memory") is not None:
        return True
    if ".rand" in name or keyword(made, "generator") is not None:
        # noise has the size of the batch; what has a size of its own stands for data
        return not any(map(_is_size, (node for arg in made.args for node in ast.walk(arg))))
    if name.rpartition(".")[2] not in ("tensor", "as_tensor"):
        return False
    return not made.args or not _constant(made.args[0])


def _is_size_of(module: Module, node: ast.expr) -> bool:
    """Return whether an expression is the size of a tensor: Python has it, and computes with it."""
    if isinstance(node, ast.Subscript):
        return (
            isinstance(node.value, ast.Attribute)
            and node.value.attr == "shape"
            and not isinstance(node.slice, ast.Slice)
        )
    return isinstance(node, ast.Call) and (
        (method_of(node) == "size" and len(node.args) == 1)
        or (module.name_of(node.func) == "len" and module.value(node.args[0]).kind == "tensor")
    )


def _on_device(made: ast.Call) -> bool:
    """Return whether a factory is told a device that is not the CPU."""
    device = keyword(made, "device")
    return device is not None and literal(device) is not None and "'cpu" not in text_of(device)


def _exchanged(module: Module, call: SourceCall) -> bool:
    """Return whether a function has collectives: what ranks exchange has to be on the device."""
    exchanges = module.called(
        "torch.distributed.all_gather", "torch.distributed.all_reduce", "torch.distributed.broadcast"
    )
    return any(other.context.function is call.context.function for other in exchanges)


def _is_size(node: ast.AST) -> bool:
    """Return whether an expression is the size of another tensor."""
    return isinstance(node, ast.Attribute) and node.attr in ("shape", "size") and not path_of(node).startswith("self.")


def _constant(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return _constant(node.operand)
    if isinstance(node, ast.List | ast.Tuple):
        return bool(node.elts) and all(_constant(element) for element in node.elts)
    if isinstance(node, ast.BinOp):
        return _constant(node.left) and _constant(node.right)
    if isinstance(node, ast.Attribute):
        # self.mean of a configuration: the same in every step
        return path_of(node).startswith("self.")
    return isinstance(node, ast.Constant)
