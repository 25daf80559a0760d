"""A tensor, or a model, leaves the device and returns in the same step.

Looks like: ``torch.from_numpy(f(x.cpu().numpy())).to(device)``, in one expression or through
    variables, in a loop of steps or in ``forward``; ``teacher.to(device)`` and ``teacher.cpu()`` in each step.
Slow because: two copies and the host's work between them, with the device idle all the while; for a model, as many
    copies as it has weights, one by one.
Fix: use the operation of the device (``torch.clamp``, ``torchvision.transforms.v2``), or move the
    work into the loader. Move a model once, before the loop.
Quiet when: none of this runs in each step.
Source: PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
"""

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, text_of
from torchtriage.diagnose.lint.rules._moves import goes, is_module, leaves, moved_path

RULE = Rule(
    "CPY009",
    "copy-ping-pong",
    "copy",
    "Tensors that leave the GPU and return",
    "high",
    over=("CPY006", "CPY007", "SYN001", "SYN005"),
    device=True,
)

FIX = Fix(
    text="Do the work in between on the device.",
    code="""x = x.clamp(0, 1)
# instead of: x = torch.from_numpy(np.clip(x.cpu().numpy(), 0, 1)).to(x.device)""",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
    "#avoid-unnecessary-cpu-gpu-synchronization",
)

MODEL = Fix(
    text="Keep the model on the device: move it once, before the loop.",
    code="""teacher.to(device)  # once, and no teacher.cpu() behind the step
for x, y in loader:
    targets = teacher(x)""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.to",
)


def find(module: Module) -> Iterator[Hit]:
    """Yield moves to the device of what came from there in the same step, and of models that leave it again."""
    for call in module.sent("to", "cuda"):
        read = call.receiver.readback
        if read is None or call.value.device != 2 or not call.context.hot:
            continue
        line = "" if read.lineno == call.node.lineno else f", read back on line {read.lineno}"
        yield Hit(
            call.node,
            f"a tensor returns to the device{line}: {text_of(call.node)}",
            call.attr,
            span=_both(read, call.node),
            also=(read.lineno,),
        )
    yield from _models(module)


def _models(module: Module) -> Iterator[Hit]:
    leaving = {(moved_path(call), call.context.function): call for call in module.sent("to", "cpu") if leaves(call)}
    for call in module.sent("to", "cuda"):
        path = moved_path(call)
        back = leaving.get((path, call.context.function))
        if path and back is not None and goes(call) and is_module(call, path):
            message = f"every step moves this model to the device and back: {text_of(call.node)}"
            yield Hit(call.node, message, call.attr, fix=MODEL, also=(back.node.lineno,))


def _both(read: ast.Call, back: ast.Call) -> ast.AST:
    """Return the stretch from the readback to the return: one problem."""
    span = ast.Pass()
    span.lineno, span.col_offset = min((read.lineno, read.col_offset), (back.lineno, back.col_offset))
    span.end_lineno, span.end_col_offset = back.end_lineno, back.end_col_offset
    return span
