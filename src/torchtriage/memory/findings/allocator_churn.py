"""Segments are taken from the driver and given back, again and again.

Looks like: in one recording four rounds or more of giving segments back and taking others, which together take again as
    much as is reserved at most. The stacks of the calls that gave back tell ``torch.cuda.empty_cache()`` from an
    allocator that makes room because the device is full.
Slow because: giving back waits for the device, taking costs 0.1-10 ms a call; what was given back is asked for again.
Cost: not known in time; a trace shows it (the pattern of the same code).
Fix: no ``empty_cache()`` in the loop; on a full device let segments grow, or hold less at the peak.
Leave it when: it happens between phases that share the device with another process.
Source: ``DeviceCachingAllocator::malloc``, which gives cached segments back before it fails; PyTorch documentation,
    ``torch.cuda.empty_cache``: it does not add memory for PyTorch.
"""

from torchtriage.core.finding import Fix
from torchtriage.memory.findings.base import MemoryCode

CODE = MemoryCode(
    code="MEM027",
    name="allocator-churn",
    title="Segments are reserved and released again and again",
    needs="a snapshot with a history",
)
FIX = Fix(
    "Let segments grow, or hold less at the peak: the device is full and the allocator keeps making room.",
    "PYTORCH_ALLOC_CONF=expandable_segments:True  # before torch 2.9: PYTORCH_CUDA_…",
    "https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",
)
