"""Ranks exchange small messages in every step.

Looks like: ``all_reduce`` and the like in a loop over parameters; ``barrier()``,
    ``all_gather_object`` or ``broadcast_object_list`` in a loop of steps.
Slow because: each exchange costs tens of microseconds whatever its size, and every rank waits for
    the last; objects are pickled, copied and read on the host.
Fix: let ``DistributedDataParallel`` bucket the gradients; exchange metrics every N steps; delete
    barriers.
Quiet when: it is behind ``if step % n`` or runs once per epoch.
Source: PyTorch documentation, "Distributed communication package".
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, names_in, text_of
from torchtriage.diagnose.lint.torch_names import words

RULE = Rule("COM037", "many-small-collectives", "comm", "Many small collectives", "medium")

FIX = Fix(
    text="Communicate rarely, and in bulk.",
    code="""model = DistributedDataParallel(model)  # bucket_cap_mb stays at 25
if step % 100 == 0:
    torch.distributed.all_reduce(metrics)  # one tensor of all metrics""",
    link="https://docs.pytorch.org/docs/stable/distributed.html",
)

_DIST = "torch.distributed."
_OBJECTS = words("barrier monitored_barrier all_gather_object gather_object broadcast_object_list scatter_object_list")
_PARAMETERS = re.compile(r"parameters\(|state_dict\(|(^|[\s(._])(params|grads|weights|deltas|buffers)([\s),._]|$)")
_EACH = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter")


def find(module: Module) -> Iterator[Hit]:
    """Yield barriers and object collectives of each step, and collectives per parameter."""
    for call in module.called(*(_DIST + name for name in _OBJECTS)):
        if call.context.hot:
            yield Hit(call.node, f"{call.attr}() makes all ranks wait in every step", call.attr)
    for call in module.called(*(_DIST + name for name in _EACH)):
        loop = call.context.loop
        if loop is None or call.context.rare or loop.steps or isinstance(loop.node, ast.While):
            continue
        of_parameters = loop.iterates.kind == "params" or _PARAMETERS.search(text_of(loop.node.iter, 200)) is not None
        if of_parameters and (module.repeats(loop.context) or (call.node.args and _of_gradient(call.node.args[0]))):
            yield Hit(call.node, f"one {call.attr}() for each parameter", call.attr)
        elif loop.context.hot and not of_parameters and call.node.args and names_in(call.node) & loop.targets:
            yield Hit(call.node, f"one {call.attr}() for each of these in every step", call.attr, severity="low")


def _of_gradient(node: object) -> bool:
    return getattr(node, "attr", "") in ("grad", "data") and "grad" in str(
        (getattr(node, "attr", ""), getattr(getattr(node, "value", None), "attr", ""))
    )
