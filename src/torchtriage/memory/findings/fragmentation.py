"""Much of the reserved memory lay in gaps at the peak.

Looks like: at the moment with the most allocated bytes, 256 MiB and 15 % of what is reserved are gaps: pieces between
    tensors in use, or waiting for another stream. Whole free segments, and whole pages of expandable ones, are none:
    any tensor can use them, and they are given back before an allocation fails.
Slow because: the card is full earlier than the tensors are: a smaller batch, or an out-of-memory
    error while memory is free.
Cost: none in time. The bytes are those of the moment, out of what was reserved then.
Fix: let segments grow (``expandable_segments:True``), allocate long-lived tensors before short-lived ones, ask for
    fewer different large sizes. Other settings are replayed (MEM050); the best one replayed goes first.
Leave it when: the program is alone on the card and fits.
Source: PyTorch documentation, "CUDA semantics", memory management; a tenth of large segments is
    rounding, so less than 15 % is no finding.
"""

from torchtriage.core.finding import Fix
from torchtriage.memory.findings.base import MemoryCode

CODE = MemoryCode(
    code="MEM049",
    name="fragmentation",
    title="Reserved memory in gaps between tensors",
    needs="a snapshot whose history holds the peak",
)
FIX = Fix(
    "Let segments grow instead of leaving gaps between them; allocate long-lived tensors before"
    " short-lived ones, and large sizes first",
    "PYTORCH_ALLOC_CONF=expandable_segments:True  # before torch 2.9: PYTORCH_CUDA_…",
    "https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",
)
