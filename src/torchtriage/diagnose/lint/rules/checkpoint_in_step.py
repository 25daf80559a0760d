"""The whole state is saved or copied in every step.

Looks like: ``torch.save``, ``save_pretrained`` or ``copy.deepcopy(model)`` in a loop of steps, or
    in a callback that it calls, or behind ``if step % 2 == 0``; ``TrainingArguments(save_steps=5)``.
Slow because: every parameter and every moment of the optimizer is copied to the host and written:
    for most models longer than the step itself.
Fix: save every N steps or minutes, or in a thread of its own (``torch.distributed.checkpoint.async_save``).
Quiet when: it is behind ``if step % n`` (with n above 10, or not known), behind a comparison with the best value,
    or once per epoch.
Source: PyTorch tutorial, "Saving and loading models".
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, keyword, text_of
from torchtriage.diagnose.lint.rules._turns import runs_every

RULE = Rule("HST102", "checkpoint-in-step", "host", "A checkpoint is written in every step", "medium")

FIX = Fix(
    text="Save every N steps.",
    code="""if step % 1000 == 0:
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)""",
    link="https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html",
)

OFTEN = 10

_COPIES = re.compile(r"\.(clone|cpu|detach|numpy)\(")
_STATE = re.compile(r"state_dict|model|net\b|optimizer|checkpoint|ckpt")


def find(module: Module) -> Iterator[Hit]:
    """Yield saves and copies of a whole state in each step."""
    for call in [*module.called("torch.save"), *module.sent("save_pretrained", "save_checkpoint", "save_model")]:
        if call.context.hot:
            yield Hit(call.node, f"every step writes a checkpoint: {text_of(call.node)}", call.attr)
        elif call.context.modulo and type(every := next(runs_every(module, call), None)) is int and every <= OFTEN:
            yield Hit(call.node, f"a checkpoint is written every few steps: {text_of(call.node)}", call.attr)
    for call in module.calls:
        if call.attr.endswith("TrainingArguments") or call.attr == "ModelCheckpoint":
            every = keyword(call.node, "save_steps") or keyword(call.node, "every_n_train_steps")
            number = module.constant(every, call.context)
            if type(number) is int and 0 < number <= OFTEN:
                assert every is not None
                yield Hit(every, f"a checkpoint is written every {number} steps", call.attr)
    for loop in module.loops:
        if not isinstance(loop.node, ast.comprehension):
            continue
        copies = text_of(module.elements.get(loop.node, loop.node.iter), 200)
        if loop.context.hot and ".state_dict()" in text_of(loop.node.iter) and _COPIES.search(copies):
            yield Hit(loop.node.iter, f"every step copies the whole state: {text_of(loop.node.iter)}", severity="low")
    for call in module.called("copy.deepcopy"):
        given = call.arguments[0] if call.arguments else None
        if not call.context.hot or given is None or len(call.node.args) > 1:  # a memo shares what it holds
            continue
        if given.kind == "module" or _STATE.search(text_of(call.node.args[0], 200)):
            yield Hit(call.node, f"every step copies the whole state: {text_of(call.node)}", "deepcopy", severity="low")
