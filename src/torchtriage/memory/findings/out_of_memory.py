"""An allocation failed: what was asked for, what was free, and why that could not be used.

Looks like: an entry ``oom`` in the history of a snapshot. The segments are drawn as they were then,
    and each free byte has one cause.
Slow because: it is not slow; the program ends, or a handler retries with less.
Cost: none in time. What was free, what the driver had left and who held most are given in bytes.
Fix: where free pieces and the driver's rest together were enough for it and for one more of its size, it is
    fragmentation: let segments grow. Else too much is alive: hold less at this point, starting with the largest holder.
Leave it when: the program looks for the largest batch on purpose, or catches the error.
Source: PyTorch's caching allocator (``DeviceCachingAllocator::malloc``): a block of the request's
    pool and stream, then the driver, then whole free segments are given back, then the error.
"""

from torchtriage.core.finding import Fix
from torchtriage.memory.findings.base import MemoryCode

CODE = MemoryCode(code="MEM048", name="out-of-memory", title="Out of memory", needs="a snapshot with a history")
FIX = Fix(
    "Hold less at this point: a smaller batch, checkpointing, or a lower dtype",
    "x = torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)",
    "https://docs.pytorch.org/docs/stable/torch_cuda_memory.html",
)
