"""A metric over everything so far, or one of the host, is computed in every step.

Looks like: ``metric.compute()`` of torchmetrics after each ``update``; ``roc_auc_score``, ``f1_score`` or
    ``confusion_matrix`` of scikit-learn in each step of training.
Slow because: a curve or a ranking sorts all that was seen, longer with each step; scikit-learn checks and copies its
    arrays on the host, which waits for the device to get them.
Fix: ``update`` in the step, ``compute`` once per epoch.
Quiet when: it is behind ``if step % n``, the metric is reset in each step, or it runs after the loop.
Source: torchmetrics documentation, "Structure overview".
"""

import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, text_of
from torchtriage.diagnose.lint.syntax import path_of

RULE = Rule("HST124", "metric-in-step", "host", "A metric is computed in every step", "low")

FIX = Fix(
    text="Collect in the step, compute once per epoch.",
    code="""for x, y in loader:
    metric.update(model(x), y)
value = metric.compute()                   # after the loop""",
    link="https://lightning.ai/docs/torchmetrics/stable/pages/overview.html",
)

_METRIC = re.compile(
    r"metric|acc(uracy)?(\d|_\w{1,20})?$|auroc|auc$|f1|(^|_)map$|iou|psnr|ssim|recall|precision|(^|_)fid$|confmat|bleu|wer$"
)
_HOST = re.compile(r"^sklearn\.metrics\.(\w+\.)?\w+$")


def find(module: Module) -> Iterator[Hit]:
    """Yield metrics that each step computes."""
    for call in module.sent("compute"):
        if not call.context.hot or call.node.args or call.owner is None:
            continue
        owner = path_of(call.owner)
        if _METRIC.search(owner.rpartition(".")[2].lower()) and not _resets(module, call, owner):
            yield Hit(call.node, f"every step computes this over all steps so far: {text_of(call.node)}", "compute")
    for call in module.calls if "sklearn" in module.text else ():
        if not _HOST.match(call.name) or not call.context.hot:
            continue
        loop = call.context.step_loop
        if loop is not None and loop.trains:
            yield Hit(call.node, f"every step computes this on the host: {text_of(call.node)}", call.attr)


def _resets(module: Module, call: SourceCall, owner: str) -> bool:
    """Return whether the metric begins anew in each step."""
    return any(
        other.context.hot and other.owner is not None and path_of(other.owner) == owner
        for other in module.sent("reset")
        if other.context.function is call.context.function
    )
