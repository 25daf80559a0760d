"""Tensors are printed or logged in every step.

Looks like: ``print``, a logger, ``add_scalar``, ``wandb.log`` or ``tqdm.set_postfix`` with a device
    tensor (or its ``.item()``) among its arguments, in a loop of steps or in a step function.
Slow because: to show a value the host waits for it; formatting and writing take their own time.
Fix: log every N steps, and what was added up on the device meanwhile.
Quiet when: it is behind ``if step % n``, a debug switch, or shows host values only.
Source: PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
"""

from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, compiled, logging_calls, reads, text_of
from torchtriage.diagnose.lint.syntax import holds

RULE = Rule(
    "SYN004",
    "host-sync-print-log",
    "sync",
    "Tensors printed or logged in every step",
    "medium",
    over=("SYN001", "CPY006", "OPT041"),
    device=True,
)

FIX = Fix(
    text="Log every N steps, from a sum that stays on the device.",
    code="""running += loss.detach()
if step % 50 == 0:
    print(f"{step} {running.item() / 50:.4f}")
    running.zero_()""",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
    "#avoid-unnecessary-cpu-gpu-synchronization",
)


def find(module: Module) -> Iterator[Hit]:
    """Yield prints and log calls of hot code that show device values."""
    shown = [call for call in logging_calls(module) if call.context.often and not compiled(call.context)]
    if not shown:
        return
    read = [node for node, context, _ in reads(module) if context.often]
    for call in shown:
        if _shows_tensor(module, call) or any(holds(call.node, item) for item in read):
            yield Hit(
                call.node,
                f"a device value is shown {call.context.often}: {text_of(call.node)}",
                call.attr,
                severity=None if call.context.hot else "low",
            )


def _shows_tensor(module: Module, call: SourceCall) -> bool:
    for value in call.arguments:
        if any(item.known_on_device for item in (value, *value.items)):
            return True
    return any(item.value.known_on_device and holds(call.node, item.node) for item in module.formats)
