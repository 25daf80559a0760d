"""A model runs without autograd, but still in train mode.

Looks like: a module built in this file, with dropout or batch norm, called in a loop under
    ``no_grad`` or ``inference_mode``, or in a program that trains nothing, and no ``.eval()`` in the
    file; the same in a function that
    answers requests, for any model that gets its weights with ``load_state_dict``.
Slow because: dropout draws random numbers and batch norm computes and stores statistics; above all
    the results are wrong.
Fix: ``model.eval()`` before the loop.
Quiet when: ``.eval()`` or ``.train(False)`` is anywhere in the file, or the model comes from
    elsewhere. A remark where the file speaks of uncertainty: dropout may be on to measure it.
Source: PyTorch documentation of ``Module.eval``.
"""

import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, literal

RULE = Rule(
    "CFG042", "train-mode-in-inference", "config", "Dropout or batch norm in train mode during inference", "medium"
)

FIX = Fix(
    text="Switch the model to evaluation before the loop; results change, as they should.",
    code="model.eval()\nwith torch.inference_mode():\n    outputs = model(inputs)",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.eval",
)

_ON_PURPOSE = re.compile(
    r"uncertain|monte.?carlo|(^|_)mc_|epistemic|stochastic|ensembl|bayes", re.IGNORECASE | re.MULTILINE
)
_MATTERS = ("ropout", "BatchNorm", "InstanceNorm", "TransformerEncoder")


def find(module: Module) -> Iterator[Hit]:
    """Yield the first call of each such module without autograd."""
    matters = any(word in module.text for word in _MATTERS)
    loaded = bool(module.sent("load_state_dict"))
    if not matters and not loaded:
        return
    evaluates = [
        *module.sent("eval"),
        *(call for call in module.sent("train") if call.node.args and literal(call.node.args[0]) is not True),
    ]
    if evaluates:
        return
    infers = module.is_program and not module.trains and ".step(" not in module.text
    for call in module.calls:
        receiver, function = call.receiver, call.context.function
        if call.context.in_module:
            continue  # whoever owns this module decides
        if function is not None and function.has_backward:
            continue  # in the middle of training: a value that the loss takes as given
        if (
            (call.context.no_grad or infers)
            and (call.context.hot or call.context.step_loop is not None or (function is not None and function.serves))
            and receiver.kind == "module"
            and ((receiver.of or _builds_its_own(module)) if matters else function is not None and function.serves)
            and not receiver.evaluated
            and call.value.kind == "tensor"
            and not receiver.of.endswith("Loss")
        ):
            yield Hit(
                call.node,
                "this model was never switched to evaluation; results may be wrong",
                "forward",
                severity="note" if _ON_PURPOSE.search(module.text) else None,
            )
            return


def _builds_its_own(module: Module) -> bool:
    """Return whether the only models here are those of the file's classes, and nothing trains."""
    if any(loop.backward or loop.optimizes for loop in module.loops):
        return False
    built = {call.attr for call in module.calls if call.context.owner is None and call.value.kind == "module"}
    return bool(built) and all(item in module.classes for item in built)
