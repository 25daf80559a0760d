"""In every step, ranks exchange a number that is only logged.

Looks like: ``self.log("train_loss", loss, sync_dist=True)`` in ``training_step``; ``dist.all_reduce(loss)``,
    ``accelerator.gather(loss)`` after the backward pass of each step.
Slow because: every rank waits for the slowest, tens of microseconds and more, for a curve in a log.
Fix: exchange every N steps, or sum up on the device and exchange once per epoch.
Quiet when: it is behind ``if step % n``, in evaluation, or logged per epoch only (``on_step=False``).
Source: Lightning documentation of ``LightningModule.log``, ``sync_dist``.
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, keyword, literal, text_of
from torchtriage.diagnose.lint.syntax import path_of

RULE = Rule("COM101", "metric-exchange-in-step", "comm", "Ranks exchange a logged number in every step", "low")

FIX = Fix(
    text="Exchange it only when it is logged.",
    code="""total += loss.detach()                     # on the device, in every step
if step % 100 == 0:
    torch.distributed.all_reduce(total)""",
    link="https://lightning.ai/docs/pytorch/stable/api/lightning.pytorch.core.LightningModule.html",
)

_EACH = tuple(f"torch.distributed.{name}" for name in ("all_reduce", "reduce", "all_gather", "all_gather_into_tensor"))
_METHODS = ("gather", "gather_for_metrics", "reduce", "all_gather", "all_reduce")
_NUMBER = re.compile(
    r"loss|(^|_)(acc|accuracy|metric|metrics|stat|stats|correct|log|logs|logged|err|error|norm|lr)(_|s?\d?$)"
)
_OWNERS = re.compile(r"(^|\.)(accelerator|fabric|self|dist|comm)$")


def find(module: Module) -> Iterator[Hit]:
    """Yield exchanges of losses and metrics in each step of training."""
    for call in module.sent("log", "log_dict"):
        function = call.context.function
        if function is None or function.name != "training_step" or not call.context.hot:
            continue
        if literal(keyword(call.node, "sync_dist")) is True and literal(keyword(call.node, "on_step")) is not False:
            yield Hit(call.node, f"the ranks exchange this in every step: {text_of(call.node)}", call.attr)
    for call in [*module.called(*_EACH), *module.sent(*_METHODS)]:
        if not call.name and (call.owner is None or not _OWNERS.search(path_of(call.owner))):
            continue
        if (
            call.context.hot
            and call.node.args
            and call.context.trains
            and _is_number(call.node.args[-1 if "gather" in call.attr and call.name else 0])
        ):
            yield Hit(call.node, f"the ranks exchange this in every step: {text_of(call.node)}", call.attr)


def _is_number(node: ast.expr) -> bool:
    """Return whether an expression is a loss or a metric by its name."""
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute) and _NUMBER.search(node.attr):
            return True
        node = node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and _NUMBER.search(node.id) is not None
