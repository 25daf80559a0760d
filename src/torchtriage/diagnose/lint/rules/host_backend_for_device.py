"""Gradients of device tensors are exchanged through the host, or by a layout that overlaps with nothing.

Looks like: ``init_process_group("gloo")`` in a program that trains on CUDA devices; ``FSDP(model)`` without a policy
    that wraps layers; ``CPUOffload(offload_params=True)``; ``bucket_cap_mb=1``.
Slow because: gloo copies to the host and back; one unit of all parameters is gathered whole before the first layer
    runs; offloaded parameters cross the bus in each step; small buckets cost a collective each.
Fix: ``init_process_group("nccl")``; ``auto_wrap_policy=transformer_auto_wrap_policy``; the default bucket of 25 MB.
Quiet when: the program is for the CPU, the backend is chosen at run time, or layers are wrapped one by one.
Source: PyTorch documentation, "Distributed communication package" and ``FullyShardedDataParallel``.
"""

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, keyword, literal, text_of, unpacks
from torchtriage.diagnose.lint.syntax import argument

RULE = Rule(
    "COM102", "host-backend-for-device", "comm", "Device collectives go through a host backend", "medium", device=True
)

FIX = Fix(
    text="Let the devices communicate directly, layer by layer.",
    code="""torch.distributed.init_process_group("nccl")
model = FSDP(model, auto_wrap_policy=functools.partial(
    transformer_auto_wrap_policy, transformer_layer_cls={Block}))""",
    link="https://docs.pytorch.org/docs/stable/distributed.html#which-backend-to-use",
)

SMALL_MB = 5


def find(module: Module) -> Iterator[Hit]:
    """Yield backends, wrappers and buckets that keep devices from exchanging beside their work."""
    if "istributed" not in module.text and "fsdp" not in module.text:
        return
    for call in module.called("torch.distributed.init_process_group"):
        backend = argument(call.node, "backend", 0)
        if (
            literal(backend) == "gloo"
            and module.names_cuda
            and any(item.value.ddp for item in module.calls)
            and not call.context.seldom
        ):
            yield Hit(call.node, f"gloo communicates through the host: {text_of(call.node)}", call.attr)
    wrapped = [
        call
        for call in module.calls
        if call.name.startswith("torch.distributed.fsdp.") and call.attr in ("FSDP", "FullyShardedDataParallel")
    ]
    for call in wrapped:
        alone = len(wrapped) == 1 and call.context.loop is None and not unpacks(call.node)
        if alone and keyword(call.node, "auto_wrap_policy") is None and "wrap(" not in module.text.replace("FSDP(", ""):
            yield Hit(
                call.node,
                f"all parameters are one unit, gathered at once: {text_of(call.node)}",
                call.attr,
                severity="low",
            )
        offload = keyword(call.node, "cpu_offload")
        if isinstance(offload, ast.Call) and literal(keyword(offload, "offload_params")) is True:
            yield Hit(offload, "parameters come from the host in every step", call.attr, severity="low")
    for call in module.calls:
        size = keyword(call.node, "bucket_cap_mb")
        number = module.constant(size, call.context) if size is not None else None
        if size is not None and isinstance(number, int | float) and number <= SMALL_MB:
            yield Hit(size, f"each {number} MB of gradients become a separate collective", call.attr, severity="low")
