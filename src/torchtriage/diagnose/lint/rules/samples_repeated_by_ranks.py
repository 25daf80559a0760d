"""Every rank, or every worker, goes through all samples.

Looks like: a model in ``DistributedDataParallel`` whose loader has ``shuffle=True`` and no ``DistributedSampler``; an
    ``IterableDataset`` that a loader with workers reads, and that never asks which worker it is.
Slow because: with n ranks an epoch does n times the work of one pass; workers hand out each sample n times.
Fix: ``DistributedSampler``; ``get_worker_info()`` in ``__iter__``.
Quiet when: samples are split elsewhere (by rank, by a library), or batches are drawn without end.
Source: PyTorch documentation of ``torch.utils.data``.
"""

import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, keyword, literal, text_of, unpacks
from torchtriage.diagnose.lint.rules._loaders import dataset, workers
from torchtriage.diagnose.lint.torch_names import LOADERS

RULE = Rule("DAT111", "samples-repeated-by-ranks", "data", "Every rank or worker reads all samples", "medium")

FIX = Fix(
    text="Give each rank and each worker its share.",
    code="""sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, sampler=sampler, num_workers=8)
for epoch in range(n_epochs):
    sampler.set_epoch(epoch)""",
    link="https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler",
)

_SPLIT = re.compile(
    r"Sampler|get_worker_info|\.shard\(|split_dataset_by_node|split_by_|accelerat|[Ff]abric|rank\s*::|::\s*(self\.)?world|"
    r"%\s*(self\.)?world|islice\(.*rank|\.prepare\(|deepspeed|num_replicas|shard"
)
_STREAM = re.compile(r"(^|\.)IterableDataset$")


def find(module: Module) -> Iterator[Hit]:
    """Yield loaders whose samples nobody divides."""
    loaders = module.called(*LOADERS)
    if not loaders or _SPLIT.search(module.text):
        return
    parallel = any(call.value.ddp for call in module.calls)
    for call in loaders:
        known = dataset(module, call)
        stream = known is not None and any(_STREAM.search(base) for base in known.bases)
        if stream and (workers(module, call) or 0) > 1:
            yield Hit(call.node, f"each worker yields every sample of this stream: {text_of(call.node)}")
        elif (
            parallel
            and not stream
            and literal(keyword(call.node, "shuffle")) is True
            and keyword(call.node, "sampler") is None
            and keyword(call.node, "batch_sampler") is None
            and not unpacks(call.node)
        ):
            yield Hit(call.node, f"each rank goes through all samples: {text_of(call.node)}")
