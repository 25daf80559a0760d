"""Results are copied to the host in every step while it waits.

Looks like: ``.cpu()``, ``.numpy()`` or ``.tolist()`` of a device tensor in a loop over a loader, or
    in a training step.
Slow because: the host waits for all work before the copy and for the copy itself, and launches
    nothing meanwhile.
Fix: keep results on the device and copy them once; or copy to pinned memory without waiting and
    read one step later.
Quiet when: the result must leave in this very step (a control loop, a server), or it is one number.
Source: PyTorch tutorial, "A guide on good usage of non_blocking and pin_memory()".
"""

from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Context, Fix, Hit, Module, Rule, SourceCall, delivers, keyword, text_of

RULE = Rule(
    "CPY006", "d2h-readback-blocking", "copy", "Results copied to the host synchronously", "medium", device=True
)

FIX = Fix(
    text="Gather results on the device and copy them once, or read them a step later.",
    code="""host = torch.empty(out.shape, dtype=out.dtype, pin_memory=True)   # once
host.copy_(out, non_blocking=True)
copied = torch.cuda.Event(); copied.record()
...                                                               # the next step
copied.synchronize(); use(host)""",
    link="https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",
)


def find(module: Module) -> Iterator[Hit]:
    """Yield copies to the host in each step of a loop over batches."""
    for call in module.sent("cpu", "numpy", "tolist", "to"):
        if not _reads_back(call) or not _every_batch(call.context):
            continue
        used = call.user
        if used is not None and used.attr in ("item", "float", "int"):
            yield Hit(call.node, f"one number is read in every step: {text_of(used.node)}", call.attr)
            continue
        yield Hit(
            call.node,
            f"the host waits for this copy in every step: {text_of(call.node)}",
            call.attr,
            severity="note" if delivers(module, call.node, call.context) else None,
        )


def _reads_back(call: SourceCall) -> bool:
    receiver = call.receiver
    if keyword(call.node, "non_blocking") is not None:
        return False
    if receiver.kind == "tensor":
        if receiver.device == 0 or receiver.scalar or receiver.guess or receiver.data:
            return False
        return call.attr != "to" or (call.value.device == 0 and call.value.readback is call.node)
    return receiver.kind == "unknown" and call.attr == "cpu" and not call.node.args


def _every_batch(context: Context) -> bool:
    loop = context.step_loop
    if not context.hot or loop is None:
        return False
    return loop.iterates.kind == "loader" or loop.trains
