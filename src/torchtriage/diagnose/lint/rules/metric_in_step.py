"""A metric over everything so far, or one on the host, is computed in every step.

Looks like: ``metric.compute()`` of torchmetrics after each ``update``; ``roc_auc_score``, ``f1_score`` or
    ``confusion_matrix`` of scikit-learn in each step of training.
Slow because: a curve or a ranking sorts everything seen so far, which takes longer with each step; scikit-learn checks
    and copies its arrays on the host, which waits for the device to get them.
Fix: ``update`` in the step, ``compute`` once per epoch.
Quiet when: it is behind ``if step % n``, the metric is reset in each step or only keeps a mean or a sum, or it runs
    after the loop.
Source: torchmetrics documentation, "Structure overview".
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, text_of
from torchtriage.diagnose.lint.syntax import path_of

RULE = Rule("HST124", "metric-in-step", "host", "A metric is computed in every step", "low")

FIX = Fix(
    text="Accumulate in the step, compute once per epoch.",
    code="""for x, y in loader:
    metric.update(model(x), y)
value = metric.compute()                   # after the loop""",
    link="https://lightning.ai/docs/torchmetrics/stable/pages/overview.html",
)

_METRIC = re.compile(
    r"metric|acc(uracy)?(\d|_\w{1,20})?$|auroc|auc$|f1|(^|_)map$|iou|psnr|ssim|recall|precision|(^|_)fid$|confmat|bleu|wer$"
)
_RUNNING = re.compile(r"(^|\.)(Mean|Sum|Max|Min)Metric$")
_HOST = re.compile(r"^sklearn\.metrics\.(\w+\.)?\w+$")


def find(module: Module) -> Iterator[Hit]:
    """Yield metrics that each step computes."""
    for call in module.sent("compute"):
        if not call.context.hot or call.node.args or call.owner is None:
            continue
        owner = path_of(call.owner)
        named = _METRIC.search(owner.rpartition(".")[2].lower()) or _also_calls(module, call, owner, "update")
        if named and not _also_calls(module, call, owner, "reset") and not _is_running(module, owner):
            yield Hit(call.node, f"every step computes this over all steps so far: {text_of(call.node)}", "compute")
    for call in module.calls if "sklearn" in module.text else ():
        if not _HOST.match(call.name) or not call.context.hot:
            continue
        loop = call.context.step_loop
        if loop is not None and loop.trains:
            yield Hit(call.node, f"every step computes this on the host: {text_of(call.node)}", call.attr)


def _also_calls(module: Module, call: SourceCall, owner: str, method: str) -> bool:
    """Return whether the step calls this method of the same object, too."""
    return any(
        other.context.hot and other.owner is not None and path_of(other.owner) == owner
        for other in module.sent(method)
        if other.context.function is call.context.function
    )


def _is_running(module: Module, owner: str) -> bool:
    """Return whether the metric keeps a running value, which is as cheap after any number of steps."""
    return any(
        isinstance(assign.expression, ast.Call) and _RUNNING.search(text_of(assign.expression.func))
        for assign in module.assigns_to(owner)
    )
