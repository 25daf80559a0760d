"""Samples are moved to the device, or go through a model, one by one as they are loaded.

Looks like: ``.cuda()`` or ``.to(device)`` in ``__getitem__`` or in a collate function; a network that runs there.
Slow because: each sample costs a copy and launches of its own, in the process that feeds the device; workers cannot
    do it, or each starts a context of its own on the device.
Fix: hand out tensors on the host, pin them (``pin_memory=True``), and move the batch in the step; run the model on
    the batch, or once before training.
Quiet when: the data set lies on the device as a whole, or the device is the CPU.
Source: PyTorch documentation of ``torch.utils.data``, "Multi-process data loading".
"""

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, keyword, literal, text_of
from torchtriage.diagnose.lint.samples import samples_of
from torchtriage.diagnose.lint.syntax import destination, moves, path_of
from torchtriage.diagnose.lint.torch_names import FACTORIES, MODULE

RULE = Rule("DAT106", "device-in-sample", "data", "Samples are moved to the device one by one", "medium", device=True)

FIX = Fix(
    text="Move the batch, in the step.",
    code="""loader = DataLoader(dataset, num_workers=8, pin_memory=True)   # samples stay on the host
for x, y in loader:
    x = x.to(device, non_blocking=True)""",
    link="https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading",
)


def find(module: Module) -> Iterator[Hit]:
    """Yield copies to the device and runs of models in the code of samples."""
    samples = samples_of(module)
    for function, call in samples.calls():
        if _copies(call):
            in_batch = function in samples.roots and function.owner is None
            doing = "every batch is copied as it is put together" if in_batch else "every sample is copied by itself"
            yield Hit(call.node, f"{doing}: {text_of(call.node)}", call.attr, severity="low" if in_batch else None)
        elif _runs_model(call):
            yield Hit(call.node, f"a model runs for each sample that is loaded: {text_of(call.node)}", call.attr)


def _copies(call: SourceCall) -> bool:
    if call.name in FACTORIES:
        where = keyword(call.node, "device")
        return where is not None and (path_of(where) == "self.device" or "cuda" in str(literal(where)))
    if call.name:
        return False
    if call.attr == "cuda":
        return call.receiver.kind != "module"
    return call.attr == "to" and call.receiver.kind != "module" and moves(call.node) and destination(call.node) != "cpu"


def _runs_model(call: SourceCall) -> bool:
    """Return whether a call runs a network, by its name and by how it is called."""
    if call.receiver.kind != "module" or call.receiver.of == "part":
        return False
    path = path_of(call.node.func).rpartition(".")[2]
    if not (call.receiver.evaluated or (MODULE.match(path) and (call.context.no_grad or call.receiver.of))):
        return False
    return bool(call.node.args) and not isinstance(call.node.args[0], ast.Constant)
