"""Data parallelism with settings that cost.

Looks like: ``DistributedDataParallel(find_unused_parameters=True)``; ``nn.DataParallel``.
Slow because: the search walks the graph and exchanges a map in each step; ``DataParallel`` copies
    the model to all devices in each forward pass and runs them from one process.
Fix: ``find_unused_parameters=False`` (or ``static_graph=True``); ``DistributedDataParallel``.
Quiet when: the setting is absent or comes from elsewhere.
Source: PyTorch documentation of ``DistributedDataParallel``.
"""

from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, keyword, literal

RULE = Rule("COM039", "ddp-suboptimal-flags", "comm", "DDP does work that a flag would avoid", "medium")

FIX = Fix(
    text="Leave find_unused_parameters off unless parameters really go unused.",
    code="model = DistributedDataParallel(model, find_unused_parameters=False)",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
)

PROCESSES = Fix(
    text="Use one process per device.",
    code="""# torchrun --nproc-per-node=gpu train.py
model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[local_rank])""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html",
)

_COPIES = ("torch.nn.DataParallel", "torch.nn.parallel.DataParallel")


def find(module: Module) -> Iterator[Hit]:
    """Yield DDP with the search for unused parameters, and DataParallel."""
    for call in module.calls:
        if call.attr in ("DistributedDataParallel", "DDP", "DDPStrategy") or call.value.ddp:
            if literal(keyword(call.node, "find_unused_parameters")) is True:
                yield Hit(call.node, "every step searches the graph for unused parameters")
        elif call.name in _COPIES and not call.context.aside and not _offers(call):
            message = "DataParallel copies the model in every forward pass"
            yield Hit(call.node, message, fix=PROCESSES)


def _offers(call: SourceCall) -> bool:
    """Return whether this is the code of a ``DataParallel`` option itself, not a use of it."""
    function = call.context.function
    return function is not None and "DataParallel" in function.qualname
