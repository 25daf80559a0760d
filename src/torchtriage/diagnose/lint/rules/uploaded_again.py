"""The same data is copied to the device in every step.

Looks like: ``model(x, adj.to(device))`` in a loop that never changes ``adj``; ``self.table.to(x.device)`` in
    ``forward`` of a plain tensor; ``images[i].to(device)`` in a loop that trains;
    ``x.pin_memory().to(device)``.
Slow because: the same bytes cross the bus in each step, and the host waits for them; pinning memory costs more than
    the copy that it speeds up.
Fix: move it once, before the loop; ``register_buffer`` for what belongs to a module; ``pin_memory=True`` of the loader.
Quiet when: it changes in the loop, is made on the device, or is moved where it is made.
Source: PyTorch tutorial, "A guide on good usage of non_blocking and pin_memory()".
"""

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.abstract_values import CPU, DEVICE
from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, SourceLoop, text_of
from torchtriage.diagnose.lint.rules._moves import goes, is_module, moved_path
from torchtriage.diagnose.lint.syntax import names_in, path_of
from torchtriage.diagnose.lint.work_syntax import bound_names, parameters

RULE = Rule(
    "CPY103", "uploaded-again", "copy", "The same data is copied to the device in every step", "medium", device=True
)

FIX = Fix(
    text="Move it once, before the loop.",
    code="""adj = adj.to(device)                       # before the loop
self.register_buffer("table", table)       # in __init__: moves with the module""",
    link="https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",
)


def find(module: Module) -> Iterator[Hit]:
    """Yield copies to the device of what no step changes, and memory pinned in steps."""
    for call in module.sent("to", "cuda"):
        if not goes(call):
            continue
        path = moved_path(call)
        if path and not is_module(call, path) and _lasts(module, call, path):
            yield Hit(call.node, f"every step copies this again: {text_of(call.node)}", call.attr)
        elif not path and (rows := _rows(module, call)) is not None:
            message = f"every step copies a part of data that is already in memory: {text_of(rows)}"
            yield Hit(call.node, message, call.attr, severity="low")
    for call in module.sent("pin_memory"):
        if call.context.hot and not call.node.args and call.user is not None and call.user.attr in ("to", "cuda"):
            message = f"every step pins memory, which costs more than the copy: {text_of(call.node)}"
            yield Hit(call.node, message, "pin_memory", severity="low")


def _lasts(module: Module, call: SourceCall, path: str) -> bool:
    """Return whether what is copied is a tensor that no step makes or moves for good."""
    if call.target == path or call.receiver.kind not in ("tensor", "unknown") or call.receiver.data:
        return False
    if call.receiver.kind == "tensor" and call.receiver.device != CPU:
        return False
    root = path.partition(".")[0]
    loop, function = call.context.step_loop, call.context.function
    if root == "self":
        return _plain_tensor(call, path) and function is not None and not function.has_backward
    if "." in path or not _known(module, root, loop):
        return False
    if loop is not None:
        return not _changes(loop, root) and _is_used(module, call)
    if function is None or root in parameters(function.node) | bound_names(function.node):
        return False
    return _is_used(module, call)


def _rows(module: Module, call: SourceCall) -> ast.Subscript | None:
    """Return what is taken of an array that no step changes: ``x[rows].to(device)``, ``from_numpy(x[i]).cuda()``."""
    node, loop = call.owner, call.context.step_loop
    if isinstance(node, ast.Call) and module.name_of(node.func) in _FROM and node.args:
        node = node.args[0]
    if loop is None or not loop.trains or loop.over_loader or not isinstance(node, ast.Subscript):
        return None
    root = path_of(node.value)
    if not root or "." in root or isinstance(node.slice, ast.Constant) or call.receiver.kind == "module":
        return None
    if call.receiver.kind == "tensor" and call.receiver.device == DEVICE:
        return None
    drawn = any(_changes(loop, name) for name in names_in(node.slice))
    given = loop.function is not None and root in parameters(loop.function.node)
    return node if drawn and not _changes(loop, root) and (given or _known(module, root, loop)) else None


_FROM = ("torch.from_numpy", "torch.tensor", "torch.as_tensor")


def _is_used(module: Module, call: SourceCall) -> bool:
    """Return whether the copy is part of more than a statement of its own, which moves a module for good."""
    if call.user is not None or call.target:
        return True
    return not any(isinstance(item, ast.Expr) and item.value is call.node for item in ast.walk(module.tree))


def _changes(loop: SourceLoop, root: str) -> bool:
    return any(
        root in outer.targets or root in outer.assigned or root in bound_names(outer.node)
        for outer in (loop, *loop.around())
    )


def _known(module: Module, root: str, loop: SourceLoop | None) -> bool:
    """Return whether a name is made outside the loop, in the same function or at the file's level."""
    around = loop.function if loop is not None else None
    return not module.classes.get(root) and any(
        assign.how in ("=", "unpack") and assign.context.function in (around, None)
        for assign in module.assigns_to(root)
    )


def _plain_tensor(call: SourceCall, path: str) -> bool:
    """Return whether an attribute of a module is a tensor that does not move with it."""
    owner = call.context.owner
    if owner is None or not owner.is_module or path.count(".") != 1:
        return False
    known = owner.attribute(path.rpartition(".")[2])
    return known is not None and known.kind == "tensor" and known.device == CPU and known.of != "parameter"
